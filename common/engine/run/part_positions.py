"""`PartPositions`: the rows of a loader worker's part by position, for planners that skip rows that fail. `ErrorLimit`:
how many of these rows ``max_errors`` allows to be left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...base.errors import PipelineError
from ...base.process.forks import cached_property
from ...plan.order.cursor import Cursor
from ...plan.order.positions import RowView
from ...plan.plan import BasePlan
from .bad_rows import SkippedItem
from .jobs import Skip


class PartPositions:
    """The rows of one part in order, counted from 0. Items of joined tokens, and batches of ``bucket``, count as rows.

    Attributes:
        length: the number of rows; ``None`` = endless.
        batch_size: the number of rows in a batch; ``None`` if rows are not batched, or if a function drops some first.
        drops_remainder: whether a last, shorter batch is dropped.
        target: how many rows to return, if every rank must return the same number. Positions then continue beyond the
            end, because later rows replace those that fail: first come the rows of this part again, then those of the
            parts that follow it, and so on. So a part whose rows all fail has rows as long as any part has. Otherwise
            ``None``.
        parts: the number of parts: the loader workers on all ranks.
    """

    def __init__(self, plan: BasePlan, cursor: Cursor) -> None:
        self._plan, self._cursor = plan, replace(cursor, start=0)
        batch = None if plan.program.drops else plan.order.batch
        self._rows = plan.lane(cursor)
        self._all_rows = plan.one_pass.length or 0
        self.length = self._rows.length
        self.batch_size = None if batch is None else batch.batch_size
        self.drops_remainder = batch is not None and batch.drop_remainder
        self._part, self.parts = cursor.part(plan.order.shard)
        self.target = self.length if plan.keeps_step and not plan.program.drops else None
        if self.target is not None and self.drops_remainder and self.batch_size is not None:
            self.target -= self.target % self.batch_size
        self._taken: int | None = None  # the rows that ``take`` after ``batch`` lets through
        if plan.order.batch_views and self.batch_size is not None:
            batches = plan.steps(self._cursor).length
            self._taken = None if batches is None else batches * self.batch_size
            if self._taken is not None and self.length is not None and self._taken >= self.length:
                self._taken = None  # it cuts nothing off
        if self.target is not None and self._taken is not None:
            self.target = min(self.target, self._taken)

    def returned(self, elements: int) -> int:
        """Returns the number of rows in ``elements`` elements."""
        rows = elements * (self.batch_size or 1)
        return rows if self.target is None else min(rows, self.target)

    def ends_after(self, elements: int) -> bool:
        """Returns whether the part ends after ``elements`` elements, even if it has more rows."""
        rows = self.returned(elements)
        return rows == self.target or self.is_taken(elements)

    def is_taken(self, elements: int) -> bool:
        """Returns whether ``take`` after ``batch`` ends the part after ``elements`` elements."""
        return self._taken is not None and self.returned(elements) >= self._taken

    def still_wanted(self, returned: int, most: int) -> int:
        """Returns how many rows to plan after the first ``returned``: at most ``most``."""
        ends = [end - returned for end in (self.target, self._taken) if end is not None]
        return min([most, *ends])

    def run(self, first: int, count: int) -> np.ndarray:
        """Returns ``count`` consecutive positions (int64), fewer at the end of the part."""
        end = first + count
        if self.target is None and self.length is not None:
            end = min(end, self.length)
        return np.arange(first, max(first, end), dtype=np.int64)

    def resolve(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pass of each position, and the global position in the order of that pass."""
        length = self.length
        if not self._wraps or not length or not len(positions):
            return self._rows.resolve(positions)
        if positions[-1] < 2 * length:
            return self._rows.resolve(positions % length)
        places = np.where(positions < length, positions, (positions - length) % self._ends[-1])
        lanes = np.searchsorted(self._ends, places, side="right")
        places -= np.concatenate([[0], self._ends])[lanes]
        passes, index = np.empty_like(places), np.empty_like(places)
        for lane in np.unique(lanes).tolist():
            here = lanes == lane
            passes[here], index[here] = self._lane(lane).resolve(places[here])
        return passes, index

    def cycle(self, position: int) -> int:
        """Returns how many parts have ended before a position: this one, and those that come after it."""
        length = self.length
        if not self._wraps or not length:
            return 0
        if position < 2 * length:
            return position // length
        turns, left = divmod(position - length, int(self._ends[-1]))
        return 1 + turns * self.parts + int(np.searchsorted(self._ends, left, side="right"))

    def within_cycle(self, positions: np.ndarray, cycle: int) -> np.ndarray:
        """Returns the positions before the end of a cycle."""
        length = self.length
        if not self._wraps or not length:
            return positions
        if cycle < 2:
            return positions[positions < (cycle + 1) * length]
        turns, lane = divmod(cycle - 1, self.parts)
        end = length + turns * int(self._ends[-1]) + int(self._ends[lane])
        return positions[positions < end]

    def passes_begun(self, positions: np.ndarray) -> np.ndarray:
        """Returns how many passes have begun at each position. Positions that wrap around begin no other pass."""
        if self._wraps and self.length:
            positions = np.minimum(positions, self.length - 1)
        if self._rows.depth and self._all_rows:  # the numbers of passes are hashes
            return positions * self.parts // self._all_rows + 1
        return self._rows.resolve(positions)[0] + 1

    @property
    def is_endless(self) -> bool:
        """Whether there is always another position."""
        return self._wraps or self.length is None

    @property
    def rows_of_all_parts(self) -> int:
        """How many consecutive positions, from any one on, have the rows of every part, if they wrap around."""
        return (self.length or 0) + int(self._ends[-1])

    @property
    def rows_of_pass(self) -> float:
        """The number of rows in one pass over the data."""
        if self.length is not None and self._rows.passes:
            rows = self.length if self._taken is None else min(self.length, self._taken)
            return rows / self._rows.passes
        return self._all_rows / self.parts

    @property
    def _wraps(self) -> bool:
        return self.target is not None

    def _lane(self, number: int) -> RowView:
        """Returns the rows of the ``number``-th part from this one on."""
        if not number:
            return self._rows
        rank, worker = divmod((self._part + number) % self.parts, self._cursor.workers)
        return self._plan.lane(replace(self._cursor, worker=worker), rank)

    @cached_property
    def _ends(self) -> np.ndarray:
        """How many rows the first parts have together, from this one on; int64."""
        return np.cumsum([self._lane(number).length or 0 for number in range(self.parts)])


class ErrorLimit:
    """The limit of one part in each pass over the data.

    Args:
        limit: a number of rows, or a share of them; ``None`` = no limit.
        cursor: says which part it is.
        unmeasured: the number of rows that could not be measured. They are not in the order, but they count.
    """

    def __init__(
        self, limit: float | None, plan: BasePlan, cursor: Cursor, positions: PartPositions, unmeasured: int
    ) -> None:
        self._limit = limit
        self._plan = plan
        self._cursor = cursor
        self._positions = positions
        self._unmeasured = unmeasured

    @property
    def rows(self) -> int:
        """How many rows of a pass may fail."""
        assert self._limit is not None
        return math.floor(self._limit * self._rows_of_pass) if isinstance(self._limit, float) else self._limit

    def exceeded(self, left_out: int, passes: int) -> bool:
        """Whether ``left_out`` rows of the order are too many for ``passes`` passes."""
        return self._limit is not None and left_out + self._unmeasured > self.rows * passes

    def allowed(self, skips: Sequence[Skip], before: int) -> int:
        """Returns how many of these rows may be left out after ``before`` others."""
        if self._limit is None or not skips:
            return len(skips)
        passes = self._positions.passes_begun(np.array([at for at, _ in skips])).tolist()
        over = (number for number, begun in enumerate(passes) if self.exceeded(before + number + 1, begun))
        return next(over, len(skips))

    def error(self, last: SkippedItem) -> PipelineError:
        """Returns the error for one row too many."""
        return PipelineError(
            f"max_errors={self._limit}: expected at most {self.rows} rows{self._counted_here} of an epoch to fail, got "
            f"one more. The last: {last.described}. Fix these rows, or allow more."
        )

    @property
    def _counted_here(self) -> str:
        """Whose rows are counted, if there are several readers."""
        shard, workers = self._plan.order.shard, self._cursor.workers
        of_rank = "" if shard is None or shard.num_shards == 1 else f" of rank {shard.index}"
        of_worker = "" if workers == 1 else f" of loader worker {self._cursor.worker}"
        return of_rank + of_worker

    @property
    def _rows_of_pass(self) -> float:
        if self._plan.joined:
            rows = [part.selection.rows.total + len(part.selection.refused) for part in self._plan.parts]
            return sum(rows) / self._positions.parts
        return self._positions.rows_of_pass
