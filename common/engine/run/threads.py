"""The `threads` executor: runs everything in this process. Decoders and Arrow release the interpreter lock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from threading import Condition
from typing import NamedTuple

import numpy as np

from ...base.memory.arena import SHARED_REGIONS, Arena
from ...base.metrics.counters import Count, Counters, add, add_time
from ...base.process.forks import load_compute, reading
from ...base.progress import CancelToken
from ...base.threads import ThreadPool
from ...plan.block_reads import BlockRows
from ...plan.program import ElementProgram, MixedProgram
from ..columns.batch import Column, column_bytes
from ..columns.first_job import FirstJob
from ..read.block_layout import ItemOrder
from ..read.column_reader import ReadContext
from ..read.fetch import fetch_threads, fetchers_of
from ..read.large_blocks import BlockColumns
from .assemble import assemble, assemble_batches
from .block import LoadedBlock
from .block_loader import BlockLoader, loaders_of
from .block_store import BlockHandle, BlockStore, sources_of
from .jobs import Job, JobSizer
from .loop import JobLoop
from .planners import planner_of
from .rebatch import Emission, rebatcher_of
from .step_source import NO_STEPS, RunSource, StepRequest, StepRun
from .vocabularies import ready_program


class DecodeThreads:
    """A pool of threads with the program that they run. Subclasses submit jobs to it.

    Args:
        loaders: one for each source of the plan.
        threads: the number of jobs that are made at once.
    """

    def __init__(
        self,
        loaders: Sequence[BlockLoader],
        program: ElementProgram | MixedProgram,
        *,
        threads: int,
    ) -> None:
        self._loaders = loaders
        self._program = program
        self._threads = threads
        self._pool = ThreadPool(threads, "parquetry-decode")

    def begin(self, counters: Counters, token: CancelToken) -> None:
        """Called before the first job of an iteration. Its jobs count in ``counters``, and end early with ``token``."""
        self._counters = counters
        self._token = token
        self._first_job = FirstJob(self._threads)

    def finish(self, source: int, rows: BlockRows, parts: BlockColumns) -> tuple[BlockRows, LoadedBlock]:
        """Makes a block of its columns; see `BlockStore`."""
        return rows, self._loaders[source].assemble(rows, parts)

    def order_of(self, source: int, rows: BlockRows) -> ItemOrder | None:
        """Returns the order that numbers of a block can be put in while they are read; ``None`` = as stored."""
        return self._loaders[source].order_of(rows)

    def close(self) -> None:
        """Ends the threads after the jobs that they have begun. Idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def columns(self, job: Job, handles: list[BlockHandle], arena: Arena) -> list[tuple[list[Column], int]]:
        """Returns the columns of each part of a job, and its number of rows; see `Job.rows_of_parts`."""
        self._counters.bind()
        self._token.bind()
        sources = sources_of(job, handles)
        with reading(), self._first_job.first_batch_boost(job.number):
            if job.bounds:
                made = assemble_batches(self._program, sources, job.bounds, arena)
            else:
                made = [assemble(self._program, sources, job.count, arena)]
        return list(zip(made, job.rows_of_parts, strict=True))


class MadeColumns(NamedTuple):
    """The columns of a job, in parts: the columns of several steps of equal size, how many, and the rows of each."""

    parts: Sequence[tuple[Sequence[Column], int, int]]
    num_bytes: int


class ArenaMaker(DecodeThreads):
    """Makes jobs in threads, each in a region of memory that is reused once no array points into it; a `Maker`."""

    most_trials = 1  # each time that threads take turns may cost a switch interval of the interpreter

    def __init__(self, loaders: Sequence[BlockLoader], program: ElementProgram | MixedProgram, *, threads: int) -> None:
        super().__init__(loaders, program, threads=threads)
        self.changed = Condition()
        self._job_bytes = 0  # the largest job so far; the next region gets this size from the start

    def has_room(self, *, is_retry: bool = False) -> bool:
        return True

    def submit(self, job: Job, handles: list[BlockHandle]) -> Future[MadeColumns]:
        return self._pool.submit(self._make, job, handles)

    def try_job(self, job: Job, handles: list[BlockHandle]) -> None:
        self._make(job, handles)

    def drop(self, future: Future[MadeColumns]) -> None:
        future.cancel()

    def columns_of(self, made: MadeColumns) -> list[Column]:
        [(columns, _, _)] = made.parts
        return list(columns)

    def make_emission(self, emission: Emission, first: int) -> MadeColumns:
        return MadeColumns([(emission.columns, 1, emission.rows)], 0)

    def held_bytes(self, jobs: int) -> int:
        return jobs * self._job_bytes

    def _make(self, job: Job, handles: list[BlockHandle]) -> MadeColumns:
        region = SHARED_REGIONS.acquire(self._job_bytes)
        try:
            steps = 1 if job.bounds else job.steps
            parts = [(columns, steps, rows // steps) for columns, rows in self.columns(job, handles, region)]
        finally:
            self._job_bytes = max(self._job_bytes, region.wanted_bytes)
            region.end()
        num_bytes = sum(column_bytes(column) for columns, _, _ in parts for column in columns)
        add(Count.DELIVERED_BYTES, num_bytes)
        return MadeColumns(parts, num_bytes)


class ThreadedEngine(RunSource):
    """Makes the steps of one iteration in order, a few steps ahead of the consumer.

    Only one consumer at a time. `close` may be called from any thread, and more than once.
    """

    def __init__(self, request: StepRequest) -> None:
        super().__init__(request)
        load_compute()
        plan, cursor, counters = request.plan, request.cursor, request.counters
        threads, memory_limit = request.options.parallelism, request.options.memory_bytes
        self._counters = counters
        most_ahead = 2 * threads + 1
        job_bytes = memory_limit // (2 * most_ahead + 2)  # so those ahead and the current one take half of it
        job_sizer = JobSizer.of(plan, job_bytes, cursor.workers)
        if plan.makes_large_jobs(job_sizer.most):
            most_ahead = max(2, threads)  # more would only push each other out of the processor's caches
        context = ReadContext(
            room_bytes=memory_limit,
            shared=request.shared,
            share=1 / cursor.workers,
            shared_by_workers=cursor.workers > 1,
        )
        fetchers = fetchers_of(plan, context)
        program = ready_program(plan, request.program)
        maker = ArenaMaker(loaders_of(plan, fetchers), program, threads=threads)
        max_errors = request.options.max_errors
        self._loop = JobLoop(
            planner_of(plan, program, cursor, max_errors=max_errors, counters=counters, job_sizer=job_sizer),
            BlockStore(
                plan,
                fetchers,
                threads=fetch_threads(plan.remote, threads),
                memory_limit=memory_limit,
                finish=maker.finish,
                order_of=maker.order_of,
                counters=counters,
                workers=cursor.workers,
            ),
            maker,
            rebatcher=rebatcher_of(plan, cursor.start),
            ahead=int(np.clip(memory_limit // (plan.step_bytes * job_sizer.most), 1, most_ahead)),
            counters=counters,
        )

    def close(self) -> None:
        """Stops all work. Idempotent. Another thread that waits for a step gets an error."""
        self._loop.close()
        self._run = NO_STEPS

    def _receive(self) -> None:
        delivery = next(self._loop)
        self.position = delivery.position
        self._changes.extend(delivery.changes)
        if delivery.made is None:
            self._note_skipped()
            assert delivery.error is not None
            try:
                raise delivery.error
            finally:
                del delivery  # otherwise its error would keep this frame, and with it the iterator
        self._counters.bind()
        begin = time.perf_counter()
        self._run = StepRun(self._converter, delivery.made.parts)
        add_time(Count.HAND_OVER_S, begin)
