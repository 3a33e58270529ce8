"""Workers that are forked from a template: a copy of the reader, made when it has imported what workers need and has
done nothing else.

A fork costs milliseconds where a new Python costs its imports again, on processors that the reader needs for its own.
The reader cannot be forked once it has threads; the template can, whenever a worker died. In: a reader with one thread
that has loaded no user function. Out: workers that hold their own connection and nothing else of the reader, so that
they behave like workers that were started by themselves. The template reaps them, and ends with the reader.
"""

from __future__ import annotations

import argparse
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
from .worker_process import Process, WorkerProcess, start_worker

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

    If it is gone, or does not answer, another is started. Until that one has imported what workers need, workers are
    started by themselves.

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
        self._process: Process = ForkedProcess(pid)
        self._channel = StreamChannel(ours)
        self._lock = threading.Lock()
        self._generation = 0  # how many took over from the first one
        self._gone = False
        self._next: tuple[WorkerProcess, StreamChannel] | None = None  # which is going to take over
        self._closed = False

    def start(self) -> WorkerProcess:
        """Forks a worker, which waits for its program; in this process only."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._lock:
                pid = self._ask({"fork": True}, theirs.fileno())
                generation = self._generation
        except SidecarError as error:
            ours.close()
            _LOGGER.warning("%s; starting a worker without it.", error)
            return start_worker()
        finally:
            theirs.close()
        return WorkerProcess(TemplatesWorker(self, pid, generation), ours)

    def exit_code(self, pid: int, generation: int) -> int | None:
        """How a worker ended that it has forked, asked for once; ``None`` if nobody knows."""
        with self._lock, suppress(SidecarError):
            self._take_over()
            if generation == self._generation:
                code: int | None = self._ask({"ended": pid})
                return code
        return None

    def _ask(self, message: dict[str, Any], descriptor: int | None = None) -> Any:
        """What the template answers; to be called with the lock held.

        Raises:
            SidecarError: it is gone, or silent.
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
                with suppress(OSError):  # too many processes: perhaps there is room for one later
                    started = start_worker("forked_worker")
                    self._next = started, StreamChannel(started.connection)
            raise SidecarError("the process that decode workers are forked from is gone")
        return received[0]["answer"]

    def _take_over(self) -> None:
        """Lets the next template take the place of one that is gone, once it is ready."""
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
        """Ends the template; its workers go on. Idempotent."""
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
            stream.flush()  # else the child would write it again
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 counts the threads of libraries as well
        return os.fork()


def _serve(connection: socket.socket, *, takes_over: bool = False) -> NoReturn:
    """The template: forks what it is asked for, and reaps it, until the reader is gone."""
    _close_all_but(connection)
    reader = _rename(TEMPLATE_NAME)
    ended: dict[int, int] = {}  # exit codes that nobody asked for yet
    ended_before = takes_over

    def reap(*_: object) -> None:
        nonlocal ended_before
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                ended_before = True
                ended[found[0]] = os.waitstatus_to_exitcode(found[1])

    before = signal.signal(signal.SIGCHLD, reap)
    channel = StreamChannel(connection)
    if takes_over:
        with suppress(OSError):  # the reader went while this process imported
            channel.send({"answer": "ready"})
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

    def __init__(self, template: Template, pid: int, generation: int) -> None:
        self.pid = pid
        self._template = template
        self._generation = generation
        self._asked = False
        self._code: int | None = None
        self._lock = threading.Lock()
        try:
            self._ended: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._ended = None
        else:
            weakref.finalize(self, os.close, self._ended).atexit = False

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit code, or minus the signal that ended it, once it has ended; ``None`` if nobody knows.

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
            if not self._asked:
                self._asked = True
                self._code = self._template.exit_code(self.pid, self._generation)
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


def main() -> None:
    """Entry point of a template that takes over from one that is gone."""
    parser = argparse.ArgumentParser(description="what decode workers of parquetry's sidecar are forked from")
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the reader's socket")
    connection = socket.socket(fileno=parser.parse_args().fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's
    _import_late()
    _serve(connection, takes_over=True)


if __name__ == "__main__":
    main()
