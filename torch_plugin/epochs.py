"""`EpochCounter`: counts the epochs of a dataset, in this process and in loader workers.

A loader announces each pass in the training process (`loader_passes`). Workers are forked, or unpickled, from the
dataset there, and so start with its count; later changes reach them through a few bytes of shared memory. A pass of a
loader is one epoch, in every process; an iterator without an announcement is an epoch of its own.
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
import weakref
from contextlib import suppress
from typing import Any

from torch.utils.data import get_worker_info

from parquetry.common.base.errors import PipelineError
from parquetry.common.base.platform.memory_file import is_memory, memory_file, shared_path
from parquetry.common.base.process.dataclass import dataclass
from parquetry.common.schema.plain import integer

from .loader_passes import Pass
from .trainer_sharding import TrainerEpoch

_LOG = logging.getLogger(__name__)
_WORDS = struct.Struct("<qqq")
_NAME = "epochs"
_LOADERS = 64  # loaders with workers at a time; workers of further loaders count for themselves
_PASSES = 8  # of each loader


def epoch_number(epoch: object) -> int:
    """Returns the argument of ``set_epoch``; raises `PipelineError` unless it is an integer of at least 0."""
    number = integer(epoch, least=0)
    if number is None:
        raise PipelineError(f"set_epoch: expected an integer >= 0, got {epoch!r}.")
    return number


def warn_of_dropped_state(state_epoch: int, epoch: int, *, ended: bool) -> None:
    """Warns that ``set_epoch`` drops a state that was loaded before it and that nothing has used.

    A state at the end of an epoch leads to the epoch after it, so nothing is lost then.
    """
    if ended and epoch == state_epoch + 1:
        return
    _LOG.warning(
        "set_epoch(%d): the state that was loaded before is from epoch %d, so it is dropped, and epoch %d starts at "
        "its beginning. To resume from it, call load_state_dict() after set_epoch(), or leave set_epoch() out.",
        epoch,
        state_epoch,
        epoch,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedPass:
    """What workers learn about a pass: its number among the dataset's passes, and its epoch."""

    number: int
    epoch: int


class EpochMemory:
    """Bytes shared between the training process and the loader workers of one dataset.

    The training process tells running workers which epoch their loader begins. A worker reports which epoch it
    restored: `StatefulDataLoader` passes a saved state only to its workers, and the process that starts the next epoch
    would otherwise count from zero. Each side writes before the other one reads. The loop may begin its next pass
    before a slow worker has begun this one, so the latest passes are kept.
    """

    _size = _WORDS.size * (1 + _LOADERS * _PASSES)

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        if path is None:
            try:
                descriptor = memory_file(_NAME, self._size)
            except OSError:
                self._memory = mmap.mmap(-1, self._size)  # reaches forked workers only
                return
            weakref.finalize(self, os.close, descriptor)
            self._path = shared_path(descriptor)  # a spawned worker opens it by this name
            self._memory = mmap.mmap(descriptor, self._size)
        else:
            with open(path, "r+b") as file:
                if not is_memory(file.fileno(), _NAME):
                    raise FileNotFoundError(f"expected memory of epochs, got another file: {path}")
                self._memory = mmap.mmap(file.fileno(), self._size)

    @property
    def path(self) -> str | None:
        """The path under which another process of this user can open the memory."""
        return self._path

    def announce(self, loader: int, announcement: AnnouncedPass) -> None:
        for number in range(_PASSES):
            if _WORDS.unpack_from(self._memory, _place(loader, number))[0] != loader:  # of a loader before
                _WORDS.pack_into(self._memory, _place(loader, number), 0, 0, 0)
        _WORDS.pack_into(
            self._memory, _place(loader, announcement.number), loader, announcement.number, announcement.epoch
        )

    def passes(self, loader: int) -> list[AnnouncedPass]:
        """Returns the latest passes of a loader, oldest first."""
        entries = [_WORDS.unpack_from(self._memory, _place(loader, number)) for number in range(_PASSES)]
        return [
            AnnouncedPass(number=number, epoch=epoch) for whose, number, epoch in sorted(entries) if whose == loader
        ]

    def put(self, epoch: int, seed: int | None) -> None:
        """Reports the next epoch, and the shuffle seed of the state (``None`` = unchanged)."""
        _WORDS.pack_into(self._memory, 0, 1, epoch, -1 if seed is None else seed)

    def take(self) -> tuple[int, int | None] | None:
        """Returns what was put since the last call."""
        present, epoch, seed = _WORDS.unpack_from(self._memory, 0)
        if not present:
            return None
        _WORDS.pack_into(self._memory, 0, 0, 0, 0)
        return epoch, None if seed < 0 else seed


class EpochCounter:
    """Counts the epochs of one dataset."""

    def __init__(self) -> None:
        self._next = 0
        self._passes = 0
        self._awaited: int | None = None  # the epoch of a pass in this process whose iterator is not made yet
        self._in_workers: int | None = None  # the epoch that loader workers are in
        self._loader = 0  # of that pass
        self._trainer: TrainerEpoch | None = None
        self._known: AnnouncedPass | None = None  # in a worker: the pass that it counts from
        self._owner = os.getpid()
        self._memory: EpochMemory | None = None
        self._traveled: str | None = None  # the path of the memory, until `_arrive` runs in another process

    @property
    def is_owner(self) -> bool:
        """Whether this process made the dataset, and is not a loader worker."""
        self._arrive()
        return os.getpid() == self._owner

    @property
    def is_announced(self) -> bool:
        """Whether a loader announced the epoch of this worker."""
        self._arrive()
        return self._loader > 0

    @property
    def is_awaited(self) -> bool:
        """Whether a loader in this process has begun a pass whose iterator is not made yet."""
        return self._awaited is not None

    @property
    def upcoming(self) -> int:
        """The epoch of the next iterator, or the one that loader workers are in."""
        return next(epoch for epoch in (self._in_workers, self._awaited, self._next) if epoch is not None)

    @property
    def current(self) -> int:
        """The epoch of rows that this process reads without an iterator."""
        announcement = None if self.is_owner else self._latest()
        return self.upcoming if announcement is None else announcement.epoch

    def announce(self, begun: Pass) -> int | None:
        """Called when a loader begins a pass; returns the shuffle seed that a worker restored meanwhile, if any."""
        seed = self.sync()
        self._passes += 1
        epoch, self._next = self._next, self._next + 1
        self._in_workers, self._awaited = (epoch, None) if begun.workers else (None, epoch)
        if begun.workers:
            self._loader = begun.loader
            self._memory = self._memory or EpochMemory()
            self._memory.announce(begun.loader, AnnouncedPass(number=self._passes, epoch=epoch))
        return seed

    def sync(self) -> int | None:
        """Takes over a state that a loader worker restored since the last call; returns its shuffle seed, if any."""
        restored = self._memory.take() if self.is_owner and self._memory is not None else None
        if restored is None:
            return None
        self.set(restored[0])
        return restored[1]

    def begin(self) -> int:
        """Called when an iterator begins; returns its epoch."""
        epoch = self._next if self.is_owner else self._announced_epoch()
        if self._awaited is not None:
            epoch, self._awaited = self._awaited, None
        self._next, self._in_workers = max(self._next, epoch + 1) if self.is_owner else epoch + 1, None
        return epoch

    def set(self, epoch: int) -> None:
        """Makes the next iterator epoch ``epoch``; a pass that is awaited remains so."""
        awaited = None if self._awaited is None else epoch
        if not self.is_owner:
            self._known = self._upcoming_pass() or self._known
        elif self._memory is not None:
            self._memory.take()
        self._count_from(epoch)
        self._awaited = awaited

    def _count_from(self, epoch: int) -> None:
        self._next, self._awaited, self._in_workers = epoch, None, None

    def follow(self, trainer: TrainerEpoch | None) -> None:
        """Makes the next pass the trainer's epoch, even if the dataset was made only for that epoch."""
        if trainer is not None and not trainer.cycling:
            again = trainer.is_same(self._trainer)
            self.set(self._next - 1 if again else max(self._next, trainer.number))
            self._trainer = trainer

    def resumed(self, epoch: int, seed: int | None, *, tell: bool = True) -> None:
        """Called when an iterator was restored; a worker tells the training process, unless it supplied the state."""
        if self.is_owner:
            self.set(epoch + 1)
        else:  # the pass has begun
            self._count_from(epoch + 1)
        if tell and not self.is_owner and self._memory is not None:
            self._memory.put(self._next, seed)

    def _announced_epoch(self) -> int:
        """In a worker: returns the epoch of the pass; further iterators in the pass get the epochs that follow."""
        announcement = self._upcoming_pass()
        if announcement is None:
            return self._next
        self._known = announcement
        return announcement.epoch

    def _upcoming_pass(self) -> AnnouncedPass | None:
        """In a worker: returns the pass after the one that it counts from, if the loader has announced it."""
        after = 0 if self._known is None else self._known.number
        return next((announcement for announcement in self._announced_passes() if announcement.number > after), None)

    def _latest(self) -> AnnouncedPass | None:
        announcements = self._announced_passes()
        return announcements[-1] if announcements else self._known

    def _announced_passes(self) -> list[AnnouncedPass]:
        announcements = self._memory.passes(self._loader) if self._memory is not None else []
        if not announcements and self._in_workers is not None:
            return [AnnouncedPass(number=self._passes, epoch=self._in_workers)]
        return announcements

    def __getstate__(self) -> dict[str, Any]:
        path = self._traveled if self._memory is None else self._memory.path
        return {**self.__dict__, "_memory": None, "_trainer": None, "_traveled": path or ""}

    def _arrive(self) -> None:
        """Sets up a forked or unpickled counter on first use; only then is it known whether this is a loader worker."""
        traveled, self._traveled = self._traveled, None
        if get_worker_info() is None and (traveled is not None or os.getpid() != self._owner):
            self._owner, self._memory, self._loader = os.getpid(), None, 0  # an independent copy
            self._in_workers = self._awaited = None
        elif traveled:
            with suppress(OSError):  # the dataset in the other process is gone
                self._memory = EpochMemory(traveled)


def _place(loader: int, number: int) -> int:
    return _WORDS.size * (1 + loader % _LOADERS * _PASSES + number % _PASSES)
