"""`Reader`: iterates over the row groups of all epochs, in a fixed order, which a `JobLoop` loads ahead."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from ...base.process.forks import ForkLock, begun_by_parent, leave_to_parent
from ...engine.read.disk_cache import clear
from ...engine.run.loop import JobLoop
from ...engine.run.row_group_loop import LoadedRows, RowGroupMaker, row_group_loop, value_of
from .errors import NoDataAvailableError, ReaderStoppedError, ResetError
from .loading import RowGroupLoader
from .ngram import NGram
from .planning import JobOrder
from .unischema import Unischema

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
        pool: RowGroupMaker,
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
        self._loop: JobLoop[LoadedRows] | None = None
        self._number = 0  # of the next job, counted over all epochs
        self._first_number = 0  # of the jobs since the last reset
        self._ready: Iterator[Any] = iter(())
        self._epoch_is_empty = True
        self.last_row_consumed = False
        self.stopped = False
        self._row_classes = _row_classes(loader.schema, loader.ngram)
        weakref.finalize(self, pool.shutdown, wait=False)
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
        ahead = [future.done() for future in self._futures]
        return {
            **self._settings,
            "output_queue_size": sum(ahead),
            "items_produced": self._number + len(ahead),
            "items_inprocess": len(ahead) - sum(ahead),
            "items_consumed": self._number,
        }

    # --- iteration ---

    def __next__(self) -> Any:
        with self._lock:
            self._check_not_stopped()
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
            if self.stopped or (self._number == self._first_number and not self.last_row_consumed):
                return
            if not self.last_row_consumed:
                raise ResetError(
                    "reader: reset() is possible only after all rows were read, got a call before that. "
                    "Read to the end, or make a new reader."
                )
            self.last_row_consumed = False
            self._first_number = self._number

    def stop(self) -> None:
        """Stops the workers and drops waiting elements. Idempotent."""
        self.stopped = True
        self._pool.shutdown(wait=False)

    def join(self) -> None:
        """Waits until every worker has ended; call `stop` first."""
        self._pool.shutdown(wait=self._process == os.getpid())  # a forked child has none of the threads
        self._loop = None

    def cleanup(self) -> None:
        """Does nothing: caches are kept until `cleanup_cache`."""

    def cleanup_cache(self) -> None:
        """Removes the files of this reader's local cache, and the directory if nothing else is in it.

        Waits for the row groups that are being loaded, because they are cached, too.
        """
        if self._loader.cache is not None:
            with self._lock:
                if self._process == os.getpid():
                    self._pool.wait()
                clear(self._loader.cache[0])
        print("Cache cleanup complete.")  # as Petastorm does

    exit = stop

    # --- jobs ---

    def _named(self, values: tuple[Any, ...]) -> Any:
        if self._loader.ngram is None:
            return self._row_classes[0](*values)
        steps = zip(self._loader.ngram.offsets, self._row_classes, values, strict=True)
        return {offset: row_class(*step) for offset, row_class, step in steps}

    @property
    def _futures(self) -> list[Future[LoadedRows]]:
        """The jobs that are loaded or wait to be read."""
        return [] if self._loop is None else self._loop.futures

    def _next_result(self) -> Any:
        """Returns the next job's elements, which may be none; raises ``StopIteration`` after the last job."""
        if self.last_row_consumed:
            raise StopIteration
        if self._process not in (0, os.getpid()):
            raise begun_by_parent(self._process, "reader")
        self._process = os.getpid()
        self._order = self._order or self._make_order()
        jobs = len(self._order.items)
        if self.num_epochs is None and not jobs:
            raise _no_rows()
        self._loop = self._loop or self._begin(self._order)
        try:
            delivery = next(self._loop, None)
        except BaseException as error:
            self._loop = None  # it is closed; the next call begins another one
            self._check_not_stopped()
            if isinstance(error, Exception):
                self._number += 1  # after the job that failed
            raise
        if delivery is None:
            self._loop, self.last_row_consumed = None, True
            raise StopIteration
        self._number = delivery.position + (delivery.error is None)
        result = value_of(delivery)
        if len(result):
            self._epoch_is_empty = False
        if self._number % jobs == 0:
            if self.num_epochs is None and self._epoch_is_empty:
                raise _no_rows()
            self._epoch_is_empty = True
        return [tuple(result.values())] if isinstance(result, dict) else result

    def _begin(self, order: JobOrder) -> JobLoop[LoadedRows]:
        """Begins to load the jobs from the next one to the last before a reset."""
        end = None if self.num_epochs is None else self._first_number + self.num_epochs * len(order.items)
        jobs = order.jobs(self._number, end)
        return row_group_loop(jobs, self._pool, ahead=self._look_ahead, size_of=self._loader.result_bytes)

    def _check_not_stopped(self) -> None:
        if self.stopped:
            raise ReaderStoppedError(
                "reader: Trying to read a sample after the reader has stopped (by stop(), or by leaving its with "
                "block). Make a new reader, or read inside the block."
            )

    def forget_elements(self) -> object:
        """As `HoldsElements`."""
        elements = self._ready, self._loop
        self._ready, self._loop = iter(()), None
        return elements


def _no_rows() -> NoDataAvailableError:
    return NoDataAvailableError(
        "reader: with num_epochs=None, expected at least one row per epoch, got an epoch without rows. Loosen the "
        "filters, the predicate or the selector."
    )


def _row_classes(schema: Unischema, ngram: NGram | None) -> list[Any]:
    if ngram is None:
        return [schema._get_namedtuple()]
    return [ngram.get_schema_at_timestep(schema, offset)._get_namedtuple() for offset in ngram.offsets]
