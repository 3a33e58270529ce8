"""`SlotMaker`: makes jobs in slots, which the client maps."""

from __future__ import annotations

import time
from concurrent.futures import Future
from functools import partial

import numpy as np

from ..base.metrics.counters import Count, Counters, add_time
from ..base.progress import CancelToken
from ..engine.columns.batch import Column
from ..engine.run.block_store import BlockHandle
from ..engine.run.jobs import Job
from ..engine.run.rebatch import Emission
from ..plan.plan import BasePlan
from ..schema.element import OutputField
from ..transport.sidecar.runners import Runner
from ..transport.sidecar.slots import MadeSlot, Slot, copied_table, write_tables
from .connection import SlotPool

_KEPT = OutputField(path=("",), kind="dense", dtype=np.dtype(np.int64), shape=())


class SlotMaker:
    """A `Maker` whose jobs run in the threads or worker processes of a `Runner`.

    If functions drop rows, jobs are made in slots that the client never sees; their rows are copied into others.

    Args:
        runner: runs the jobs.
        most_slots: the maximum number of slots in use at once.
        ahead: how many more there may be for a part of a failed job.
        workers: the number of jobs that run at once.
    """

    def __init__(
        self,
        slots: SlotPool,
        runner: Runner,
        plan: BasePlan,
        *,
        most_slots: int,
        ahead: int,
        workers: int,
    ) -> None:
        self.changed = slots.changed
        self.most_trials = workers
        self._slots = slots
        self._runner = runner
        self._element = plan.element
        self._drops = plan.program.drops
        self._most_slots = most_slots
        self._ahead = ahead

    def begin(self, counters: Counters, token: CancelToken) -> None:
        self._runner.begin(counters, token)
        self._counters = counters
        self._token = token

    def has_room(self, *, is_retry: bool = False) -> bool:
        return self._drops or self._slots.has_room(self._most_slots + (self._ahead if is_retry else 0))

    def submit(self, job: Job, handles: list[BlockHandle]) -> Future[MadeSlot]:
        return self._run(job, handles, self._slots.take(is_private=self._drops))

    def try_job(self, job: Job, handles: list[BlockHandle]) -> None:
        self._slots.give(self._run(job, handles, self._slots.take(is_private=True)).result().slot)

    def drop(self, future: Future[MadeSlot]) -> None:
        if not future.cancel():
            future.add_done_callback(self._give_made)

    def columns_of(self, made: MadeSlot) -> list[Column]:
        try:
            [header] = made.headers
            return copied_table(made.slot.memory, header, (*self._element.leaves, _KEPT))
        finally:
            self._slots.give(made.slot)

    def make_emission(self, emission: Emission, first: int) -> MadeSlot:
        with self.changed:
            self.changed.wait_for(lambda: self._token.cancelled.done() or self._slots.has_room(self._most_slots))
        self._token.check()
        slot = self._slots.take()
        elements = 1 if self._element.batched else emission.rows
        self._counters.bind()
        begin = time.perf_counter()
        try:
            slot.memory.begin()
            headers = write_tables(slot.memory, [(emission.columns, elements, emission.rows)], first_element=first)
        except BaseException:
            self._slots.give(slot)
            raise
        add_time(Count.HAND_OVER_S, begin)
        return MadeSlot(slot, headers)

    def held_bytes(self, jobs: int) -> int:
        return self._slots.memory_bytes

    def close(self) -> None:
        """Does nothing: the runner serves the next iteration, too."""

    def _run(self, job: Job, handles: list[BlockHandle], slot: Slot) -> Future[MadeSlot]:
        try:
            future = self._runner.submit(job, handles, slot)
        except BaseException:
            self._slots.give(slot)
            raise
        future.add_done_callback(partial(self._give_unused, slot))
        return future

    def _give_unused(self, slot: Slot, future: Future[MadeSlot]) -> None:
        if future.cancelled() or future.exception() is not None:
            self._slots.give(slot)

    def _give_made(self, future: Future[MadeSlot]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._slots.give(future.result().slot)
