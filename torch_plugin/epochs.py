"""`EpochCounter`: which pass over the data the next iterator of a pipe is, in this process and in loader workers.

``DataLoader`` announces every epoch (``apply_random_seed`` calls ``set_seed``), first in the process of the training
loop and then in each worker, which is forked or unpickled from the pipe there and so starts with its count. What always
holds: one announcement and the iterators that follow it are one epoch, in every process; an iterator without an
announcement is an epoch by itself.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import struct
import weakref
from contextlib import suppress
from typing import Any

_SLOT = struct.Struct("<qqq")
_forks = 0  # of this process, so far


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_parent=_count_fork)


class RestoreCell:
    """A few shared bytes in which a loader worker tells the training process which epoch it has restored.

    `StatefulDataLoader` gives a saved state to its workers only; the process that starts the next epoch would otherwise
    count from zero. Workers write before the loader's constructor returns, so nobody waits and nothing races.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        if path is None and hasattr(os, "memfd_create"):
            descriptor = os.memfd_create("parquetry-epoch", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, _SLOT.size)
            weakref.finalize(self, os.close, descriptor)
            self._path = f"/proc/{os.getpid()}/fd/{descriptor}"  # a spawned worker opens it by this name
            self._memory = mmap.mmap(descriptor, _SLOT.size)
        elif path is None:
            self._memory = mmap.mmap(-1, _SLOT.size)  # reaches forked workers only
        else:
            with open(path, "r+b") as file:
                self._memory = mmap.mmap(file.fileno(), _SLOT.size)

    @property
    def path(self) -> str | None:
        """Where another process of this user finds the cell."""
        return self._path

    def put(self, epoch: int, seed: int | None) -> None:
        """Says which epoch comes next, and the shuffle seed of the state (``None`` = as it was)."""
        _SLOT.pack_into(self._memory, 0, 1, epoch, -1 if seed is None else seed)

    def take(self) -> tuple[int, int | None] | None:
        """What was put since the last call."""
        present, epoch, seed = _SLOT.unpack_from(self._memory, 0)
        if not present:
            return None
        _SLOT.pack_into(self._memory, 0, 0, 0, 0)
        return epoch, None if seed < 0 else seed


class EpochCounter:
    """Counts the epochs of one pipe.

    Attributes:
        next: the epoch of the next iterator.
        announcements: epochs announced so far.
    """

    def __init__(self) -> None:
        self.next = 0
        self.announcements = 0
        self._owner = os.getpid()
        self._cell: RestoreCell | None = None
        self._announced_by: int | None = None
        self._forks = _forks
        self._pickled = False
        self._repeated = False
        self._travelled: str | None = None  # where the cell is, until an unpickled counter has settled in

    @property
    def is_owner(self) -> bool:
        """Whether this is the process that the pipe was made in, not a loader worker."""
        self._arrive()
        return os.getpid() == self._owner

    def announce(self) -> int | None:
        """A loader says that an epoch begins; returns the shuffle seed that a worker restored meanwhile, if any.

        A loader with workers says it once more after it has started them; that is the same epoch.
        """
        self._arrive()
        process, seed = os.getpid(), None
        if self._announced_by == process and self._was_given() and not self._repeated:
            self._repeated = True
            return None
        if self.is_owner:
            self._cell = self._cell or RestoreCell()
            seed = self.sync()
        if self._announced_by == process:
            self.next += 1  # the epoch announced before was given to workers, or to nobody
        self._announced_by = process
        self.announcements += 1
        self._forks, self._pickled, self._repeated = _forks, False, False
        return seed

    def sync(self) -> int | None:
        """Takes over what a loader worker restored since the last call; returns the state's shuffle seed, if any."""
        restored = self._cell.take() if self.is_owner and self._cell is not None else None
        if restored is None:
            return None
        self.next, seed = restored
        self._announced_by = None
        return seed

    def begin(self) -> int:
        """An iterator begins; returns its epoch."""
        epoch = self.next
        self.next += 1
        self._announced_by = None
        return epoch

    def set(self, epoch: int) -> None:
        """The next iterator is epoch ``epoch``."""
        if self.is_owner and self._cell is not None:
            self._cell.take()
        self.next = epoch
        self._announced_by = None

    def resumed(self, epoch: int, seed: int | None, *, tell: bool = True) -> None:
        """An iterator was restored; a worker tells the training process, unless that one gave the state."""
        self.set(epoch + 1)
        if tell and not self.is_owner and self._cell is not None:
            self._cell.put(self.next, seed)

    def _was_given(self) -> bool:
        """Whether a process has been started since the announcement, which took the pipe with it."""
        return self._pickled or self._forks != _forks

    def __getstate__(self) -> dict[str, Any]:
        self._arrive()
        self._pickled = True
        return {**self.__dict__, "_cell": None if self._cell is None else self._cell.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _cell=None, _travelled=state["_cell"] or "")

    def _arrive(self) -> None:
        """Decides what an unpickled counter is: while it is unpickled, a process does not know its parent yet."""
        if self._travelled is None:
            return
        path, self._travelled = self._travelled, None
        parent = multiprocessing.parent_process()
        if os.getpid() == self._owner or parent is None or parent.pid != self._owner:
            self._owner = os.getpid()  # a copy, not a loader worker's pipe
            self._announced_by = None
        elif path:
            with suppress(OSError):  # the pipe in the other process is gone
                self._cell = RestoreCell(path)
