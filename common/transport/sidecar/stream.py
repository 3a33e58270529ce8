"""`StreamChannel`: pickled messages between the reader and its own workers, with descriptors.

Both ends are our own processes of one version, so pickle is safe and enough; a message may be of any size.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import struct
from typing import Any

from ..processes import start_vital

_LENGTH = struct.Struct("<Q")


class StreamChannel:
    """One end of a ``SOCK_STREAM`` connection; one user at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, message: dict[str, Any], descriptor: int | None = None) -> None:
        """Sends a message.

        Raises:
            OSError: the other side is gone.
        """
        self.send_pickled(pickle.dumps(message, protocol=5), descriptor)

    def send_pickled(self, body: bytes, descriptor: int | None = None) -> None:
        """Sends a message that is pickled already. Raises like `send`."""
        head = _LENGTH.pack(len(body))
        if descriptor is None:
            self._connection.sendall(head)
        else:
            socket.send_fds(self._connection, [head], [descriptor])
        self._connection.sendall(body)

    def receive(self) -> tuple[dict[str, Any], int | None] | None:
        """The next message and its descriptor; ``None`` when the other side is gone."""
        try:
            head, descriptors, _, _ = socket.recv_fds(self._connection, _LENGTH.size, 1)
            if len(head) < _LENGTH.size:
                return None
            body = bytearray(_LENGTH.unpack(head)[0])
            view = memoryview(body)
            while view:
                count = self._connection.recv_into(view)
                if not count:
                    return None
                view = view[count:]
        except OSError:
            return None
        return pickle.loads(body), descriptors[0] if descriptors else None

    def close(self) -> None:
        """Closes the socket. Idempotent."""
        self._connection.close()


def exit_with(connection: socket.socket) -> None:
    """Ends this process as soon as the other side of the connection is gone, whatever it is doing."""

    def watch() -> None:
        poll = select.poll()
        poll.register(connection.fileno(), select.POLLRDHUP)
        poll.poll()
        os._exit(0)

    start_vital(watch, name="parquetry-watch")
