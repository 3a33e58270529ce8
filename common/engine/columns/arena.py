"""Memory for batches and blocks: an `Arena` hands out aligned arrays from one region; a `RegionPool` reuses regions.

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
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

ALIGNMENT = 64
_HUGE_PAGE = 1 << 21
_LARGE_RUNS_BYTES = 1 << 17  # from here on the allocator gives each array pages of its own


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
    """One mapping that grows by replacement, used as an `Arena` for one batch after another."""

    head_bytes = 0
    """What stands at the beginning and is no array's."""

    def __init__(self) -> None:
        self._memory = self.map_memory(mmap.PAGESIZE)
        self._wanted = self.head_bytes
        self._used = self.head_bytes
        self._lease: Any = None

    def map_memory(self, size_bytes: int) -> mmap.mmap:
        """New memory in place of what the region had."""
        return _private_memory(size_bytes)

    @property
    def is_free(self) -> bool:
        """Whether its memory may be written to again, once no array of this process points into it."""
        return True

    @property
    def size_bytes(self) -> int:
        """How much memory the region holds."""
        return len(self._memory)

    @property
    def wanted_bytes(self) -> int:
        """What the batch so far would take in a region that is large enough."""
        return self._wanted

    def begin(self, size_bytes: int = 0) -> Any:
        """Starts a new batch; the region is in use until the returned lease and every array are gone.

        Args:
            size_bytes: what the batch will need at least, where that is known.
        """
        wanted = max(self._wanted, size_bytes + self.head_bytes)
        if wanted > len(self._memory):
            # In steps of whole huge pages, so that it is not replaced for every batch that is a little larger.
            step = mmap.PAGESIZE if wanted < _HUGE_PAGE else _HUGE_PAGE
            self._memory = self.map_memory(-(-wanted // step) * step)
            if hasattr(mmap, "MADV_HUGEPAGE") and len(self._memory) >= _HUGE_PAGE:
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._used = self.head_bytes
        self._wanted = self.head_bytes
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

    Thread-safe. A region comes back through a finaliser of its lease, in whichever thread drops the last array, and
    waits until it `is_free`.
    """

    def __init__(self, max_idle_bytes: int = 1 << 30) -> None:
        self._make: Callable[[], Region] = Region
        self._idle: list[Region] = []
        self._returned: list[Region] = []
        self._away: list[Region] = []
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
            return self._make()
        fitting = [item for item in self._idle if size_bytes and item.size_bytes >= size_bytes]
        chosen = min(fitting, key=lambda item: item.size_bytes) if fitting else self._idle[-1]
        self._idle.remove(chosen)
        return chosen

    def _collect(self) -> None:
        back, self._away = self._away, []
        while self._returned:
            back.append(self._returned.pop())
        for region in back:
            if not region.is_free:
                self._away.append(region)
            elif sum(item.size_bytes for item in self._idle) + region.size_bytes <= self._max_idle_bytes:
                self._idle.append(region)

    def use(self, make: Callable[[], Region]) -> None:
        """From now on, regions are made in another way; idle ones are dropped."""
        with self._lock:
            self._make = make
            self._idle = []

    def forget(self) -> None:
        """In a forked child: regions in use belong to the parent's threads, and the lock may be held by one of them."""
        self._lock = threading.Lock()
        self._make = Region
        self._idle = []
        self._returned = []
        self._away = []


def array_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """What an array takes in an arena, at most."""
    return -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT


SHARED_REGIONS = RegionPool()
"""Of batches."""
BLOCK_REGIONS = RegionPool(max_idle_bytes=1 << 28)
"""Of what blocks hold: few and large, so batches do not take theirs from it."""
_RUN_REGIONS = RegionPool(max_idle_bytes=1 << 28)
for _pool in (SHARED_REGIONS, BLOCK_REGIONS, _RUN_REGIONS):
    os.register_at_fork(after_in_child=_pool.forget)


def run_memory(size_bytes: int) -> np.ndarray:
    """Memory for strings or lists of a batch (uint8): that of earlier batches, where fresh pages would cost more."""
    if size_bytes < _LARGE_RUNS_BYTES:
        return np.empty(size_bytes, np.uint8)
    region = _RUN_REGIONS.acquire(size_bytes)
    try:
        return region.allocate(np.dtype(np.uint8), (size_bytes,))
    finally:
        region.end()


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
