"""`PartPositions`: the rows of a loader worker's part by position, for planners that skip rows that fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...order.cursor import Cursor
from ...plan.plan import BasePlan


class PartPositions:
    """The rows of one part in order, counted from 0. Items of joined tokens, and batches of ``bucket``, count as rows.

    Attributes:
        length: the number of rows; ``None`` = endless.
        batch_size: the number of rows in a batch; ``None`` if rows are not batched, or if a function drops some first.
        drops_remainder: whether a last, shorter batch is dropped.
        target: how many rows to return, if every rank must return the same number. Positions then continue beyond the
            end, and wrap around to the beginning, because later rows replace those that fail. Otherwise ``None``.
        parts: the number of parts: the loader workers on all ranks.
    """

    def __init__(self, plan: BasePlan, cursor: Cursor) -> None:
        batch = None if plan.program.drops else plan.order.batch
        self._rows = plan.lane(cursor)
        self._all_rows = plan.one_pass.length or 0
        self.length = self._rows.length
        self.batch_size = None if batch is None else batch.batch_size
        self.drops_remainder = batch is not None and batch.drop_remainder
        self.parts = cursor.part(plan.order.shard)[1]
        self.target = self.length if plan.keeps_step and not plan.program.drops else None
        if self.target is not None and self.drops_remainder and self.batch_size is not None:
            self.target -= self.target % self.batch_size
        self._taken: int | None = None  # the rows that ``take`` after ``batch`` lets through
        if plan.order.batch_views and self.batch_size is not None:
            batches = plan.steps(replace(cursor, start=0)).length
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
        return self._rows.resolve(positions % self.length if self._wraps and self.length else positions)

    def cycle(self, position: int) -> int:
        """Returns how often the part has wrapped around before a position."""
        return position // self.length if self._wraps and self.length else 0

    def within_cycle(self, positions: np.ndarray, cycle: int) -> np.ndarray:
        """Returns the positions before the end of a cycle."""
        return positions[positions < (cycle + 1) * self.length] if self._wraps and self.length else positions

    def passes_begun(self, positions: np.ndarray) -> np.ndarray:
        """Returns how many passes have begun at each position. Positions that wrap around begin no other pass."""
        if self._wraps and self.length:
            positions = np.minimum(positions, self.length - 1)
        return self._rows.resolve(positions)[0] + 1

    @property
    def is_endless(self) -> bool:
        """Whether there is always another position."""
        return self._wraps or self.length is None

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
