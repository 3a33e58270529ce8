"""`ClientConnection`: what a sidecar hears from its client, and says to it."""

from __future__ import annotations

import os
import traceback

from ..errors import ParquetryError
from ..transport.sidecar.channel import Channel
from ..transport.sidecar.protocol import Message, MessageType, RemoteError


class ClientConnection:
    """The connection to one client; its end is the end of this process. `send` may be called from any thread."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def receive(self) -> Message | None:
        """The next message; ``None`` at the end of the connection.

        Raises:
            SidecarError: bytes that are not a message of this version.
        """
        return self._channel.receive()

    def send(self, message: Message) -> None:
        """Sends a message; a client that is gone ends the process."""
        try:
            self._channel.send(message)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)

    def send_error(self, generation: int, error: BaseException, *, elements: int = 0, position: int = 0) -> None:
        """Reports an error; one of ours by its class, any other with its traceback.

        With ``elements`` it is the error of so many, ``position`` stands behind them, and the iteration goes on.
        """
        if isinstance(error, ParquetryError):
            name, text = type(error).__name__, str(error)
        else:
            name, text = "ParquetryError", "".join(traceback.format_exception(error)).rstrip()
        body = RemoteError(name=name, text=text).pack()
        self.send(Message(type=MessageType.ERROR, generation=generation, a=elements, b=position, body=body))
