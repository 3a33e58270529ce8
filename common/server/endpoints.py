"""`StreamEndpoint`: a Unix socket for readers that cannot send requests, such as tensorflow-io's.

Each connection immediately receives the next epoch. The first one may start in the middle, at a saved state. An
endpoint belongs to one client and lasts until that client closes its control connection.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace

from ..plan.order.cursor import START, Cursor
from ..transport.served.address import Endpoint
from .listener import Listener

_LONGEST_DIRECTORY = 90


class StreamEndpoint:
    """Sends one epoch to each connection.

    Args:
        send: sends the stream that starts at a cursor over a connection.
        most: maximum number of concurrent readers.
    """

    def __init__(self, send: Callable[[socket.socket, Cursor], None], *, most: int = 256) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._next = Cursor()
        self._latest: Cursor | None = None
        self._directory = private_directory()
        endpoint = Endpoint(kind="unix", path=os.path.join(self._directory, "stream"))
        self._listener = Listener(endpoint, self._handle, most=most)

    @property
    def endpoint(self) -> Endpoint:
        """The address it listens on."""
        return self._listener.endpoint

    @property
    def latest(self) -> Cursor | None:
        """The position at which the latest stream started; ``None`` before the first, and before one that was moved."""
        with self._lock:
            return self._latest

    def start_next_at(self, cursor: Cursor) -> None:
        """Starts the next stream at ``cursor``; later connections get the epochs after it."""
        with self._lock:
            self._next, self._latest = cursor, None

    def close(self) -> None:
        """Stops accepting readers; current readers can finish. Idempotent."""
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def stop(self) -> None:
        """Stops accepting readers and disconnects the current ones. Idempotent."""
        self._listener.stop()
        self.close()

    def wait(self) -> None:
        """Waits until all readers have finished."""
        self._listener.wait()

    def _handle(self, connection: socket.socket) -> None:
        with self._lock:
            cursor = self._latest = self._next
            self._next = replace(cursor, iteration=cursor.iteration + 1, origin=START, start=0)
        self._send(connection, cursor)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)


def private_directory() -> str:
    """Creates a directory that only this user can access, with a path short enough for Unix sockets."""
    result = tempfile.mkdtemp(prefix="parquetry-")
    if len(result) > _LONGEST_DIRECTORY:
        os.rmdir(result)
        result = tempfile.mkdtemp(prefix="parquetry-", dir="/tmp")  # TMPDIR is too deep for a socket
    return result
