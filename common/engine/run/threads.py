"""The `threads` executor: runs everything in this process. Decoders and Arrow release the interpreter lock."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np

from ...counting.counters import Count, Counters, add, add_time
from ...counting.tally import Gauge
from ...errors import ELEMENT_ERRORS
from ...memory.arena import SHARED_REGIONS
from ...order.cursor import Cursor
from ...plan.plan import BasePlan
from ...process.forks import load_compute, reading
from ...progress import warning_seconds
from ...threads import ThreadPool
from ..columns.batch import Column, column_bytes
from ..columns.first_job import FirstJob
from ..read.column_reader import ReadContext, TableCache
from ..read.fetch import fetch_threads, fetchers_of
from .assemble import assemble, assemble_batches
from .bad_rows import FailedItem, bad_rows_of
from .block_loader import loaders_of
from .block_store import BlockHandle, BlockStore, sources_of
from .bucket_skipping import planner_class
from .describing import describe_wait
from .failing import check_blocks, failing_items
from .jobs import Job, JobPlanner, Merging
from .skipping import SkippingPlanner
from .step_run import NO_STEPS, Converter, StepRun, split_columns
from .vocabularies import ready_program

_LOGGER = logging.getLogger(__name__)


class ThreadedEngine:
    """Makes the steps of one iteration in order, a few steps ahead of the consumer.

    Only one consumer at a time. `close` may be called from any thread, and more than once.

    Args:
        plan: the plan of the pipeline.
        cursor: where to begin, and which part of the elements to make.
        threads: the number of steps that are decoded at once.
        memory_limit: the bytes allowed for encoded blocks in flight, and for decoded steps that wait for the consumer.
        strict_nulls: whether nulls are errors.
        max_errors: how many rows may be left out because they fail.
        converter: converts each step to the value that is returned; by default, the columns.
        counters: the counters of the iteration.
        shared: row groups that loader workers share.
    """

    def __init__(
        self,
        plan: BasePlan,
        cursor: Cursor,
        *,
        threads: int,
        memory_limit: int,
        strict_nulls: bool,
        max_errors: float | None = None,
        converter: Converter = split_columns,
        counters: Counters | None = None,
        shared: TableCache | None = None,
    ) -> None:
        load_compute()
        self._converter = converter
        self._counters = counters or Counters()
        self._held = Gauge(self._counters)
        self._plan = plan
        self._program = ready_program(plan, strict_nulls=strict_nulls)
        most_ahead = 2 * threads + 1
        job_bytes = memory_limit // (2 * most_ahead + 2)  # so those ahead and the current one take half of it
        merge = plan.merged_steps(job_bytes, cursor.workers)
        self._merging = Merging(merge, plan.merged_bytes(job_bytes, cursor.workers))
        if plan.makes_large_jobs(merge):
            most_ahead = threads + 1
        self._ahead = int(np.clip(memory_limit // (plan.step_bytes * merge), 1, most_ahead))
        self._skipping: SkippingPlanner | None = None
        if plan.skips:
            self._skipping = planner_class(plan)(
                plan,
                cursor,
                bad=bad_rows_of(plan, strict_nulls=strict_nulls),
                max_errors=max_errors,
                counters=self._counters,
                merging=self._merging,
            )
        self._jobs = self._skipping or JobPlanner(plan, plan.steps(cursor), cursor.iteration, merging=self._merging)
        self.position = cursor.start
        self.skipped = cursor.skipped
        self._by_rows = plan.batch_view is None
        self._job_bytes = 0  # the largest job so far; the next region gets this size from the start
        self._waiting: Job | None = None
        shared_by_workers, share = cursor.workers > 1, 1 / cursor.workers
        context = ReadContext(room_bytes=memory_limit, shared=shared, share=share, shared_by_workers=shared_by_workers)
        fetchers = fetchers_of(plan, context)
        loaders = loaders_of(plan, fetchers)
        self._store = BlockStore(
            plan,
            fetchers,
            threads=fetch_threads(plan.remote, threads),
            memory_limit=memory_limit,
            finish=lambda source, rows, parts: (rows, loaders[source].assemble(rows, parts)),
            order_of=lambda source, rows: loaders[source].order_of(rows),
            counters=self._counters,
            workers=cursor.workers,
        )
        self._pool = ThreadPool(threads, "parquetry-decode")
        self._first_job = FirstJob(threads)
        self._pending: deque[tuple[Future[list[list[Column]]], list[BlockHandle], Job]] = deque()
        self._run = NO_STEPS
        self._run_of: Job | None = None
        self._at_end = False

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self

    def __next__(self) -> tuple[int, Any]:
        """Returns the row count and the form of the next step.

        Raises:
            DecodeError, NullValueError, TransformError: an element failed. The next call returns the element after it.
        """
        while not (run := self._run).left:
            self._make_ready()
        step = run.take()
        if self._skipping is not None:
            job = self._run_of
            assert job is not None
            self.skipped = self._skipping.skipped_after(job, job.elements - run.left)
        self.position += run.rows if self._by_rows else 1
        return run.rows, step

    @property
    def ready(self) -> int:
        """As `transport.source.StepSource`."""
        return self._run.left

    def _make_ready(self) -> None:
        """Waits for the next job. Raises ``StopIteration`` at the end."""
        self._top_up()
        if not self._pending:
            if not self._at_end:
                self._store.cancel_token.check()  # otherwise a closed iteration would look like a complete one
            self._at_end = True
            self.close()
            self._plan.check_unchanged()
            if self._skipping is not None:
                self._skipping.finish()
            raise StopIteration
        future, handles, job = self._pending.popleft()
        try:
            with self._unless_closed():
                self._warn_of_long_wait(future, handles, job)
                made = future.result()
            if self._skipping is not None:
                self._skipping.passed(job)
        except ELEMENT_ERRORS as error:
            if self._skipping is not None and self._plan_again(job, error, handles, self._skipping):
                return
            if job.elements > 1:
                self._make_apart(job, handles)
                return
            self.position += 1
            if self._skipping is not None:
                self._skipping.passed(job)
                self.skipped = self._skipping.skipped_after(job, 1)
            self._store.release(handles)
            raise
        except BaseException:
            self.close()
            raise
        self._store.release(handles)
        self._counters.bind()
        begin = time.perf_counter()
        if job.bounds:
            sizes = [last - first for first, last in pairwise(job.bounds)]
            parts = [(columns, 1, rows) for columns, rows in zip(made, sizes, strict=True)]
        else:
            parts = [(made[0], job.steps, job.count // job.steps)]
        self._run, self._run_of = StepRun(self._converter, parts), job
        add_time(Count.HAND_OVER_S, begin)

    def _warn_of_long_wait(self, future: Future[list[list[Column]]], handles: list[BlockHandle], job: Job) -> None:
        """Waits for a job, and logs a warning if that takes long."""
        if future.done():
            return
        try:
            future.exception(warning_seconds())
        except FutureTimeoutError:
            _LOGGER.warning(
                "process %d has waited %.0f s for its next %d rows: %s.",
                os.getpid(),
                warning_seconds(),
                job.count,
                describe_wait(job, handles, self._store.fetchers),
            )

    def _make_apart(self, job: Job, handles: list[BlockHandle]) -> None:
        """Repeats a job in halves, so that the elements that do not fail are returned."""
        self._counters.row()[Count.RETRIES] += 1
        for half, draws in reversed(job.halves()):
            mine = [handles[number] for number in draws]
            self._store.hold(mine)
            with self._unless_closed():
                self._pending.appendleft((self._pool.submit(self._make, half, mine), mine, half))
        self._store.release(handles)

    def _plan_again(
        self, job: Job, error: BaseException, handles: list[BlockHandle], skipping: SkippingPlanner
    ) -> bool:
        """Plans a failed job, and the jobs started after it, again without the rows that fail.

        Returns ``False`` if no row of the job fails alone.
        """
        try:
            found = self._failing_items(job, error, handles)
            if not found:
                return False
            for future, others, later in self._pending:
                error_of_later = future.exception()
                if isinstance(error_of_later, ELEMENT_ERRORS):
                    found += self._failing_items(later, error_of_later, others)
        except BaseException:
            self.close()
            raise
        self._counters.row()[Count.RETRIES] += 1
        skipping.add(found)
        for _, others, _ in self._pending:
            self._store.release(others)
        self._pending.clear()
        self._waiting = None
        skipping.rewind(job)
        self._top_up()
        self._store.release(handles)
        return True

    def _failing_items(self, job: Job, error: BaseException, handles: list[BlockHandle]) -> list[FailedItem]:
        check_blocks(handles)
        # All in one thread: each time that threads take turns may cost a switch interval of the interpreter.
        with self._unless_closed():
            found = self._pool.submit(failing_items, job, error, handles, self._make)
        return found.result()

    def close(self) -> None:
        """Stops all work. Idempotent. Another thread that waits for a step gets an error."""
        self._store.cancel_token.cancel()  # first: it says why the pools refuse work
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._store.close()
        self._held.set(0)
        self._pending.clear()
        self._run = NO_STEPS

    def _top_up(self) -> None:
        while len(self._pending) < self._ahead:
            job = self._waiting or next(self._jobs, None)
            if job is None:
                break
            if self._pending and not self._store.admits(job):
                self._waiting = job
                return
            self._waiting = None
            with self._unless_closed():
                handles = self._store.acquire(job)
                self._pending.append((self._pool.submit(self._make, job, handles), handles, job))
        with self._unless_closed():
            self._store.read_ahead()
        self._held.set(len(self._pending) * self._job_bytes)

    @contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """Raises `PipelineError` where a pool refuses or cancels work because another thread has closed the engine.

        That may be the main thread, which closes everything before the interpreter exits.
        """
        try:
            yield
        except (RuntimeError, CancelledError):
            self._store.cancel_token.check()
            raise

    def _make(self, job: Job, handles: list[BlockHandle]) -> list[list[Column]]:
        """Returns the columns of a job; if it has ``bounds``, those of each step."""
        self._counters.bind()
        self._store.cancel_token.bind()
        sources = sources_of(job, handles)
        region = SHARED_REGIONS.acquire(self._job_bytes)
        try:
            with reading(), self._first_job.helped(job.number):
                if job.bounds:
                    made = assemble_batches(self._program, sources, job.bounds, region)
                else:
                    made = [assemble(self._program, sources, job.count, region)]
            made_bytes = sum(column_bytes(column) for columns in made for column in columns)
            add(Count.DELIVERED_BYTES, made_bytes)
            self._merging.made(job.steps, made_bytes)
            return made
        finally:
            self._job_bytes = max(self._job_bytes, region.wanted_bytes)
            region.end()
