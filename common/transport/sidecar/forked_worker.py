"""Workers that begin as copies of the reader, made when it has imported what they need and done nothing else.

A fork costs milliseconds where a new Python costs its imports again, on processors that the reader needs for its own.
In: a reader with one thread that has loaded no user function. Out: children of the reader that hold their own
connection and nothing else of it, so that they behave like workers that were started by themselves.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from subprocess import TimeoutExpired
from typing import NoReturn

from .worker import work
from .worker_process import WorkerProcess

_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.05
_STANDARD_STREAMS = 3


def can_fork() -> bool:
    """Whether this process may be copied: on Linux, while no other thread of Python's could be in the middle of
    something.

    The threads that numpy and pyarrow start when they are imported belong to OpenBLAS and jemalloc, which care for
    forks themselves.
    """
    return sys.platform == "linux" and threading.active_count() == 1


def fork_workers(count: int, *, in_worker: Callable[[], None]) -> list[WorkerProcess]:
    """Forks workers; each waits for its program. Returns in this process only.

    Args:
        in_worker: called in each of them first, to close what is this process's alone.
    """
    workers: list[WorkerProcess] = []
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # else each of them would write it again
    for _ in range(count):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts the threads of libraries as well
            pid = os.fork()
        if pid == 0:
            in_worker()
            for worker in workers:
                worker.connection.close()
            ours.close()
            _begin(theirs)
        theirs.close()
        workers.append(WorkerProcess(ForkedProcess(pid), ours))
    return workers


def _begin(connection: socket.socket) -> NoReturn:
    """In a new worker: what a process of its own would begin with, then its work, then the end."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor >= _STANDARD_STREAMS and descriptor != connection.fileno():
            with suppress(OSError):  # the listing's own
                os.close(descriptor)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # else all workers would draw the same; Python's `random` does it by itself
    work(connection)
    sys.exit()


class ForkedProcess:
    """A child of this process, as its owner needs it. Thread-safe; its number is never used after it is reaped."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, or minus the signal that ended it; ``None`` while it runs."""
        with self._lock:
            if self._code is None:
                self._code = self._reap()
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """As `poll`, once it has ended.

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
        """Ends it at once; nothing if it has been reaped."""
        with self._lock:
            if self._code is None:
                self._code = self._reap()
            if self._code is None:
                with suppress(ProcessLookupError):  # it ended just now, and nobody had to reap it
                    os.kill(self.pid, signal.SIGKILL)

    def _reap(self) -> int | None:
        try:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return 0  # whoever started the trainer ignores SIGCHLD, and so do we: it is gone, and nobody knows how
        return os.waitstatus_to_exitcode(status) if ended else None
