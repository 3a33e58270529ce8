"""`DecodeThreads`: threads that make the columns of jobs, in the memory of an arena."""

from __future__ import annotations

from collections.abc import Sequence

from ...base.memory.arena import Arena
from ...base.metrics.counters import Counters
from ...base.process.forks import reading
from ...base.progress import CancelToken
from ...base.threads import ThreadPool
from ...plan.draws import BlockRows
from ...plan.program import ElementProgram, MixedProgram
from ..columns.batch import Column
from ..columns.first_job import FirstJob
from ..read.item_order import ItemOrder
from ..read.large_blocks import BlockColumns
from .assemble import assemble, assemble_batches
from .block import LoadedBlock
from .block_loader import BlockLoader
from .block_store import BlockHandle, sources_of
from .jobs import Job


class DecodeThreads:
    """A pool of threads with the program that they run. Subclasses submit jobs to it.

    Args:
        loaders: one for each source of the plan.
        program: the program.
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
