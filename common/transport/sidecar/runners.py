"""Chooses where the reader's jobs run: in its own threads or in worker processes.

Threads run decoding that is cheap or releases the interpreter lock. Worker processes run other costly decoding and user
functions. Both write the same bytes into the same slots.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeAlias

from ...base.metrics.counters import Count, add_time
from ...engine.run.block_loader import BlockLoader
from ...engine.run.block_store import BlockHandle
from ...engine.run.jobs import Job
from ...engine.run.threads import DecodeThreads
from ...plan.program import ElementProgram, MixedProgram
from .slots import MadeSlot, Slot, write_tables
from .worker_process import WorkerProcess
from .worker_runner import WorkerRunner

_MOST_DECODERS = 16
"""The most threads that decode images in one process. Sixteen made an eighth more images than sixteen processes; with
many more, they would wait for the interpreter lock."""


class ThreadRunner(DecodeThreads):
    """Runs jobs in threads of the reader."""

    def discard(self, block: object) -> None:
        """Does nothing: the memory is freed with the last reference."""

    def submit(self, job: Job, handles: list[BlockHandle], slot: Slot) -> Future[MadeSlot]:
        return self._pool.submit(self._make, job, handles, slot)

    def _make(self, job: Job, handles: list[BlockHandle], slot: Slot) -> MadeSlot:
        slot.memory.begin()
        columns = self.columns(job, handles, slot.memory)
        begin = time.perf_counter()
        elements = 1 if job.bounds else job.elements
        parts = [(each, elements, rows) for each, rows in columns]
        headers = write_tables(slot.memory, parts, first_element=job.first)
        add_time(Count.HAND_OVER_S, begin)
        return MadeSlot(slot, headers)


Runner: TypeAlias = ThreadRunner | WorkerRunner


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
