"""The reader process: plans, fetches, hands jobs to its runner, and sends finished batches in order.

One `Server` serves one connection. Each START makes an `Iteration`, which ends when it has sent everything, on STOP, on
the next START, and on an error. All its waits are on one condition, so a stop takes effect at once.
"""

from __future__ import annotations

import base64
import logging
import os
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from ..engine.read.fetch import Fetcher, fetch_threads, fetchers_of
from ..engine.run.jobs import BlockStore, Handle, Job, JobPlanner
from ..engine.run.rebatch import Emission, rebatcher_of
from ..errors import ELEMENT_ERRORS, ParquetryError
from ..pipeline.pipeline import Pipeline
from ..plan.plan import BasePlan
from ..plan.state import resume, state_of
from ..schema.element import OutputField
from ..transport.processes import start_vital
from ..transport.sidecar.channel import Channel, memory_file, read_request
from ..transport.sidecar.protocol import BatchHeader, Message, MessageType, RemoteError, Start, Started
from ..transport.sidecar.request import check_outputs, requested_versions
from ..transport.sidecar.runners import Runner, Slot, make_runner
from ..transport.sidecar.slots import SlotMemory, copied_table, write_table
from ..transport.sidecar.worker_process import WorkerProcess
from ..transport.source import DEFAULT_MEMORY_BYTES, usable_processors

_LOGGER = logging.getLogger(__name__)
_FEWEST_SLOTS = 3
_FIRST_PRIVATE = 1 << 32
_KEPT = OutputField(path=("",), kind="dense", dtype=np.dtype(np.int64), shape=())


class _Made(NamedTuple):
    """A job that is made, or is being made, in a slot; ``first`` is the number of its first element."""

    future: Future[BatchHeader]
    job: Job
    handles: list[Handle]
    slot: Slot
    first: int


class Server:
    """Serves one client.

    Args:
        channel: the client's connection; its end is the end of the process.
        started: workers that run already.
    """

    def __init__(self, channel: Channel, started: Sequence[WorkerProcess] = ()) -> None:
        self._channel = channel
        self._started = list(started)
        self._changed = threading.Condition()
        self._slots: dict[int, Slot] = {}
        self._free: deque[Slot] = deque()
        self._private: deque[Slot] = deque()
        self._private_made = 0
        self._iteration: Iteration | None = None
        self._runner: Runner | None = None
        self._request: dict[str, Any] = {}
        self._has_begun = False

    def serve(self, first: Message | None = None) -> None:
        """Handles messages (``first`` was received already) until CLOSE or the end of the connection."""
        while True:
            message, first = first or self._channel.receive(), None
            if message is None or message.type == MessageType.CLOSE:
                return
            if message.type == MessageType.OPEN:
                if not self._open(message):
                    return
            elif message.type == MessageType.START:
                self._start(message)
            elif message.type == MessageType.RELEASE:
                self._release(message.a)
            elif message.type == MessageType.STOP:
                self._stop()

    def close(self) -> None:
        """Stops everything; worker processes are ended. Idempotent."""
        self._stop()
        if self._runner is not None:
            self._runner.close()
        for process in self._started:
            process.end()

    def _open(self, message: Message) -> bool:
        assert message.descriptor is not None
        try:
            self._request = read_request(message)
            os.close(message.descriptor)
            paths = self._request["sys_path"]
            sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
            self._prepare(requested_pipeline(self._request))
            cardinality = self._plan.cardinality
        except Exception as error:
            self.send_error(0, error)
            return False
        self.send(Message(type=MessageType.OPENED, a=cardinality))
        return True

    def _prepare(self, pipeline: Pipeline) -> None:
        """Plans a pipeline, and makes the runner of its jobs."""
        versions = requested_versions(self._request)
        if versions is not None:
            pipeline.hold_to(versions)
        self._pipeline = pipeline
        self._plan = pipeline.plan()
        check_outputs(self._request, self._plan.element)
        self._strict_nulls = self._request.get("strict_nulls", True)
        self._workers = pipeline.workers or usable_processors()
        self._fetchers = fetchers_of(self._plan)
        started, self._started = self._started, []
        self._runner = make_runner(
            self._fetchers,
            self._plan.program,
            workers=self._workers,
            strict_nulls=self._strict_nulls,
            started=started,
        )

    def _follow_files(self) -> None:
        """Plans anew if files have changed and the client could not know which version of them it wants."""
        if requested_versions(self._request) is not None or not self._has_begun:
            return
        pipeline = requested_pipeline(self._request)
        if pipeline.versions != self._pipeline.versions:
            assert self._runner is not None
            self._runner.close()
            self._prepare(pipeline)

    def _start(self, message: Message) -> None:
        self._stop()
        try:
            wanted = Start.unpack(message.body)
            self._follow_files()
            self._has_begun = True
            self._plan.check_not_empty()
            assert self._runner is not None
            self._iteration = Iteration(self, self._plan, self._runner, self._fetchers, message, wanted)
        except Exception as error:
            self.send_error(message.generation, error)
            return
        self._iteration.start()

    def _stop(self) -> None:
        if self._iteration is not None:
            self._iteration.stop()
            self._iteration = None

    # --- slots; `_changed` guards them ---

    @property
    def changed(self) -> threading.Condition:
        """Notified when a slot becomes free, a job is done, or an iteration is stopped."""
        return self._changed

    def take_slot(self, most: int) -> Slot | None:
        """A free slot, a new one if there are fewer than ``most``, or ``None``. Call with `changed` held."""
        if self._free:
            return self._free.popleft()
        if len(self._slots) >= most:
            return None
        slot = Slot(len(self._slots), SlotMemory(memory_file("slot")))
        self._slots[slot.number] = slot
        self.send(
            Message(type=MessageType.SLOT, a=slot.number, b=slot.memory.num_bytes, descriptor=slot.memory.descriptor)
        )
        return slot

    def take_private(self) -> Slot:
        """A slot that the client never sees: for rows that are still to be grouped. Call with `changed` held."""
        if self._private:
            return self._private.popleft()
        self._private_made += 1
        return Slot(_FIRST_PRIVATE + self._private_made, SlotMemory(memory_file("rows")))

    def give_slot(self, slot: Slot) -> None:
        """Takes back a slot that was not sent."""
        with self._changed:
            (self._private if slot.number >= _FIRST_PRIVATE else self._free).append(slot)
            self._changed.notify_all()

    def _release(self, number: int) -> None:
        with self._changed:
            self._free.append(self._slots[number])
            self._changed.notify_all()

    # --- sending ---

    def send(self, message: Message) -> None:
        """Sends a message to the client; a client that is gone ends the process."""
        try:
            self._channel.send(message)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)

    def send_error(self, generation: int, error: BaseException, *, elements: int = 0, position: int = 0) -> None:
        """Reports an error; one of ours by its class, any other with its traceback.

        With ``elements`` it is the error of so many, ``position`` stands behind them, and the iteration goes on.
        """
        if isinstance(error, ParquetryError):
            name, text = type(error).__name__, str(error)
        else:
            name, text = "ParquetryError", "".join(traceback.format_exception(error)).rstrip()
        body = RemoteError(name=name, text=text).pack()
        self.send(Message(type=MessageType.ERROR, generation=generation, a=elements, b=position, body=body))


class Iteration:
    """One iteration: a thread that starts jobs and one that sends what they made, in order."""

    def __init__(
        self, server: Server, plan: BasePlan, runner: Runner, fetchers: list[Fetcher], message: Message, wanted: Start
    ) -> None:
        self._server = server
        self._plan = plan
        self._runner = runner
        self._generation = message.generation
        cursor = wanted.cursor
        if wanted.state is not None:
            plan, state = resume(plan, lambda made: made, wanted.state, worker=cursor.worker, workers=cursor.workers)
            self._plan = plan
            cursor = replace(cursor, iteration=state.iteration, origin=state.start, start=state.consumed)
        self._cursor = cursor
        steps = plan.steps(cursor)
        merge = plan.merged_steps if wanted.merge else 1
        self._planner = JobPlanner(plan, steps, cursor.iteration, merge=merge)
        self._length = steps.length
        pipeline = server._pipeline
        threads = server._workers
        memory_limit = pipeline.memory_limit or DEFAULT_MEMORY_BYTES
        affordable = max(_FEWEST_SLOTS, memory_limit // (plan.step_bytes * merge))
        self._most_slots = min(message.a or 2 * threads + 4, affordable)
        self._ahead = max(min(2 * threads, self._most_slots - 2), 1)
        self._store = BlockStore(
            plan,
            fetchers,
            threads=fetch_threads(plan.remote, threads),
            memory_limit=memory_limit,
            finish=runner.finish,
            discard=runner.discard,
        )
        self._rebatcher = rebatcher_of(plan, self._cursor.start) if plan.program.drops else None
        self._stopped = False
        self._pending: deque[_Made | BaseException | None] = deque()
        self._sent = self._cursor.start  # elements, as a state counts them
        self._done: deque[list[Handle]] = deque()
        self._in_flight = 0

    def start(self) -> None:
        """Answers STARTED and begins."""
        self._server.send(self._started())
        self._producer = start_vital(self._produce, name="parquetry-produce")
        start_vital(self._send, name="parquetry-send")

    def stop(self) -> None:
        """Ends the iteration; jobs that still run give their slots back when they are done. Idempotent."""
        with self._server.changed:
            self._stopped = True
            self._server.changed.notify_all()

    def _started(self) -> Message:
        before, after = state_of(self._plan, self._cursor).around_consumed()
        length = self._plan.elements_from(self._cursor.origin)
        left = self._plan.cardinality_of(None if length is None else max(0, length - self._cursor.start))
        iteration = self._cursor.iteration
        started = Started(iteration=iteration, most_slots=self._most_slots, before=before, after=after)
        return Message(
            type=MessageType.STARTED,
            generation=self._generation,
            a=left,
            b=self._cursor.start,
            body=started.pack(),
        )

    def _produce(self) -> None:
        try:
            first = self._cursor.start
            for job in self._planner:
                slot = self._wait_for_room(job)
                if slot is None:
                    return
                self._put(self._submit(job, slot, first))
                first += job.elements
                self._store.read_ahead()
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _submit(self, job: Job, slot: Slot, first: int) -> _Made:
        try:
            handles = self._store.acquire(job)
            return _Made(self._runner.submit(job, handles, slot, first), job, handles, slot, first)
        except BaseException:
            self._server.give_slot(slot)
            raise

    def _wait_for_room(self, job: Job) -> Slot | None:
        changed = self._server.changed
        with changed:
            while not self._stopped:
                while self._done:
                    self._store.release(self._done.popleft())
                if self._in_flight < self._ahead and (self._in_flight == 0 or self._store.admits(job)):
                    slot = self._server.take_private() if self._rebatcher else self._server.take_slot(self._most_slots)
                    if slot is not None:
                        self._in_flight += 1
                        return slot
                changed.wait()
        return None

    def _put(self, item: _Made | BaseException | None) -> None:
        with self._server.changed:
            self._pending.append(item)
            self._server.changed.notify_all()

    def _send(self) -> None:
        try:
            while True:
                item = self._next_pending()
                if item is None:
                    return
                if item == "end":
                    if self._rebatcher is not None and not self._send_emissions(self._rebatcher.finish()):
                        return
                    self._server.send(Message(type=MessageType.END, generation=self._generation))
                    return
                if isinstance(item, BaseException):
                    raise item
                self._send_one(item)
        except BaseException as error:
            if not self._stopped:
                self._server.send_error(self._generation, error)
        finally:
            self.stop()
            self._producer.join()  # it waits for nothing but `changed`
            self._clear()

    def _next_pending(self) -> _Made | BaseException | Literal["end"] | None:
        """The next item, ``"end"``, or ``None`` when stopped."""
        with self._server.changed:
            while not self._pending and not self._stopped:
                self._server.changed.wait()
            if self._stopped:
                return None
            item = self._pending.popleft()
            return "end" if item is None else item

    def _send_one(self, made: _Made) -> None:
        header = self._header(made)
        if header is None:
            self._send_apart(made)
        with self._server.changed:
            self._done.append(made.handles)
            self._in_flight -= 1
            self._server.changed.notify_all()
        if header is not None:
            self._send_made(header, made.slot)

    def _header(self, made: _Made) -> BatchHeader | None:
        """The header of a job, once it is done; ``None`` if elements of it failed, of which a single one is told."""
        try:
            return made.future.result()
        except ELEMENT_ERRORS as error:
            self._server.give_slot(made.slot)
            if made.job.elements == 1:
                self._send_failure(made.first, error)
            return None
        except BaseException:
            self._server.give_slot(made.slot)
            raise

    def _send_apart(self, made: _Made) -> None:
        """Makes a job of several elements again, in halves, so that those which do not fail are sent."""
        if made.job.elements == 1:
            return
        first = made.first
        for half, draws in made.job.halves():
            slot = self._wait_for_slot(self._ahead, private=self._rebatcher is not None)
            if slot is None:
                return
            handles = [made.handles[number] for number in draws]
            part = _Made(self._runner.submit(half, handles, slot, first), half, handles, slot, first)
            header = self._header(part)
            if header is None:
                self._send_apart(part)
            else:
                self._send_made(header, slot)
            first += half.elements

    def _send_failure(self, first: int, error: BaseException) -> None:
        if self._rebatcher is None:
            self._sent = first + 1
        else:
            self._sent = self._rebatcher.skip() or self._sent
        if not self._stopped:
            self._server.send_error(self._generation, error, elements=1, position=self._sent)

    def _send_made(self, header: BatchHeader, slot: Slot) -> None:
        if self._rebatcher is None:
            self._send_batch(slot, header)
            return
        columns = copied_table(slot.memory, header, (*self._plan.element.outputs, _KEPT))
        self._server.give_slot(slot)
        self._send_emissions(self._rebatcher.add(columns, header.num_elements))

    def _send_batch(self, slot: Slot, header: BatchHeader) -> None:
        self._server.send(
            Message(type=MessageType.BATCH, generation=self._generation, a=slot.number, body=header.pack())
        )

    def _send_emissions(self, emissions: Iterator[Emission]) -> bool:
        """Sends elements made of rows that are left; False if the iteration was stopped meanwhile."""
        for emission in emissions:
            slot = self._wait_for_slot()
            if slot is None:
                return False
            slot.memory.begin()
            elements = 1 if self._plan.element.batched else emission.rows
            header = write_table(
                slot.memory, emission.columns, first_element=emission.position - elements, num_elements=elements
            )
            self._sent = emission.position
            self._send_batch(slot, header)
        return True

    def _wait_for_slot(self, more: int = 0, *, private: bool = False) -> Slot | None:
        """A slot; ``more`` than usual may be made, so that jobs which hold theirs keep none from one before them."""
        with self._server.changed:
            while not self._stopped:
                slot = self._server.take_private() if private else self._server.take_slot(self._most_slots + more)
                if slot is not None:
                    return slot
                self._server.changed.wait()
        return None

    def _give_back(self, slot: Slot, _: Future[BatchHeader]) -> None:
        self._server.give_slot(slot)

    def _clear(self) -> None:
        """Gives every slot back once its job is over, and frees the blocks."""
        with self._server.changed:
            left = [item for item in self._pending if isinstance(item, _Made)]
            self._pending.clear()
        self._store.close()
        for made in left:
            if made.future.cancel():
                self._server.give_slot(made.slot)
            else:
                made.future.add_done_callback(partial(self._give_back, made.slot))


def requested_pipeline(request: Mapping[str, Any]) -> Pipeline:
    """The pipeline of a request, with the shard and the URLs that were known only when it was sent.

    Raises:
        ParquetryError: a pipeline that makes no sense.
    """
    described = dict(request["pipeline"])
    if "urls" in request:
        described["urls"] = [base64.urlsafe_b64decode(url).decode() for url in request["urls"]]
    if "shard" in request:
        numbers = dict(zip(("num_shards", "index"), request["shard"], strict=True))
        described["stages"] = [
            {**stage, **numbers} if stage["verb"] in ("shard", "shard_row_groups") else stage
            for stage in described["stages"]
        ]
    return Pipeline.from_json(described)
