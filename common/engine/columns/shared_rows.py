"""`SharedRows`: decoded values of a block's rows, kept because several n-gram windows share each row.

Each row is decoded at most once, by the first thread that requests it. Other threads wait for it, or come back later.
Memory is bounded: beyond the limit, a row is decoded for each request and not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from ...memory.arena import BLOCK_REGIONS
from ...native.kernels import copy_value

LIMIT_BYTES = 512 << 20
_LARGE_BYTES = 1 << 16  # rows from this size on reuse memory of earlier blocks
_ROWS_AT_ONCE = 16


class SharedRows:
    """Decoded rows of one column of one loaded block. Thread-safe."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._rows: dict[int, np.ndarray] = {}
        self._making: dict[int, threading.Event] = {}
        self._lock = threading.Lock()
        self._free: list[np.ndarray] = []  # memory for further rows, uint8

    def copy_into(
        self, row: int, places: Sequence[np.ndarray], decode: Callable[[np.ndarray], None], *, wait: bool = True
    ) -> bool:
        """Copies the row's value into all ``places``, calling ``decode`` if no thread has decoded it yet.

        All copies are made at once, while the value is in the processor's cache. Returns False and does nothing if
        another thread is decoding the row and ``wait`` is false.
        """
        while True:
            with self._lock:
                value = self._rows.get(row)
                event = self._making.get(row)
                if value is None and event is None:
                    keep = self._bytes + places[0].nbytes <= self._limit_bytes
                    if keep:
                        self._bytes += places[0].nbytes
                        event = self._making[row] = threading.Event()
                    break
            if value is not None:
                copy_to_all(value, places)
                return True
            if not wait:
                return False
            assert event is not None
            event.wait()
        if not keep:
            decode_to_all(decode, places)
            return True
        assert event is not None
        try:
            kept = self._place(places[0])
            decode(kept)
            self._rows[row] = kept
            copy_to_all(kept, places)
        finally:  # after an error, the next request decodes again and raises the same error
            with self._lock:
                del self._making[row]
            event.set()
        return True

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


def decode_to_all(decode: Callable[[np.ndarray], None], places: Sequence[np.ndarray]) -> None:
    """Decodes one value into the first place, and copies it to the others."""
    decode(places[0])
    copy_to_all(places[0], places[1:])


def copy_to_all(value: np.ndarray, places: Sequence[np.ndarray]) -> None:
    """Copies one value to several places."""
    for place in places:
        copy_value(value, place)
