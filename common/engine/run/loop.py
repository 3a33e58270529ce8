"""`JobLoop`: runs the jobs of one iteration ahead of the consumer, and delivers what they make in order.

A `Planner` says what each job holds, a `Store` loads its blocks, and a `Maker` makes it: in threads or in worker
processes, in an arena of this process or in a slot that another process maps. A job that fails is planned again without
the rows that fail, or repeated in halves, until the error belongs to a single element.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from functools import partial
from threading import Condition
from typing import Generic, Protocol, TypeVar

from ...base.errors import ELEMENT_ERRORS
from ...base.metrics.counters import Count, Counters
from ...base.metrics.tally import Gauge
from ...base.process.dataclass import dataclass
from ...base.progress import CancelToken, warning_seconds
from ...base.threads import ThreadPool
from ...plan.order.cursor import NOTHING, SkipState
from ..columns.batch import Column
from .bad_rows import FailedItem
from .block_store import BlockHandle, Store
from .failing import check_blocks, describe_wait, failing_items
from .jobs import Job, Planner, UnfinishedJobError
from .rebatch import Emission, Rebatcher

_LOGGER = logging.getLogger(__name__)


class Made(Protocol):
    """What a job made."""

    @property
    def num_bytes(self) -> int:
        """Its size."""


MadeT = TypeVar("MadeT", bound=Made)


class Maker(Protocol[MadeT]):
    """Makes jobs, each in memory of its own. Only the thread of the loop calls it, except for `try_job` and `close`."""

    changed: Condition
    """Notified when there may be memory for another job."""
    most_trials: int
    """How many jobs `try_job` can make at once."""

    def begin(self, counters: Counters, token: CancelToken) -> None:
        """Called before the first job. The jobs count in ``counters``, and end early with ``token``."""

    def has_room(self, *, is_retry: bool = False) -> bool:
        """Whether there is memory for another job. A part of a failed job may need more: those after it hold some."""

    def submit(self, job: Job, handles: list[BlockHandle]) -> Future[MadeT]:
        """Starts a job."""

    def try_job(self, job: Job, handles: list[BlockHandle]) -> None:
        """Makes a job only to see its error, which it raises. Called in any thread."""

    def drop(self, future: Future[MadeT]) -> None:
        """Cancels a job, or frees what it makes."""

    def columns_of(self, made: MadeT) -> list[Column]:
        """Returns the columns of a job of one part. They stay as they are while later jobs are made."""

    def make_emission(self, emission: Emission, first: int) -> MadeT:
        """Makes elements of rows that remain; ``first`` is the number of elements before them."""

    def held_bytes(self, jobs: int) -> int:
        """The memory of this many jobs."""

    def close(self) -> None:
        """Stops making jobs. Idempotent. Called in any thread."""


@dataclass(slots=True, kw_only=True)
class Delivery(Generic[MadeT]):
    """Consecutive elements that were made at once, or the error of one.

    Attributes:
        position: the position before the elements, or after the one that failed.
        changes: the positions at which what is left out changes, each with the new state.
        made: the elements; ``None`` if there is an error.
        error: why an element failed.
    """

    position: int
    changes: Sequence[tuple[int, SkipState]]
    made: MadeT | None = None
    error: BaseException | None = None


@dataclass(slots=True, kw_only=True)
class _JobEntry(Generic[MadeT]):
    """A job and its blocks. A part of a failed job has no future until it is the next one."""

    job: Job
    handles: list[BlockHandle]
    future: Future[MadeT] | None = None
    is_reported: bool = False

    @property
    def is_done(self) -> bool:
        """Whether it has been made, or has failed."""
        return self.future is not None and self.future.done()


class JobLoop(Generic[MadeT]):
    """The deliveries of one iteration, in order.

    Only one consumer at a time. It starts jobs itself, when it asks for the next delivery and while it waits for that.
    `stop` and `close` may be called from any thread, and more than once.

    Args:
        rebatcher: makes elements of the rows that remain, if functions drop some.
        ahead: the maximum number of jobs that are made or wait for the consumer.
    """

    def __init__(
        self,
        planner: Planner,
        store: Store,
        maker: Maker[MadeT],
        *,
        rebatcher: Rebatcher | None,
        ahead: int,
        counters: Counters,
    ) -> None:
        self._planner = planner
        self._store = store
        self._maker = maker
        self._ahead = ahead
        self._counters = counters
        self._held = Gauge(counters)
        self._token = store.cancel_token
        self._jobs: deque[_JobEntry[MadeT]] = deque()
        self._waiting: Job | None = None  # planned, but there is no room for it yet
        self._lacks_memory = False  # the maker has no room for the next job
        self._failure: Exception | None = None  # of planning, to be raised after the jobs that were planned before
        self._awaited: Future[MadeT] | None = None
        self._rebatcher = rebatcher
        self._emissions: Iterator[Emission] = iter(())
        self._is_over = False
        maker.begin(counters, self._token)

    def __iter__(self) -> Iterator[Delivery[MadeT]]:
        return self

    def __next__(self) -> Delivery[MadeT]:
        """Waits for the next delivery.

        Raises:
            PipelineError: another thread has stopped the iteration.
        """
        try:
            while True:
                emission = next(self._emissions, None)
                if emission is not None:
                    return self._regrouped(emission)
                if self._is_over:
                    raise StopIteration
                delivery = self._advance()
                if delivery is not None:
                    return delivery
        except (RuntimeError, CancelledError, IndexError):
            self._token.check()  # another thread, as at exit, has closed the pools and emptied the queue
            self.close()
            raise
        except BaseException:
            self.close()
            raise

    def stop(self) -> None:
        """Ends waits and work. The consumer gets an error."""
        self._token.cancel()  # first: it says why pools refuse work
        with self._maker.changed:
            self._maker.changed.notify_all()

    @property
    def futures(self) -> list[Future[MadeT]]:
        """The jobs that are made or wait for the consumer. May be asked in any thread."""
        return [entry.future for entry in list(self._jobs) if entry.future is not None]

    def close(self) -> None:
        """Stops, and frees the blocks and what was made ahead."""
        self.stop()
        self._maker.close()
        self._store.close()
        self._held.set(0)
        while self._jobs:
            self._drop(self._jobs.popleft())

    def _advance(self) -> Delivery[MadeT] | None:
        """Waits for the next job. Returns ``None`` if that delivers nothing by itself."""
        entry = self._next_job()
        if entry is None:
            self._end()
            return None
        job, future = entry.job, entry.future
        assert future is not None
        error = future.exception()
        if error is not None:
            return self._after_failure(entry, error)
        made = future.result()
        changes = self._pass(entry)
        if self._rebatcher is None:
            return Delivery(position=job.first, changes=changes, made=made)
        left_out = changes[-1][1] if changes else NOTHING
        self._emissions = self._rebatcher.add(self._maker.columns_of(made), job.elements, left_out)
        return None

    def _pass(self, entry: _JobEntry[MadeT]) -> list[tuple[int, SkipState]]:
        """Takes the next job off the queue. Returns the positions at which what is left out changes."""
        job = entry.job
        changes = [(job.first + element, state) for element, state in self._planner.passed(job)]
        self._jobs.popleft()
        self._store.release(entry.handles)
        return changes

    def _regrouped(self, emission: Emission) -> Delivery[MadeT]:
        assert self._rebatcher is not None
        first = self._rebatcher.pass_to(emission)
        made = self._maker.make_emission(emission, first)
        return Delivery(position=first, changes=[(first + 1, emission.skipped)], made=made)

    def _end(self) -> None:
        """Ends the iteration after its last job."""
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                self._failure = None  # otherwise it would keep the frames that it passes
        for fetcher in self._store.fetchers:
            fetcher.end_pass()
        self._planner.finish()
        self._is_over = True
        if self._rebatcher is not None:
            self._emissions = self._rebatcher.finish()

    def _after_failure(self, failed: _JobEntry[MadeT], error: BaseException) -> Delivery[MadeT] | None:
        """Plans a failed job again, repeats it in halves, or delivers the error if it has one element."""
        job, is_element_error = failed.job, isinstance(error, ELEMENT_ERRORS)
        if is_element_error and self._planner.plan_again(job, partial(self._failing_items, failed, error)):
            self._counters.row()[Count.RETRIES] += 1
            self._plan_again()
            return None
        if job.elements > 1 and (is_element_error or isinstance(error, UnfinishedJobError)):
            self._counters.row()[Count.RETRIES] += 1
            self._repeat_in_halves(failed, is_suspect=not is_element_error)
            return None
        if not is_element_error:
            raise error
        changes = self._pass(failed)
        if self._rebatcher is None:
            return Delivery(position=job.first + 1, changes=changes, error=error)
        if self._rebatcher.skip():
            changes = [(self._rebatcher.position, state) for _, state in changes]
        else:  # rows before it wait for their batch
            changes = []
        return Delivery(position=self._rebatcher.position, changes=changes, error=error)

    def _plan_again(self) -> None:
        """Drops all jobs, and starts those that are planned in their place."""
        void, self._jobs = self._jobs, deque()
        self._waiting = self._failure = None
        for each in void:
            self._drop(each)
        self._top_up()
        for each in void:  # last, so that no block is loaded twice
            self._store.release(each.handles)

    def _repeat_in_halves(self, failed: _JobEntry[MadeT], *, is_suspect: bool) -> None:
        """Puts the halves of a job in its place. Each begins when it is the next one."""
        self._jobs.popleft()
        for half, numbers in reversed(replace(failed.job, is_suspect=is_suspect).halves()):
            handles = [failed.handles[number] for number in numbers]
            self._store.hold(handles)
            self._jobs.appendleft(_JobEntry(job=half, handles=handles))
        self._store.release(failed.handles)

    def _failing_items(self, failed: _JobEntry[MadeT], error: BaseException) -> list[FailedItem]:
        """Returns the items that fail alone, in a failed job and in those started after it.

        Returns nothing if no item of the job fails alone.

        Raises:
            DatasetError: a whole block fails.
        """
        failures: list[tuple[_JobEntry[MadeT], BaseException]] = [(failed, error)]
        for later in list(self._jobs)[1:]:
            error_of_later = None if later.future is None else later.future.exception()
            if isinstance(error_of_later, ELEMENT_ERRORS):
                failures.append((later, error_of_later))

        def search(entry: _JobEntry[MadeT], reason: BaseException) -> list[FailedItem]:
            check_blocks(entry.handles)
            return failing_items(entry.job, reason, entry.handles, self._maker.try_job)

        pool = ThreadPool(min(len(failures), self._maker.most_trials), "parquetry-search")
        try:
            first, *others = [pool.submit(search, *each) for each in failures]
            items = first.result()
            return items + [item for other in others for item in other.result()] if items else []
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _next_job(self) -> _JobEntry[MadeT] | None:
        """Waits until the next job is done. Returns ``None`` at the end."""
        self._top_up()
        while True:
            self._token.check()  # otherwise a closed iteration would look like a complete one
            entry = self._jobs[0] if self._jobs else None
            if entry is None and not self._lacks_memory:
                return None
            if entry is not None and entry.is_done:
                return entry
            self._wait(entry)
            if self._lacks_memory:
                self._top_up()

    def _wait(self, entry: _JobEntry[MadeT] | None) -> None:
        """Waits until a job is done or another can start. Logs one warning if the job takes long."""
        seconds = None if entry is None or entry.is_reported else warning_seconds()
        with self._maker.changed:
            self._awaited = None if entry is None else entry.future
            is_over = self._maker.changed.wait_for(partial(self._may_go_on, entry), seconds)
            self._awaited = None
        if not is_over and entry is not None:
            entry.is_reported = True
            _LOGGER.warning(
                "process %d has waited %.0f s for its next %d rows: %s.",
                os.getpid(),
                seconds,
                entry.job.count,
                describe_wait(entry.job, entry.handles, self._store.fetchers),
            )

    def _may_go_on(self, entry: _JobEntry[MadeT] | None) -> bool:
        if self._token.cancelled.done() or (entry is not None and entry.is_done):
            return True
        is_retry = entry is not None and entry.future is None
        return self._lacks_memory and self._maker.has_room(is_retry=is_retry)

    def _top_up(self) -> None:
        """Starts jobs as far as there is room for them."""
        self._lacks_memory = False
        if self._jobs and self._jobs[0].future is None:
            if not self._maker.has_room(is_retry=True):
                self._lacks_memory = True
                return
            self._start(self._jobs[0])
        is_ahead = False
        while len(self._jobs) < self._ahead and (job := self._waiting or self._planned()) is not None:
            self._waiting = job
            if self._jobs and not self._store.admits(job):
                break
            if not self._maker.has_room():
                self._lacks_memory = True
                break
            self._waiting = None
            entry: _JobEntry[MadeT] = _JobEntry(job=job, handles=self._store.acquire(job))
            self._start(entry)
            self._jobs.append(entry)
            is_ahead = True
        if is_ahead:
            self._store.read_ahead()
        self._held.set(self._maker.held_bytes(len(self._jobs)))

    def _planned(self) -> Job | None:
        if self._failure is None:
            try:
                return next(self._planner, None)
            except Exception as error:
                self._failure = error
        return None

    def _start(self, entry: _JobEntry[MadeT]) -> None:
        entry.future = self._maker.submit(entry.job, entry.handles)
        entry.future.add_done_callback(partial(self._note_done, entry.job.steps))

    def _note_done(self, steps: int, future: Future[MadeT]) -> None:
        if not future.cancelled() and future.exception() is None:
            self._planner.job_sizer.made(steps, future.result().num_bytes)
        with self._maker.changed:
            if future is self._awaited:
                self._maker.changed.notify_all()

    def _drop(self, entry: _JobEntry[MadeT]) -> None:
        if entry.future is not None:
            self._maker.drop(entry.future)
