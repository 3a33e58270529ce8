"""`ErrorLimit`: how many failing rows ``max_errors`` allows to be left out."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...base.errors import PipelineError
from ...plan.order.cursor import Cursor
from ...plan.plan import BasePlan
from .bad_rows import SkippedItem
from .jobs import Skip
from .part_positions import PartPositions


class ErrorLimit:
    """The limit of one part in each pass over the data.

    Args:
        limit: a number of rows, or a share of them; ``None`` = no limit.
        plan: the plan.
        cursor: says which part it is.
        positions: the positions of the part.
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
