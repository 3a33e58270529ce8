"""`DecodedRows`: decoded values of a window's rows, kept because several n-gram windows share each row.

Each row is decoded at most once, by the first thread that asks; others wait for it. Memory is bounded: past the limit a
row is decoded for its asker and not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

LIMIT_BYTES = 512 << 20


class DecodedRows:
    """Decoded rows of one column of one loaded window. Thread-safe."""

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._rows: dict[int, np.ndarray] = {}
        self._making: dict[int, threading.Event] = {}
        self._lock = threading.Lock()

    def copy_into(self, row: int, out: np.ndarray, decode: Callable[[np.ndarray], None]) -> None:
        """Puts the row's value into ``out``; ``decode`` makes it if nobody has."""
        while True:
            with self._lock:
                value = self._rows.get(row)
                event = self._making.get(row)
                if value is None and event is None:
                    keep = self._bytes + out.nbytes <= self._limit_bytes
                    if keep:
                        self._bytes += out.nbytes
                        event = self._making[row] = threading.Event()
                    break
            if value is not None:
                out[...] = value
                return
            assert event is not None
            event.wait()
        if not keep:
            decode(out)
            return
        assert event is not None
        try:
            decode(out)
            self._rows[row] = out.copy()
        finally:  # after an error the next asker decodes again, and raises the same
            with self._lock:
                del self._making[row]
            event.set()
