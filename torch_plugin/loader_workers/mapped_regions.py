"""The trainer's side of loader worker memory: maps regions of workers, makes tensors over them, and gives them back."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch

from parquetry.common.base.errors import PipelineError, limit_reached
from parquetry.common.base.memory.arena import LEAST_PAGES_BYTES, private_memory
from parquetry.common.base.platform.memory_file import is_memory, shared_path
from parquetry.common.base.process.exit_watch import wait_for_end

from .worker_failures import check_workers

HEAD_BYTES = 512
TOKEN = 0  # the words of the head, int64
RETURNED = 1
UNUSED = 2  # the first of the words in which workers count; each of up to 62 workers has one of its own
MEMORY_NAME = "loader"
"""The name of a region's memory file, as the system shows it."""


class RegionMemory(NamedTuple):
    """One version of a region's memory, as identified in a message.

    Attributes:
        worker, region: the process that owns it, and which of its regions it is.
        token: identifies the version.
        descriptor: the memory file's descriptor in the worker.
    """

    worker: int
    region: int
    token: int
    size_bytes: int
    descriptor: int


class _Mapped:
    """A region's memory, mapped into this process."""

    def __init__(self, named: RegionMemory, descriptor: int) -> None:
        self.token = named.token
        self.memory = mmap.mmap(descriptor, named.size_bytes)  # raises ValueError if the file is shorter
        self.head = np.frombuffer(self.memory, np.int64, HEAD_BYTES // 8)
        self.pid = os.getpid()


class _Mappings:
    """The workers' regions that are mapped here; a worker's regions are dropped when it ends."""

    def __init__(self) -> None:
        self._mapped: dict[tuple[int, int], _Mapped] = {}
        self._lock = threading.Lock()
        self._watched: set[int] = set()
        self._given_back: deque[_Mapped] = deque()
        self._counting = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """How much is mapped, not counting tensors of ended workers."""
        return sum(len(mapped.memory) for mapped in list(self._mapped.values()))

    def get(self, named: RegionMemory, descriptor: object) -> _Mapped:
        """Returns the memory that a message names.

        The first message carries ``descriptor`` if this process cannot see the worker's files.

        Raises:
            PipelineError: the memory cannot be mapped.
            RuntimeError: because a loader worker has died. It is torch's own error, with the explanation.
        """
        with self._lock:
            known = self._mapped.get((named.worker, named.region))
            if known is None or known.token != named.token:
                known = self._mapped[named.worker, named.region] = _map(named, descriptor)
                if named.worker not in self._watched:
                    self._watch_all()
            return known

    def _watch_all(self) -> None:
        """Starts a thread for each worker that has none yet; it drops the worker's regions when the worker ends."""
        for worker in {worker for worker, _ in self._mapped} - self._watched:
            watch = threading.Thread(target=self._watch, args=(worker,), name="parquetry-loader", daemon=True)
            with suppress(RuntimeError):  # too many threads: the next new worker or region tries again
                watch.start()
                self._watched.add(worker)

    def give_back(self, mapped: _Mapped) -> None:
        """Counts a batch as returned. Called by finalizers: in any thread, even in the middle of this function."""
        if mapped.pid != os.getpid():  # a forked child drops inherited mappings
            return
        self._given_back.append(mapped)
        while self._given_back and self._counting.acquire(blocking=False):
            try:
                while self._given_back:
                    self._given_back.popleft().head[RETURNED] += 1
            finally:
                self._counting.release()

    def _watch(self, worker: int) -> None:
        """Waits for a worker to end, then drops its regions; remaining tensors keep their memory."""
        wait_for_end(worker)
        with self._lock:
            self._watched.discard(worker)
            for key in [key for key in self._mapped if key[0] == worker]:
                del self._mapped[key]


def _map(named: RegionMemory, descriptor: Any) -> _Mapped:
    try:
        opened = _opened(named, None if descriptor is None else descriptor.detach)
        try:
            mapped = _Mapped(named, opened)
        finally:
            os.close(opened)
    except (OSError, ValueError) as error:
        check_workers()
        raise PipelineError(
            f"loader worker {named.worker}: expected to map {named.size_bytes} bytes of its memory, got: {error}. "
            f"{limit_reached(error) or 'It has exited, or runs as another user.'}"
        ) from error
    if int(mapped.head[TOKEN]) != named.token:
        raise PipelineError(f"loader worker {named.worker}: expected the memory of a batch, got that of another batch.")
    return mapped


def _opened(named: RegionMemory, detach: Callable[[], int] | None) -> int:
    """Returns a descriptor of this process for a region."""
    if detach is not None:
        with suppress(OSError, EOFError):  # this process or the worker has too many files open
            return detach()
    return _visible(named)


def _visible(named: RegionMemory) -> int:
    """Opens the file that the worker has open. Another process may have the worker's number by now."""
    path = shared_path(named.descriptor, named.worker)
    if not is_memory(path, MEMORY_NAME):
        raise FileNotFoundError(errno.ENOENT, "another file", path)
    return os.open(path, os.O_RDWR)


def borrow(named: RegionMemory, descriptor: object) -> Any:
    """Returns the memory of a message's tensors; it goes back to the worker when the last of them is gone."""
    mapped = _mappings.get(named, descriptor)
    lease = (ctypes.c_uint8 * named.size_bytes).from_buffer(mapped.memory)
    weakref.finalize(lease, _mappings.give_back, mapped).atexit = False
    return lease


def give_back_unused(named: RegionMemory, worker: int) -> None:
    """In a loader worker: gives back memory of another worker, because its batch does not get to the trainer.

    Args:
        worker: the number of this worker.
    """
    head = _mappings.get(named, None).head
    head[UNUSED + worker % (len(head) - UNUSED)] += 1


def vector_at(lease: object, offset: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    """Makes a tensor of one axis over borrowed memory."""
    return torch.frombuffer(lease, dtype=dtype, count=count, offset=offset)


def tensor_at(
    lease: object, offset: int, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """Makes a tensor over borrowed memory."""
    reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    flat = torch.frombuffer(lease, dtype=dtype, count=reach, offset=offset)
    return flat if stride == (1,) else flat.as_strided(shape, stride)


def copy_at(
    lease: object, offset: int, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """Makes a tensor with a copy of borrowed memory."""
    return own_copy(tensor_at(lease, offset, dtype, shape, stride))


def own_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a copy of a tensor, in memory of its own."""
    if tensor.nbytes < LEAST_PAGES_BYTES:
        return tensor.clone()
    # As in `separate_array`: otherwise small tensors that are kept would scatter over the allocator's memory.
    copy = torch.frombuffer(private_memory(tensor.nbytes), dtype=tensor.dtype, count=tensor.numel())
    return copy.view(tensor.shape).copy_(tensor)


def _renew() -> None:
    """Starts fresh in a forked child: the parent's threads may hold locks, and the mappings are the parent's."""
    global _mappings
    _mappings = _Mappings()


_mappings = _Mappings()
os.register_at_fork(after_in_child=_renew)
