"""`Reader`: iterates over the jobs of all epochs, in a fixed order and with bounded look-ahead."""

from __future__ import annotations

import itertools
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Protocol

from ...base.process.forks import ForkLock, begun_by_parent, leave_to_parent
from ...engine.read.disk_cache import clear
from ...plan.options import DEFAULT_MEMORY_BYTES
from .errors import NoDataAvailableError, ReaderStoppedError, ResetError
from .loading import LoadJob, RowGroupLoader
from .ngram import NGram
from .planning import JobOrder
from .unischema import Unischema
from .workers_pool.process_pool import Pool

if TYPE_CHECKING:
    from typing import Self


class Samples(Protocol):
    """What a loader needs from a reader, which may be user-defined."""

    def __iter__(self) -> Iterator[Any]:
        """Iterates over rows, windows or row groups."""

    def reset(self) -> None:
        """Starts over."""

    def stop(self) -> None:
        """Stops the workers."""

    def join(self) -> None:
        """Waits until every worker has ended."""


class DescribedSamples(Samples, Protocol):
    """Samples with a description, as from a `Reader` or a `WeightedSamplingReader`."""

    @property
    def schema(self) -> Unischema:
        """The fields."""

    @property
    def ngram(self) -> NGram | None:
        """The windows, or ``None``."""

    @property
    def batched_output(self) -> bool:
        """Whether a sample is a row group."""

    @property
    def last_row_consumed(self) -> bool:
        """Whether there are no more samples until a reset."""

    def __next__(self) -> Any:
        """Returns the next sample."""


class SampleReader(Samples):
    """Base of readers: an iterator, and a context manager that stops the workers when it is left."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        raise NotImplementedError

    def next(self) -> Any:
        """Returns the next sample."""
        return next(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()


class Reader(SampleReader):
    """Iterates over rows, windows or row groups of a dataset, as named tuples.

    `make_reader` and `make_batch_reader` make readers. Iteration is thread-safe. A reader is a context manager; leaving
    it stops the workers.
    """

    def __init__(
        self,
        loader: RowGroupLoader,
        pool: Pool,
        order: Callable[[], JobOrder],
        *,
        num_epochs: int | None,
        look_ahead: int,
        settings: dict[str, Any],
    ) -> None:
        self._loader = loader
        self._pool = pool
        self._make_order = order
        self.num_epochs = num_epochs
        self._look_ahead = look_ahead
        self._settings = settings
        self._lock = ForkLock()
        self._process = 0  # the one that began to read
        self._order: JobOrder | None = None
        self._jobs: Iterator[LoadJob] | None = None
        self._first_epoch = 0
        self._in_flight: deque[tuple[LoadJob, int, Future[Any]]] = deque()
        self._ready: Iterator[Any] = iter(())
        self._epoch = 0
        self._epoch_is_empty = True
        self._submitted = self._consumed = 0
        self.last_row_consumed = False
        self.stopped = False
        self._row_classes = _row_classes(loader.schema, loader.ngram)
        weakref.finalize(self, pool.close, wait=False)
        leave_to_parent(self)

    # --- description ---

    @property
    def schema(self) -> Unischema:
        """The fields of the returned samples, after the transform."""
        return self._loader.schema

    @property
    def ngram(self) -> NGram | None:
        """The windows, or ``None``."""
        return self._loader.ngram

    @property
    def batched_output(self) -> bool:
        """Whether an element is a row group, as columns, instead of one row."""
        return self._loader.batched

    @property
    def is_batched_reader(self) -> bool:
        """Another name for `batched_output`."""
        return self._loader.batched

    @property
    def dataset(self) -> Any:
        """The stored dataset."""
        return self._loader.dataset

    @property
    def diagnostics(self) -> dict[str, Any]:
        """Settings, and how many row groups (or parts of them) were submitted, are in progress, and were read."""
        waiting = sum(future.done() for _, _, future in list(self._in_flight))
        return {
            **self._settings,
            "output_queue_size": waiting,
            "items_produced": self._submitted,
            "items_inprocess": len(self._in_flight) - waiting,
            "items_consumed": self._consumed,
        }

    # --- iteration ---

    def __next__(self) -> Any:
        with self._lock:
            if self.stopped:
                raise ReaderStoppedError(
                    "reader: Trying to read a sample after the reader has stopped (by stop(), or by leaving its with "
                    "block). Make a new reader, or read inside the block."
                )
            while True:
                values = next(self._ready, None)
                if values is not None:
                    return self._named(values)
                self._ready = iter(self._next_result())

    def reset(self) -> None:
        """Starts over, with the next epochs of the shuffle. Possible only after the last element was read; does nothing
        before the first one.

        Raises:
            ResetError: some elements were read, but not all (a ``NotImplementedError``).
        """
        with self._lock:
            if self.stopped or not (self._jobs or self.last_row_consumed):
                return
            if not self.last_row_consumed:
                raise ResetError(
                    "reader: reset() is possible only after all rows were read, got a call before that. "
                    "Read to the end, or make a new reader."
                )
            self.last_row_consumed = False
            self._jobs = None

    def stop(self) -> None:
        """Stops the workers and drops waiting elements. Idempotent."""
        self.stopped = True
        self._pool.close(wait=False)

    def join(self) -> None:
        """Waits until every worker has ended; call `stop` first."""
        self._pool.close(wait=True)
        self._in_flight.clear()

    def cleanup(self) -> None:
        """Does nothing: caches are kept until `cleanup_cache`."""

    def cleanup_cache(self) -> None:
        """Removes the files of this reader's local cache, and the directory if nothing else is in it.

        Waits for the row groups that are being loaded, because they are cached, too.
        """
        if self._loader.cache is not None:
            with self._lock:
                wait([future for _, _, future in self._in_flight])
                clear(self._loader.cache[0])
        print("Cache cleanup complete.")  # as Petastorm does

    exit = stop

    # --- jobs ---

    def _named(self, values: tuple[Any, ...]) -> Any:
        if self._loader.ngram is None:
            return self._row_classes[0](*values)
        steps = zip(self._loader.ngram.offsets, self._row_classes, values, strict=True)
        return {offset: row_class(*step) for offset, row_class, step in steps}

    def _next_result(self) -> Any:
        """Returns the next job's elements, which may be none; raises ``StopIteration`` after the last job."""
        if self.last_row_consumed:
            raise StopIteration
        if self._process not in (0, os.getpid()):
            raise begun_by_parent(self._process, "reader")
        self._process = os.getpid()
        self._fill()
        if not self._in_flight:
            self._check_epoch_was_not_empty()
            self.last_row_consumed = True
            raise StopIteration
        job, _, future = self._in_flight.popleft()
        if job.epoch != self._epoch:
            self._check_epoch_was_not_empty()
            self._epoch, self._epoch_is_empty = job.epoch, True
        result = future.result()
        self._consumed += 1
        if len(result):
            self._epoch_is_empty = False
        return [tuple(result.values())] if isinstance(result, dict) else result

    def forget_elements(self) -> object:
        """As `HoldsElements`."""
        elements = self._ready, self._in_flight
        self._ready, self._in_flight = iter(()), deque()
        return elements

    def _check_epoch_was_not_empty(self) -> None:
        if self.num_epochs is None and self._epoch_is_empty:
            raise NoDataAvailableError(
                "reader: with num_epochs=None, expected at least one row per epoch, got an epoch without rows. Loosen "
                "the filters, the predicate or the selector."
            )

    def _fill(self) -> None:
        """Submits jobs up to the look-ahead and the memory limit, but at least one.

        Only a few are queued at a time, because the interpreter completes queued jobs before it exits.
        """
        self._jobs = self._jobs or self._all_jobs()
        undone = sum(not future.done() for _, _, future in self._in_flight)
        held_bytes = sum(size for _, size, _ in self._in_flight)
        most_undone = self._settings["workers_count"]
        while not self._in_flight or (
            len(self._in_flight) < self._look_ahead and undone <= most_undone and held_bytes < DEFAULT_MEMORY_BYTES
        ):
            job = next(self._jobs, None)
            if job is None:
                return
            size = self._loader.result_bytes(job)
            self._in_flight.append((job, size, self._pool.submit(job)))
            held_bytes += size
            self._submitted += 1
            undone += 1

    def _all_jobs(self) -> Iterator[LoadJob]:
        self._order = self._order or self._make_order()
        items = self._order.items()
        for _ in itertools.repeat(None) if self.num_epochs is None else range(self.num_epochs):
            if not len(items):
                return
            yield from self._order.epoch(items, self._first_epoch)
            self._first_epoch += 1


def _row_classes(schema: Unischema, ngram: NGram | None) -> list[Any]:
    if ngram is None:
        return [schema._get_namedtuple()]
    return [ngram.get_schema_at_timestep(schema, offset)._get_namedtuple() for offset in ngram.offsets]
