"""`JobQueue`: starts the jobs of one iteration ahead of time, each in a slot, and returns them in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import field, replace
from functools import partial
from threading import Lock

from ..counting.counters import Counters
from ..counting.tally import Gauge
from ..engine.read.fetch import fetch_threads
from ..engine.run.bad_rows import FailedItem
from ..engine.run.block_store import BlockHandle, BlockStore
from ..engine.run.failing import check_blocks, failing_items
from ..engine.run.jobs import Job, JobPlanner, UnfinishedJobError
from ..engine.run.skipping import SkippingPlanner
from ..errors import ELEMENT_ERRORS, PipelineError
from ..plan.plan import BasePlan
from ..process.dataclass import dataclass
from ..threads import ThreadPool
from ..transport.processes import start_vital
from ..transport.sidecar.protocol import BatchHeader
from ..transport.sidecar.slots import Slot
from .connection import SlotPool
from .prepared import Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that runs, or has run, in a slot.

    ``first`` is the number of its first element. ``errors`` are the errors with which it failed.
    """

    future: Future[list[BatchHeader]]
    job: Job
    handles: list[BlockHandle]
    slot: Slot
    first: int
    errors: list[BaseException] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PlanningFailed:
    """No more jobs can be started because of an error."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class NoMoreJobs:
    """All jobs have been started."""


class JobQueue:
    """The jobs of one iteration. A thread starts them as long as there are slots and memory.

    All waits are on ``slots.changed``, which also guards the queue, so a stop takes effect at once.

    Args:
        slots: the slots in which jobs run.
        prepared: the planned pipeline, with the runner of its jobs.
        plan: the plan of this iteration, which a saved state may have changed.
        planner: plans the jobs.
        first: the number of the first element.
        most_slots: the maximum number of slots in use at once.
        private: whether to use slots that the client never sees.
        counters: the counters of the iteration.
        workers: the number of loader workers that each load all blocks.
    """

    def __init__(
        self,
        slots: SlotPool,
        prepared: Prepared,
        plan: BasePlan,
        planner: JobPlanner | SkippingPlanner,
        *,
        first: int,
        most_slots: int,
        private: bool,
        counters: Counters,
        workers: int,
    ) -> None:
        self._slots = slots
        self._runner = prepared.runner
        self._planner = planner
        self._first = first
        self._most_slots = most_slots
        self._private = private
        self._ahead = max(min(2 * prepared.workers, most_slots - 2), 1)
        self._store = BlockStore(
            plan,
            prepared.fetchers,
            threads=fetch_threads(plan.remote, prepared.workers),
            memory_limit=prepared.memory_limit,
            finish=prepared.runner.finish,
            order_of=prepared.runner.order_of,
            discard=prepared.runner.discard,
            counters=counters,
            workers=workers,
        )
        self._runner.begin(counters, self._store.cancel_token)
        self._pending: deque[RunningJob | PlanningFailed | NoMoreJobs] = deque()
        self._done: deque[list[BlockHandle]] = deque()
        self._in_flight = 0
        self._planning = Lock()
        self._rewinds = 0  # jobs planned before the latest rewind are void
        self._held = Gauge(counters)
        self.stopped = False

    def start(self) -> None:
        """Starts the thread that starts jobs."""
        self._producer = start_vital(self._produce, name="parquetry-produce")

    def stop(self) -> None:
        """Stops starting jobs. Running jobs return their slots when they are done. Idempotent."""
        with self._slots.changed:
            self.stopped = True
            self._slots.changed.notify_all()

    def close(self) -> None:
        """Stops, frees the blocks, and returns every slot once its job is over."""
        self.stop()
        self._producer.join()  # it only ever waits for `changed`
        with self._slots.changed:
            left = [item for item in self._pending if isinstance(item, RunningJob)]
            self._pending.clear()
        self._store.close()
        self._held.set(0)
        for made in left:
            if made.future.cancel():
                self._slots.give(made.slot)
            else:
                made.future.add_done_callback(partial(self._give_back, made.slot))

    def next(self) -> RunningJob | PlanningFailed | NoMoreJobs | None:
        """Returns the next item, or ``None`` if the queue is stopped."""
        with self._slots.changed:
            while not self._pending and not self.stopped:
                self._slots.changed.wait()
            return None if self.stopped else self._pending.popleft()

    def done(self, made: RunningJob) -> None:
        """Notes that a job is over: its blocks may be freed, and another job may begin."""
        with self._slots.changed:
            self._done.append(made.handles)
            self._in_flight -= 1
            self._slots.changed.notify_all()

    def again(self, made: RunningJob) -> Iterator[RunningJob]:
        """Starts the halves of a job of several elements, one after the other, unless the queue is stopped."""
        first = made.first
        is_suspect = isinstance(made.errors[-1], UnfinishedJobError)
        for half, draws in replace(made.job, is_suspect=is_suspect).halves():
            slot = self.wait_for_slot(self._ahead, private=self._private)
            if slot is None:
                return
            try:
                part = self._begin(half, [made.handles[number] for number in draws], slot, first)
            except BaseException:
                self._slots.give(slot)
                raise
            yield part
            first += half.elements

    def failing_items(self, made: RunningJob) -> list[FailedItem]:
        """Returns the items that fail in a failed job and in the jobs started after it.

        Returns nothing if no item of the job fails alone.

        Raises:
            DatasetError: a whole block fails.
        """
        with self._slots.changed:
            later = [item for item in self._pending if isinstance(item, RunningJob)]
        with ThreadPool(1 + len(later), "parquetry-search") as searches:

            def search(failed: RunningJob, error: BaseException) -> Future[list[FailedItem]]:
                check_blocks(failed.handles)
                return searches.submit(failing_items, failed.job, error, failed.handles, self._make)

            first = search(made, made.errors[-1])
            errors = [(item, item.future.exception()) for item in later]
            others = [search(item, error) for item, error in errors if isinstance(error, ELEMENT_ERRORS)]
            found = first.result()
            return found + [each for other in others for each in other.result()] if found else []

    def plan_again(self, made: RunningJob, planner: SkippingPlanner, *, is_part: bool = False) -> None:
        """Plans a job, whose slot is already free, and all jobs after it again.

        With ``is_part``, it is a part of a job that `again` started: the rest of that job is planned again, too, and
        you call `done` for the whole job.
        """
        with self._planning, self._slots.changed:
            self._rewinds += 1
            void = [item for item in self._pending if isinstance(item, RunningJob)]
            self._pending.clear()
            planner.rewind(made.job)
            self._slots.changed.notify_all()
        for item in void:
            self._give_up(item)
        if not is_part:
            self.done(made)

    def _make(self, job: Job, handles: list[BlockHandle]) -> object:
        slot = self.wait_for_slot(self._ahead, private=True)
        if slot is None:
            raise PipelineError("iteration was closed.")
        made = self._begin(job, handles, slot, 0)
        made.future.add_done_callback(partial(self._give_back, slot))
        return made.future.result()

    def _give_up(self, made: RunningJob) -> None:
        if made.future.cancel():
            self._slots.give(made.slot)
        else:
            made.future.add_done_callback(partial(self._give_back, made.slot))
        self.done(made)

    def wait_for_slot(self, more: int = 0, *, private: bool = False) -> Slot | None:
        """Waits for a slot. Returns ``None`` if the queue is stopped.

        ``more`` slots than usual may exist, so that later jobs that hold slots cannot block an earlier one.
        """
        with self._slots.changed:
            while not self.stopped:
                slot = self._slots.take_private() if private else self._slots.take(self._most_slots + more)
                if slot is not None:
                    return slot
                self._slots.changed.wait()
        return None

    def _produce(self) -> None:
        try:
            first = self._first
            while not self.stopped:
                with self._planning:
                    rewinds = self._rewinds
                    job = self._planned()
                if isinstance(job, NoMoreJobs | PlanningFailed):
                    self._put(job, rewinds)
                    if not self._wait_for_rewind(rewinds):
                        return
                    continue
                slot = self._wait_for_room(job, rewinds)
                if slot is None:
                    continue
                first = first if job.place is None else job.place.begin.elements
                self._put(self._submit(job, slot, first), rewinds)
                self._held.set(self._slots.memory_bytes)
                first += job.elements
                self._store.read_ahead()
        except BaseException as error:
            self._put(PlanningFailed(error))

    def _planned(self) -> Job | NoMoreJobs | PlanningFailed:
        """Returns the next job. An error may become void like a job, if an earlier job is planned again."""
        try:
            return next(self._planner, None) or NoMoreJobs()
        except Exception as error:
            return PlanningFailed(error)

    def _submit(self, job: Job, slot: Slot, first: int) -> RunningJob:
        try:
            handles = self._store.acquire(job)
            return self._begin(job, handles, slot, first)
        except BaseException:
            self._slots.give(slot)
            raise

    def _begin(self, job: Job, handles: list[BlockHandle], slot: Slot, first: int) -> RunningJob:
        future = self._runner.submit(job, handles, slot, first)
        return RunningJob(future=future, job=job, handles=handles, slot=slot, first=first)

    def _wait_for_rewind(self, rewinds: int) -> bool:
        """Waits until jobs are planned again. Returns ``False`` if that cannot happen or the queue is stopped."""
        with self._slots.changed:
            while isinstance(self._planner, SkippingPlanner) and not self.stopped and rewinds == self._rewinds:
                self._slots.changed.wait()
            return rewinds != self._rewinds and not self.stopped

    def _wait_for_room(self, job: Job, rewinds: int) -> Slot | None:
        """Waits for a slot for a job. Returns ``None`` if the queue is stopped or the job is void."""
        changed = self._slots.changed
        with changed:
            while not self.stopped and rewinds == self._rewinds:
                while self._done:
                    self._store.release(self._done.popleft())
                if self._in_flight < self._ahead and (self._in_flight == 0 or self._store.admits(job)):
                    slot = self._slots.take_private() if self._private else self._slots.take(self._most_slots)
                    if slot is not None:
                        self._in_flight += 1
                        return slot
                changed.wait()
        return None

    def _put(self, item: RunningJob | PlanningFailed | NoMoreJobs, rewinds: int | None = None) -> None:
        """Adds an item to the queue, unless it is void."""
        with self._slots.changed:
            is_void = rewinds is not None and rewinds != self._rewinds
            if not is_void:
                self._pending.append(item)
                self._slots.changed.notify_all()
        if is_void and isinstance(item, RunningJob):
            self._give_up(item)

    def _give_back(self, slot: Slot, _: Future[list[BatchHeader]]) -> None:
        self._slots.give(slot)
