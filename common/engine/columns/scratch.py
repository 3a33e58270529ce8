"""`SCRATCH`: memory of each thread for what it needs only until the next value."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np


class Scratch(threading.local):
    """Memory for one value that is on its way, for each thread its own, reused from value to value."""

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """An uninitialised array; valid until this thread asks for ``name`` again."""
        size = math.prod(shape) * dtype.itemsize
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[name] = np.empty(size, np.uint8)
        return buffer[:size].view(dtype).reshape(shape)


SCRATCH = Scratch()
