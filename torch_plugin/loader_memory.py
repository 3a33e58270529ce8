"""Memory of loader workers that the trainer maps: batches cross the processes of a ``DataLoader`` without a copy.

In: a worker process that makes batches in the engine's regions. Out: in the trainer, tensors that look into the same
memory. Always holds: a region is written to again only when every tensor over it is gone, in both processes.

Torch alone copies each batch into new shared memory, whose pages are new to both processes each time; for images that
costs more than decoding them. It also needs room in ``/dev/shm``, which containers have little of; regions do not.

A region is a memory file. The worker sends its descriptor once, and for each batch only where its tensors lie. The
trainer counts in the region's first bytes the batches that it has given back. Where there are no memory files, a batch
travels in one block of torch's shared memory (`SharedPacker`).
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import itertools
import mmap
import os
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor

from parquetry.common.engine.columns.arena import SHARED_REGIONS, Region
from parquetry.common.engine.columns.batch import Column, Dense, Ragged
from parquetry.common.errors import PipelineError

from .process_end import wait_for_end
from .tensors import Jagged, reduce_jagged

_HEAD_BYTES = 64
_RETURNED, _TOKEN = 0, 1  # int64 words of the head
_MOST_REGIONS = 24  # of a worker, a descriptor each; what a consumer holds beyond them goes through torch


class _Memory(NamedTuple):
    """One version of a region's memory, as a message names it.

    Attributes:
        worker, region: the process that it belongs to, and which of its regions.
        token: names the version.
        descriptor: of the memory file, in the worker.
    """

    worker: int
    region: int
    token: int
    size_bytes: int
    descriptor: int


# --- in the loader worker ---


def share_regions() -> bool:
    """From now on, the batches of this process are made in memory that its parent can map. Idempotent.

    False where there are no memory files; then torch copies.
    """
    global _sharing
    if not hasattr(os, "memfd_create"):
        return False
    if _sharing.pid != os.getpid():  # what a parent shares is its own
        _sharing = _Sharing(os.getpid())
        SHARED_REGIONS.use(_sharing.make)
        ForkingPickler.register(torch.Tensor, _reduce)
        if Jagged is not None:
            ForkingPickler.register(Jagged, reduce_jagged)
    return True


class SharedRegion(Region):
    """A region in a memory file, with a head."""

    head_bytes = _HEAD_BYTES

    _numbers = itertools.count()

    def __init__(self) -> None:
        self.number = next(self._numbers)
        self._sent = 0
        self._ticket: _Ticket | None = None
        super().__init__()

    def map_memory(self, size_bytes: int) -> mmap.mmap:
        descriptor = os.memfd_create("parquetry-loader", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size_bytes)
            memory = mmap.mmap(descriptor, size_bytes)
        except BaseException:
            os.close(descriptor)
            raise
        self._head = np.frombuffer(memory, np.int64, _HEAD_BYTES // 8)
        self._head[_TOKEN] = secrets.randbits(63)
        self._sent = 0
        self._ticket = _Ticket(self, descriptor, size_bytes)
        _sharing.add(self, self._head.ctypes.data, size_bytes)
        return memory

    @property
    def is_free(self) -> bool:
        return int(self._head[_RETURNED]) == self._sent

    @property
    def ticket(self) -> _Ticket:
        """What names its memory in a message."""
        assert self._ticket is not None
        return self._ticket

    @property
    def token(self) -> int:
        """Names its memory, among all of all processes."""
        return int(self._head[_TOKEN])

    def count(self) -> None:
        """A message with the ticket is on its way."""
        self._sent += 1


class _Ticket:
    """One version of a region's memory; pickled once in each message, however many tensors that has."""

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
        if not self._known:
            with contextlib.suppress(OSError):  # an error would be lost in the queue's thread, and the batch with it
                descriptor = DupFd(self._descriptor)
        self._known = True
        memory = _Memory(os.getpid(), region.number, region.token, self._size_bytes, self._descriptor)
        return _borrow, (memory, descriptor)


_Where: TypeAlias = tuple[range, weakref.ref[SharedRegion]]


class _Sharing:
    """The regions of this process by address. Tensors are pickled in a thread of the loader's queue."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._lock = threading.Lock()
        self._begins: list[int] = []
        self._regions: list[_Where] = []  # by address

    def make(self) -> Region:
        """A region that can be mapped, while there are not too many."""
        with self._lock:
            self._keep([item for item in self._regions if item[1]() is not None])
            room = len(self._regions) < _MOST_REGIONS
        if room:
            with contextlib.suppress(OSError):  # no descriptors are left, or a sandbox forbids memory files
                return SharedRegion()
        return Region()

    def add(self, region: SharedRegion, begin: int, size_bytes: int) -> None:
        """A region has new memory."""
        with self._lock:
            others = [item for item in self._regions if item[1]() not in (None, region)]
            self._keep([*others, (range(begin, begin + size_bytes), weakref.ref(region))])

    def _keep(self, regions: list[_Where]) -> None:
        self._regions = sorted(regions, key=lambda item: item[0].start)
        self._begins = [addresses.start for addresses, _ in self._regions]

    def find(self, address: int) -> tuple[SharedRegion, int] | None:
        """The region that an address lies in, and where in it."""
        with self._lock:
            number = bisect.bisect_right(self._begins, address) - 1
            if number < 0 or address not in self._regions[number][0]:
                return None
            region = self._regions[number][1]()
            return None if region is None else (region, address - self._begins[number])


_sharing = _Sharing(pid=0)


class Placer:
    """Makes tensors of the arrays of one batch; those that lie elsewhere are copied into a region first.

    Args:
        size_bytes: what all arrays would take, at most.
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
        copy = self._region.allocate(array.dtype, array.shape)
        copy[...] = array
        return torch.from_numpy(copy)

    def __enter__(self) -> Placer:
        return self

    def __exit__(self, *_: object) -> None:
        """From now on only the tensors hold the memory."""
        if self._region is not None:
            self._region.end()


def _reduce(tensor: torch.Tensor) -> Any:
    """How a tensor is pickled for another process."""
    plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.requires_grad
    if not plain or not tensor.numel() or tensor.is_conj() or tensor.is_neg():
        return reduce_tensor(tensor)
    found = _sharing.find(tensor.data_ptr()) if _sharing.pid == os.getpid() else None
    if found is None:
        return reduce_tensor(tensor)
    region, offset = found
    return _tensor_at, (region.ticket, offset, tensor.dtype, tuple(tensor.shape), tensor.stride())


# --- in the trainer ---


class _Mapped:
    """A region's memory as it is mapped here."""

    def __init__(self, named: _Memory, descriptor: int) -> None:
        self.token = named.token
        self.memory = mmap.mmap(descriptor, named.size_bytes)
        self.head = np.frombuffer(self.memory, np.int64, _HEAD_BYTES // 8)
        self.pid = os.getpid()


class _Mappings:
    """The regions of all workers that are mapped here; those of a worker go with it."""

    def __init__(self) -> None:
        self._mapped: dict[tuple[int, int], _Mapped] = {}
        self._lock = threading.Lock()
        self._watched: set[int] = set()
        self._given_back: deque[_Mapped] = deque()
        self._counting = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """How much is mapped, tensors of ended workers aside."""
        return sum(len(mapped.memory) for mapped in list(self._mapped.values()))

    def get(self, named: _Memory, descriptor: object) -> _Mapped:
        """The memory that a message names; ``descriptor`` comes with the first of them."""
        with self._lock:
            known = self._mapped.get((named.worker, named.region))
            if known is None or known.token != named.token:
                known = self._mapped[named.worker, named.region] = _map(named, descriptor)
                if named.worker not in self._watched:
                    self._watched.add(named.worker)
                    watch = threading.Thread(
                        target=self._watch, args=(named.worker,), name="parquetry-loader", daemon=True
                    )
                    watch.start()
            return known

    def give_back(self, mapped: _Mapped) -> None:
        """Counts a batch as given back. Called by finalisers: in any thread, also in the middle of this function."""
        if mapped.pid != os.getpid():  # a forked child drops what it inherited
            return
        self._given_back.append(mapped)
        while self._given_back and self._counting.acquire(blocking=False):
            try:
                while self._given_back:
                    self._given_back.popleft().head[_RETURNED] += 1
            finally:
                self._counting.release()

    def _watch(self, worker: int) -> None:
        """Waits for the end of a worker, then forgets its regions; tensors that are left keep their memory."""
        wait_for_end(worker)
        with self._lock:
            self._watched.discard(worker)
            for key in [key for key in self._mapped if key[0] == worker]:
                del self._mapped[key]


def _map(named: _Memory, descriptor: Any) -> _Mapped:
    try:
        # Without the first message, which may have gone to another process, there is only the worker's own name for it.
        path = f"/proc/{named.worker}/fd/{named.descriptor}"
        opened = os.open(path, os.O_RDWR) if descriptor is None else descriptor.detach()
        try:
            mapped = _Mapped(named, opened)
        finally:
            os.close(opened)
    except (OSError, ValueError) as error:
        raise PipelineError(
            f"loader worker {named.worker}: expected to map {named.size_bytes} bytes of its memory, got: {error}. "
            "It has ended, or runs as another user."
        ) from error
    if int(mapped.head[_TOKEN]) != named.token:
        raise PipelineError(f"loader worker {named.worker}: expected the memory of a batch, got that of another one.")
    return mapped


def _borrow(named: _Memory, descriptor: object) -> Any:
    """The memory of a message's tensors; it goes back to the worker with the last of them."""
    mapped = _mappings.get(named, descriptor)
    lease = (ctypes.c_uint8 * named.size_bytes).from_buffer(mapped.memory)
    weakref.finalize(lease, _mappings.give_back, mapped).atexit = False
    return lease


def _tensor_at(
    lease: object, offset: int, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    flat = torch.frombuffer(lease, dtype=dtype, count=reach, offset=offset)
    return flat if stride == (1,) else flat.as_strided(shape, stride)


def _renew() -> None:
    """In a forked child: locks may be held by threads of the parent, and mappings are the parent's."""
    global _mappings
    _mappings = _Mappings()


_mappings = _Mappings()
os.register_at_fork(after_in_child=_renew)


_ALIGNMENT = 64


class SharedPacker:
    """Makes tensors of arrays, one behind the other in a block of shared memory.

    Args:
        columns: the batch whose arrays, and the offsets of whose ragged fields, are going to be packed.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        size = max(block_bytes(columns), 1)
        storage = torch.UntypedStorage._new_shared(size)  # the block that torch's own collate uses
        self._block = torch.empty(0, dtype=torch.uint8).set_(storage)
        self._used = 0

    def __call__(self, array: np.ndarray) -> torch.Tensor:
        """A tensor with the array's values."""
        slot = self._block[self._used : self._used + array.nbytes]
        slot.numpy().view(array.dtype).reshape(array.shape)[...] = array
        self._used += _aligned(array.nbytes)
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        return slot.view(dtype).view(array.shape)


def block_bytes(columns: Sequence[Column]) -> int:
    """What the arrays of a batch take, one behind the other."""
    return sum(_aligned(size) for column in columns for size in _sizes(column))


def _sizes(column: Column) -> list[int]:
    if isinstance(column, Dense):
        return [column.values.nbytes]
    if isinstance(column, Ragged) and isinstance(column.values, np.ndarray):
        return [column.values.nbytes, 8 * (len(column.shapes) + 1)]
    return []


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
