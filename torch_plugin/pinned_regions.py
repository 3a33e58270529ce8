"""Page-locks the engine's regions, so that batches are copied to a GPU straight from where they were decoded.

It takes a `PageLock`; from then on, batches of this process lie in page-locked memory. A region is locked once, when
its memory is mapped, and unlocked before that memory is unmapped. So an address never stays locked for other memory.

Pinning each batch instead would copy it once more. Memory outside regions (small arrays, batches of a sidecar, batches
beyond the number that a pool hands out) is not locked; ``tensor.is_pinned()`` tells.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from functools import partial
from typing import Protocol

import numpy as np

from parquetry.common.base.memory.arena import SHARED_REGIONS, Region
from parquetry.common.base.platform.files import use_huge_pages


class PageLock(Protocol):
    """Locks memory for direct access by a device. Called from any thread of one process."""

    def lock(self, address: int, size_bytes: int) -> bool:
        """Locks mapped memory; returns whether it could. It must be unlocked before it is unmapped."""

    def unlock(self, address: int) -> None:
        """Unlocks the memory that was locked at ``address``; no copy from it may be under way."""


class PinnedRegion(Region):
    """A region in page-locked memory; in ordinary memory if the system refuses."""

    def __init__(self, page_lock: PageLock) -> None:
        self._page_lock = page_lock
        self._unlock: weakref.finalize | None = None
        super().__init__()

    def map_memory(self, size_bytes: int) -> mmap.mmap:
        if self._unlock is not None:
            self._unlock()  # no array points into the old memory, which is unmapped next
            self._unlock = None
        memory = super().map_memory(size_bytes)
        if size_bytes <= mmap.PAGESIZE:  # a new region, which has no batch yet
            return memory
        use_huge_pages(memory)  # before its pages are locked, which allocates them
        address = np.frombuffer(memory, np.uint8).ctypes.data
        if self._page_lock.lock(address, size_bytes):
            self._unlock = weakref.finalize(self, _unlock_here, self._page_lock, address, os.getpid())
            self._unlock.atexit = False  # the process's memory goes with it
        return memory


class PinnedRegions:
    """Makes further regions of batches page-locked for as long as anyone uses them. Thread-safe."""

    def __init__(self) -> None:
        self._users = 0
        self._lock = threading.Lock()

    def acquire(self, page_lock: PageLock) -> None:
        """Begins a use; the first one decides who locks the pages."""
        with self._lock:
            self._users += 1
            if self._users == 1:
                SHARED_REGIONS.use(partial(PinnedRegion, page_lock), limited=True)

    def release(self) -> None:
        """Ends a use. After the last one, regions are unlocked as their batches go."""
        with self._lock:
            self._users = max(0, self._users - 1)
            if not self._users:
                SHARED_REGIONS.use(Region, limited=True)

    def forget(self) -> None:
        """Starts fresh in a forked child, as its pool does: the parent's threads may hold the lock."""
        self._lock = threading.Lock()
        self._users = 0


def _unlock_here(page_lock: PageLock, address: int, pid: int) -> None:
    if pid == os.getpid():  # a forked child drops its copy of the region
        page_lock.unlock(address)


PINNED_BATCHES = PinnedRegions()
"""The regions of batches in this process."""
os.register_at_fork(after_in_child=PINNED_BATCHES.forget)
