"""A process that serves until it is stopped: ``parquetry serve``, and the one that a trainer starts for itself.

It serves the pipeline in a JSON file (``json.dump(pipeline.to_json(), file)``) until SIGTERM or SIGINT. With ``-``, the
pipeline is one line on standard input. The server then ignores SIGINT, and ends when standard input is closed and its
last client has left. This is how a trainer starts its own server.
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ..base.errors import ParquetryError, PipelineError
from ..transport.processes import start_vital
from .endpoints import private_directory

if TYPE_CHECKING:
    from ..pipeline.pipeline import Pipeline
    from .server import ArrowServer

_STOPPING = (signal.SIGTERM, signal.SIGINT)
_OWN_LIMITS = (f"total_memory_bytes={1 << 62}",)  # for a trainer's own server, the pipeline's memory_limit is enough


def serve_trainer() -> int:
    """Serves the trainer that started this process; returns the exit status."""
    try:
        serve_until_stopped("-", None)
    except (ParquetryError, OSError) as error:
        print(f"serve: {error}", file=sys.stderr)
        return 1
    return 0


def serve_until_stopped(
    pipeline: str | Pipeline,
    listen: str | None,
    *,
    announce: Callable[[str], None] = print,
    limits: Sequence[str] = (),
    token_file: str | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT. Call it in the main thread.

    Args:
        pipeline: a pipeline, or the path of a file with its JSON; ``-`` means one line on standard input.
        listen: the address; ``None`` makes a new Unix socket.
        announce: called with ``serving at <address>`` when clients can connect.
        limits: texts such as ``idle_s=600``; see `ClientLimits`.
        token_file: as for `ArrowServer`.

    Raises:
        ParquetryError, OSError: `ArrowServer` could not be created, or the file contains no pipeline.
    """
    logging.basicConfig(format="parquetry server: %(levelname)s %(message)s", level=logging.WARNING)
    with Stop(ignored={signal.SIGINT} if pipeline == "-" else set()) as stop:
        directory = private_directory() if listen is None else None
        try:
            _run(pipeline, listen or f"unix:{directory}/control", announce, token_file, limits, stop)
        finally:
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)


class Stop:
    """Waits for SIGTERM, SIGINT or a call of `set`.

    Python runs the handler of a signal when the main thread returns from its current call. If the signal arrives just
    before that call blocks on a lock, the handler would wait as long as the lock does, so `wait` reads from the socket
    to which Python writes each signal as it arrives.
    """

    def __init__(self, *, ignored: set[signal.Signals]) -> None:
        self._ignored = ignored
        self._here, self._there = socket.socketpair()
        self._there.setblocking(False)

    def __enter__(self) -> Stop:
        self._wakeup = signal.set_wakeup_fd(self._there.fileno(), warn_on_full_buffer=False)
        self._handlers = {number: signal.getsignal(number) for number in _STOPPING}
        for number in _STOPPING:
            signal.signal(number, signal.SIG_IGN if number in self._ignored else _do_nothing)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        signal.set_wakeup_fd(self._wakeup)
        self._here.close()
        self._there.close()

    def set(self) -> None:
        """Ends `wait`. Any thread may call it, also after the end."""
        with suppress(OSError):
            self._there.send(bytes([signal.SIGTERM]))

    def wait(self) -> None:
        """Returns when one of the signals has arrived, or `set` was called."""
        while self._here.recv(1)[0] not in _STOPPING:
            pass


def _do_nothing(*_: object) -> None:
    """Handles a signal, so that its default, which ends the process, does not."""


def _run(
    source: str | Pipeline,
    listen: str,
    announce: Callable[[str], None],
    token_file: str | None,
    limits: Sequence[str],
    stop: Stop,
) -> None:
    from .limits import ClientLimits
    from .server import ArrowServer

    pipeline = _pipeline(source) if isinstance(source, str) else source
    defaults = _OWN_LIMITS if source == "-" else ()
    with ArrowServer(
        pipeline, listen, token_file=token_file, limits=ClientLimits.parse([*defaults, *limits])
    ) as server:
        announce(f"serving at {server.address}")
        sys.stdout.flush()
        if source == "-":
            start_vital(partial(_end_with_stdin, server, stop), name="parquetry-stdin")
        stop.wait()


def _pipeline(path: str) -> Pipeline:
    from ..pipeline.pipeline import Pipeline

    value = _read(path)
    sys.path[:] = [*value.get("sys_path", []), *(path for path in sys.path if path not in value.get("sys_path", []))]
    pipeline = Pipeline.from_json(value.get("pipeline", value))
    if "versions" in value:
        pipeline.require_versions(value["versions"])
    return pipeline


def _read(path: str) -> dict[str, Any]:
    """Reads the pipeline's JSON.

    Raises:
        PipelineError: the file does not contain a pipeline.
    """
    try:
        if path == "-":
            text = sys.stdin.readline()
        else:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        value = json.loads(text)
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"pipeline '{path}': expected the JSON of a pipeline, got {error}. Write it with: "
            "json.dump(pipeline.to_json(), file)."
        ) from error
    if not isinstance(value, dict) or not ({"pipeline", "version"} & value.keys()):
        raise PipelineError(f"pipeline '{path}': expected the JSON object of Pipeline.to_json(), got {text[:80]!r}.")
    return value


def _end_with_stdin(server: ArrowServer, stop: Stop) -> None:
    sys.stdin.read()
    server.drain()
    stop.set()
