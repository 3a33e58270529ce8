"""One iteration of a sidecar: runs jobs and sends their batches in order.

An iteration is made from a planned pipeline, a START message and slots. It sends BATCH messages, the errors of single
elements, and END. It ends when everything is sent, when it is stopped, or on an error.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from dataclasses import replace

import numpy as np

from ..counting.counters import Count, Counters
from ..engine.run.bad_rows import bad_rows_of
from ..engine.run.bucket_skipping import planner_class
from ..engine.run.describing import describe_wait
from ..engine.run.jobs import Job, JobPlanner, Merging, UnfinishedJobError
from ..engine.run.rebatch import Emission, rebatcher_of
from ..engine.run.skipping import SkippingPlanner
from ..errors import ELEMENT_ERRORS
from ..order.cursor import NOTHING, SkipState
from ..plan.state import resume, state_of
from ..progress import warning_seconds
from ..schema.element import OutputField
from ..transport.processes import start_vital
from ..transport.sidecar.protocol import UNKNOWN, BatchHeader, Message, MessageType, Start, Started
from ..transport.sidecar.slots import Slot, copied_table, write_table
from .connection import ClientConnection, SlotPool
from .job_queue import JobQueue, NoMoreJobs, PlanningFailed, RunningJob
from .prepared import Prepared

_LOGGER = logging.getLogger(__name__)
_FEWEST_SLOTS = 3
_KEPT = OutputField(path=("",), kind="dense", dtype=np.dtype(np.int64), shape=())


class Iteration:
    """One iteration: a queue of jobs, and a thread that sends their batches.

    Args:
        client: receives the batches.
        slots: the slots in which the batches are made.
        prepared: the planned pipeline.
        generation: identifies the messages of this iteration.
        wanted: where to begin.
        most_slots: the maximum number of slots; 0 = choose one.
        counters: where the work of this iteration is counted.

    Raises:
        StateError: the state belongs to another pipeline or dataset.
    """

    def __init__(
        self,
        client: ClientConnection,
        slots: SlotPool,
        prepared: Prepared,
        *,
        generation: int,
        wanted: Start,
        most_slots: int,
        counters: Counters,
    ) -> None:
        self._client = client
        self._slots = slots
        self._fetchers = prepared.fetchers
        self._generation = generation
        plan = prepared.plan
        cursor = wanted.cursor
        if wanted.state is not None:
            plan, state = resume(plan, lambda made: made, wanted.state, worker=cursor.worker, workers=cursor.workers)
            cursor = state.cursor(cursor.worker, cursor.workers)
        self._plan = plan
        self._cursor = cursor
        slots_given, most_slots = most_slots, most_slots or 2 * prepared.workers + 4
        slot_bytes = prepared.memory_limit // (2 * most_slots)
        merge = plan.merged_steps(slot_bytes, cursor.workers) if wanted.merge else 1
        if not slots_given and plan.makes_large_jobs(merge):
            most_slots = prepared.workers + 4
        self._merging = Merging(merge, plan.merged_bytes(slot_bytes, cursor.workers))
        affordable = max(_FEWEST_SLOTS, prepared.memory_limit // (plan.step_bytes * merge))
        self._most_slots = min(most_slots, affordable)
        self._rebatcher = rebatcher_of(plan, cursor.start) if plan.program.drops else None
        self._counters = counters
        self._sent = cursor.start  # the number of elements, as a state counts them
        self._skipped = cursor.skipped  # what the client knows of
        self._skipping: SkippingPlanner | None = None
        if plan.skips:
            self._skipping = planner_class(plan)(
                plan,
                cursor,
                bad=bad_rows_of(plan, strict_nulls=prepared.program.strict_nulls),
                max_errors=prepared.max_errors,
                counters=counters,
                merging=self._merging,
            )
        self._jobs = JobQueue(
            slots,
            prepared,
            plan,
            self._skipping or JobPlanner(plan, plan.steps(cursor), cursor.iteration, merging=self._merging),
            first=cursor.start,
            most_slots=self._most_slots,
            private=self._rebatcher is not None,
            counters=counters,
            workers=cursor.workers,
        )

    def start(self) -> None:
        """Sends STARTED and begins."""
        self._client.send(self._started())
        self._jobs.start()
        start_vital(self._send, name="parquetry-send")

    def stop(self) -> None:
        """Ends the iteration. Idempotent."""
        self._jobs.stop()

    def _started(self) -> Message:
        before, after = state_of(self._plan, self._cursor).around_consumed()
        length = self._plan.elements_from(self._cursor.origin)
        left = self._plan.cardinality_of(None if length is None else max(0, length - self._cursor.start))
        left = UNKNOWN if self._plan.skips else left  # a part cannot begin without the parts before it
        iteration = self._cursor.iteration
        started = Started(iteration=iteration, most_slots=self._most_slots, before=before, after=after)
        return Message(
            type=MessageType.STARTED,
            generation=self._generation,
            a=left,
            b=self._cursor.start,
            body=started.pack(),
        )

    def _send(self) -> None:
        try:
            while (item := self._jobs.next()) is not None:
                if isinstance(item, PlanningFailed):
                    raise item.error
                if isinstance(item, NoMoreJobs):
                    self._plan.check_unchanged()
                    if self._skipping is not None:
                        self._skipping.finish()
                    if self._rebatcher is None or self._send_emissions(self._rebatcher.finish()):
                        self._client.send(Message(type=MessageType.END, generation=self._generation))
                    return
                self._send_one(item)
        except BaseException as error:
            if not self._jobs.stopped:
                self._client.send_error(self._generation, error)
        finally:
            self._jobs.close()

    def _send_one(self, made: RunningJob) -> None:
        headers = self._headers(made)
        if headers is None and self._plans_again(made):
            return
        if headers is None:
            self._send_apart(made)
        if headers is not None:
            self._merging.made(made.job.steps, headers[-1].table_offset)  # before a new job is planned
        self._jobs.done(made)
        if headers is not None:
            self._send_made(headers, made)

    def _headers(self, made: RunningJob) -> list[BatchHeader] | None:
        """Waits for a job. Returns the headers of its batches, or ``None`` if some of its elements failed or
        ended workers.

        In that case, the error is added to ``made.errors``.
        """
        if not made.future.done() and wait([made.future], warning_seconds()).not_done:
            _LOGGER.warning(
                "element %d has waited %.0f s for job %d (%d rows): %s.",
                made.first,
                warning_seconds(),
                made.job.number,
                made.job.count,
                describe_wait(made.job, made.handles, self._fetchers),
            )
        try:
            return made.future.result()
        except BaseException as error:
            self._slots.give(made.slot)
            in_halves = isinstance(error, UnfinishedJobError) and made.job.elements > 1
            if not in_halves and not isinstance(error, ELEMENT_ERRORS):
                raise
            made.errors.append(error)
            return None

    def _plans_again(self, made: RunningJob, *, is_part: bool = False) -> bool:
        """Returns whether a failed job, or a part of one, is planned again, without the rows that fail."""
        if self._skipping is None or isinstance(made.errors[-1], UnfinishedJobError):
            return False
        found = self._jobs.failing_items(made)
        if not found:
            return False
        self._counters.row()[Count.RETRIES] += 1
        self._skipping.add(found)
        self._jobs.plan_again(made, self._skipping, is_part=is_part)
        return True

    def _send_apart(self, made: RunningJob) -> bool:
        """Repeats a job of several elements in halves, so that the elements that do not fail are sent.

        Reports the error of a job of one element. Returns ``False`` if the rest of the job is planned again.
        """
        if made.job.elements == 1:
            self._send_failure(made.first, made.errors.pop(), made.job)
            return True
        self._counters.row()[Count.RETRIES] += 1
        for part in self._jobs.again(made):
            headers = self._headers(part)
            if headers is not None:
                self._send_made(headers, part)
            elif self._plans_again(part, is_part=True) or not self._send_apart(part):
                return False
        return True

    def _send_failure(self, first: int, error: BaseException, job: Job) -> None:
        position = first + 1 if self._rebatcher is None else self._rebatcher.skip()
        self._count_skipped(job)
        if position is not None:
            self._sent = position
            self._send_skipped(self._left_out_after(job), position)
        if not self._jobs.stopped:
            self._client.send_error(self._generation, error, elements=1, position=self._sent)

    def _send_made(self, headers: list[BatchHeader], made: RunningJob) -> None:
        if self._rebatcher is None:
            try:
                self._count_skipped(made.job)
                for element, left_out in () if self._skipping is None else self._skipping.changes(made.job):
                    self._send_skipped(left_out, made.first + element)
            except BaseException:
                self._slots.give(made.slot)
                raise
            self._send_batches(made.slot, headers)
            return
        (header,) = headers  # functions that drop rows run on one batch at a time
        columns = copied_table(made.slot.memory, header, (*self._plan.element.leaves, _KEPT))
        self._slots.give(made.slot)
        self._count_skipped(made.job)
        left_out = self._left_out_after(made.job)
        self._send_emissions(self._rebatcher.add(columns, header.num_elements, left_out))

    def _left_out_after(self, job: Job) -> SkipState:
        return NOTHING if self._skipping is None else self._skipping.skipped_after(job, job.elements)

    def _count_skipped(self, job: Job) -> None:
        """Counts the rows that a job left out."""
        if self._skipping is not None:
            self._skipping.passed(job)

    def _send_skipped(self, skipped: SkipState, position: int) -> None:
        """Tells the client what is left out from a position on, if that has changed."""
        if skipped != self._skipped:
            self._skipped = skipped
            _, after = state_of(self._plan, replace(self._cursor, start=0, skipped=skipped)).around_consumed()
            body = after.encode()
            self._client.send(
                Message(type=MessageType.STATE, generation=self._generation, a=position, b=skipped.rows, body=body)
            )

    def _send_batches(self, slot: Slot, headers: Sequence[BatchHeader]) -> None:
        self._slots.lend(slot)
        body = b"".join(header.pack() for header in headers)
        self._client.send(Message(type=MessageType.BATCH, generation=self._generation, a=slot.number, body=body))

    def _send_emissions(self, emissions: Iterator[Emission]) -> bool:
        """Sends elements made from the remaining rows. Returns ``False`` if the iteration is stopped first."""
        for emission in emissions:
            slot = self._jobs.wait_for_slot()
            if slot is None:
                return False
            begin = time.perf_counter()
            elements = 1 if self._plan.element.batched else emission.rows
            try:
                slot.memory.begin()
                header = write_table(
                    slot.memory,
                    emission.columns,
                    first_element=emission.position - elements,
                    num_elements=elements,
                    num_rows=emission.rows,
                )
            except BaseException:
                self._slots.give(slot)
                raise
            self._counters.row()[Count.HAND_OVER_S] += time.perf_counter() - begin
            self._sent = emission.position
            self._send_skipped(emission.skipped, emission.position - elements + 1)
            self._send_batches(slot, [header])
        return True
