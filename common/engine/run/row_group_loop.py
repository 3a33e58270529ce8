"""Loads row groups ahead of their consumer, each by a call of a function: the parts of a `JobLoop` without blocks.

`tables_ahead` yields stored rows. Petastorm's readers load values, some rows of a row group at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from threading import Condition
from typing import Any, NamedTuple

import pyarrow as pa

from ...base.metrics.counters import Counters
from ...base.process.dataclass import dataclass
from ...base.progress import CancelToken
from ...base.threads import ThreadPool
from ...parquet.nested import take_rows
from ...plan.block_reads import BlockRead
from ...plan.selection.rows import RowSet
from ..columns.batch import Column
from ..read.fetch import Fetcher
from .block_store import BlockHandle, Store
from .jobs import Job, Planner
from .loop import Delivery, JobLoop
from .rebatch import Emission

_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroupJob(Job):
    """``count`` rows of a row group, which are loaded by themselves."""

    row_group: int
    steps: int = 1
    elements: int = 1
    reads: tuple[BlockRead, ...] = ()


class LoadedRows(NamedTuple):
    """What the function returned. Its size is not known: the `Store` has an estimate."""

    value: Any
    num_bytes: int = 0


class RowGroupMaker:
    """A `Maker` that loads jobs in threads. It may serve several loops, one after the other.

    Args:
        load: loads a job.
        threads: how many jobs are loaded at once; with 0, each is loaded where it is submitted.
        name: of the threads.
    """

    most_trials = 1

    def __init__(self, load: Callable[[Any], Any], *, threads: int, name: str) -> None:
        self.changed = Condition()
        self._load = load
        self._pool = ThreadPool(threads, name) if threads else None
        self._token = CancelToken()

    def begin(self, counters: Counters, token: CancelToken) -> None:
        self._counters, self._token = counters, token

    def has_room(self, *, is_retry: bool = False) -> bool:
        return True

    def submit(self, job: Job, handles: list[BlockHandle]) -> Future[LoadedRows]:
        if self._pool is not None:
            return self._pool.submit(self._load_job, job)
        future: Future[LoadedRows] = Future()
        try:
            future.set_result(copy_context().run(self._load_job, job))  # it binds, and the caller goes on without
        except Exception as error:
            future.set_exception(error)
        return future

    def try_job(self, job: Job, handles: list[BlockHandle]) -> None:
        self._load(job)

    def drop(self, future: Future[LoadedRows]) -> None:
        future.cancel()

    def columns_of(self, made: LoadedRows) -> list[Column]:
        raise NotImplementedError  # without a rebatcher, nobody asks

    def make_emission(self, emission: Emission, first: int) -> LoadedRows:
        raise NotImplementedError

    def held_bytes(self, jobs: int) -> int:
        return 0

    def close(self) -> None:
        """Does nothing: the threads serve the next loop, too."""

    def wait(self) -> None:
        """Returns when no job is being loaded: none of the current loop, and none that an earlier loop has dropped."""
        if self._pool is not None:
            self._pool.wait()

    def shutdown(self, *, wait: bool) -> None:
        """Ends all work; with ``wait``, returns after it has ended. Idempotent. Called in any thread."""
        self._token.cancel()
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=True)
        with self.changed:
            self.changed.notify_all()

    def _load_job(self, job: Job) -> LoadedRows:
        self._counters.bind()
        self._token.bind()
        self._token.check()
        try:
            return LoadedRows(self._load(job))
        except StopIteration as error:  # it would end the loop
            raise RuntimeError("a function raised StopIteration") from error


def row_group_loop(
    jobs: Iterator[RowGroupJob], maker: RowGroupMaker, *, ahead: int, size_of: Callable[[Any], int] = lambda job: 0
) -> JobLoop[LoadedRows]:
    """Makes the loop that loads the jobs in order, at most ``ahead`` of them ahead of the consumer."""
    return JobLoop(Planner(jobs), Store(size_of), maker, rebatcher=None, ahead=ahead, counters=Counters())


def value_of(delivery: Delivery[LoadedRows]) -> Any:
    """Returns what was loaded. Raises the error if that failed."""
    if delivery.made is not None:
        return delivery.made.value
    assert delivery.error is not None
    try:
        raise delivery.error
    finally:
        del delivery  # otherwise its error would keep this frame


def tables_ahead(fetcher: Fetcher, rows: RowSet, row_groups: Iterable[int]) -> Generator[pa.Table, None, None]:
    """Yields the stored columns of the selected rows of each row group, and loads a few ahead."""

    def load(job: RowGroupJob) -> pa.Table:
        return take_rows(fetcher.stored(job.row_group), pa.array(rows.of(job.row_group)))

    counts = rows.counts
    jobs = (
        RowGroupJob(number=number, first=number, count=int(counts[row_group]), row_group=row_group)
        for number, row_group in enumerate(row_groups)
    )
    maker = RowGroupMaker(load, threads=_THREADS, name="parquetry-copy")
    loop = row_group_loop(jobs, maker, ahead=_THREADS)
    try:
        for delivery in loop:
            yield value_of(delivery)
    finally:
        loop.close()
        maker.shutdown(wait=False)
