"""Loader worker memory that the trainer maps: batches move between ``DataLoader`` processes without a copy.

A worker process makes batches in the engine's regions, and the trainer gets tensors over the same memory. A region is
reused only when every tensor over it is gone, in both processes.

By itself, torch copies each batch into new shared memory, whose pages are new to both processes each time; for images
that costs more than decoding them. It also needs space in ``/dev/shm``, which is scarce in containers; regions do not.

A region is a memory file, which the trainer opens once. For each batch, the worker sends the positions of its tensors
(`mapped_regions`). The trainer counts returned batches in the region's first bytes. If the trainer holds tensors of
many batches, such as all labels of an epoch, it copies small tensors of further batches, so that their regions come
back at once. Without memory files, a batch is sent in one block of torch's shared memory (`SharedPacker`).
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import itertools
import mmap
import os
import resource
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.multiprocessing import get_sharing_strategy
from torch.multiprocessing.reductions import reduce_tensor

from parquetry.common.base.errors import ResourceError, limit_reached
from parquetry.common.base.memory.arena import SHARED_REGIONS, Region
from parquetry.common.base.native.library import address_of
from parquetry.common.base.platform.memory_file import has_memfd, is_visible, memory_file
from parquetry.common.engine.columns.batch import Dense, Ragged

from ..tensors import JaggedPart, Part, reduce_jagged
from ..torch_internals import Jagged, shared_block
from .mapped_regions import (
    HEAD_BYTES,
    MEMORY_NAME,
    RETURNED,
    TOKEN,
    RegionMemory,
    borrow,
    copy_at,
    tensor_at,
    vector_at,
)

_ALIGNMENT = 64
_MOST_REGIONS = 24  # per worker, with one descriptor each, and as many again whose small tensors are copied
_MOST_MULTIPLES = 4  # as many times more in a worker that makes the batches of others
_SHARE_OF_FILES = 4  # then they take at most this fraction of the files that the process may open
_COPIES_BYTES = 1 << 20  # of a region for copies of arrays, if a batch has fewer
_MOST_COPIED_BYTES = 1 << 20  # torch sends a larger tensor of those, as it sends all tensors of batches beyond them


def share_regions() -> bool:
    """Makes this process build its batches in memory that its parent can map. Idempotent.

    Returns ``False`` if the system has no memory files, or forbids them; then torch copies.
    """
    global _sharing
    if not has_memfd():
        return False
    if _sharing.pid != os.getpid():  # a parent's regions are not this process's
        _sharing = _Sharing(os.getpid())
        SHARED_REGIONS.use(_sharing.make)
        ForkingPickler.register(torch.Tensor, _reduce)
        if Jagged is not None:
            ForkingPickler.register(Jagged, reduce_jagged)
    return True


class SharedRegion(Region):
    """A region in a memory file, with a header.

    Attributes:
        is_copied: as for `Region`.
    """

    head_bytes = HEAD_BYTES
    small_bytes = 0  # an array elsewhere would be copied to reach the trainer, which copies small ones if it holds many

    _numbers = itertools.count()

    def __init__(self, *, is_copied: bool = False) -> None:
        self.number = next(self._numbers)
        self.is_copied = is_copied
        self.addresses = range(0)
        self._sent = 0
        self._ticket: _Ticket | None = None
        super().__init__()

    def map_memory(self, size_bytes: int) -> mmap.mmap:
        """Returns new memory for the region.

        Raises:
            ResourceError: the limit on open files is reached. Without the region, torch would need a file for each
                tensor, report that there is none in a thread of its queue, and leave the trainer waiting.
            OSError: the system has no memory files, or no memory left.
        """
        try:
            descriptor, memory = _new_memory(size_bytes)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and get_sharing_strategy() == "file_descriptor":
                raise ResourceError(f"loader worker {os.getpid()}: {error}. {limit_reached(error)}") from error
            raise
        self._head = np.frombuffer(memory, np.int64, HEAD_BYTES // 8)
        self._head[TOKEN] = secrets.randbits(63)
        self._given_back = self._head[RETURNED:]  # and the words from `UNUSED` on
        self._sent = 0
        self._ticket = _Ticket(self, descriptor, size_bytes)
        begin = self._head.ctypes.data
        self.addresses = range(begin, begin + size_bytes)
        _sharing.add(self, self.addresses)
        return memory

    @property
    def is_free(self) -> bool:
        return int(np.add.reduce(self._given_back)) == self._sent

    @property
    def ticket(self) -> _Ticket:
        """Identifies its memory in a message."""
        assert self._ticket is not None
        return self._ticket

    @property
    def token(self) -> int:
        """Identifies its memory, uniquely across processes."""
        return int(self._head[TOKEN])

    def count(self, messages: int = 1) -> None:
        """Counts a message that names its memory; the trainer gives it back once for each."""
        self._sent += messages

    def named(self) -> RegionMemory:
        """Returns what a message says to identify its memory, if the trainer can open it in ``/proc``."""
        return self.ticket.named(self)


def _new_memory(size_bytes: int) -> tuple[int, mmap.mmap]:
    descriptor = memory_file(MEMORY_NAME, size_bytes)
    try:
        return descriptor, mmap.mmap(descriptor, size_bytes)
    except BaseException:
        os.close(descriptor)
        raise


class _Ticket:
    """One version of a region's memory; pickled once per message, regardless of the number of tensors."""

    def __init__(self, region: SharedRegion, descriptor: int, size_bytes: int) -> None:
        self._region = weakref.ref(region)
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self._known = False
        weakref.finalize(self, os.close, descriptor).atexit = False

    def __reduce__(self) -> Any:
        region = self._region()
        assert region is not None
        region.count()
        descriptor = None
        if not self._known and not is_visible():
            # multiprocessing sends it, which takes a thread, a socket and a directory that stays if this is killed
            with contextlib.suppress(OSError):  # the queue's thread would lose the error, and the batch with it
                descriptor = DupFd(self._descriptor)
        self._known = True
        return borrow, (self.named(region), descriptor)

    def named(self, region: SharedRegion) -> RegionMemory:
        """Returns what a message says to identify it."""
        return RegionMemory(os.getpid(), region.number, region.token, self._size_bytes, self._descriptor)


_Where: TypeAlias = tuple[range, Callable[[], SharedRegion | None]]


class _Sharing:
    """This process's regions, by address. A thread of the loader's queue pickles the tensors."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._lock = threading.Lock()
        self._begins: list[int] = []
        self._regions: list[_Where] = []  # by address
        self._latest: _Where = range(0), lambda: None  # the tensors of a batch are usually in one region
        self.most = _MOST_REGIONS

    def make(self) -> Region:
        """Returns a region that other processes can map, unless there are too many.

        Raises:
            ResourceError: see `SharedRegion.map_memory`.
        """
        with self._lock:
            self._keep([item for item in self._regions if item[1]() is not None])
            count = len(self._regions)
        if count < 2 * self.most:
            try:
                return SharedRegion(is_copied=count >= self.most)
            except ResourceError:
                raise
            except OSError:  # a sandbox may forbid memory files
                pass
        return Region()

    def add(self, region: SharedRegion, addresses: range) -> None:
        """Registers a region's new memory."""
        with self._lock:
            others = [item for item in self._regions if item[1]() not in (None, region)]
            self._keep([*others, (addresses, weakref.ref(region))])

    def _keep(self, regions: list[_Where]) -> None:
        self._latest = range(0), lambda: None
        self._regions = sorted(regions, key=lambda item: item[0].start)
        self._begins = [addresses.start for addresses, _ in self._regions]

    def with_number(self, number: int) -> SharedRegion | None:
        with self._lock:
            regions = [region() for _, region in self._regions]
        return next((region for region in regions if region is not None and region.number == number), None)

    def find(self, address: int) -> tuple[SharedRegion, int] | None:
        """Returns the region that contains an address, and the offset in it."""
        addresses, region = self._latest
        if address in addresses and (here := region()) is not None:
            return here, address - addresses.start
        with self._lock:
            number = bisect.bisect_right(self._begins, address) - 1
            if number < 0 or address not in self._regions[number][0]:
                return None
            self._latest = self._regions[number]
            here = self._latest[1]()
            return None if here is None else (here, address - self._begins[number])


_sharing = _Sharing(pid=0)


def _region_at(address: int) -> tuple[SharedRegion, int] | None:
    """Returns this process's region that contains an address, and the offset in it."""
    return _sharing.find(address) if _sharing.pid == os.getpid() else None


def over_region(arrays: Sequence[np.ndarray]) -> list[torch.Tensor] | None:
    """Returns tensors over writeable, C-contiguous arrays if all of them are in one region, otherwise ``None``."""
    tensors = list(map(torch.from_numpy, arrays))
    addresses = [tensor.data_ptr() for tensor in tensors]
    place = _region_at(min(addresses, default=0))
    return None if place is None or max(addresses) not in place[0].addresses else tensors


def make_for(workers: int) -> None:
    """Allows this process as many regions as it needs to make the batches of this many workers."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    affordable = files // (_SHARE_OF_FILES * 2 * _MOST_REGIONS)
    _sharing.most = _MOST_REGIONS * max(min(workers, affordable, _MOST_MULTIPLES), 1)


class Placed(NamedTuple):
    """Arrays in regions.

    Attributes:
        places: for each array, the number of its region among these, and the offset in it.
        arrays: the arrays there; whoever holds them keeps the regions in use.
    """

    regions: list[SharedRegion]
    places: list[tuple[int, int]]
    arrays: list[np.ndarray]


class Copies:
    """Memory for copies of arrays. A region holds those of several batches, as taking one costs more than copying."""

    def __init__(self) -> None:
        self._region: Region | None = None
        self._end: Callable[[], object] = int

    def region(self, size_bytes: int) -> Region:
        """Returns a region with room for this many bytes."""
        if self._region is None or self._region.left_bytes < size_bytes:
            self._end()
            self._region = SHARED_REGIONS.acquire(max(size_bytes, _COPIES_BYTES))
            self._end = ending = weakref.finalize(self, self._region.end)
            ending.atexit = False
        return self._region


def place_arrays(arrays: Sequence[np.ndarray], copies: Copies) -> Placed:
    """Finds the regions that hold some arrays; arrays outside regions are copied into one first.

    Raises:
        BufferError: so many regions are in use that there is none for the copies; or all arrays are empty.
    """
    full = [array for array in arrays if array.nbytes]
    slots = [_region_of(array) for array in full]
    outside = [number for number, place in enumerate(slots) if place is None]
    if outside:
        region = copies.region(sum(_aligned(full[number].nbytes) for number in outside))
        for number in outside:
            full[number] = _copied(full[number], region)
            slots[number] = _region_of(full[number])
    places = [place for place in slots if place is not None]
    if len(places) < len(slots) or not places:
        raise BufferError(f"expected at most {2 * _sharing.most} regions in use, and values in them.")
    regions = list({id(region): region for region, _ in places}.values())
    numbers = {id(region): number for number, region in enumerate(regions)}
    at = ((numbers[id(region)], offset) for region, offset in places)
    return Placed(regions, [next(at) if array.nbytes else (0, 0) for array in arrays], full)


def _region_of(array: np.ndarray) -> tuple[SharedRegion, int] | None:
    """Returns the region in which the trainer can use an array."""
    if not array.flags.writeable or not array.flags.c_contiguous:
        return None
    return _sharing.find(address_of(array))


def _copied(array: np.ndarray, region: Region) -> np.ndarray:
    copy = region.allocate(array.dtype, array.shape)
    copy[...] = array
    return copy


def release(memory: RegionMemory) -> bool:
    """Takes back a message of this process that was not sent. Returns ``False`` if it is another process's."""
    if memory.worker != os.getpid():
        return False
    region = _sharing.with_number(memory.region)
    if region is not None and region.token == memory.token:
        region.count(-1)
    return True


class Placer:
    """Makes tensors from the arrays of one batch; arrays outside a region are copied into one first.

    Args:
        size_bytes: upper bound for the size of all arrays.
    """

    def __init__(self, size_bytes: Callable[[], int]) -> None:
        self._size_bytes = size_bytes
        self._region: Region | None = None

    def __call__(self, array: np.ndarray) -> torch.Tensor:
        if array.flags.writeable and array.flags.c_contiguous:
            tensor = torch.from_numpy(array)
            if not array.nbytes or _sharing.find(tensor.data_ptr()) is not None:
                return tensor
        if self._region is None:
            self._region = SHARED_REGIONS.acquire(self._size_bytes())
        return torch.from_numpy(_copied(array, self._region))

    def __enter__(self) -> Placer:
        return self

    def __exit__(self, *_: object) -> None:
        """Releases the region, so that only the tensors hold the memory."""
        if self._region is not None:
            self._region.end()


def _reduce(tensor: torch.Tensor) -> Any:
    """Pickles a tensor for another process."""
    plain = tensor.layout is torch.strided and tensor.is_cpu and not tensor.requires_grad
    if not plain or not tensor.numel():
        return reduce_tensor(tensor)
    if tensor.is_conj() or tensor.is_neg():  # torch would send the values under the view
        return reduce_tensor(tensor.resolve_conj().resolve_neg())
    place = _region_at(tensor.data_ptr())
    if place is None:
        return reduce_tensor(tensor)
    region, offset = place
    if region.is_copied:
        if tensor.nbytes > _MOST_COPIED_BYTES:
            return reduce_tensor(tensor)
        return copy_at, (region.ticket, offset, tensor.dtype, tuple(tensor.shape), tensor.stride())
    if tensor.ndim == 1 and tensor.is_contiguous():
        return vector_at, (region.ticket, offset, tensor.dtype, len(tensor))
    return tensor_at, (region.ticket, offset, tensor.dtype, tuple(tensor.shape), tensor.stride())


class SharedPacker:
    """Makes tensors from arrays, one after another in a block of shared memory.

    Args:
        columns: the batch whose arrays and ragged offsets will be packed.
    """

    def __init__(self, columns: Sequence[Part]) -> None:
        self._block = shared_block(max(block_bytes(columns), 1))
        self._used = 0

    def __call__(self, array: np.ndarray) -> torch.Tensor:
        """Returns a tensor with the array's values."""
        slot = self._block[self._used : self._used + array.nbytes]
        slot.numpy().view(array.dtype).reshape(array.shape)[...] = array
        self._used += _aligned(array.nbytes)
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        return slot.view(dtype).view(array.shape)


def block_bytes(parts: Sequence[Part]) -> int:
    """Returns the size of a batch's arrays, packed one after another."""
    return sum(_aligned(size) for part in parts for size in _sizes(part))


def _sizes(column: Part) -> list[int]:
    if isinstance(column, np.ndarray):
        return [column.nbytes]
    if isinstance(column, JaggedPart):
        return [column.values.nbytes, column.offsets.nbytes]
    if isinstance(column, Dense):
        return [column.values.nbytes]
    if isinstance(column, Ragged) and isinstance(column.values, np.ndarray):
        return [column.values.nbytes, 8 * (len(column.shapes) + 1)]
    return []


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
