"""`StepIterator`: iterates over the steps of a pipeline, keeps the position, and saves and restores it.

Every class that iterates uses it, in numpy, PyTorch and TensorFlow; each converts the steps to its own elements.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..base.errors import ELEMENT_ERRORS, ParquetryError, ResourceError, StateError, limit_reached
from ..base.metrics.counters import SIZE_BYTES, Count, Counters
from ..base.metrics.loader_stats import Chain, LoaderStats, SkippedRow
from ..base.metrics.tally import Tally
from ..base.platform.memory_file import memory_file
from ..base.platform.sockets import has_packets
from ..base.process.forks import begun_by_parent
from ..engine.read.column_reader import TableCache
from ..engine.run.step_source import Converter, StepRequest, StepSource, split_columns
from ..plan.options import Options
from ..plan.order.cursor import NOTHING, Cursor
from ..plan.plan import BasePlan
from ..plan.state import resume, state_of
from ..schema.element import Element
from ..stages.base import Decision, Stage
from ..stages.recut import Recut
from ..transport.open import open_source
from .resumes import ResumeWatch
from .sources import Source

if TYPE_CHECKING:
    import typing_extensions

    ElementT = typing_extensions.TypeVar("ElementT", default=dict[Any, Any])
else:
    ElementT = TypeVar("ElementT")


class IterationCounter:
    """Counts the iterators made of one pipeline; each is the next epoch of its shuffle.

    Attributes:
        resumes: notices when the rest of a resumed epoch is lost.
    """

    def __init__(self) -> None:
        self._next = 0
        self.resumes = ResumeWatch()

    def take(self) -> int:
        """Returns the next number."""
        number = self._next
        self._next += 1
        return number

    def go_on_after(self, number: int) -> None:
        """Continues after a restored iterator: the next iterator gets the following epoch, whatever was read before."""
        self._next = number + 1


class Iterated(Protocol):
    """The part of a pipeline that its iterators use."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in call order."""

    @property
    def options(self) -> Options:
        """How the pipeline is read."""

    @property
    def source(self) -> Source:
        """What the pipeline reads."""

    @property
    def element(self) -> Element:
        """The fields, dtypes and shapes that each step returns."""

    @property
    def versions(self) -> list[str]:
        """The versions of the datasets that it reads."""

    def plan(self) -> BasePlan:
        """The plan."""

    def to_json(self) -> dict[str, Any]:
        """Everything that another process needs to iterate it."""

    def with_stages(self, stages: Sequence[Stage]) -> Any:
        """A copy with other stages."""

    def with_seed(self, seed: int) -> Any:
        """A copy with another seed."""

    def with_streams(self, count: int, recut: Recut | None) -> Any:
        """A copy with the streams of a state."""


Pipe = TypeVar("Pipe", bound=Iterated)


class StepIterator(Generic[Pipe]):
    """Yields the steps of one iteration as columns.

    The source is opened at the first step. It is closed at the end, when the iterator is dropped, and on any error that
    does not concern a single element (`ELEMENT_ERRORS`). After an interruption, such as Ctrl-C, the next call opens it
    again and continues.

    Args:
        strict_nulls: whether a null is an error, because the consumer cannot represent it.
        worker, workers: a loader worker's part.
        converter: converts the columns of steps; see `engine.run.step_source`.
        counters: the counters of this iteration; by default, it creates its own.
        waits: whether the consumer of these steps is the one that waits for data. In a loader worker it is not: there,
            whoever iterates the loader waits.
        shared: row groups that loader workers share.
    """

    def __init__(
        self,
        pipeline: Pipe,
        iteration: int,
        *,
        strict_nulls: bool,
        worker: int = 0,
        workers: int = 1,
        converter: Converter = split_columns,
        counters: Counters | None = None,
        waits: bool = True,
        shared: TableCache | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.cursor = Cursor(iteration=iteration, worker=worker, workers=workers)
        self.position = 0
        self.skipped = NOTHING
        self._strict_nulls = strict_nulls
        self._converter = converter
        self._source: StepSource | None = None
        self.ended = False  # after its last element, not by an error or `close`
        self._finished = False
        self._in_step = False  # set while a step is taken; still set afterwards if interrupts ended that
        self._process = 0  # the one that opened the source
        self.counters = counters or Counters()
        self._waits = waits
        self._shared = shared
        self._tally = Tally(self.counters, waits=waits)
        self._like = 0  # the number of further steps whose time is counted already
        self._by_rows = False
        self._lock = threading.Lock()

    @property
    def element(self) -> Element:
        """The fields, dtypes and shapes that each step returns."""
        return self.pipeline.element

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return self

    def __next__(self) -> tuple[int, Any]:
        if self._source is not None and self._process != os.getpid() and not self._finished:
            raise begun_by_parent(self._process)
        with self._lock:
            if self._finished:
                raise StopIteration
            if self._in_step:  # another interrupt came before the last one was handled
                self._go_on_later()
            try:
                self._in_step = True
                return self._next_step()
            except BaseException as error:
                if not isinstance(error, Exception):
                    self._tally.tell()
                    self._go_on_later()
                    raise
                goes_on = isinstance(error, ELEMENT_ERRORS) and not self.pipeline.source.served
                if self._source is not None and goes_on:
                    self.position, self.skipped = self._source.position, self._source.skipped
                    self._in_step = False
                    self.counters.row()[Count.FAILED] += 1
                    raise
                self.ended = isinstance(error, StopIteration)
                self._tally.tell()
                self._stop()
                foreign = not isinstance(error, ParquetryError | StopIteration)
                if foreign and (limit := limit_reached(error)):
                    raise ResourceError(f"batch: {error!r}. {limit}") from error
                raise

    def _go_on_later(self) -> None:
        """Lets the next call open the source again, after the last step that was returned.

        An interrupt in the middle of this leaves `_in_step` set, so the next call does it again.
        """
        if self._source is not None:
            self._source.close()
        self._like = 0
        self.begin_at(replace(self.cursor, start=self.position, skipped=self.skipped))
        self._source = None
        self._in_step = False

    def _next_step(self) -> tuple[int, Any]:
        like = self._like
        begin = 0.0 if like else time.perf_counter()
        source = self._source
        if source is None:
            self._open()
            source = self._source
            assert source is not None
        arrived = source.ready
        step = next(source)
        position, skipped = source.position, source.skipped
        rows = step[0]
        elements = rows if self._by_rows else 1
        if like:
            self._like = like - 1
            self._tally.add_like(rows, elements)
        elif arrived:
            self._like = self._tally.add_ready(rows, elements, begin, source.ready)
        else:
            self._tally.add(rows, elements, begin)
        self.position, self.skipped = position, skipped  # last: a step that an interrupt stops here comes again
        self._in_step = False
        return step

    def begin_at(self, cursor: Cursor) -> None:
        """Starts at this cursor. Must be called before the source is opened."""
        self.cursor, self.position, self.skipped = cursor, cursor.start, cursor.skipped

    def state(self, consumed: int) -> str:
        """The state after ``consumed`` elements."""
        return state_of(self.pipeline.plan(), replace(self.cursor, start=consumed, skipped=self.skipped)).to_json()

    @property
    def longest(self) -> int:
        """The number of elements of the rank that has the most; 0 if all ranks have the same number."""
        shard = self.pipeline.plan().order.shard
        plan = self.pipeline.plan()
        if shard is None or shard.even != "none" or plan.program.drops or plan.skips:
            return 0
        stages = [replace(stage, index=0) if stage is shard else stage for stage in self.pipeline.stages]
        return self.pipeline.with_stages(stages).plan().elements_from(self.cursor.origin) or 0

    def restore(self, state: str | dict[str, Any], *, strict: bool = True) -> int:
        """Resumes from a state, and returns the number of elements consumed since its origin.

        Must be called before the first step.

        Raises:
            StateError: iteration has begun, or the state belongs to something else.
        """
        if self._source is not None:
            raise StateError("load_state_dict: expected a fresh iterator, got one that has begun. Call iter() again.")
        cursor = self.cursor
        self.pipeline, position = resume(
            self.pipeline, lambda made: made.plan(), state, worker=cursor.worker, workers=cursor.workers, strict=strict
        )
        self.begin_at(position.cursor(cursor.worker, cursor.workers))
        return position.consumed

    def stats(self) -> LoaderStats:
        """Statistics of the iteration so far. May be called from any thread."""
        if self._lock.acquire(blocking=False):  # otherwise the thread that holds it updates the counters soon
            try:
                totals = self.counters.totals()
                self._tally.complete(totals)
            finally:
                self._lock.release()
        else:
            totals = self.counters.totals()
        return LoaderStats.of(totals, chain_of(self.pipeline), skipped_rows(self.pipeline, self.counters))

    def handed_over(self, begin: float) -> None:
        """Records that since ``begin`` the consumer waited for its latest step to be converted."""
        with self._lock:
            self._tally.hand_over(begin)

    def _open(self) -> None:
        if self._waits and not self._process:
            self.counters.begin()
        self._by_rows = not self.element.batched
        if self.counters.descriptor is None and executor_of(self.pipeline) == "sidecar":
            with suppress(OSError, ValueError):  # without shared memory, the sidecar's work is not counted
                descriptor = memory_file("counters", SIZE_BYTES)
                try:
                    self.counters.share(descriptor)
                finally:
                    os.close(descriptor)
        self._process = os.getpid()
        self._source = open_source(self._request())
        weakref.finalize(self, self._source.close)

    def _request(self) -> StepRequest:
        pipeline, plan = self.pipeline, self.pipeline.plan()
        return StepRequest(
            plan=plan,
            program=replace(plan.program, strict_nulls=self._strict_nulls),
            cursor=self.cursor,
            executor=executor_of(pipeline),
            options=pipeline.options,
            describe=pipeline.to_json,
            versions=lambda: pipeline.versions,
            counters=self.counters,
            converter=self._converter,
            shared=self._shared,
        )

    def close(self) -> None:
        """Stops all work. Idempotent."""
        self._finished = True
        if self._lock.acquire(blocking=False):  # otherwise another thread is taking a step and will update the counters
            try:
                self._tally.tell()
            finally:
                self._lock.release()
        self._stop()

    def _stop(self) -> None:
        self._finished = True
        if self._source is not None:
            self._source.close()


def chain_of(pipeline: Iterated) -> Chain:
    """The facts about a planned pipeline that performance advice is based on."""
    cached = any(stage.decides is Decision.BYTES for stage in pipeline.stages)
    resizes = any(stage.resizes for stage in pipeline.stages)
    return Chain(cached=cached, resizes=resizes, **pipeline.source.costs(pipeline.plan))


def skipped_rows(pipeline: Iterated, counters: Counters) -> list[SkippedRow]:
    """The skipped rows that the counters have recorded."""
    rows = []
    for noted in counters.noted() if pipeline.options.skips else ():
        dataset = pipeline.plan().parts[noted.source].dataset
        groups = dataset.row_groups
        rows.append(
            SkippedRow(
                file=dataset.files[int(groups.file[noted.row_group])].shown_path,
                row_group=int(groups.group[noted.row_group]),
                row=noted.row,
                cause=noted.cause,
            )
        )
    return rows


def executor_of(pipeline: Iterated) -> str:
    """The executor that a pipeline runs on when iterated in Python."""
    chosen = pipeline.source.executor or pipeline.options.executor
    if chosen is not None:
        return chosen
    return "sidecar" if pipeline.plan().program.has_user_code and has_packets() else "threads"
