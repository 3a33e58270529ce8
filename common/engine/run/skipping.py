"""`SkippingPlanner`: plans the jobs of an iteration that leaves out failing rows.

It fills each job with rows of a loader worker's part that are not known to fail (`BadRows`). If a job fails,
`failing_items` finds the rows that fail, and the job is planned again with the following rows in their place. The rows
therefore always come in the order of the plan, whichever bad rows are known in advance, and a batch function always
sees a full batch. Rows that could not be measured are not in the order (`RefusedRows`); each part counts its share.

A position is (elements, rows left out): rows consumed = rows of the elements + rows left out. Items of joined tokens
are treated like rows. If a function drops rows, elements are the rows that it gets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NoReturn

import numpy as np

from ...base.errors import PipelineError
from ...base.metrics.counters import SKIPPED, Count, Counters
from ...plan.block_reads import BlockRead
from ...plan.order.cursor import START, Cursor, SkipState
from ...plan.plan import BasePlan
from .bad_rows import BadRows, FailedItem, Failure, Row, SkippedItem
from .jobs import Job, JobPosition, JobSizer, Planner, Skip, SkipPosition
from .part_positions import ErrorLimit, PartPositions

_LOGGER = logging.getLogger(__name__)
_MOST_SEARCHED = 4096  # positions among which to look for a row that does not fail
_BARREN_PASSES = 16  # a part may have other rows in each pass


class SkippingPlanner(Planner):
    """The jobs of one iteration, in order, like those of `JobPlanner`, but each with its `JobPosition`.

    Args:
        bad: the rows that are known to fail.
        max_errors: see `Options.max_errors`.
        counters: where the rows left out are counted.
        job_sizer: how many batches a job may hold; ``None`` = one.
    """

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
        self._plan = plan
        self._cursor = cursor
        self._counters = counters
        self.bad = bad
        self.bad.refresh()
        self._positions = PartPositions(plan, cursor)
        self.job_sizer = job_sizer or JobSizer()
        self._chunk_rows = plan.chunk_rows
        self._begin = self._first_place(cursor)
        self._over: list[SkippedItem] = []  # after the last job, up to the one that `max_errors` does not allow
        unmeasured = self._own_unmeasured()
        self._unmeasured = len(unmeasured)
        self._limit = ErrorLimit(max_errors, plan, cursor, self._positions, len(unmeasured))
        begins = cursor.start == 0 and cursor.origin == START and not cursor.skipped
        self._uncounted = unmeasured if begins else []
        self._skipped = cursor.skipped.rows + len(unmeasured) - len(self._uncounted)
        self._first: SkippedItem | None = None
        self._part = (cursor.iteration, cursor.worker, cursor.workers)
        # A process that died may have counted rows beyond those that the consumer received.
        before, self._counted = counters.left_out(self._part) or (self._skipped, 0)
        self._before = before
        self._number = 0
        self._finished = False

    def __next__(self) -> Job:
        if self._uncounted and self._limit.exceeded(0, 1):
            self._over, self._uncounted = self._uncounted[: self._limit.rows + 1], []
            raise StopIteration
        job = self._planned(self._begin)
        assert job.place is not None
        elements = job.place.begin.elements + job.elements
        self._begin = SkipPosition(elements=elements, rows=job.place.end, left_out=job.place.left_out)
        self._number += 1
        return job

    @property
    def _chunk(self) -> int:
        """The most rows of the next job."""
        size = self._positions.batch_size
        return self._chunk_rows if size is None else size * self.job_sizer.steps

    def plan_again(self, job: Job, find: Callable[[], list[FailedItem]]) -> bool:
        failed = find()
        for each in failed:
            self.bad.add(each)
        if failed:
            assert job.place is not None
            self._begin = job.place.begin
            self._over = []
        return bool(failed)

    def skipped_after(self, job: Job, element: int) -> SkipState:
        """Returns what was left out up to the ``element``-th element of a job."""
        assert job.place is not None
        rows = self._positions.returned(job.place.begin.elements + element)
        end = job.place.end_of(element, job.elements, self._positions.batch_size or 1)
        return SkipState(rows=max(0, end - rows))  # a last, shorter batch counts as a full one

    def passed(self, job: Job) -> list[tuple[int, SkipState]]:
        assert job.place is not None
        self._count([row for _, row in job.place.skips])
        if not job.place.ends:
            return [(1, self.skipped_after(job, job.elements))]
        each = [(element, self.skipped_after(job, element)) for element in range(1, job.elements + 1)]
        return [each[0], *(after for before, after in pairwise(each) if after[1] != before[1])]

    def finish(self) -> None:
        """Ends the iteration: saves and logs the rows that were left out.

        Raises:
            DatasetError: as for `Planner`.
            PipelineError: more than ``max_errors`` rows were left out.
        """
        if self._finished:
            return
        self._plan.check_unchanged()
        self._finished = True
        self._count(self._over)
        if self._over:
            self._end(self._over[-1])
        positions = self._positions
        rest = self._rest() if positions.target is None and not positions.is_taken(self._begin.elements) else []
        allowed = self._limit.allowed(rest, self._skipped - self._unmeasured)
        self._count([row for _, row in rest[: allowed + 1]])
        if allowed < len(rest):
            self._end(rest[allowed][1])
        if self._has_read_all(rest):
            self.bad.covers(self._cursor)
        self.bad.save()
        seen = self._skipped - self._before
        if seen:
            first = "" if self._first is None else f" First: {self._first.described}."
            _LOGGER.warning(
                "Skipped %d bad %s in this epoch (on_error='skip').%s See stats() for more.",
                seen,
                "row" if seen == 1 else "rows",
                first,
            )

    def _has_read_all(self, rest: Sequence[Skip]) -> bool:
        """Whether this part was read to its end. ``rest`` are the rows left out after the last job."""
        read = self._begin.rows + len(rest)  # without a part batch that was dropped
        length = self._positions.length
        return length is not None and read >= length

    def _first_place(self, cursor: Cursor) -> SkipPosition:
        return SkipPosition(elements=cursor.start, rows=self._positions.returned(cursor.start) + cursor.skipped.rows)

    def _own_unmeasured(self) -> list[SkippedItem]:
        """Returns this part's share of the rows that could not be measured."""
        skips: list[SkippedItem] = []
        for source, part in enumerate(self._plan.parts if self._plan.joined else ()):
            own, parts = self._cursor.part(self._plan.order.shard or part.order.shard)
            refused = part.selection.refused
            for number in range(own, len(refused), parts):
                row_group, row, _ = refused.places[number].tolist()
                failure = Failure(refused.cause(number), refused.message(number))
                skips.append(SkippedItem(Row(source, row_group, row), failure))
        return skips

    def _planned(self, begin: SkipPosition) -> Job:
        """Returns the next job after a position. Raises ``StopIteration`` at the end."""
        if self._positions.ends_after(begin.elements):
            raise StopIteration
        returned, size = self._positions.returned(begin.elements), self._positions.batch_size
        if size is None:
            positions, skips = self._fresh_run(begin.rows, returned)
            if not len(positions):
                raise StopIteration
            return self._job(begin, positions, skips, 1)
        missing_rows = self._positions.still_wanted(returned, self._chunk)
        positions, skips = self._picked(begin.rows, missing_rows, returned, size)
        full = len(positions) // size
        if full:
            self._over = []  # it comes in a later job, if at all
        elif not len(positions) or self._positions.drops_remainder or self._over:
            raise StopIteration
        positions = positions[: full * size or None]
        return self._job(begin, positions, [skip for skip in skips if skip[0] < positions[-1]], max(full, 1))

    def _fresh_run(self, first: int, returned: int) -> tuple[np.ndarray, list[Skip]]:
        """Returns the next consecutive positions that are not known to fail, and the rows left out before them."""
        skips: list[Skip] = []
        begin = first
        while True:
            positions = self._positions.run(first, self._positions.still_wanted(returned, self._chunk))
            fails, failures = self._failing(positions)
            if fails is None or not len(positions):
                return positions, skips
            good = np.flatnonzero(~fails)
            lead = int(good[0]) if len(good) else len(positions)
            leading = [skip for skip in failures if skip[0] < first + lead]
            allowed = self._limit.allowed(leading, begin - returned + len(skips))
            skips += leading
            if allowed < len(leading):
                self._over = [row for _, row in skips[: len(skips) - len(leading) + allowed + 1]]
                raise StopIteration
            if len(good):
                behind = np.flatnonzero(fails[lead:])
                return positions[lead : lead + int(behind[0]) if len(behind) else None], skips
            first += len(positions)
            self._check_some_do_not_fail(first - begin, skips)

    def _picked(self, first: int, count: int, returned: int, size: int) -> tuple[np.ndarray, list[Skip]]:
        """Returns the next ``count`` positions not known to fail, and the rows left out.

        There are fewer at the end, before a row that `max_errors` does not allow (which sets ``_over``), and before
        endless rows that all fail. In these cases, only full batches of ``size`` rows count.
        """
        taken: list[np.ndarray] = []
        skips: list[Skip] = []
        barren, left_out = 0, first - returned
        self._over = []
        while count:
            positions = self._positions.run(first, max(count, min(2 * barren, _MOST_SEARCHED)))
            if not len(positions):
                break
            fails, failures = self._failing(positions)
            good = positions if fails is None else positions[~fails]
            allowed = self._limit.allowed(failures, left_out + len(skips))
            skips += failures[:allowed]
            if allowed < len(failures):
                self._over = [*(row for _, row in skips), failures[allowed][1]]
                taken.append(good[good < failures[allowed][0]][:count])
                break
            first += len(positions)
            taken.append(good[:count])
            count -= len(taken[-1])
            barren = 0 if len(good) else barren + len(positions)
            if sum(map(len, taken)) < size:
                self._check_some_do_not_fail(barren, skips)
            elif self._is_barren(barren):
                break
        return np.concatenate([np.zeros(0, np.int64), *taken]), skips

    def _check_some_do_not_fail(self, barren: int, skips: Sequence[Skip]) -> None:
        """Ends an iteration that would search for a good row forever, after ``barren`` consecutive bad ones."""
        if self._is_barren(barren):
            what = "batches" if self._plan.order.makes_batches else "rows"
            raise PipelineError(
                f"on_error='skip': all of {barren} consecutive {what} failed. The last error: {skips[-1][1].described}."
            )

    def _is_barren(self, barren: int) -> bool:
        length = self._positions.length
        most = _BARREN_PASSES * self._positions.rows_of_pass if length is None else length
        if not self._positions.is_endless or not barren or barren < most:
            return False
        return length is None or barren >= self._positions.rows_of_all_parts

    def _failing(self, positions: np.ndarray) -> tuple[np.ndarray | None, list[Skip]]:
        """Returns a mask of the positions known to fail (``None`` = none), and their rows."""
        if not self.bad.some or not len(positions):
            return None, []
        reads = self._reads(positions)
        fails = self.bad.fails(reads, len(positions))
        if fails is None:
            return None, []
        bad_rows = sorted(skip for read in reads for skip in self.bad.skips(read))
        return fails, [(int(positions[place]), row) for place, row in bad_rows]

    def _reads(self, positions: np.ndarray) -> list[BlockRead]:
        return self._plan.reads(self._cursor.iteration, *self._positions.resolve(positions))

    def _job(self, begin: SkipPosition, positions: np.ndarray, skips: Sequence[Skip], steps: int) -> Job:
        passes, index = self._positions.resolve(positions)
        reads = tuple(self._plan.reads(self._cursor.iteration, passes, index))
        self.job_sizer.planned(steps, len(reads))
        end, count = int(positions[-1]) + 1, len(positions)
        rows = count // steps
        apart = steps > 1 and end - int(positions[0]) > count
        return Job(
            number=self._number,
            steps=steps,
            count=count,
            elements=count if self._positions.batch_size is None else steps,
            reads=reads,
            first=begin.elements,
            place=JobPosition(
                begin=begin,
                end=end,
                skips=tuple(skips),
                ends=tuple((positions[rows - 1 :: rows] + 1).tolist()) if apart else (),
            ),
            bounds=tuple(range(0, count + 1, rows)) if steps > 1 and self._plan.has_uneven_batches else (),
        )

    def _rest(self) -> list[Skip]:
        """Returns the rows that are left out after the last job."""
        skips, first = [], self._begin.rows
        while len(positions := self._positions.run(first, self._chunk)):
            skips += self._failing(positions)[1]
            first += len(positions)
        return skips

    def _count(self, skips: Sequence[SkippedItem]) -> None:
        skips, self._uncounted = [*self._uncounted, *skips], []
        for skip in skips:
            self._skipped += 1
            self._first = self._first or skip
            if self._skipped > self._counted:
                what = SKIPPED.get(skip.failure.cause, Count.SKIPPED_DECODE)
                self._counters.count_left_out(what, self._part, self._before, self._skipped)
                self._counters.note(skip.failure.cause, *skip.row)

    def _end(self, last: SkippedItem) -> NoReturn:
        self.bad.save()
        raise self._limit.error(last)
