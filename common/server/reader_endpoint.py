"""`ReaderEndpoint`: the socket from which a reader that cannot send requests, such as tensorflow-io's, gets its epochs.

The server opens the socket. If the server requires a token, this process opens it instead and forwards the bytes.
Either way, the socket lasts as long as this object's connection to the server.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..plan.order.cursor import Cursor
from ..transport.served.address import Endpoint, ServerAddress, parse_endpoint
from ..transport.served.client import Connection, open_stream, request_of
from ..transport.served.wire import cursor_of, cursor_to_json
from .endpoints import StreamEndpoint

if TYPE_CHECKING:
    from ..stages.base import Stage

_PIECE_BYTES = 1 << 20


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
        server = open_stream(self._address, self._stages, cursor, layout="cells", strict_nulls=True)
        buffer = memoryview(bytearray(_PIECE_BYTES))
        try:
            with contextlib.suppress(OSError):  # one side left; the other sees the end of the stream
                while count := server.socket.recv_into(buffer):
                    reader.sendall(buffer[:count])
        finally:
            server.close()
