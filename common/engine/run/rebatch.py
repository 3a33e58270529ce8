"""`Rebatcher`: rows that are left after a function dropped some, grouped into full batches again.

In: chunks of rows with the source row of each. Out: elements with the position after them, counted in source rows, so
that a state is exact although nobody knows beforehand how many rows remain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ...plan.plan import BasePlan
from ..columns.batch import Column, Dense, concat_columns, take_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """Some elements.

    Attributes:
        columns: of the rows in them.
        rows: how many.
        position: source rows consumed after the last of them. Rows of an unbatched emission follow each other in the
            source, so the row ``k`` from the end was consumed ``k`` positions before.
    """

    columns: list[Column]
    rows: int
    position: int


class Rebatcher:
    """Collects rows and gives elements.

    Args:
        batch_size: rows of a batch; ``None`` for unbatched rows.
        drop_remainder: whether a last, shorter batch is left out.
        start: source rows consumed before.
    """

    def __init__(self, batch_size: int | None, *, drop_remainder: bool, start: int) -> None:
        self._batch_size = batch_size
        self._drop_remainder = drop_remainder
        self._source = start
        self._waiting: list[tuple[list[Column], np.ndarray]] = []
        self._rows = 0

    def add(self, columns: list[Column], count: int) -> Iterator[Emission]:
        """Takes in a chunk of ``count`` source rows, whose last column says which of them are left (int64)."""
        *rest, kept = columns
        assert isinstance(kept, Dense)
        positions = kept.values + self._source + 1
        self._source += count
        if not len(positions):
            return
        if self._batch_size is None:
            bounds = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
            for lo, hi in itertools.pairwise(bounds):
                yield _emission(rest, positions, lo, hi)
            return
        self._waiting.append((rest, positions))
        self._rows += len(positions)
        if self._rows >= self._batch_size:
            joined, positions = self._joined()
            full = self._rows // self._batch_size * self._batch_size
            for lo in range(0, full, self._batch_size):
                yield _emission(joined, positions, lo, lo + self._batch_size)
            left = _emission(joined, positions, full, self._rows)
            self._waiting = [(left.columns, positions[full:])] if left.rows else []
            self._rows -= full

    def skip(self) -> int | None:
        """A source row is left out; gives the position after it, unless rows before it still wait for their batch."""
        self._source += 1
        return None if self._rows else self._source

    def finish(self) -> Iterator[Emission]:
        """The last, shorter batch, if it is wanted."""
        if self._rows and not self._drop_remainder:
            joined, positions = self._joined()
            yield _emission(joined, positions, 0, len(positions))
        self._waiting, self._rows = [], 0

    def _joined(self) -> tuple[list[Column], np.ndarray]:
        columns = [concat_columns(parts) for parts in zip(*(rest for rest, _ in self._waiting), strict=True)]
        return columns, np.concatenate([positions for _, positions in self._waiting])


def _emission(columns: list[Column], positions: np.ndarray, lo: int, hi: int) -> Emission:
    index = np.arange(lo, hi)
    part = columns if hi - lo == len(positions) else [take_rows(column, index) for column in columns]
    return Emission(columns=part, rows=hi - lo, position=int(positions[hi - 1]) if hi > lo else 0)


def rebatcher_of(plan: BasePlan, start: int) -> Rebatcher:
    """What makes elements of the rows that a plan's functions leave; ``start`` source rows were consumed before."""
    batch = plan.order.batch
    return Rebatcher(
        None if batch is None else batch.batch_size,
        drop_remainder=batch is not None and batch.drop_remainder,
        start=start,
    )
