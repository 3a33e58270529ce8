"""`Rebatcher`: groups the rows that remain after a function dropped some into full batches.

It takes chunks of rows with the source row of each, and returns elements with the position after them. Positions count
source rows, so a state is exact although the number of remaining rows is not known in advance.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from ...base.process.dataclass import dataclass
from ...plan.order.cursor import NOTHING, SkipState
from ...plan.plan import BasePlan
from ..columns.batch import Column, Dense, concat_columns, take_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """Some elements.

    Attributes:
        position: the number of source rows consumed up to the last element. The rows of an unbatched emission are
            consecutive in the source, so the row ``k`` from the end was consumed ``k`` positions before. Source rows
            that failed and were left out do not count.
        skipped: how many source rows were left out before the last element.
    """

    columns: list[Column]
    rows: int
    position: int
    skipped: SkipState


class Rebatcher:
    """Collects rows and returns elements.

    Attributes:
        position: the number of source rows consumed for what the consumer has.

    Args:
        batch_size: the number of rows of a batch; ``None`` for unbatched rows.
        drop_remainder: whether a last, shorter batch is dropped.
        start: the number of source rows consumed before.
    """

    def __init__(self, batch_size: int | None, *, drop_remainder: bool, start: int) -> None:
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder
        self._source = self.position = start
        self._waiting: list[tuple[list[Column], np.ndarray, np.ndarray]] = []
        self._rows = 0

    def add(self, columns: list[Column], count: int, skipped: SkipState = NOTHING) -> Iterator[Emission]:
        """Adds a chunk of ``count`` source rows. Its last column holds the numbers of the rows that remain (int64).

        ``skipped`` is what was left out before the chunk.
        """
        *rest, kept = columns
        assert isinstance(kept, Dense)
        positions = kept.values + self._source + 1
        left_out = np.full(len(positions), skipped.rows)
        self._source += count
        if not len(positions):
            return
        if self._batch_size is None:
            bounds = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
            for lo, hi in itertools.pairwise(bounds):
                yield _emission(rest, positions, left_out, lo, hi)
            return
        self._waiting.append((rest, positions, left_out))
        self._rows += len(positions)
        if self._rows >= self._batch_size:
            joined, positions, left_out = self._joined()
            full = self._rows // self._batch_size * self._batch_size
            for lo in range(0, full, self._batch_size):
                yield _emission(joined, positions, left_out, lo, lo + self._batch_size)
            left = _emission(joined, positions, left_out, full, self._rows)
            self._waiting = [(left.columns, positions[full:], left_out[full:])] if left.rows else []
            self._rows -= full

    def pass_to(self, emission: Emission) -> int:
        """Moves the position behind an emission. Returns the number of elements before it, as a state counts them."""
        self.position = emission.position
        return emission.position - (emission.rows if self._batch_size is None else 1)

    def skip(self) -> bool:
        """Skips a source row. Returns whether the position is now after it: no earlier rows wait for their batch."""
        self._source += 1
        if not self._rows:
            self.position = self._source
        return not self._rows

    def finish(self) -> Iterator[Emission]:
        """Returns the last, shorter batch, unless it is dropped."""
        if self._rows and not self._drop_remainder:
            joined, positions, left_out = self._joined()
            yield _emission(joined, positions, left_out, 0, len(positions))
        self._waiting, self._rows = [], 0

    def _joined(self) -> tuple[list[Column], np.ndarray, np.ndarray]:
        parts, positions, left_out = zip(*self._waiting, strict=True)
        columns = [concat_columns(same) for same in zip(*parts, strict=True)]
        return columns, np.concatenate(positions), np.concatenate(left_out)


def _emission(columns: list[Column], positions: np.ndarray, left_out: np.ndarray, lo: int, hi: int) -> Emission:
    index = np.arange(lo, hi)
    part = columns if hi - lo == len(positions) else [take_rows(column, index) for column in columns]
    last, skipped = (int(positions[hi - 1]), int(left_out[hi - 1])) if hi > lo else (0, 0)
    return Emission(columns=part, rows=hi - lo, position=last, skipped=SkipState(rows=skipped))


def rebatcher_of(plan: BasePlan, start: int) -> Rebatcher | None:
    """Returns the rebatcher of a plan whose functions drop rows; ``None`` if they drop none.

    Args:
        start: the number of source rows consumed before.
    """
    if not plan.program.drops:
        return None
    batch = plan.order.batch
    return Rebatcher(
        None if batch is None else batch.batch_size,
        drop_remainder=batch is not None and batch.drop_remainder,
        start=start,
    )
