"""`SlotPool`: the slots of one connection, free, in work, or with the client."""

from __future__ import annotations

import threading
from collections import deque

from ..errors import SidecarError
from ..transport.sidecar.channel import memory_file
from ..transport.sidecar.protocol import Message, MessageType
from ..transport.sidecar.runners import Slot
from ..transport.sidecar.slots import SlotMemory
from .connection import ClientConnection

_FIRST_PRIVATE = 1 << 32


class SlotPool:
    """Slots; a new one is announced to the client when it is made.

    Attributes:
        changed: guards the slots. Notified when one becomes free, and by iterations when a job is done or they stop.
    """

    def __init__(self, client: ClientConnection) -> None:
        self.changed = threading.Condition()
        self._client = client
        self._slots: dict[int, Slot] = {}
        self._lent: set[int] = set()
        self._free: deque[Slot] = deque()
        self._private: deque[Slot] = deque()
        self._private_made = 0

    def take(self, most: int) -> Slot | None:
        """A free slot, a new one if there are fewer than ``most``, or ``None``. Call with `changed` held."""
        if self._free:
            return self._free.popleft()
        if len(self._slots) >= most:
            return None
        slot = Slot(len(self._slots), SlotMemory(memory_file("slot")))
        self._slots[slot.number] = slot
        memory = slot.memory
        self._client.send(
            Message(type=MessageType.SLOT, a=slot.number, b=memory.num_bytes, descriptor=memory.descriptor)
        )
        return slot

    def take_private(self) -> Slot:
        """A slot that the client never sees: for rows that are still to be grouped. Call with `changed` held."""
        if self._private:
            return self._private.popleft()
        self._private_made += 1
        return Slot(_FIRST_PRIVATE + self._private_made, SlotMemory(memory_file("rows")))

    def give(self, slot: Slot) -> None:
        """Takes back a slot that was not sent."""
        with self.changed:
            (self._private if slot.number >= _FIRST_PRIVATE else self._free).append(slot)
            self.changed.notify_all()

    def lend(self, slot: Slot) -> None:
        """The slot is the client's from now on, until it releases it."""
        with self.changed:
            self._lent.add(slot.number)

    def release(self, number: int) -> None:
        """Takes back a slot from the client.

        Raises:
            SidecarError: it does not have that slot.
        """
        with self.changed:
            if number not in self._lent:
                raise SidecarError(f"message RELEASE: expected one of the slots {sorted(self._lent)}, got {number}.")
            self._lent.remove(number)
            self._free.append(self._slots[number])
            self.changed.notify_all()
