"""`BucketSkippingPlanner`: plans the batches of ``bucket`` without the rows that fail.

The batches of a part have fixed places, each with rows of one bucket of one block. After a bad row, the remaining
batches of that bucket and block are refilled from one queue of rows; the last ones run short or disappear. What a batch
holds therefore depends only on the rows that were consumed up to it, whichever bad rows are known in advance.

A position is (elements, places left out, rows that each open queue is ahead of its places); see `SkipState`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...base.metrics.counters import Counters
from ...plan.block_reads import BlockRead
from ...plan.bucket_items import BucketItems
from ...plan.order.cursor import Cursor, SkipState
from ...plan.plan import BasePlan, Plan
from ...schema.ragged import concat_ranges
from .bad_rows import BadRows
from .jobs import Job, JobPosition, JobSizer, Skip, SkipPosition
from .skipping import SkippingPlanner

_FEWEST_SCANNED, _MOST_SCANNED = 16, 256
_MOST_QUEUES = 64

Queue = tuple[int, ...]
"""Identifies a queue: (stream, cycle, pass, wraparounds, block, bucket). A stream of an epoch may begin again (its
wraparounds), and so may a part, if every rank must return as many elements (its cycle)."""


class BucketSkippingPlanner(SkippingPlanner):
    """As `SkippingPlanner`, for a plan whose items are batches. Its arguments are the same."""

    def __init__(
        self,
        plan: BasePlan,
        cursor: Cursor,
        *,
        bad: BadRows,
        max_errors: float | None,
        counters: Counters,
        job_sizer: JobSizer | None = None,
    ) -> None:
        super().__init__(plan, cursor, bad=bad, max_errors=max_errors, counters=counters, job_sizer=job_sizer)
        assert isinstance(plan, Plan)
        assert isinstance(plan.items, BucketItems)
        self._one_plan = plan
        self._batches = plan.items
        self._queues: OrderedDict[Queue, tuple[np.ndarray, np.ndarray, np.ndarray]] = OrderedDict()

    def skipped_after(self, job: Job, element: int) -> SkipState:
        assert job.place is not None
        return job.place.left_out if element else job.place.begin.left_out

    def _first_place(self, cursor: Cursor) -> SkipPosition:
        left_out = cursor.skipped
        return SkipPosition(elements=cursor.start, rows=cursor.start + left_out.batches, left_out=left_out)

    def _planned(self, begin: SkipPosition) -> Job:
        if self._positions.ends_after(begin.elements):
            raise StopIteration
        place, left_out, skips, barren = begin.rows, begin.left_out, list[Skip](), 0
        while len(self._positions.run(place, 1)):
            read, left_out, new_skips = self._batch(place, left_out)
            skips += new_skips
            allowed = self._limit.allowed(skips, begin.left_out.rows)
            if allowed < len(skips):
                self._over = [row for _, row in skips[: allowed + 1]]
                raise StopIteration
            place += 1
            if len(read.items):
                after = JobPosition(begin=begin, end=place, skips=tuple(skips), left_out=left_out)
                return Job(
                    number=self._number,
                    steps=1,
                    count=len(read.items),
                    elements=1,
                    reads=(read,),
                    first=begin.elements,
                    place=after,
                )
            barren += 1
            if skips:
                self._check_some_do_not_fail(barren, skips)
        raise StopIteration

    def _rest(self) -> list[Skip]:
        skips, place, left_out = list[Skip](), self._begin.rows, self._begin.left_out
        while len(self._positions.run(place, 1)):
            _, left_out, new_skips = self._batch(place, left_out)
            skips += new_skips
            place += 1
        return skips

    def _has_read_all(self, rest: Sequence[Skip]) -> bool:
        length = self._positions.length
        return length is not None and (self._positions.target is None or self._begin.rows >= length)

    def _batch(self, place: int, left_out: SkipState) -> tuple[BlockRead, SkipState, list[Skip]]:
        """Returns the rows of the batch at a place, what is left out after it, and the rows left out here."""
        [read] = self._reads(np.array([place]))
        fails = self.bad.hits(read) is not None
        if not fails and not left_out.ahead:
            return read, left_out, []
        queue, count = self._queue_at(place)
        ahead = next((rows for *name, rows in left_out.ahead if tuple(name) == queue), 0)
        if not fails and not ahead:
            return read, left_out, []
        rows = self._queued(queue, place)[ahead:]
        taken, is_rest = self._good(read, rows, int(self._batches.sizes[queue[-1]]))
        end = ahead + (int(taken[-1]) + 1 if len(taken) else 0)
        if is_rest:  # rows that fail are left out at the place that has them
            end = max(end, count)
        skips = [(place, row) for _, row in self.bad.skips(replace(read, items=rows[: end - ahead]))]
        open_queues = [each for each in left_out.ahead if each[:-1] != queue]
        if end > count:
            open_queues.append((*queue, end - count))
        after = SkipState(
            rows=left_out.rows + len(skips),
            batches=left_out.batches + (not len(taken)),
            ahead=tuple(open_queues),
        )
        return replace(read, items=rows[taken]), after, skips

    def _good(self, read: BlockRead, rows: np.ndarray, most: int) -> tuple[np.ndarray, bool]:
        """Returns the places of the first ``most`` rows that are not known to fail, and whether there are no others."""
        size = 2 * most
        while True:
            some = rows[:size]
            bad = self.bad.hits(replace(read, items=some))
            good = np.arange(len(some)) if bad is None else np.flatnonzero(~bad)
            if len(good) > most or len(some) == len(rows):
                return good[:most], len(good) <= most
            size *= 2

    def _queue_at(self, place: int) -> tuple[Queue, int]:
        """Returns the queue of the batch at a place, and how many rows the batch has without rows that fail."""
        passes, index = self._positions.resolve(np.array([place]))
        number = int(passes[0])
        stream, wraparounds, block, bucket, _, count = self._places(number, index)[0].tolist()
        return (stream, self._positions.cycle(place), number, wraparounds, block, bucket), count

    def _places(self, number: int, index: np.ndarray) -> np.ndarray:
        """Returns `BucketItems.places` in a pass."""
        plan = self._one_plan
        order = plan.epoch_order(plan.epoch_of(self._cursor.iteration, number))
        return self._batches.places(order, index)

    def _queued(self, queue: Queue, place: int) -> np.ndarray:
        """Returns the rows of a queue from a place on."""
        if queue not in self._queues:
            self._queues[queue] = self._scanned(queue, place)
            if len(self._queues) > _MOST_QUEUES:
                self._queues.popitem(last=False)
        places, before, rows = self._queues[queue]
        if places[0] > place:  # it was scanned from a later place on
            places, before, rows = self._queues[queue] = self._scanned(queue, place)
        return rows[before[np.searchsorted(places, place)] :]

    def _scanned(self, queue: Queue, place: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the places of a queue from a place on, how many rows come before each, and the rows; int64."""
        stream, cycle, number, wraparounds, block, bucket = queue
        scans, size, ended = [], _FEWEST_SCANNED, False
        while not ended:
            positions = self._positions.within_cycle(self._positions.run(place, size), cycle)
            if not len(positions):
                break
            passes, index = self._positions.resolve(positions)
            same = passes == number
            own = self._places(number, index[same])
            here = own[:, 0] == stream
            inside = here & (own[:, 1] == wraparounds) & (own[:, 2] == block)
            chosen = inside & (own[:, 3] == bucket)
            scans.append(np.column_stack([positions[same][chosen], own[chosen][:, 4:]]))
            ended = not same.all() or bool((here & ~inside).any())
            place += len(positions)
            size = min(2 * size, _MOST_SCANNED)
        places, first, count = np.concatenate(scans).T
        return places, np.cumsum(count) - count, concat_ranges(first, count)
