"""Forks workers from a template: a copy of the reader, made right after it has imported what workers need.

A fork takes milliseconds. A new Python process repeats all imports, on processors that the reader needs. The reader
cannot be forked once it has threads, but the template can, whenever a worker has died. The template must be forked from
a reader with a single thread and no user functions loaded. Its workers hold their own connection and nothing else of
the reader, so they behave like new processes. The template reaps them. It ends with the reader, and they end with it.
"""

from __future__ import annotations

import argparse
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from subprocess import TimeoutExpired
from typing import Any, NoReturn

from ...base.errors import SidecarError
from ...base.platform.processes import end_of, kill, open_descriptors, rename_process, wait_readable
from ...base.process.exit_watch import end_with_parent
from .worker import work
from .worker_process import Process, StreamChannel, WorkerProcess, start_worker

_LOGGER = logging.getLogger(__name__)
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.05
_ANSWER_S = 10.0
_STANDARD_STREAMS = 3
TEMPLATE_NAME = "parquetry-fork"
"""The name of a template in `ps` and `top`."""


def can_fork() -> bool:
    """Returns whether this process can be forked safely: on Linux, as long as it has no other Python thread.

    Importing numpy and pyarrow starts threads of OpenBLAS and jemalloc. Those libraries handle forks themselves.
    """
    try:
        os.close(end_of(os.getpid()))  # used to wait for workers
    except OSError:
        return False
    return sys.platform == "linux" and threading.active_count() == 1


class Template:
    """The process from which workers are forked, as seen by its reader. Thread-safe.

    If it is gone or does not answer, another one is started, and its workers are replaced. Until that one has finished
    its imports, workers are started as new processes.

    Args:
        in_child: called first in the template, to close resources of this process.
    """

    def __init__(self, *, in_child: Callable[[], None]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pid = _fork()
        if pid == 0:
            in_child()
            ours.close()
            _serve(theirs)
        theirs.close()
        self._process: Process = ForkedProcess(pid)
        self._channel = StreamChannel(ours)
        self._lock = threading.Lock()
        self._generation = 0  # how many templates have taken over so far
        self._gone = False
        self._next: tuple[WorkerProcess, StreamChannel] | None = None  # the one that will take over
        self._closed = False

    def start(self) -> WorkerProcess:
        """Forks a worker, which waits for its program. Call it in this process only."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._lock:
                pid = self._ask({"fork": True}, theirs.fileno())
                generation = self._generation
        except SidecarError as error:
            ours.close()
            _LOGGER.warning("%s; starting a worker without it.", error)
            return start_worker()
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return WorkerProcess(TemplatesWorker(self, pid, generation), ours)

    def exit_code(self, pid: int, generation: int) -> int | None:
        """Returns the exit code of a worker that this template forked, or ``None`` if unknown. Call once per worker."""
        with self._lock, suppress(SidecarError):
            self._take_over()
            if generation == self._generation:
                code: int | None = self._ask({"ended": pid})
                return code
        return None

    def _ask(self, message: dict[str, Any], descriptor: int | None = None) -> Any:
        """Returns the template's answer. Call it with the lock held.

        Raises:
            SidecarError: the template is gone, or does not answer.
            OSError: it could not fork.
        """
        self._take_over()
        received = None
        if not self._gone:
            with suppress(OSError):
                self._channel.send(message, descriptor)
                received = self._channel.receive(timeout=_ANSWER_S)
            if received is None:
                self._drop()
        if received is None:
            if self._next is None and not self._closed:
                with suppress(OSError):  # too many processes; a later call tries again
                    started = start_worker("forked_worker")
                    self._next = started, StreamChannel(started.connection)
            raise SidecarError("the process that decode workers are forked from is gone")
        answer = received[0]["answer"]
        if isinstance(answer, OSError):
            raise answer
        return answer

    def _take_over(self) -> None:
        """Replaces a template that is gone with the next one, once that is ready."""
        if not self._gone or self._next is None:
            return
        started, channel = self._next
        if not channel.wait(0):
            return
        self._next = None
        if channel.receive() is None:
            channel.close()
            started.end()
            return
        self._process, self._channel = started.process, channel
        self._generation += 1
        self._gone = False

    def close(self) -> None:
        """Ends the template and its workers. Idempotent."""
        with self._lock:
            self._closed = True
            self._drop()
            if self._next is not None:
                started, channel = self._next
                channel.close()
                started.end()
                self._next = None

    def _drop(self) -> None:
        if not self._gone:
            self._gone = True
            self._channel.close()
            self._process.kill()
            self._process.wait()


def _fork() -> int:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # otherwise the child would write it again
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 also counts threads of libraries
        return os.fork()


def _serve(connection: socket.socket, *, takes_over: bool = False) -> NoReturn:
    """Runs the template: forks workers on request and reaps them, until the reader is gone."""
    end_with_parent()
    _close_all_but(connection)
    reader = rename_process(TEMPLATE_NAME)
    ended: dict[int, int] = {}  # exit codes that have not been requested yet
    ended_before = takes_over

    def reap(*_: object) -> None:
        nonlocal ended_before
        with suppress(ChildProcessError):
            while (exit_status := os.waitpid(-1, os.WNOHANG))[0]:
                ended_before = True
                ended[exit_status[0]] = os.waitstatus_to_exitcode(exit_status[1])

    before = signal.signal(signal.SIGCHLD, reap)
    channel = StreamChannel(connection)
    if takes_over:
        with suppress(OSError):  # the reader ended during the imports
            channel.send({"answer": "ready"})
    while (received := channel.receive()) is not None:
        message, descriptor = received
        answer: int | OSError | None = None
        if "fork" in message:
            assert descriptor is not None
            if ended_before:
                _import_late()
            try:
                answer = _fork()
            except OSError as error:  # too many processes
                answer = error
            if answer == 0:
                signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)
                rename_process(reader)
                channel.close()
                _begin(socket.socket(fileno=descriptor))
            os.close(descriptor)
        else:
            reap()
            answer = ended.pop(message["ended"], None)
        with suppress(OSError):  # the reader ended, so there is no next message
            channel.send({"answer": answer})
    os._exit(0)


def _import_late() -> None:
    """Imports what workers would import at their first image, so that a replacement starts at once."""
    with suppress(ImportError):
        from PIL import Image

        Image.preinit()


def _close_all_but(connection: socket.socket) -> None:
    descriptors = open_descriptors()
    if descriptors is None:
        os.closerange(_STANDARD_STREAMS, connection.fileno())
        os.closerange(connection.fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        return
    for descriptor in descriptors:
        if descriptor >= _STANDARD_STREAMS and descriptor != connection.fileno():
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(descriptor)


def _begin(connection: socket.socket) -> NoReturn:
    """Runs a new worker: does what a new process would do first, then the work, then exits."""
    _close_all_but(connection)
    if "numpy.random" in sys.modules:
        # Otherwise all workers would draw the same numbers. Python's `random` reseeds itself.
        sys.modules["numpy.random"].seed()
    work(connection)
    sys.exit()


class TemplatesWorker:
    """A child of the template. Thread-safe. Its PID is never used after its exit code is known."""

    def __init__(self, template: Template, pid: int, generation: int) -> None:
        self.pid = pid
        self._template = template
        self._generation = generation
        self._asked = False
        self._code: int | None = None
        self._lock = threading.Lock()
        try:
            self._ended: int | None = end_of(pid)
        except ProcessLookupError:
            self._ended = None
        else:
            weakref.finalize(self, os.close, self._ended).atexit = False

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits for the end. Returns the exit code, or minus the signal that ended it; ``None`` if unknown.

        Raises:
            TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        if self._ended is not None and not wait_readable(self._ended, timeout):
            assert timeout is not None
            raise TimeoutExpired(f"worker {self.pid}", timeout)
        with self._lock:
            if not self._asked:
                self._asked = True
                self._code = self._template.exit_code(self.pid, self._generation)
            return self._code

    def kill(self) -> None:
        """Kills the process, unless it has ended."""
        if self._ended is not None:
            kill(self._ended)


class ForkedProcess:
    """A child of this process. Thread-safe. Its PID is never used after it is reaped."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Returns the exit code, or minus the signal that ended it; ``None`` while it runs."""
        with self._lock:
            if self._code is None:
                self._code = self._reap()
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end, and returns what `poll` returns.

        Raises:
            TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_PAUSE_S
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                assert timeout is not None
                raise TimeoutExpired(f"worker {self.pid}", timeout)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        return code

    def kill(self) -> None:
        """Kills the process, unless it has been reaped."""
        with self._lock:
            if self._code is None:
                self._code = self._reap()
            if self._code is None:
                with suppress(ProcessLookupError):  # it has just ended, and needs no reaping
                    os.kill(self.pid, signal.SIGKILL)

    def _reap(self) -> int | None:
        try:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return 0  # the trainer was started with SIGCHLD ignored, so the exit code is lost
        return os.waitstatus_to_exitcode(status) if ended else None


def main() -> None:
    """Entry point of a template that replaces one that is gone."""
    parser = argparse.ArgumentParser(description="template for the decode workers of parquetry's sidecar")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the reader's socket")
    connection = socket.socket(fileno=parser.parse_args().fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the trainer
    _import_late()
    _serve(connection, takes_over=True)


if __name__ == "__main__":
    main()
