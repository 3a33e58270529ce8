"""What a sidecar shares with its client: the connection and the slots."""

from __future__ import annotations

import os
import threading
import traceback
from collections import deque
from itertools import count

from ..base.errors import ParquetryError, SidecarError, error_class, limit_reached
from ..base.platform.memory_file import memory_file
from ..transport.sidecar.channel import Channel
from ..transport.sidecar.protocol import Message, MessageType, RemoteError
from ..transport.sidecar.slots import Slot, SlotMemory

_FIRST_PRIVATE = 1 << 32


class ClientConnection:
    """The connection to one client. When it ends, this process ends. `send` may be called from any thread."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def receive(self) -> Message | None:
        """Returns the next message, or ``None`` at the end of the connection.

        Raises:
            SidecarError: the bytes are not a message of this version.
        """
        return self._channel.receive()

    def send(self, message: Message) -> None:
        """Sends a message. Ends the process if the client is gone."""
        try:
            self._channel.send(message)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)

    def send_error(self, generation: int, error: BaseException, *, elements: int = 0, position: int = 0) -> None:
        """Reports an error: a `ParquetryError` by its public class, any other with its traceback.

        With ``elements``, the error belongs to that many elements, ``position`` is the position after them, and the
        iteration continues.
        """
        limit = limit_reached(error)
        if isinstance(error, ParquetryError):
            kinds = [kind.__name__ for kind in type(error).__mro__ if error_class(kind.__name__) is kind]
            name, text = kinds[0], str(error)
            text = text if limit in text else f"{text} {limit}"
            text = f"{text}\n{error.frames}" if error.frames else text
        elif limit:
            name, text = "SidecarError", f"sidecar: expected enough system resources, got {error}. {limit}"
        else:
            name, text = "ParquetryError", "".join(traceback.format_exception(error)).rstrip()
        body = RemoteError(name=name, text=text).pack()
        self.send(Message(type=MessageType.ERROR, generation=generation, a=elements, b=position, body=body))


class SlotPool:
    """The slots of a sidecar. Each new slot is announced to the client.

    Attributes:
        changed: guards the slots. Notified when a slot becomes free, when a job is done, and when an iteration stops.
    """

    def __init__(self, client: ClientConnection) -> None:
        self.changed = threading.Condition()
        self._client = client
        self._slots: dict[int, Slot] = {}
        self._lent: set[int] = set()
        self._free: deque[Slot] = deque()
        self._private: deque[Slot] = deque()
        self._private_made = 0

    @property
    def memory_bytes(self) -> int:
        return sum(slot.memory.num_bytes for slot in (*self._slots.values(), *self._private))

    def has_room(self, most: int) -> bool:
        """Whether a slot is free, or there are fewer than ``most``."""
        return bool(self._free) or len(self._slots) < most

    def take(self, *, is_private: bool = False) -> Slot:
        """Returns a free slot or a new one. A private one is never seen by the client."""
        with self.changed:
            free = self._private if is_private else self._free
            if free:
                return free.popleft()
            if is_private:
                self._private_made += 1
                return Slot(_FIRST_PRIVATE + self._private_made, SlotMemory(memory_file("rows")))
            number = next(number for number in count() if number not in self._slots)
            slot = self._slots[number] = Slot(number, SlotMemory(memory_file("slot")))
            memory = slot.memory
            self._client.send(
                Message(type=MessageType.SLOT, a=slot.number, b=memory.num_bytes, descriptor=memory.descriptor)
            )
            return slot

    def give(self, slot: Slot) -> None:
        """Takes back a slot that was not sent to the client."""
        with self.changed:
            (self._private if slot.number >= _FIRST_PRIVATE else self._free).append(slot)
            self.changed.notify_all()

    def shrink(self) -> None:
        """Returns the memory of free slots to the system. New slots reuse their numbers."""
        with self.changed:
            for slot in self._free:
                del self._slots[slot.number]
            for slot in (*self._free, *self._private):
                os.ftruncate(slot.memory.descriptor, 0)  # the client still maps it, but holds no batch in it
                slot.memory.close()
            self._free.clear()
            self._private.clear()

    def lend(self, slot: Slot) -> None:
        """Lends a slot to the client until the client releases it."""
        with self.changed:
            self._lent.add(slot.number)

    def release(self, number: int) -> None:
        """Takes back a slot from the client.

        Raises:
            SidecarError: the client does not hold that slot.
        """
        with self.changed:
            if number not in self._lent:
                raise SidecarError(f"message RELEASE: expected one of the slots {sorted(self._lent)}, got {number}.")
            self._lent.remove(number)
            self._free.append(self._slots[number])
            self.changed.notify_all()
