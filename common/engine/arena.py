"""Memory for batches and windows: an `Arena` hands out aligned arrays from one region; a `RegionPool` reuses regions.

A region goes back to its pool when the last array that points into it is gone, so a batch that the user holds is never
written to. Reuse matters: the page faults of a fresh 36 MB batch cost more than copying it.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
import weakref
from typing import Any, Protocol

import numpy as np

ALIGNMENT = 64
_HUGE_PAGE = 1 << 21


class Arena(Protocol):
    """Where an assembler puts the arrays of one batch."""

    def allocate(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """An uninitialised C-contiguous array that begins on a 64-byte boundary."""


def _private_memory(size_bytes: int) -> mmap.mmap:
    """Anonymous memory that a forked child gets a copy of; Python's default would share it with the child."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class Heap:
    """An arena of ordinary arrays, for intermediate results."""

    def allocate(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """A new array."""
        return np.empty(shape, dtype)


class Region:
    """One anonymous mapping that grows by replacement, used as an `Arena` for one batch after another."""

    def __init__(self) -> None:
        self._memory = _private_memory(mmap.PAGESIZE)
        self._wanted = 0
        self._used = 0
        self._lease: Any = None

    @property
    def size_bytes(self) -> int:
        """How much memory the region holds."""
        return len(self._memory)

    def begin(self, size_bytes: int = 0) -> Any:
        """Starts a new batch; the region is in use until the returned lease and every array are gone.

        Args:
            size_bytes: what the batch will need at least, where that is known.
        """
        wanted = max(self._wanted, size_bytes)
        if wanted > len(self._memory):
            # In steps of whole huge pages, so that it is not replaced for every batch that is a little larger.
            step = mmap.PAGESIZE if wanted < _HUGE_PAGE else _HUGE_PAGE
            self._memory = _private_memory(-(-wanted // step) * step)
            if hasattr(mmap, "MADV_HUGEPAGE") and len(self._memory) >= _HUGE_PAGE:
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._used = 0
        self._wanted = 0
        self._lease = (ctypes.c_uint8 * len(self._memory)).from_buffer(self._memory)
        return self._lease

    def end(self) -> None:
        """Ends the batch: from now on only its arrays hold the region."""
        self._lease = None

    def allocate(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        count = math.prod(shape)
        size = count * dtype.itemsize
        self._wanted += -(-size // ALIGNMENT) * ALIGNMENT
        if self._used + size > len(self._memory):
            return np.empty(shape, dtype)  # this batch overflows; the region is larger from the next one on
        array = np.frombuffer(self._lease, dtype, count, self._used).reshape(shape)
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return array


class RegionPool:
    """Regions that wait for their next batch; at most ``max_idle_bytes`` are kept idle.

    Thread-safe. A region comes back through a finaliser of its lease, in whichever thread drops the last array.
    """

    def __init__(self, max_idle_bytes: int = 1 << 30) -> None:
        self._idle: list[Region] = []
        self._returned: list[Region] = []
        self._max_idle_bytes = max_idle_bytes
        self._lock = threading.Lock()

    def acquire(self, size_bytes: int = 0) -> Region:
        """A region that nothing points into, with a lease begun; of ``size_bytes``, where that is known beforehand."""
        with self._lock:
            self._collect()
            region = self._take_idle(size_bytes)
        lease = region.begin(size_bytes)
        # A finaliser may run in any thread at any time, also while the lock is held by this very thread: list.append
        # is atomic and needs no lock.
        weakref.finalize(lease, self._returned.append, region).atexit = False
        return region

    def _take_idle(self, size_bytes: int) -> Region:
        """The smallest region that is large enough, else the one that came back last."""
        if not self._idle:
            return Region()
        fitting = [item for item in self._idle if size_bytes and item.size_bytes >= size_bytes]
        chosen = min(fitting, key=lambda item: item.size_bytes) if fitting else self._idle[-1]
        self._idle.remove(chosen)
        return chosen

    def _collect(self) -> None:
        while self._returned:
            region = self._returned.pop()
            if sum(item.size_bytes for item in self._idle) + region.size_bytes <= self._max_idle_bytes:
                self._idle.append(region)

    def forget(self) -> None:
        """In a forked child: regions in use belong to the parent's threads, and the lock may be held by one of them."""
        self._lock = threading.Lock()
        self._idle = []
        self._returned = []


def array_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """What an array takes in an arena, at most."""
    return -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT


SHARED_REGIONS = RegionPool()
"""Of batches."""
WINDOW_REGIONS = RegionPool(max_idle_bytes=1 << 28)
"""Of what windows hold: few and large, so batches do not take theirs from it."""
for _pool in (SHARED_REGIONS, WINDOW_REGIONS):
    os.register_at_fork(after_in_child=_pool.forget)
