"""Memory for batches and blocks: an `Arena` allocates aligned arrays from one region; a `RegionPool` reuses regions.

A region returns to its pool when the last array that points into it is gone, so a batch that the user still holds is
never overwritten. Reuse matters: the page faults of a newly allocated 36 MB batch cost more than copying it.

Whoever keeps one array of each batch, such as all labels of an epoch, must not keep whole batches with them. So small
arrays get memory of their own, and so do all arrays while many batches are held.
"""

from __future__ import annotations

import bisect
import ctypes
import math
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ..platform.files import use_huge_pages

ALIGNMENT = 64
SMALL_BYTES = 4096
"""Arrays up to this size get memory of their own, which costs less than a page."""
_BYTES = np.dtype(np.uint8)
_HUGE_PAGE = 1 << 21
LEAST_PAGES_BYTES = 1 << 15
"""Separate arrays of at least this size have pages of their own."""
_LARGE_RUNS_BYTES = 1 << 17  # from this size on, the allocator maps new pages for each array


class Arena(Protocol):
    """Allocates the arrays of one batch for an assembler."""

    @property
    def separates(self) -> bool:
        """Whether each column is to have memory of its own, because so many batches are held."""

    def allocate(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Returns an uninitialized C-contiguous array."""


def private_memory(size_bytes: int) -> mmap.mmap:
    """Maps anonymous memory that is copied on fork. Python's default would share it with a forked child."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def separate_array(dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Returns an uninitialized array with memory of its own, which goes back to the system with it.

    Large arrays do not share the allocator's memory with small ones: one that is kept would keep the space around it.
    """
    count = math.prod(shape)
    if count * dtype.itemsize < LEAST_PAGES_BYTES:
        return np.empty(shape, dtype)
    return np.frombuffer(private_memory(count * dtype.itemsize), dtype, count).reshape(shape)


class Heap:
    """An arena of ordinary arrays, for intermediate results."""

    separates = False

    def allocate(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Returns a new array."""
        return np.empty(shape, dtype)


class Region:
    """One memory mapping, used as the `Arena` of one batch after another. It grows by being replaced."""

    head_bytes = 0
    """The number of bytes at the beginning that are not used for arrays."""
    small_bytes = SMALL_BYTES
    """Smaller arrays, and those of this size, get memory of their own."""
    is_copied = False
    """Whether another process copies the arrays it gets from here, because it holds too many other regions."""
    separates = False
    """As `Arena`."""
    generation = 0
    """Index of the pool's factory (see `RegionPool.use`) that created this region."""

    def __init__(self) -> None:
        self._memory = self.map_memory(mmap.PAGESIZE)
        self._wanted = self.head_bytes
        self._used = self.head_bytes
        self._lease: Any = None

    def map_memory(self, size_bytes: int) -> mmap.mmap:
        """Maps new memory that replaces the region's memory."""
        return private_memory(size_bytes)

    @property
    def is_free(self) -> bool:
        """Whether the memory can be reused, provided that no array of this process points into it."""
        return True

    @property
    def size_bytes(self) -> int:
        """The size of the region's memory."""
        return len(self._memory)

    @property
    def left_bytes(self) -> int:
        """How many bytes of arrays still fit into it, if each of their sizes is a multiple of `ALIGNMENT`."""
        return len(self._memory) - self._used

    @property
    def wanted_bytes(self) -> int:
        """The bytes that the batch needs so far, including arrays that did not fit into the region."""
        return self._wanted

    def begin(self, size_bytes: int = 0) -> Any:
        """Starts a new batch. The region is in use until the returned lease and every array are gone.

        Args:
            size_bytes: the minimum size of the batch, if known.
        """
        needed_bytes = max(self._wanted, size_bytes + self.head_bytes)
        if needed_bytes > len(self._memory):
            # Grow by whole huge pages. Otherwise every slightly larger batch would replace the mapping.
            step = mmap.PAGESIZE if needed_bytes < _HUGE_PAGE else _HUGE_PAGE
            self._memory = self.map_memory(-(-needed_bytes // step) * step)
            if len(self._memory) >= _HUGE_PAGE:
                use_huge_pages(self._memory)
        self._used = self.head_bytes
        self._wanted = self.head_bytes
        self._lease = (ctypes.c_uint8 * len(self._memory)).from_buffer(self._memory)
        return self._lease

    def end(self) -> None:
        """Ends the batch. From now on, only its arrays keep the region in use."""
        self._lease = None

    def allocate(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        count = math.prod(shape)
        size = count * dtype.itemsize
        if size <= self.small_bytes:
            return np.empty(shape, dtype)
        self._wanted += -(-size // ALIGNMENT) * ALIGNMENT
        if self._used + size > len(self._memory):
            return np.empty(shape, dtype)  # this batch overflows; the region grows for the next batch
        array = np.frombuffer(self._lease, dtype, count, self._used).reshape(shape)
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return array


class _Separate(Region):
    """Gives each array memory of its own, while many batches are held."""

    separates = True

    def __init__(self) -> None:
        self._wanted = 0

    def begin(self, size_bytes: int = 0) -> Any:
        """Starts a batch."""

    def end(self) -> None:
        """Ends the batch."""

    def allocate(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        self._wanted += array_bytes(dtype, shape)
        return separate_array(dtype, shape)


class RegionPool:
    """A pool of reusable regions that keeps at most ``max_idle_bytes`` of idle memory.

    Thread-safe. A finaliser of the lease returns the region, in whichever thread drops the last array. The region is
    reused once it `is_free`.

    Args:
        most_held: how many plain regions may be in use before arrays get memory of their own; ``None`` for no limit.
        few_held: how many may be in use even if they take more than ``few_bytes``.
    """

    def __init__(
        self,
        max_idle_bytes: int = 1 << 30,
        *,
        most_held: int | None = None,
        few_held: int | None = None,
        few_bytes: int = 0,
    ) -> None:
        self._make: Callable[[], Region] = Region
        self._generation = 0
        self._is_limited = True
        self._most_held = most_held
        self._few_held = most_held if few_held is None else few_held
        self._few_bytes = few_bytes
        self._held = self._held_bytes = 0
        self._drop_idle()
        self._returned: list[Region] = []
        self._away: list[Region] = []
        self._max_idle_bytes = max_idle_bytes
        self._lock = threading.Lock()

    def acquire(self, size_bytes: int = 0) -> Region:
        """Returns an unused region with its lease begun, of at least ``size_bytes`` if that is known in advance."""
        with self._lock:
            self._collect(size_bytes)
            if self._is_limited and self._holds_many:
                return _Separate()
            region = self._take_idle(size_bytes)
            lease = region.begin(size_bytes)
            self._held += 1
            self._held_bytes += region.size_bytes
        # A finaliser can run in any thread at any time, even while this thread holds the lock. list.append is atomic
        # and needs no lock.
        weakref.finalize(lease, self._returned.append, region).atexit = False
        return region

    @property
    def _holds_many(self) -> bool:
        if self._most_held is None or self._few_held is None:
            return False
        return self._held >= (self._few_held if self._held_bytes > self._few_bytes else self._most_held)

    def _take_idle(self, size_bytes: int) -> Region:
        """Returns the smallest region that is large enough, or else the largest. Makes one if there is none."""
        for idle in (self._idle, self._idle_copied):
            if idle:
                chosen = idle.pop(_place_of(idle, size_bytes))
                self._idle_bytes -= chosen.size_bytes
                return chosen
        made = self._make()
        made.generation = self._generation
        return made

    def _collect(self, size_bytes: int) -> None:
        """Makes regions idle that are free again. Looks at those away only if no idle one fits: each takes a while."""
        back = []
        while self._returned:
            back.append(self._returned.pop())
            self._held -= 1
            self._held_bytes -= back[-1].size_bytes
        if not self._idle or self._idle[-1].size_bytes < size_bytes:
            back += self._away
            self._away = []
        for region in back:
            if region.generation != self._generation:
                continue
            if not region.is_free:
                self._away.append(region)
            elif self._idle_bytes + region.size_bytes <= self._max_idle_bytes:
                bisect.insort(self._idle_copied if region.is_copied else self._idle, region, key=_size_of)
                self._idle_bytes += region.size_bytes

    def use(self, make: Callable[[], Region], *, limited: bool = False) -> None:
        """Makes all further regions with ``make``. Drops idle regions now, and those in use when they return.

        Args:
            limited: whether ``most_held`` applies to them.
        """
        with self._lock:
            self._make, self._is_limited = make, limited
            self._generation += 1
            self._drop_idle()

    def forget(self) -> None:
        """Resets the pool in a forked child. The parent's threads own the regions in use, and may hold the lock."""
        self._lock = threading.Lock()
        self._make, self._is_limited = Region, True
        self._generation += 1
        self._held = self._held_bytes = 0
        self._drop_idle()
        self._returned = []
        self._away = []

    def _drop_idle(self) -> None:
        self._idle: list[Region] = []  # by size, and those of one size in the order in which they came back
        self._idle_copied: list[Region] = []  # `Region.is_copied`; used when there are no others
        self._idle_bytes = 0


def _size_of(region: Region) -> int:
    return region.size_bytes


def _place_of(idle: Sequence[Region], size_bytes: int) -> int:
    """Returns the place of the smallest region that is large enough, or else of the largest.

    Of several regions of that size, it is the one that came back last, which may still be in the processor's cache.
    """
    place = min(bisect.bisect_left(idle, size_bytes, key=_size_of), len(idle) - 1) if size_bytes else len(idle) - 1
    return bisect.bisect_right(idle, _size_of(idle[place]), place, key=_size_of) - 1


def array_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Returns the most bytes that an array takes in an arena."""
    return -(-math.prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT


_PROCESSORS = os.cpu_count() or 1
SHARED_REGIONS = RegionPool(most_held=32 + 4 * _PROCESSORS, few_held=8 + 4 * _PROCESSORS, few_bytes=320 << 20)
"""Memory of batches."""
BLOCK_REGIONS = RegionPool(max_idle_bytes=1 << 28)
"""Memory of blocks. These regions are few and large, so batches have a pool of their own."""
_RUN_REGIONS = RegionPool(max_idle_bytes=1 << 28)
for _pool in (SHARED_REGIONS, BLOCK_REGIONS, _RUN_REGIONS):
    os.register_at_fork(after_in_child=_pool.forget)


def block_memory(size_bytes: int) -> np.ndarray:
    """Returns memory for columns of a block (uint8). Large columns reuse memory of earlier blocks."""
    return _reused(BLOCK_REGIONS, size_bytes)


def run_memory(size_bytes: int) -> np.ndarray:
    """Returns memory for the strings or lists of a batch (uint8). Large arrays reuse memory of earlier batches."""
    return _reused(_RUN_REGIONS, size_bytes)


def _reused(pool: RegionPool, size_bytes: int) -> np.ndarray:
    if size_bytes < _LARGE_RUNS_BYTES:
        return np.empty(size_bytes, np.uint8)
    region = pool.acquire(size_bytes)
    try:
        return region.allocate(_BYTES, (size_bytes,))
    finally:
        region.end()


class Scratch(threading.local):
    """Per-thread memory for one intermediate value, reused from value to value."""

    def __init__(self) -> None:
        self._buffers: dict[str, np.ndarray] = {}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        """Returns an uninitialized array, valid until this thread requests ``name`` again."""
        size = math.prod(shape) * dtype.itemsize
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[name] = np.empty(size, np.uint8)
        return buffer[:size].view(dtype).reshape(shape)


SCRATCH = Scratch()
