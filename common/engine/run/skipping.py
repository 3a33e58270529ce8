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
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NoReturn

import numpy as np

from ...counting.counters import SKIPPED, Count, Counters
from ...errors import PipelineError
from ...order.cursor import START, Cursor, SkipState
from ...plan.draws import Draw
from ...plan.plan import BasePlan
from .bad_rows import FailedItem, Failure, Row, SkippedItem, bad_rows_of
from .jobs import Job, JobPosition, Merging, Skip, SkipPosition

_LOGGER = logging.getLogger(__name__)
_MOST_SEARCHED = 4096  # positions among which to look for a row that does not fail
_BARREN_PASSES = 16  # a part may have other rows in each pass


class SkippingPlanner:
    """The jobs of one iteration, in order, like those of `JobPlanner`, but each with its `JobPosition`.

    Args:
        plan: the plan.
        cursor: where to begin.
        strict_nulls: whether nulls are errors.
        max_errors: see `Options.max_errors`.
        counters: where the rows left out are counted.
        merging: how many batches a job may hold; ``None`` = one.
    """

    def __init__(
        self,
        plan: BasePlan,
        cursor: Cursor,
        *,
        strict_nulls: bool,
        max_errors: float | None,
        counters: Counters,
        merging: Merging | None = None,
    ) -> None:
        batch = None if plan.program.drops else plan.order.batch
        self._plan = plan
        self._cursor = cursor
        self._counters = counters
        self.bad = bad_rows_of(plan, strict_nulls=strict_nulls)
        self.bad.refresh()
        self._rows = plan.lane(cursor)
        self._length = self._rows.length
        self._size = None if batch is None else batch.batch_size
        self._drops_remainder = batch is not None and batch.drop_remainder
        self._merging = merging or Merging()
        self._chunk_rows = plan.chunk_rows
        self._target = self._length if plan.keeps_step and not plan.program.drops else None
        if self._target is not None and self._drops_remainder and self._size is not None:
            self._target -= self._target % self._size
        self._most = self._most_batches()
        if self._target is not None and self._most is not None and self._size is not None:
            self._target = min(self._target, self._most * self._size)
        self._begin = self._first_place(cursor)
        self._limit = max_errors
        self._over: list[SkippedItem] = []  # after the last job, up to the one that `max_errors` does not allow
        self._refused = self._own_refused()
        begins = cursor.start == 0 and cursor.origin == START and not cursor.skipped
        self._uncounted = self._refused if begins else []
        self._skipped = cursor.skipped.rows + len(self._refused) - len(self._uncounted)
        self._first: SkippedItem | None = None
        self._part = (cursor.iteration, cursor.worker, cursor.workers)
        # A process that died may have counted rows beyond those that the consumer received.
        before, self._counted = counters.left_out(self._part) or (self._skipped, 0)
        self._before = before
        self._number = 0
        self._finished = False

    def __iter__(self) -> SkippingPlanner:
        return self

    def __next__(self) -> Job:
        if self._uncounted and self._too_many(0, 1):
            self._over, self._uncounted = self._uncounted[: self._allowed() + 1], []
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
        return self._chunk_rows if self._size is None else self._size * self._merging.steps

    def rewind(self, job: Job) -> None:
        """Goes back to this job, so that it and the jobs after it are planned again."""
        assert job.place is not None
        self._begin = job.place.begin
        self._over = []

    def add(self, failed: Sequence[FailedItem]) -> None:
        """Notes the items that failed."""
        for each in failed:
            self.bad.add(each)

    def skipped_after(self, job: Job, element: int) -> SkipState:
        """Returns what was left out up to the ``element``-th element of a job."""
        assert job.place is not None
        rows = self._delivered(job.place.begin.elements + element)
        end = job.place.end_of(element, job.elements, self._size or 1)
        return SkipState(rows=max(0, end - rows))  # a last, shorter batch counts as a full one

    def changes(self, job: Job) -> list[tuple[int, SkipState]]:
        """Returns from which elements of a job on what is left out differs from before, and what that is."""
        assert job.place is not None
        if not job.place.ends:
            return [(1, self.skipped_after(job, job.elements))]
        each = [(element, self.skipped_after(job, element)) for element in range(1, job.elements + 1)]
        return [each[0], *(after for before, after in pairwise(each) if after[1] != before[1])]

    def passed(self, job: Job) -> None:
        """Counts the rows that a job left out. Call it when the job is returned to the consumer, or its error."""
        if job.place is not None:
            self._count([row for _, row in job.place.skips])

    def finish(self) -> None:
        """Ends the iteration: saves and logs the rows that were left out.

        Raises:
            PipelineError: more than ``max_errors`` rows were left out.
        """
        if self._finished:
            return
        self._finished = True
        self._count(self._over)
        if self._over:
            self._end(self._over[-1])
        rest = self._rest() if self._target is None and not self._has_taken_all(self._begin) else []
        allowed = self._allowed_of(rest, self._skipped - len(self._refused))
        self._count([row for _, row in rest[: allowed + 1]])
        if allowed < len(rest):
            self._end(rest[allowed][1])
        if self._has_read_all(rest):
            self.bad.covers(self._cursor)
        self.bad.save()
        seen = self._skipped - self._before
        if seen:
            first = "" if self._first is None else f" First: {self._told(self._first)}."
            _LOGGER.warning(
                "Skipped %d bad %s in this epoch (on_error='skip').%s See stats() for more.",
                seen,
                "row" if seen == 1 else "rows",
                first,
            )

    def _has_read_all(self, rest: Sequence[Skip]) -> bool:
        """Whether this part was read to its end. ``rest`` are the rows left out after the last job."""
        read = self._begin.rows + len(rest)  # without a part batch that was dropped
        return self._length is not None and read >= self._length

    def _most_batches(self) -> int | None:
        """Returns how many batches of this part ``take`` after ``batch`` lets through; ``None`` without one."""
        return self._plan.steps(replace(self._cursor, start=0)).length if self._plan.order.batch_views else None

    def _first_place(self, cursor: Cursor) -> SkipPosition:
        return SkipPosition(elements=cursor.start, rows=self._delivered(cursor.start) + cursor.skipped.rows)

    def _own_refused(self) -> list[SkippedItem]:
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

    def _delivered(self, elements: int) -> int:
        rows = elements * (self._size or 1)
        return rows if self._target is None else min(rows, self._target)

    def _planned(self, begin: SkipPosition) -> Job:
        """Returns the next job after a position. Raises ``StopIteration`` at the end."""
        delivered = self._delivered(begin.elements)
        if self._target is not None and delivered >= self._target:
            raise StopIteration
        if self._has_taken_all(begin):
            raise StopIteration
        if self._size is None:
            positions, skips = self._fresh_run(begin.rows, delivered)
            if not len(positions):
                raise StopIteration
            return self._job(begin, positions, skips, 1)
        positions, skips = self._picked(begin.rows, self._wanted(delivered, self._chunk), delivered, self._size)
        full = len(positions) // self._size
        if full:
            self._over = []  # it comes in a later job, if at all
        elif not len(positions) or self._drops_remainder or self._over:
            raise StopIteration
        positions = positions[: full * self._size or None]
        return self._job(begin, positions, [skip for skip in skips if skip[0] < positions[-1]], max(full, 1))

    def _has_taken_all(self, begin: SkipPosition) -> bool:
        """Whether ``take`` after ``batch`` ends the epoch here."""
        return self._most is not None and begin.elements >= self._most

    def _wanted(self, delivered: int, most: int) -> int:
        if self._most is not None and self._size is not None:
            most = min(most, self._most * self._size - delivered)
        return most if self._target is None else min(most, self._target - delivered)

    def _fresh_run(self, first: int, delivered: int) -> tuple[np.ndarray, list[Skip]]:
        """Returns the next consecutive positions that are not known to fail, and the rows left out before them."""
        skips: list[Skip] = []
        begin = first
        while True:
            positions = self._positions(first, self._wanted(delivered, self._chunk))
            fails, found = self._failing(positions)
            if fails is None or not len(positions):
                return positions, skips
            good = np.flatnonzero(~fails)
            lead = int(good[0]) if len(good) else len(positions)
            leading = [skip for skip in found if skip[0] < first + lead]
            allowed = self._allowed_of(leading, begin - delivered + len(skips))
            skips += leading
            if allowed < len(leading):
                self._over = [row for _, row in skips[: len(skips) - len(leading) + allowed + 1]]
                raise StopIteration
            if len(good):
                behind = np.flatnonzero(fails[lead:])
                return positions[lead : lead + int(behind[0]) if len(behind) else None], skips
            first += len(positions)
            self._check_some_do_not_fail(first - begin, skips)

    def _picked(self, first: int, wanted: int, delivered: int, size: int) -> tuple[np.ndarray, list[Skip]]:
        """Returns the next ``wanted`` positions not known to fail, and the rows left out.

        There are fewer at the end, before a row that `max_errors` does not allow (which sets ``_over``), and before
        endless rows that all fail. Then only full batches, of ``size``, are of use.
        """
        taken: list[np.ndarray] = []
        skips: list[Skip] = []
        barren, left_out = 0, first - delivered
        self._over = []
        while wanted:
            positions = self._positions(first, max(wanted, min(2 * barren, _MOST_SEARCHED)))
            if not len(positions):
                break
            fails, found = self._failing(positions)
            good = positions if fails is None else positions[~fails]
            allowed = self._allowed_of(found, left_out + len(skips))
            skips += found[:allowed]
            if allowed < len(found):
                self._over = [*(row for _, row in skips), found[allowed][1]]
                taken.append(good[good < found[allowed][0]][:wanted])
                break
            first += len(positions)
            taken.append(good[:wanted])
            wanted -= len(taken[-1])
            barren = 0 if len(good) else barren + len(positions)
            if sum(map(len, taken)) < size:
                self._check_some_do_not_fail(barren, skips)
            elif self._is_barren(barren):
                break
        return np.concatenate([np.zeros(0, np.int64), *taken]), skips

    def _allowed_of(self, skips: Sequence[Skip], before: int) -> int:
        """Returns how many of the rows ``max_errors`` allows to be left out, if ``before`` others were."""
        if self._limit is None or not skips:
            return len(skips)
        passes = self._passes_at(np.array([at for at, _ in skips])).tolist()
        over = (number for number, begun in enumerate(passes) if self._too_many(before + number + 1, begun))
        return next(over, len(skips))

    def _too_many(self, left_out: int, passes: int) -> bool:
        """Returns whether ``max_errors`` allows fewer rows than ``left_out`` in so many passes.

        Rows that are not in the order count, too.
        """
        return self._limit is not None and left_out + len(self._refused) > self._allowed() * passes

    def _passes_at(self, positions: np.ndarray) -> np.ndarray:
        """Returns how many passes have begun at each position. Positions that wrap around begin no other pass."""
        if self._target is not None and self._length:
            positions = np.minimum(positions, self._length - 1)
        return self._rows.resolve(positions)[0] + 1

    def _check_some_do_not_fail(self, barren: int, skips: Sequence[Skip]) -> None:
        """Ends an iteration that would search for a good row forever, after ``barren`` consecutive bad ones."""
        if self._is_barren(barren):
            what = "batches" if self._plan.order.makes_batches else "rows"
            raise PipelineError(
                f"on_error='skip': all of {barren} consecutive {what} failed. The last error: "
                f"{self._told(skips[-1][1])}."
            )

    def _is_barren(self, barren: int) -> bool:
        endless = self._target is not None or self._length is None
        most = _BARREN_PASSES * self._pass_items() if self._length is None else self._length
        return bool(endless and barren and barren >= most)

    def _positions(self, first: int, count: int) -> np.ndarray:
        """Returns ``count`` positions of this part, fewer at its end.

        If every rank must return the same number of elements, the positions continue beyond the end and wrap around.
        """
        end = first + count
        if self._target is None and self._length is not None:
            end = min(end, self._length)
        return np.arange(first, max(first, end), dtype=np.int64)

    def _resolved(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._rows.resolve(positions % self._length if self._target is not None and self._length else positions)

    def _failing(self, positions: np.ndarray) -> tuple[np.ndarray | None, list[Skip]]:
        """Returns a mask of the positions known to fail (``None`` = none), and their rows."""
        if not self.bad.some or not len(positions):
            return None, []
        draws = self._draws(positions)
        fails = self.bad.fails(draws, len(positions))
        if fails is None:
            return None, []
        found = sorted(skip for draw in draws for skip in self.bad.skips(draw))
        return fails, [(int(positions[place]), row) for place, row in found]

    def _draws(self, positions: np.ndarray) -> list[Draw]:
        return self._plan.draws(self._cursor.iteration, *self._resolved(positions))

    def _job(self, begin: SkipPosition, positions: np.ndarray, skips: Sequence[Skip], steps: int) -> Job:
        passes, index = self._resolved(positions)
        draws = tuple(self._plan.draws(self._cursor.iteration, passes, index))
        self._merging.planned(steps, len(draws))
        end, count = int(positions[-1]) + 1, len(positions)
        rows = count // steps
        apart = steps > 1 and end - int(positions[0]) > count
        return Job(
            number=self._number,
            steps=steps,
            count=count,
            elements=count if self._size is None else steps,
            draws=draws,
            place=JobPosition(
                begin=begin,
                end=end,
                skips=tuple(skips),
                ends=tuple((positions[rows - 1 :: rows] + 1).tolist()) if apart else (),
            ),
            bounds=tuple(range(0, count + 1, rows)) if steps > 1 and self._plan.splits_jobs else (),
        )

    def _rest(self) -> list[Skip]:
        """Returns the rows that are left out after the last job."""
        skips, first = [], self._begin.rows
        while len(positions := self._positions(first, self._chunk)):
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
        raise PipelineError(
            f"max_errors={self._limit}: expected at most {self._allowed()} rows{self._counted_here()} of an epoch to "
            f"fail, got one more. The last: {self._told(last)}. Fix these rows, or allow more."
        )

    def _allowed(self) -> int:
        """Returns how many rows of a pass may fail."""
        assert self._limit is not None
        return math.floor(self._limit * self._pass_rows()) if isinstance(self._limit, float) else self._limit

    def _counted_here(self) -> str:
        """Returns whose rows are counted, if there are several readers."""
        shard, workers = self._plan.order.shard, self._cursor.workers
        of_rank = "" if shard is None or shard.num_shards == 1 else f" of rank {shard.index}"
        of_worker = "" if workers == 1 else f" of loader worker {self._cursor.worker}"
        return of_rank + of_worker

    def _pass_rows(self) -> float:
        """Returns the number of rows of this part in one pass over the data."""
        if self._plan.joined:
            rows = [part.selection.rows.total + len(part.selection.refused) for part in self._plan.parts]
            return sum(rows) / self._parts
        return self._pass_items()

    def _pass_items(self) -> float:
        """Returns the number of rows (or of joined items) of this part in one pass over the data."""
        if self._length is not None and self._rows.passes:
            cut = self._length if self._most is None else self._most * (self._size or 1)
            return min(self._length, cut) / self._rows.passes
        return (self._plan.one_pass.length or 0) / self._parts

    @property
    def _parts(self) -> int:
        """The number of parts: that of loader workers on all ranks."""
        return self._cursor.part(self._plan.order.shard)[1]

    def _told(self, skip: SkippedItem) -> str:
        return f"{skip.failure.cause}: {skip.failure.message.removesuffix('.')}"
