"""`SharedRows`: decoded values of a block's rows, kept because several n-gram windows share each row.

Each row is decoded at most once, by the first thread that requests it. Other threads wait for it, or come back later.
Memory is bounded: beyond the limit, a row is decoded for each request and not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from ...base.memory.arena import BLOCK_REGIONS
from ...base.native.kernels import copy_value
from ...base.process.dataclass import dataclass

LIMIT_BYTES = 512 << 20
_LARGE_BYTES = 1 << 16  # rows from this size on reuse memory of earlier blocks
_ROWS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Places:
    """Where one value goes in a batch: into ``out[number]`` for each of the numbers."""

    out: np.ndarray | Sequence[np.ndarray]
    numbers: list[int]

    @property
    def first(self) -> np.ndarray:
        """The first place."""
        return self.out[self.numbers[0]]

    def fill(self, value: np.ndarray, *, after: int = 0) -> None:
        """Copies a value to all places, or to those after the first ``after``."""
        numbers = self.numbers[after:]
        if isinstance(self.out, np.ndarray):
            copy_value(value, self.out, numbers)
            return
        for number in numbers:
            copy_value(value, self.out[number][None], [0])

    def decode(self, decode: Callable[[np.ndarray], None]) -> None:
        """Decodes a value into the first place, and copies it to the others."""
        decode(self.first)
        if len(self.numbers) > 1:
            self.fill(self.first, after=1)


class SharedRows:
    """Decoded rows of one column of one loaded block. Thread-safe."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._rows: dict[int, np.ndarray] = {}
        self._making: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        self._free: list[np.ndarray] = []  # memory for further rows, uint8

    def copy_into(self, row: int, places: Places, decode: Callable[[np.ndarray], None], *, wait: bool = True) -> bool:
        """Copies the row's value to its places, calling ``decode`` if no thread has decoded it yet.

        All copies are made at once, while the value is in the processor's cache. Returns False and does nothing if
        another thread is decoding the row and ``wait`` is false.
        """
        first = places.first
        while True:
            with self._lock:
                value = self._rows.get(row)
                event = self._making.get(row)
                if value is None and event is None:
                    keep = self._bytes + first.nbytes <= self._limit_bytes
                    if keep:
                        self._bytes += first.nbytes
                        event = self._making[row] = threading.Event()
                    break
            if value is not None:
                places.fill(value)
                return True
            if not wait:
                return False
            assert event is not None
            event.wait()
        if not keep:
            places.decode(decode)
            return True
        assert event is not None
        try:
            kept = self._place(first)
            decode(kept)
            self._rows[row] = kept
        finally:  # after an error, the next request decodes again and raises the same error
            with self._lock:
                del self._making[row]
            event.set()
        places.fill(kept)
        return True

    def get(self, row: int) -> np.ndarray | None:
        """Returns the row's value, or ``None`` if it is not kept."""
        return self._rows.get(row)

    def has_room(self, num_bytes: int) -> bool:
        """Returns whether a value of this size can be kept."""
        return self._bytes + num_bytes <= self._limit_bytes

    def keep(self, row: int, like: np.ndarray, decode: Callable[[np.ndarray], None]) -> np.ndarray | None:
        """Decodes a value and keeps it, or returns ``None`` if there is no room for it.

        Args:
            like: an array of its dtype and shape.
        """
        with self._lock:
            if not self.has_room(like.nbytes):
                return None
            self._bytes += like.nbytes
        try:
            value = self._place(like)
            decode(value)
        except BaseException:
            with self._lock:
                self._bytes -= like.nbytes
            raise
        self._rows[row] = value
        return value

    def drop(self, row: int) -> None:
        """Drops a row's value, which nobody needs any more, so that another one may take its memory."""
        with self._lock:
            value = self._rows.pop(row, None)
            if value is None:
                return
            self._bytes -= value.nbytes
            if value.nbytes >= _LARGE_BYTES:
                self._free.append(value.reshape(-1).view(np.uint8))

    def _place(self, like: np.ndarray) -> np.ndarray:
        """Returns memory for one more row. Large rows reuse memory, because new pages would cost more than the copy."""
        if like.nbytes < _LARGE_BYTES:
            return np.empty_like(like)
        with self._lock:
            if not self._free or self._free[-1].nbytes != like.nbytes:
                region = BLOCK_REGIONS.acquire(_ROWS_AT_ONCE * like.nbytes)
                self._free = list(region.allocate(np.dtype(np.uint8), (_ROWS_AT_ONCE, like.nbytes)))
                region.end()
            return self._free.pop().view(like.dtype).reshape(like.shape)
