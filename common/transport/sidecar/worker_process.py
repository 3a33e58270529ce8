"""A worker process as seen by its reader: how to start one as a new Python process, and the messages to it.

Workers start this way where the reader cannot be forked (see `forked_worker`). Messages are pickled, which is safe
because both ends are our own processes of the same version. A message may have any size and descriptors. The framing is
that of `multiprocessing.connection`.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import subprocess
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, Protocol

from ...base.process.dataclass import dataclass
from ..children import start_child
from ..processes import python_command, start_vital

_WITH_DESCRIPTOR = b"d"
_ALONE = b"-"


class Process(Protocol):
    """The part of the `subprocess.Popen` interface that the owner of a worker uses."""

    pid: int

    def wait(self, timeout: float | None = None) -> int | None:
        """Waits for the end. Returns the exit code, or minus the signal that ended it; ``None`` if unknown.

        Raises:
            subprocess.TimeoutExpired: it still runs after ``timeout`` seconds.
        """

    def kill(self) -> None:
        """Kills the process, unless it has ended."""


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker process and our end of its connection."""

    process: Process
    connection: socket.socket

    def exit_code(self) -> int | None:
        """Returns how the process ended, as `Process.wait` does. Kills it if it does not end by itself."""
        try:
            return self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def end(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


def start_worker(module: str = "worker") -> WorkerProcess:
    """Starts a worker, which waits for its program, or another module of this package that serves a socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        command = python_command(f"parquetry.common.transport.sidecar.{module}", "--fd", str(theirs.fileno()))
        process, _ = start_child(command, hands_over=theirs, stdin=subprocess.DEVNULL)
    except (OSError, RuntimeError):
        ours.close()
        theirs.close()
        raise
    return WorkerProcess(process, ours)


class StreamChannel:
    """One end of a ``SOCK_STREAM`` connection, for one user at a time.

    It uses a copy of the socket's descriptor, because others may close the socket in the meantime.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._messages = Connection(os.dup(connection.fileno()))

    def send(self, message: dict[str, Any], descriptor: int | None = None) -> None:
        """Sends a message.

        Raises:
            OSError: the other side is gone.
        """
        self.send_pickled(pickle.dumps(message, protocol=5), descriptor)

    def send_pickled(self, body: bytes, descriptor: int | None = None) -> None:
        """Sends a message that is already pickled. Raises like `send`."""
        self._messages.send_bytes(_ALONE + body if descriptor is None else _WITH_DESCRIPTOR + body)
        if descriptor is not None:
            send_handle(self._messages, descriptor, None)

    def wait(self, timeout: float) -> bool:
        """Returns whether there is a message or the end of the connection within ``timeout`` seconds."""
        poll = select.poll()
        poll.register(self._messages.fileno(), select.POLLIN)
        return bool(poll.poll(timeout * 1000))

    def receive(self, timeout: float | None = None) -> tuple[dict[str, Any], int | None] | None:
        """Returns the next message and its descriptor; ``None`` if the other side is gone or too slow."""
        try:
            if timeout is not None and not self.wait(timeout):
                return None
            body = self._messages.recv_bytes()
            descriptor = recv_handle(self._messages) if body[:1] == _WITH_DESCRIPTOR else None
        except (EOFError, OSError):
            return None
        return pickle.loads(memoryview(body)[1:]), descriptor

    def close(self) -> None:
        """Closes the socket, and the copy. Idempotent."""
        self._messages.close()
        self._socket.close()


def exit_with(connection: socket.socket) -> None:
    """Ends this process as soon as the other side of the connection is gone."""

    def watch() -> None:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLRDHUP)
        poll.poll()
        os._exit(0)

    start_vital(watch, name="parquetry-watch")
