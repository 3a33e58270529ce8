"""Runs: several batches of a loader worker, as one item of the loader.

An item of a ``DataLoader`` passes through two queues of processes, which takes longer than making a small batch. So if
batches arrive as messages (`relay`), a worker sends those that are there as one item (`RunIterator`), and the training
process hands them out one by one (`RunMerger`), in the order that torch would: one from each worker in turn. A run
never waits for batches, so it has one if the training loop is faster than its workers.

All items of a pass are runs, or none. A batch that the worker made itself, an error, and the end are in runs, too,
because torch's own order is that of items.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from parquetry.common.base.errors import ParquetryError
from parquetry.common.base.tracebacks import shorten

from ..torch_internals import ExceptionWrapper, pin_memory
from .sent_batches import SentBatch

Collate: TypeAlias = Callable[[Any], Any]
_END = object()


class Run:
    """Batches of one worker, in order. Unpickling it makes them from their messages, while the worker is still there.

    Args:
        batches: the batches; in the worker, each may be a `SentBatch`, and in the training process, an error in place
            of one that could not be copied.
        error: what the worker raised after them.
        is_last: whether the worker has no more.
    """

    __slots__ = ("batches", "error", "is_last", "worker")

    def __init__(
        self, worker: int, batches: list[Any], error: ExceptionWrapper | None = None, is_last: bool = False
    ) -> None:
        self.worker = worker
        self.batches = batches
        self.error = error
        self.is_last = is_last

    def collated(self, collate: Collate) -> Run:
        """Returns the run with a function of this package applied to its batches."""
        return Run(self.worker, list(map(collate, self.batches)), self.error, self.is_last)

    def pin_memory(self) -> Run:
        """Copies the batches to page-locked memory; called by ``DataLoader(pin_memory=True)``."""
        return Run(self.worker, list(map(_pinned, self.batches)), self.error, self.is_last)

    def __reduce__(self) -> Any:
        return Run, (self.worker, self.batches, self.error, self.is_last)


def _pinned(batch: object) -> object:
    try:
        return pin_memory(batch)
    except Exception:
        return ExceptionWrapper(where="in pin memory thread")  # as torch does


class BatchesOfWorker(Protocol):
    """An iterator in a loader worker that knows which further batches have come."""

    def __next__(self) -> Any: ...
    def received(self, most: int) -> list[SentBatch]:
        """Returns further batches, at most ``most``, that can be had without waiting."""


class RunIterator:
    """In a loader worker: yields the elements of an iterator in runs."""

    def __init__(self, elements: BatchesOfWorker, worker: int, most: int) -> None:
        self._elements = elements
        self._worker = worker
        self._most = most
        self._is_over = False

    def __iter__(self) -> RunIterator:
        return self

    def __next__(self) -> Run:
        if self._is_over:
            raise StopIteration
        batches: list[Any] = []
        error = None
        try:
            batches.append(next(self._elements))
            batches.extend(self._elements.received(self._most - 1))
        except StopIteration:
            self._is_over = True
        except Exception as raised:
            if isinstance(raised, ParquetryError):
                shorten(raised)
            info = type(raised), raised, raised.__traceback__
            error = ExceptionWrapper(info, where=f"in DataLoader worker process {self._worker}")  # as torch does
        return Run(self._worker, batches, error, self._is_over)


class RunMerger:
    """In the training process: hands out the batches of runs, one from each worker in turn.

    Args:
        workers: how many workers the loader has.

    Attributes:
        taken: how many batches were handed out.
    """

    def __init__(self, workers: int) -> None:
        self._waiting: list[deque[Any]] = [deque() for _ in range(workers)]
        self._turns = deque(range(workers))  # the workers that have not ended
        self.taken = 0

    def following(self, item: Callable[[], Any]) -> Any:
        """Returns the next batch, or the next item if the pass has no runs.

        Args:
            item: returns the loader's next item, and has called `add` if that is a run.

        Raises:
            StopIteration: there are no more.
            Exception: what the worker whose turn it is has raised in place of a batch.
        """
        while True:
            waiting = self._waiting[self._turns[0]] if self._turns else None
            if not waiting:
                try:
                    run = item()
                except StopIteration:
                    if not self._turns:
                        raise
                    self._turns.popleft()  # an interrupt lost what this worker sent last
                    continue
                if not isinstance(run, Run):
                    self.taken += 1
                    return run
                continue
            batch = waiting.popleft()
            if batch is _END:
                self._turns.popleft()
                continue
            self._turns.rotate(-1)
            if isinstance(batch, ExceptionWrapper):
                batch.reraise()
            self.taken += 1
            return batch

    def add(self, run: Run) -> None:
        """Takes the batches of a run."""
        rest = [] if run.error is None else [run.error]
        self._waiting[run.worker] += [*run.batches, *rest, *([_END] if run.is_last else [])]  # one step: no interrupt
