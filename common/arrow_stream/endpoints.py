"""`StreamEndpoint`: a Unix socket for readers that cannot say what they want, such as tensorflow-io's.

Every connection to it is sent the next epoch, at once. Where the first one begins, a state may say. It belongs to one
client, who holds a control connection open for as long as it wants it.
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

from ..order.cursor import START, Cursor
from ..transport.served.address import Endpoint
from .listener import Listener

_LONGEST_DIRECTORY = 90


class StreamEndpoint:
    """Hands out epochs by connection.

    Args:
        send: sends the stream from a cursor over a connection.
        most: readers at once.
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
        """Where it listens."""
        return self._listener.endpoint

    @property
    def latest(self) -> Cursor | None:
        """Where the latest stream began; ``None`` before the first."""
        with self._lock:
            return self._latest

    def start_next_at(self, cursor: Cursor) -> None:
        """The next connection begins there, and the ones after it are the epochs after it."""
        with self._lock:
            self._next = cursor

    def close(self) -> None:
        """Accepts no more readers; those that are reading go on to the end. Idempotent."""
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def stop(self) -> None:
        """Ends its readers too. Idempotent."""
        self._listener.stop()
        self.close()

    def wait(self) -> None:
        """Waits until all readers are done."""
        self._listener.wait()

    def _handle(self, connection: socket.socket) -> None:
        with self._lock:
            cursor = self._latest = self._next
            self._next = replace(cursor, iteration=cursor.iteration + 1, origin=START, start=0)
        self._send(connection, cursor)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)


def private_directory() -> str:
    """A new directory that only this user may look into, with a path short enough for sockets."""
    result = tempfile.mkdtemp(prefix="parquetry-")
    if len(result) > _LONGEST_DIRECTORY:
        os.rmdir(result)
        result = tempfile.mkdtemp(prefix="parquetry-", dir="/tmp")  # TMPDIR is too deep for a socket
    return result
