"""Chooses where the reader's jobs run: in its own threads or in worker processes.

Threads run decoding that is cheap or releases the interpreter lock. Worker processes run other costly decoding and user
functions. Both write the same bytes into the same slots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import Any, Protocol

from ...counting.counters import Count, Counters, add_time
from ...engine.columns.batch import Column
from ...engine.columns.first_job import FirstJob
from ...engine.read.item_order import ItemOrder
from ...engine.read.large_blocks import BlockColumns
from ...engine.run.assemble import assemble, assemble_batches
from ...engine.run.block_loader import BlockLoader
from ...engine.run.block_store import BlockHandle, sources_of
from ...engine.run.jobs import Job
from ...plan.draws import BlockRows
from ...plan.program import ElementProgram, MixedProgram
from ...progress import CancelToken
from ...threads import ThreadPool
from .protocol import BatchHeader
from .slots import Slot, write_tables
from .worker_process import WorkerProcess
from .worker_runner import WorkerRunner

_MOST_DECODERS = 16
"""The most threads that decode images in one process. Sixteen made an eighth more images than sixteen processes; with
many more, they would wait for the interpreter lock."""


class Runner(Protocol):
    """Makes batches in slots."""

    def finish(self, source: int, rows: BlockRows, parts: BlockColumns) -> Any:
        """Converts a loaded block to the form in which it is kept (see `BlockStore`). Called in a fetch thread."""

    def order_of(self, source: int, rows: BlockRows) -> ItemOrder | None:
        """Returns the order that numbers of a block can be put in while they are read; ``None`` = as stored."""

    def discard(self, block: object) -> None:
        """Called when a block is no longer needed."""

    def submit(self, job: Job, handles: list[BlockHandle], slot: Slot, first: int) -> Future[list[BatchHeader]]:
        """Starts a job. ``first``, the number of its first element, goes into the batch headers."""

    def begin(self, counters: Counters, token: CancelToken) -> None:
        """Called before the first job of an iteration. Its jobs count in ``counters``, and end early with ``token``."""

    def close(self) -> None:
        """Stops everything. Idempotent."""


class ThreadRunner:
    """Runs jobs in threads of the reader."""

    def __init__(
        self,
        loaders: Sequence[BlockLoader],
        program: ElementProgram | MixedProgram,
        *,
        threads: int,
    ) -> None:
        self._loaders = loaders
        self._program = program
        self._pool = ThreadPool(threads, "parquetry-decode")
        self._threads = threads
        self.begin(Counters(), CancelToken())

    def begin(self, counters: Counters, token: CancelToken) -> None:
        self._counters = counters
        self._token = token
        self._first_job = FirstJob(self._threads)

    def finish(self, source: int, rows: BlockRows, parts: BlockColumns) -> Any:
        return rows, self._loaders[source].assemble(rows, parts)

    def order_of(self, source: int, rows: BlockRows) -> ItemOrder | None:
        return self._loaders[source].order_of(rows)

    def discard(self, block: object) -> None:
        """Does nothing: the memory is freed with the last reference."""

    def submit(self, job: Job, handles: list[BlockHandle], slot: Slot, first: int) -> Future[list[BatchHeader]]:
        return self._pool.submit(self._make, job, handles, slot, first)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _make(self, job: Job, handles: list[BlockHandle], slot: Slot, first: int) -> list[BatchHeader]:
        self._counters.bind()
        self._token.bind()
        slot.memory.begin()
        with self._first_job.helped(job.number):
            parts = self._made(job, handles, slot)
        begin = time.perf_counter()
        headers = write_tables(slot.memory, parts, first_element=first)
        add_time(Count.HAND_OVER_S, begin)
        return headers

    def _made(self, job: Job, handles: list[BlockHandle], slot: Slot) -> list[tuple[list[Column], int, int]]:
        """Returns the columns, elements and rows of each part of a job."""
        sources = sources_of(job, handles)
        if job.bounds:
            made = assemble_batches(self._program, sources, job.bounds, slot.memory)
            sizes = [last - first for first, last in pairwise(job.bounds)]
            return [(columns, 1, rows) for columns, rows in zip(made, sizes, strict=True)]
        columns = assemble(self._program, sources, job.count, slot.memory)
        return [(columns, job.elements, job.count)]


def needs_workers(program: ElementProgram | MixedProgram, workers: int) -> bool:
    """Returns whether jobs need worker processes: for user functions, and for costly decoding that holds the lock.

    N-gram windows share decoded rows, which is only possible in threads.
    """
    if program.has_user_code:
        return True
    shared = isinstance(program, ElementProgram) and program.shares_rows
    return program.costly and not shared and not (program.frees_interpreter and workers <= _MOST_DECODERS)


def make_runner(
    loaders: Sequence[BlockLoader],
    program: ElementProgram | MixedProgram,
    *,
    workers: int,
    start: Callable[[], WorkerProcess],
    started: Sequence[WorkerProcess],
    stall_timeout: float | None,
) -> Runner:
    """Makes a runner of worker processes or of threads. ``start`` starts workers; ``started`` ones are used first."""
    if needs_workers(program, workers):
        return WorkerRunner(
            loaders,
            program,
            workers=workers,
            start=start,
            started=started,
            stall_timeout=stall_timeout,
        )
    for process in started:
        process.end()
    return ThreadRunner(loaders, program, threads=workers)
