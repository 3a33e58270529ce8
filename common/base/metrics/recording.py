"""`trace`: records what loaders do while a block runs, by thread and process, as a file for Perfetto or Chrome."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..errors import PipelineError
from . import tracing
from .counters import all_counters, longest_path_bytes
from .tracing import ENVIRONMENT

_tracing: int | None = None  # the process that runs a trace; differs in a forked child


@contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Records what all loaders of this process do in the block, in all of their processes. The file opens in
    https://ui.perfetto.dev and ``chrome://tracing`` and shows loads, decodes, transforms, hand-overs, and your waits.

    >>> with parquetry.trace("epoch.json"):  # doctest: +SKIP
    ...     for batch in loader: train(batch)

    For a TensorFlow iterator that began before the block, the trace holds only the work that Python does for it, so
    start your loop inside the block. Processes that you start in the block, such as a loader's workers, find the trace
    through the environment variable ``PARQUETRY_TRACE_SPOOL``, and their loaders are traced too. To keep a process out,
    start it without the variable, or use another `trace` in it.

    Args:
        path: the file to write when the block ends, even if it ends with an error.

    Raises:
        PipelineError: another trace is running, or the path of the temporary directory is too long.
        OSError: the file cannot be written. This is raised at the beginning.
    """
    global _tracing
    if _tracing == os.getpid():
        raise PipelineError("trace: expected no other trace in this process, got one that is running. End it first.")
    with open(os.fspath(path), "w", encoding="utf-8") as target:  # a number would be a descriptor
        above = os.environ.get(ENVIRONMENT)  # set if a traced process started this one
        descriptor, spool = tempfile.mkstemp(prefix="parquetry-trace-")
        os.close(descriptor)
        try:
            if len(os.fsencode(spool)) > longest_path_bytes():
                raise PipelineError(
                    f"trace: expected a temporary file with a path of at most {longest_path_bytes()} bytes, got "
                    f"{spool}. Set TMPDIR to a shorter directory."
                )
            _follow(spool)
            _tracing = os.getpid()
            try:
                yield
            finally:
                _tracing = None
                _follow(above)
                json.dump({"traceEvents": list(_events(spool)), "displayTimeUnit": "ms"}, target)
        finally:
            os.unlink(spool)
            tracing.close()  # now nobody can open it again


def _follow(spool: str | None) -> None:
    if spool is None:
        os.environ.pop(ENVIRONMENT, None)
    else:
        os.environ[ENVIRONMENT] = spool  # the C++ op also reads it
    for counters in all_counters():
        counters.trace(spool)


def _events(spool: str) -> Iterator[dict[str, Any]]:
    """Yields the events, and name records for their threads and processes."""
    named: set[tuple[int, int]] = set()
    with open(spool, encoding="utf-8") as lines:
        for line in lines:
            with suppress(ValueError):  # a line is incomplete if the disk was full
                event = json.loads(line)
                process, thread, name = event["pid"], event["tid"], event.pop("args")["thread"]
                if (process, 0) not in named:
                    role = "training process" if process == os.getpid() else "loader process"
                    yield {"name": "process_name", "ph": "M", "pid": process, "args": {"name": role}}
                if (process, thread) not in named:
                    yield {"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
                named |= {(process, 0), (process, thread)}
                yield event
