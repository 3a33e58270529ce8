"""Unix sockets for readers that cannot send requests, such as tensorflow-io's.

Each connection immediately receives the next epoch. The first one may start in the middle, at a saved state.
`StreamEndpoint` belongs to one client of the server and lasts until that client closes its control connection.
`ReaderEndpoint` is what that client holds. The server opens the socket. If it requires a token, the client's process
opens the socket instead and forwards the bytes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..plan.order.cursor import START, Cursor
from ..transport.served.address import Endpoint, ServerAddress, parse_endpoint
from ..transport.served.client import Connection, open_stream, request_of
from ..transport.served.wire import StreamRequest, cursor_of, cursor_to_json
from .listener import Listener

if TYPE_CHECKING:
    from ..stages.base import Stage

_PIECE_BYTES = 1 << 20
_LONGEST_DIRECTORY = 90
_MOST_READERS = 256


class StreamEndpoint:
    """Sends one epoch to each connection.

    Args:
        send: sends the stream that starts at a cursor over a connection.
    """

    def __init__(self, send: Callable[[socket.socket, Cursor], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._next = Cursor()
        self._latest: Cursor | None = None
        self._directory = private_directory()
        endpoint = Endpoint(kind="unix", path=os.path.join(self._directory, "stream"))
        self._listener = Listener(endpoint, self._handle, most=_MOST_READERS)

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


class ReaderEndpoint:
    """An endpoint of a server; its streams have the layout ``flat``.

    Raises:
        SidecarError: the server cannot be reached.
    """

    def __init__(self, address: ServerAddress, stages: Sequence[Stage]) -> None:
        self._address = address
        self._stages = tuple(stages)
        self._connection = Connection(address)
        self._relay: StreamEndpoint | None = None
        try:
            request = {"do": "endpoint", "layout": "cells", "strict_nulls": True, **request_of(address, stages)}
            url = self._connection.ask(request)["endpoint"]
            if url is None:
                self._relay = StreamEndpoint(self._pass_on)
            self.endpoint: Endpoint = parse_endpoint(url) if self._relay is None else self._relay.endpoint
        except BaseException:
            self.close()
            raise

    @property
    def latest(self) -> Cursor | None:
        """The position at which the latest stream started; ``None`` before the first, and before one that was moved."""
        if self._relay is not None:
            return self._relay.latest
        latest = self._connection.ask({"do": "progress"})["latest"]
        return None if latest is None else cursor_of(latest)

    def start_next_at(self, cursor: Cursor) -> None:
        """Starts the next stream at ``cursor``; later ones are the epochs after it."""
        if self._relay is not None:
            self._relay.start_next_at(cursor)
        else:
            self._connection.ask({"do": "start_next_at", "numbers": cursor_to_json(cursor)})

    def close(self) -> None:
        """Accepts no new streams; current ones can finish. Idempotent."""
        self._connection.close()
        if self._relay is not None:
            self._relay.close()

    def _pass_on(self, reader: socket.socket, cursor: Cursor) -> None:
        """Copies a stream from the server to a local reader."""
        stream = StreamRequest(cursor=cursor, shared=self._address.shared, layout="cells")
        server = open_stream(self._address, self._stages, stream)
        buffer = memoryview(bytearray(_PIECE_BYTES))
        try:
            with contextlib.suppress(OSError):  # one side left; the other sees the end of the stream
                while count := server.socket.recv_into(buffer):
                    reader.sendall(buffer[:count])
        finally:
            server.close()
