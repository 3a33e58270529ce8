"""`Channel`: sends and receives protocol messages and their descriptors over one ``SOCK_SEQPACKET`` socket."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from typing import Any

from ...base.errors import SidecarError
from ...base.metrics.counters import Counters
from ...base.platform.sockets import receive
from .protocol import HEADER, MAX_BODY_BYTES, Message, pack, unpack

_PACKET_BYTES = HEADER.size + MAX_BODY_BYTES
_SLICE = struct.pack("@ll", 0, 200_000)
"""The longest single wait, as a ``timeval``. It is short because a signal that arrives before a wait does not interrupt
the wait.
"""


class Channel:
    """One end of the connection. Only one thread at a time may call `receive`.

    `send` may be called from any thread, even from a finaliser in the middle of another `send`. It takes no lock,
    because the socket sends each packet atomically.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SLICE)

    def send(self, message: Message) -> None:
        """Sends a message. Its descriptor stays open on this side.

        Raises:
            OSError: the other side is gone.
        """
        packet = pack(message)
        if message.descriptor is None:
            self._connection.send(packet)
        else:
            socket.send_fds(self._connection, [packet], [message.descriptor])

    def receive(self, is_over: Callable[[], bool] = lambda: False) -> Message | None:
        """Returns the next message, or ``None`` at the end of the connection. The caller owns the descriptor.

        Args:
            is_over: returns whether no more messages will come although the connection is open. Called a few times per
                second.

        Raises:
            SidecarError: the bytes are not a message of this version.
        """
        over = False
        while True:
            try:
                packet, descriptors, _ = receive(self._connection, _PACKET_BYTES, 1)
                break
            except BlockingIOError:  # the end of a slice, where Python handles signals
                if over:
                    return None
                over = is_over()  # a last message may have arrived in the meantime, so try once more
            except OSError:
                return None
        try:
            return unpack(packet, descriptors) if packet else None
        except SidecarError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def close(self) -> None:
        """Closes the socket. Idempotent."""
        self._connection.close()


def received_counters(message: Message) -> Counters:
    """Returns the counters whose memory a START message carries, or new ones. Takes ownership of the descriptor.

    Raises:
        SidecarError: the memory does not hold counters.
    """
    if message.descriptor is None:
        return Counters()
    try:
        return Counters(message.descriptor)
    except (OSError, ValueError) as error:
        raise SidecarError(f"message START: expected memory for counters, got: {error}.") from error
    finally:
        os.close(message.descriptor)


def read_request(message: Message) -> dict[str, Any]:
    """Returns the request that an OPEN message carries. Its descriptor stays open.

    Raises:
        SidecarError: there is no descriptor, or it does not hold a JSON object of the announced size.
    """
    held = -1 if message.descriptor is None else os.fstat(message.descriptor).st_size
    if message.descriptor is None or held != message.a:
        raise SidecarError(f"message OPEN: expected a request of {message.a} bytes, got {held}.")
    text = os.pread(message.descriptor, message.a, 0)
    try:
        request = json.loads(text)
    except ValueError:
        request = None
    if not isinstance(request, dict):
        raise SidecarError(f"message OPEN: expected a request in JSON, got {text[:80]!r}.")
    return request
