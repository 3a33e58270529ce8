"""A device on the host whose copies happen late, and that notices errors that a real one would hide."""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

POISON = 77
"""The bytes of device memory before its copy is done."""


class FakeStream:
    """Work in order. ``waits`` holds the events that its later work waits for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.work: deque[Any] = deque()
        self.waits: list[FakeEvent] = []
        self.enqueued = 0
        self.done = 0


@dataclass(eq=False)
class FakeEvent:
    stream: FakeStream
    number: int


@dataclass(eq=False)
class FakeMemory:
    """What is known about a tensor on the device."""

    copied: int
    kept_for: list[FakeStream] = field(default_factory=list)


class FakePageLock:
    """Records locked memory.

    Args:
        refuses: whether each call fails.
    """

    def __init__(self, *, refuses: bool = False) -> None:
        self.locked: dict[int, int] = {}
        self.calls: list[str] = []
        self._refuses = refuses

    def lock(self, address: int, size_bytes: int) -> bool:
        self.calls.append("refused" if self._refuses else "lock")
        if self._refuses:
            return False
        assert all(address + size_bytes <= begin or begin + size <= address for begin, size in self.locked.items())
        self.locked[address] = size_bytes
        return True

    def unlock(self, address: int) -> None:
        self.calls.append("unlock")
        del self.locked[address]

    def holds(self, tensor: torch.Tensor) -> bool:
        begin = tensor.data_ptr()
        return any(
            address <= begin and begin + tensor.nbytes <= address + size for address, size in self.locked.items()
        )


class FakeDevice:
    """Implements `parquetry.torch_plugin.devices.DeviceCopies`. Work runs when `run` or a host wait makes it.

    Attributes:
        log: what was asked for, in order.
        in_place: how many tensors were copied from where they were; ``pinned_first``: those that were not.
    """

    def __init__(self, page_lock: FakePageLock | None = None) -> None:
        self.device = torch.device("cpu")
        self.page_lock = page_lock
        self.log: list[str] = []
        self.in_place = self.pinned_first = 0
        self._side = FakeStream("side")
        self.current = FakeStream("current")
        self._memory: Any = WeakTensorKeyDictionary()  # torch.Tensor -> FakeMemory

    def current_stream(self) -> FakeStream:
        return self.current

    def side_stream(self) -> FakeStream:
        return self._side

    def pinned(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.page_lock is not None and self.page_lock.holds(tensor):
            self.in_place += 1
            return tensor
        self.pinned_first += 1
        return tensor.clone()

    def copy(self, tensor: torch.Tensor, stream: FakeStream) -> torch.Tensor:
        result = torch.full_like(tensor.contiguous().view(torch.uint8) if tensor.ndim else tensor, POISON)
        result = result.view(tensor.dtype).view(tensor.shape) if tensor.ndim else result
        source, target = weakref.ref(tensor), weakref.ref(result)

        def work() -> None:
            from_there, to_there = source(), target()
            assert from_there is not None, "the source was freed before its copy was done"
            if to_there is not None:
                to_there.copy_(from_there)

        stream.work.append(work)
        stream.enqueued += 1
        self._memory[result] = FakeMemory(copied=stream.enqueued)
        self.log.append("copy")
        return result

    def record(self, stream: FakeStream) -> FakeEvent:
        return FakeEvent(stream, stream.enqueued)

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        stream.waits.append(event)
        self.log.append("wait")

    def keep_for(self, tensor: torch.Tensor, stream: FakeStream) -> None:
        self._memory[tensor].kept_for.append(stream)

    def is_done(self, event: FakeEvent) -> bool:
        return event.stream.done >= event.number

    def finish(self, event: FakeEvent) -> None:
        self.log.append("finish")
        self.run(event)

    def run(self, until: FakeEvent | None = None) -> None:
        """Does the work before an event; all of it by default."""
        while self._side.work and (until is None or self._side.done < until.number):
            self._side.work.popleft()()
            self._side.done += 1

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns what work on the current stream sees in a tensor on the device."""
        memory = self._memory[tensor]
        waited = max((event.number for event in self.current.waits if event.stream is self._side), default=0)
        assert waited >= memory.copied, "the tensor is used before its copy is done"
        assert self.current in memory.kept_for, "its memory may be reused while the current stream reads it"
        self.run(FakeEvent(self._side, waited))
        return tensor
