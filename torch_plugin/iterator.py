"""`ElementIterator`: yields a pipeline's elements as tensors and keeps the state; used by the pipe and the node."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, Generic, Protocol, cast

from parquetry.common import Pipeline
from parquetry.common.base.errors import ELEMENT_ERRORS, ParquetryError, StateError
from parquetry.common.base.metrics.counters import Counters
from parquetry.common.base.metrics.loader_stats import LoaderStats
from parquetry.common.base.process.dataclass import dataclass
from parquetry.common.base.process.forks import ForkLock, leave_to_parent
from parquetry.common.base.tracebacks import shorten
from parquetry.common.engine.read.shared_tables import SharedTables
from parquetry.common.engine.run.step_source import split_columns
from parquetry.common.pipeline.pipeline_iterator import ElementT
from parquetry.common.pipeline.step_iterator import StepIterator
from parquetry.common.plan.order.cursor import NOTHING, Cursor, SkipState
from parquetry.common.plan.state import read_state, state_of
from parquetry.common.schema.element import Element

from .loader_workers.loader_memory import Placer, SharedPacker, block_bytes, over_region, share_regions
from .loader_workers.relay import Relay, RelayPlan
from .loader_workers.sent_batches import SentBatch
from .placement import on_these_ranks
from .tensors import (
    CoreBatch,
    arrays_to_torch,
    parts_to_torch,
    rows_to_torch,
    split_for_core,
    split_for_torch,
)


@dataclass(slots=True, kw_only=True)
class Progress:
    """The position of an iterator. Outlives the iterator, and holds no data.

    Attributes:
        cursor: the part that the iterator yields, and the global position that ``consumed`` counts from.
        consumed: elements handed out, as a state counts them.
        finished: whether the end was reached.
        resumed: whether the iterator took a loaded state.
        skipped: what was skipped so far.
    """

    pipeline: Pipeline
    cursor: Cursor
    consumed: int = 0
    finished: bool = False
    resumed: bool = False
    skipped: SkipState = NOTHING
    _fixed: dict[str, Any] | None = field(default=None, repr=False)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state after ``consumed`` elements: a small JSON-serializable dict."""
        if self._fixed is None:
            self._fixed = json.loads(state_of(self.pipeline.plan(), self.cursor).to_json())
        skipped = self.skipped.to_json() if "skipped" in self._fixed else {}
        return {**self._fixed, "consumed": self.consumed, **skipped}

    def moved_to(self, steps: StepIterator[Pipeline]) -> None:
        """Takes the position of ``steps``, after a state was loaded into it."""
        self.pipeline, self.consumed, self.skipped = steps.pipeline, steps.position, steps.cursor.skipped
        self.cursor, self._fixed = replace(steps.cursor, start=0, skipped=NOTHING), None


class Resumer(Protocol):
    """The object that starts iterators and counts their epochs."""

    def resumed(self, progress: Progress) -> None:
        """Called when an iterator was restored."""

    def begins(self, progress: Progress) -> None:
        """Called when an iterator is about to give its first element."""


class ElementIterator(Generic[ElementT]):
    """One pass over a pipeline, as torch elements. Threads may share it: each element is returned to one of them.

    Args:
        pipeline: what to iterate.
        iteration: counted from 0; decides the epoch of the shuffle.
        worker, workers: a loader worker's part: every ``workers``-th element from ``worker``.
        resumer: notified when a state is loaded, and when iteration begins.
        sent: elements are sent to another process (by a loader), which maps their memory.
        by_rows: the pipeline makes batches whose rows are handed out one at a time; a state lies between batches.
        counters: the counters of the pass; new ones unless given.
        waits: whether to count the consumer's time here as waiting; ``False`` in a loader, which is timed itself.
        shared: row groups that loader workers share.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        iteration: int,
        worker: int = 0,
        workers: int = 1,
        resumer: Resumer | None = None,
        sent: bool = False,
        by_rows: bool = False,
        counters: Counters | None = None,
        waits: bool = True,
        shared: SharedTables | None = None,
    ) -> None:
        self.progress = Progress(pipeline=pipeline, cursor=Cursor(iteration=iteration, worker=worker, workers=workers))
        self.begun = False
        self._pipeline = pipeline
        self._worker = worker
        self._resumer = resumer
        self._maps = sent and share_regions()
        self._packs = sent and not self._maps
        self._by_rows = by_rows
        self._counters = counters or Counters()
        self._waits = waits
        self._shared = shared
        self._relay_plan: RelayPlan | None = None
        self._relay: Relay | None = None
        self._steps = self._open(worker, workers)
        self._step: tuple[int, Any] | None = None
        self._rows: Iterator[ElementT] = iter(())
        self._lock = ForkLock()
        leave_to_parent(self)

    def __iter__(self) -> ElementIterator[ElementT]:
        return self

    def __next__(self) -> ElementT:
        try:
            with self._lock:
                return self._next_element()
        except ParquetryError as error:
            shorten(error)
            raise

    def _next_element(self) -> ElementT:
        if self._relay_plan is not None:
            batch = self._relayed(self._relay_plan)
            if batch is not None:
                return cast(ElementT, batch)
        if not self.begun:
            self.begun = True
            if self._resumer is not None:
                self._resumer.begins(self.progress)
        row = next(self._rows, None)
        while row is None:
            element = self._steps.element
            try:
                if self._step is None:  # otherwise it was interrupted while it was converted
                    self._step = next(self._steps)
            except ELEMENT_ERRORS:
                self.progress.consumed, self.progress.skipped = self._steps.position, self._steps.skipped
                raise
            except StopIteration:
                self.progress.finished = self._steps.ended  # not if it was closed
                if self._steps.ended and self.progress.cursor.workers == 1:
                    self.progress.consumed = max(self.progress.consumed, self._steps.longest)
                raise
            count, columns = self._step
            try:
                if element.batched and not self._by_rows:
                    begin = time.perf_counter()
                    batch = self._batch(element, columns)
                    self._steps.handed_over(begin)
                    self._passed(self._steps.position)
                    return cast(ElementT, batch)
                rows = rows_to_torch(element, columns)
            except Exception:
                self._step = None  # the next call returns the batch after it
                raise
            self._passed(self._steps.position - (0 if self._by_rows else count))
            self._rows = rows
            row = next(self._rows, None)
        self.progress.consumed += 0 if self._by_rows else 1
        return row

    def _relayed(self, plan: RelayPlan) -> SentBatch | None:
        """Returns the next batch, or ``None`` if this process has to make it.

        Raises:
            StopIteration: there are no more batches.
        """
        if not self.begun:
            self.begun = True
            own = replace(plan, pipeline=self._steps.pipeline)  # with the streams of a state
            self._relay = own.join(self._steps.cursor, self.state_dict)
        batch = None if self._relay is None else self._relay.take()
        if batch is not None:
            self.progress.consumed += 1
        elif self._relay is not None and self._relay.ended:
            self.progress.finished = True
            raise StopIteration
        else:
            self._relay_plan = None
            if self._relay is not None:
                self._relay.close()
            self._steps.begin_at(replace(self._steps.cursor, start=self.progress.consumed))
        return batch

    def take_part(self, plan: RelayPlan) -> None:
        """In a loader worker, before the first element: lets one worker make the batches of all, if they are mapped.

        Elements may then be `SentBatch`es, which only the loader may see.
        """
        self._relay_plan = plan if self._maps else None

    def received(self, most: int) -> list[SentBatch]:
        """Returns further batches, at most ``most``, that another loader worker made and has already sent."""
        with self._lock:
            relay = None if self._relay_plan is None else self._relay
            batches: list[SentBatch] = []
            while relay is not None and len(batches) < most and (batch := relay.take_received()) is not None:
                batches.append(batch)
                self.progress.consumed += 1
            return batches

    def _passed(self, position: int) -> None:
        """Notes that the elements before a position were returned, and releases their step."""
        self._step = None
        self.progress.skipped, self.progress.consumed = self._steps.skipped, position

    def _batch(self, element: Element, parts: Sequence[Any]) -> Any:
        if isinstance(parts, CoreBatch):
            return element.nest(parts.tensors())
        convert = arrays_to_torch if isinstance(parts, tuple) else parts_to_torch
        if self._packs:
            return convert(element, parts, SharedPacker(parts))
        if not self._maps:
            return convert(element, parts)
        if isinstance(parts, tuple) and (tensors := over_region(parts)) is not None:
            return element.nest(tensors)
        with Placer(lambda: block_bytes(parts)) as placer:
            return convert(element, parts, placer)

    def state_dict(self) -> dict[str, Any]:
        """Returns the position of this iterator: a small JSON-serializable dict, the same in every dataset class."""
        return self.progress.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any] | str, *, strict: bool = True) -> ElementIterator[ElementT]:
        """Resumes from a state: the next element is the one that would have come next. Returns itself.

        Given the state of a whole rank, a loader worker takes its part of the remaining elements.

        Args:
            strict: ``False`` accepts a state from a pipeline with other fields or transforms, if the order is the same.

        Raises:
            StateError: iteration has begun, or the state belongs to another dataset, pipeline, or part.
        """
        if self.begun:
            raise StateError("load_state_dict: expected a fresh iterator, got one that has begun. Call iter() again.")
        self._pipeline, state = on_these_ranks(self._pipeline, parse(state_dict))
        self._steps = self._restored(state, strict)
        self.progress.moved_to(self._steps)
        if self._resumer is not None:
            self._resumer.resumed(self.progress)
        return self

    def stats(self) -> LoaderStats:
        """Returns statistics of this pass, and which side is slow. Callable from any thread."""
        return self._steps.stats()

    def close(self) -> None:
        """Stops all work. Idempotent."""
        self._step, self._rows = None, iter(())
        self._steps.close()
        if self._relay is not None:
            self._relay.close()

    def forget_elements(self) -> object:
        """As `HoldsElements`."""
        elements = self._step, self._rows
        self._step, self._rows = None, iter(())
        return elements

    def _restored(self, state: dict[str, Any], strict: bool) -> StepIterator[Pipeline]:
        workers, own = self.progress.cursor.workers, self._worker
        if workers == 1 or state.get("workers") != 1:
            steps = self._open(lane_of(state, own, workers), workers)
            steps.restore(state, strict=strict)
            return steps
        rank = self._open(0, 1)
        first = rank.restore(state, strict=strict) + own  # the loader asks its workers in turn, from number 0
        if rank.cursor.skipped:
            raise StateError(
                "state: expected one per loader worker, got that of a whole rank that skipped "
                f"{rank.cursor.skipped.rows} rows (on_error='skip'), which cannot be split among workers. Continue "
                "without loader workers, or save the state of a StatefulDataLoader."
            )
        steps = self._open(first % workers, workers, rank.pipeline)
        begin = replace(
            steps.cursor, iteration=rank.cursor.iteration, origin=rank.cursor.origin, start=first // workers
        )
        steps.begin_at(begin)
        return steps

    def _open(self, worker: int, workers: int, pipeline: Pipeline | None = None) -> StepIterator[Pipeline]:
        chosen = self._pipeline if pipeline is None else pipeline  # a pipeline without rows is false
        at_once = chosen.element.batched and not self._by_rows
        split = split_for_torch if self._maps or self._packs else split_for_core
        return StepIterator(
            chosen,
            self.progress.cursor.iteration,
            strict_nulls=True,
            worker=worker,
            workers=workers,
            converter=partial(split, chosen.element) if at_once else split_columns,
            counters=self._counters,
            waits=self._waits,
            shared=self._shared,
        )


def lane_of(state: dict[str, Any], worker: int, workers: int) -> int:
    """Returns the lane a loader worker resumes in; not its own number if the state began in the middle of an epoch."""
    lane = state.get("worker")
    known = state.get("workers") == workers and isinstance(lane, int) and 0 <= lane < workers
    return lane if known and isinstance(lane, int) else worker


def parse(state: dict[str, Any] | str) -> dict[str, Any]:
    """Returns a state as a dict.

    Raises:
        StateError: it is not a state.
    """
    return dict(json.loads(read_state(state).to_json()))
