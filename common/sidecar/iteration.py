"""One iteration of a sidecar: sends what a `JobLoop` delivers.

An iteration is made from a planned pipeline, a START message and slots. It sends BATCH messages, the errors of single
elements, and END. It ends when everything is sent, when it is stopped, or on an error.
"""

from __future__ import annotations

from dataclasses import replace

from ..base.metrics.counters import Counters
from ..engine.read.fetch import fetch_threads
from ..engine.run.block_store import BlockStore
from ..engine.run.jobs import JobSizer
from ..engine.run.loop import Delivery, JobLoop
from ..engine.run.planners import planner_of
from ..engine.run.rebatch import rebatcher_of
from ..plan.order.cursor import SkipState
from ..plan.state import resume, state_of
from ..transport.processes import start_vital
from ..transport.sidecar.protocol import UNKNOWN, Message, MessageType, Start, Started
from ..transport.sidecar.slots import MadeSlot
from .connection import ClientConnection, SlotPool
from .opened_request import OpenedRequest
from .slot_maker import SlotMaker

_FEWEST_SLOTS = 3


class Iteration:
    """One iteration: a loop of jobs, and a thread that sends their batches.

    Args:
        client: receives the batches.
        slots: the slots in which the batches are made.
        request: the planned pipeline.
        generation: identifies the messages of this iteration.
        most_slots: the maximum number of slots; 0 = choose one.
        counters: where the work of this iteration is counted.

    Raises:
        StateError: the state belongs to another pipeline or dataset.
    """

    def __init__(
        self,
        client: ClientConnection,
        slots: SlotPool,
        request: OpenedRequest,
        *,
        generation: int,
        start: Start,
        most_slots: int,
        counters: Counters,
    ) -> None:
        self._client = client
        self._slots = slots
        self._generation = generation
        plan = request.plan
        cursor = start.cursor
        if start.state is not None:
            plan, state = resume(plan, lambda made: made, start.state, worker=cursor.worker, workers=cursor.workers)
            cursor = state.cursor(cursor.worker, cursor.workers)
        self._plan = plan
        self._cursor = cursor
        slots_given, most_slots = most_slots, most_slots or 2 * request.workers + 4
        slot_bytes = request.memory_limit // (2 * most_slots)
        job_sizer = JobSizer.of(plan, slot_bytes, cursor.workers) if start.merge else JobSizer()
        if not slots_given and plan.makes_large_jobs(job_sizer.most):
            most_slots = request.workers + 4
        affordable = max(_FEWEST_SLOTS, request.memory_limit // (plan.step_bytes * job_sizer.most))
        self._most_slots = min(most_slots, affordable)
        self._skipped = cursor.skipped  # what the client knows of
        self._stopped = False
        ahead = max(min(2 * request.workers, self._most_slots - 2), 1)
        self._loop = JobLoop(
            planner_of(
                plan,
                request.program,
                cursor,
                max_errors=request.max_errors,
                counters=counters,
                job_sizer=job_sizer,
            ),
            BlockStore(
                plan,
                request.fetchers,
                threads=fetch_threads(plan.remote, request.workers),
                memory_limit=request.memory_limit,
                finish=request.runner.finish,
                order_of=request.runner.order_of,
                discard=request.runner.discard,
                counters=counters,
                workers=cursor.workers,
            ),
            SlotMaker(
                slots,
                request.runner,
                plan,
                most_slots=self._most_slots,
                ahead=ahead,
                workers=request.workers,
            ),
            rebatcher=rebatcher_of(plan, cursor.start),
            ahead=ahead,
            counters=counters,
        )

    def start(self) -> None:
        """Sends STARTED and begins."""
        self._client.send(self._started())
        start_vital(self._send, name="parquetry-send")

    def stop(self) -> None:
        """Ends the iteration. Idempotent."""
        self._stopped = True
        self._loop.stop()

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
            for delivery in self._loop:
                self._send_one(delivery)
            self._client.send(Message(type=MessageType.END, generation=self._generation))
        except BaseException as error:
            if not self._stopped:
                self._client.send_error(self._generation, error)
        finally:
            self._loop.close()

    def _send_one(self, delivery: Delivery[MadeSlot]) -> None:
        try:
            for position, skipped in delivery.changes:
                self._send_skipped(skipped, position)
        except BaseException:
            if delivery.made is not None:
                self._slots.give(delivery.made.slot)
            raise
        if delivery.error is not None:
            self._client.send_error(self._generation, delivery.error, elements=1, position=delivery.position)
        if delivery.made is None:
            return
        slot, headers = delivery.made
        self._slots.lend(slot)
        body = b"".join(header.pack() for header in headers)
        self._client.send(Message(type=MessageType.BATCH, generation=self._generation, a=slot.number, body=body))

    def _send_skipped(self, skipped: SkipState, position: int) -> None:
        """Tells the client what is left out from a position on, if that has changed."""
        if skipped != self._skipped:
            self._skipped = skipped
            _, after = state_of(self._plan, replace(self._cursor, start=0, skipped=skipped)).around_consumed()
            body = after.encode()
            self._client.send(
                Message(type=MessageType.STATE, generation=self._generation, a=position, b=skipped.rows, body=body)
            )
