"""`trace`: what loaders did while a block ran, by thread and process, as a file for Perfetto or Chrome."""

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

_tracing: int | None = None  # the process that a trace runs in, which a forked child is not


@contextmanager
def trace(path: str | os.PathLike[str]) -> Iterator[None]:
    """Writes what all loaders of this process do meanwhile, in all of their processes, as a file that
    https://ui.perfetto.dev and ``chrome://tracing`` show: loads, decodes, transforms, hand-overs, and your waits.

    >>> with parquetry.trace("epoch.json"):  # doctest: +SKIP
    ...     for batch in loader: train(batch)

    A TensorFlow iterator that began before the block is in it with what Python does for it only: begin your loop inside
    the block. Processes that you start inside the block find the trace by the variable ``PARQUETRY_TRACE_SPOOL`` in
    their environment, as a loader's workers do, and their loaders are in it, too. Start a process without the variable
    to keep it out. A `trace` of its own takes it out as well.

    Args:
        path: the file to write, when the block ends; an error in the block does not keep it from that.

    Raises:
        PipelineError: another trace runs, or the system's directory for temporary files has too long a name.
        OSError: the file cannot be written, which is told at the beginning.
    """
    global _tracing
    if _tracing == os.getpid():
        raise PipelineError("trace: expected no other trace in this process, got one that runs. End it first.")
    with open(path, "w", encoding="utf-8") as target:
        above = os.environ.get(ENVIRONMENT)  # of a process that started this one
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
        os.environ[ENVIRONMENT] = spool  # the C++ op reads it as well
    for counters in all_counters():
        counters.trace(spool)


def _events(spool: str) -> Iterator[dict[str, Any]]:
    """The events, and names for the threads and processes in them."""
    named: set[tuple[int, int]] = set()
    with open(spool, encoding="utf-8") as lines:
        for line in lines:
            with suppress(ValueError):  # the disk was full
                event = json.loads(line)
                process, thread, name = event["pid"], event["tid"], event.pop("args")["thread"]
                if (process, 0) not in named:
                    role = "training process" if process == os.getpid() else "loader process"
                    yield {"name": "process_name", "ph": "M", "pid": process, "args": {"name": role}}
                if (process, thread) not in named:
                    yield {"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}
                named |= {(process, 0), (process, thread)}
                yield event
