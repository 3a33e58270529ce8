"""The `threads` executor: everything in this process; decoders and Arrow release the interpreter lock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ...errors import ELEMENT_ERRORS
from ...order.cursor import Cursor
from ...plan.plan import BasePlan
from ..columns.arena import SHARED_REGIONS
from ..columns.batch import Column, split_columns
from ..read.fetch import fetch_threads, fetchers_of
from .assemble import assemble
from .jobs import BlockStore, Handle, Job, JobPlanner, sources_of
from .vocabularies import ready_program

Form = Callable[[Sequence[Column], int], Iterable[Any]]
"""What to hand out for steps that were made at once: their columns and how many there are -> one value each."""


class ThreadedEngine:
    """Makes the steps of one iteration in order, ahead of the consumer by a few steps.

    Args:
        plan: of the pipeline.
        cursor: where to begin, and which part to make.
        threads: how many steps are decoded at once.
        memory_limit: bytes of encoded blocks in flight, and of decoded steps that wait for the consumer.
        strict_nulls: whether nulls are errors.
        form: what to hand out for each step; its columns, unless said otherwise.

    One consumer at a time; `close` may be called from any thread, and more than once.
    """

    def __init__(
        self,
        plan: BasePlan,
        cursor: Cursor,
        *,
        threads: int,
        memory_limit: int,
        strict_nulls: bool,
        form: Form = split_columns,
    ) -> None:
        self._form = form
        self._plan = plan
        self._program = ready_program(plan)
        self._strict_nulls = strict_nulls
        self._ahead = int(np.clip(memory_limit // (plan.step_bytes * plan.merged_steps), 1, 2 * threads + 1))
        self._jobs = JobPlanner(plan, plan.steps(cursor), cursor.iteration, merge=plan.merged_steps)
        self.position = cursor.start
        self._by_rows = plan.batch_view is None
        self._job_bytes = 0  # of the largest so far: the next one fits into its region at once
        self._waiting: Job | None = None
        self._store = BlockStore(
            plan,
            fetchers_of(plan, partly=cursor.workers > 1),
            threads=fetch_threads(plan.remote, threads),
            memory_limit=memory_limit,
        )
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="parquetry-decode")
        self._pending: deque[tuple[Future[list[Column]], list[Handle], Job]] = deque()
        self._ready: deque[tuple[int, Any]] = deque()

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self

    def __next__(self) -> tuple[int, Any]:
        """The row count and the form of the next step.

        Raises:
            DecodeError, NullValueError, TransformError: an element failed; the next call gives the one after it.
        """
        while not self._ready:
            self._make_ready()
        count, step = self._ready.popleft()
        self.position += count if self._by_rows else 1
        return count, step

    def _make_ready(self) -> None:
        """Waits for the next job and takes its steps apart; raises ``StopIteration`` at the end."""
        self._top_up()
        if not self._pending:
            self.close()
            raise StopIteration
        future, handles, job = self._pending.popleft()
        try:
            columns = future.result()
        except ELEMENT_ERRORS:
            if job.elements > 1:
                self._make_apart(job, handles)
                return
            self.position += 1
            self._store.release(handles)
            raise
        except BaseException:
            self.close()
            raise
        self._store.release(handles)
        count = job.count // job.steps
        self._ready.extend((count, step) for step in self._form(columns, job.steps))

    def _make_apart(self, job: Job, handles: list[Handle]) -> None:
        """Makes a job again in halves, so that those of its elements which do not fail are given."""
        for half, draws in reversed(job.halves()):
            mine = [handles[number] for number in draws]
            self._store.hold(mine)
            self._pending.appendleft((self._pool.submit(self._make, half, mine), mine, half))
        self._store.release(handles)

    def close(self) -> None:
        """Stops all work. Idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._store.close()
        self._pending.clear()
        self._ready.clear()

    def _top_up(self) -> None:
        while len(self._pending) < self._ahead:
            job = self._waiting or next(self._jobs, None)
            if job is None:
                break
            if self._pending and not self._store.admits(job):
                self._waiting = job
                return
            self._waiting = None
            handles = self._store.acquire(job)
            self._pending.append((self._pool.submit(self._make, job, handles), handles, job))
        self._store.read_ahead()

    def _make(self, job: Job, handles: list[Handle]) -> list[Column]:
        sources = sources_of(job, handles)
        region = SHARED_REGIONS.acquire(self._job_bytes)
        try:
            return assemble(self._program, sources, job.count, region, strict_nulls=self._strict_nulls)
        finally:
            self._job_bytes = max(self._job_bytes, region.wanted_bytes)
            region.end()
