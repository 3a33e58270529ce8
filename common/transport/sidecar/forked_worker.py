"""Workers that are forked from a template: a copy of the reader, made when it has imported what workers need and has
done nothing else.

A fork costs milliseconds where a new Python costs its imports again, on processors that the reader needs for its own.
The reader cannot be forked once it has threads; the template can, whenever a worker died. In: a reader with one thread
that has loaded no user function. Out: workers that hold their own connection and nothing else of the reader, so that
they behave like workers that were started by themselves. The template reaps them, and ends with the reader.
"""

from __future__ import annotations

import logging
import os
import select
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

from ...errors import SidecarError
from .stream import StreamChannel
from .worker import work
from .worker_process import WorkerProcess, start_worker

_LOGGER = logging.getLogger(__name__)
_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.05
_ANSWER_S = 10.0
_STANDARD_STREAMS = 3
TEMPLATE_NAME = "parquetry-fork"
"""How `ps` and `top` show a template."""


def can_fork() -> bool:
    """Whether this process may be copied: on Linux, while no other thread of Python's could be in the middle of
    something.

    The threads that numpy and pyarrow start when they are imported belong to OpenBLAS and jemalloc, which care for
    forks themselves.
    """
    try:
        os.close(os.pidfd_open(os.getpid()))  # by which workers are waited for
    except (AttributeError, OSError):
        return False
    return sys.platform == "linux" and threading.active_count() == 1


class Template:
    """The process that workers are forked from, as its reader sees it. Thread-safe.

    One that is gone, or does not answer, is done without: workers are then started by themselves.

    Args:
        in_child: called in the template first, to close what is this process's alone.
    """

    def __init__(self, *, in_child: Callable[[], None]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pid = _fork()
        if pid == 0:
            in_child()
            ours.close()
            _serve(theirs)
        theirs.close()
        self._process = ForkedProcess(pid)
        self._channel = StreamChannel(ours)
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> WorkerProcess:
        """Forks a worker, which waits for its program; in this process only."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            pid = self.ask({"fork": True}, theirs.fileno())
        except SidecarError as error:
            ours.close()
            _LOGGER.warning("%s; starting a worker without it.", error)
            return start_worker()
        finally:
            theirs.close()
        return WorkerProcess(TemplatesWorker(self, pid), ours)

    def ask(self, message: dict[str, Any], descriptor: int | None = None) -> Any:
        """What the template answers.

        Raises:
            SidecarError: it is gone, or silent.
        """
        with self._lock:
            received = None
            if not self._closed:
                with suppress(OSError):
                    self._channel.send(message, descriptor)
                    received = self._channel.receive(timeout=_ANSWER_S)
                if received is None:
                    self._close()
        if received is None:
            raise SidecarError("the process that decode workers are forked from is gone")
        return received[0]["answer"]

    def close(self) -> None:
        """Ends the template; its workers go on. Idempotent."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._channel.close()
            self._process.kill()
            self._process.wait()


def _fork() -> int:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # else the child would write it again
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts the threads of libraries as well
        return os.fork()


def _serve(connection: socket.socket) -> NoReturn:
    """The template: forks what it is asked for, and reaps it, until the reader is gone."""
    _close_all_but(connection)
    reader = _rename(TEMPLATE_NAME)
    ended: dict[int, int] = {}  # exit codes that nobody asked for yet
    ended_before = False

    def reap(*_: object) -> None:
        nonlocal ended_before
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                ended_before = True
                ended[found[0]] = os.waitstatus_to_exitcode(found[1])

    before = signal.signal(signal.SIGCHLD, reap)
    channel = StreamChannel(connection)
    while (received := channel.receive()) is not None:
        message, descriptor = received
        answer = None
        if "fork" in message:
            assert descriptor is not None
            if ended_before:
                _import_late()
            answer = _fork()
            if answer == 0:
                signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)
                _rename(reader)
                channel.close()
                _begin(socket.socket(fileno=descriptor))
            os.close(descriptor)
        else:
            reap()
            answer = ended.pop(message["ended"], None)
        with suppress(OSError):  # the reader went; the next message will not come
            channel.send({"answer": answer})
    os._exit(0)


def _import_late() -> None:
    """Imports what workers import at their first image: one that replaces another is to begin at once."""
    with suppress(ImportError):
        from PIL import Image

        Image.preinit()


def _rename(name: str) -> str:
    """Gives this process another name in `ps` and `top`; returns the one before."""
    try:
        with open("/proc/self/comm", "r+") as file:
            before = file.read().rstrip("\n")
            file.write(name)
    except OSError:
        return name
    return before


def _close_all_but(connection: socket.socket) -> None:
    for text in os.listdir("/proc/self/fd"):
        descriptor = int(text)
        if descriptor >= _STANDARD_STREAMS and descriptor != connection.fileno():
            with suppress(OSError):  # the listing's own
                os.close(descriptor)


def _begin(connection: socket.socket) -> NoReturn:
    """In a new worker: what a process of its own would begin with, then its work, then the end."""
    _close_all_but(connection)
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # else all workers would draw the same; Python's `random` does it by itself
    work(connection)
    sys.exit()


class TemplatesWorker:
    """A child of the template, as its owner needs it. Thread-safe; its number is never used once it is known."""

    def __init__(self, template: Template, pid: int) -> None:
        self.pid = pid
        self._template = template
        self._code: int | None = None
        self._lock = threading.Lock()
        try:
            self._ended: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._ended = None
        else:
            weakref.finalize(self, os.close, self._ended).atexit = False

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, or minus the signal that ended it, once it has ended; 0 if nobody knows.

        Raises:
            TimeoutExpired: it still runs after ``timeout`` seconds.
        """
        if self._ended is not None:
            poll = select.poll()
            poll.register(self._ended, select.POLLIN)
            if not poll.poll(None if timeout is None else timeout * 1000):
                assert timeout is not None
                raise TimeoutExpired(f"worker {self.pid}", timeout)
        with self._lock:
            if self._code is None:
                try:
                    self._code = self._template.ask({"ended": self.pid}) or 0
                except SidecarError:
                    self._code = 0
            return self._code

    def kill(self) -> None:
        """Ends it at once; nothing if it has ended."""
        if self._ended is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._ended, signal.SIGKILL)


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
