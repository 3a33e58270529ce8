"""`LoadedWindow`: the rows of one shuffle window (`plan.draws.WindowRows`), loaded.

A window holds encoded columns of the rows that its items touch, each row once; items refer to rows by their number in
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...schema.element import Path
from ...schema.field import UnischemaField
from ...stages.pack import PackStep
from ..columns.arena import WINDOW_REGIONS, Heap
from ..columns.columns import FixedColumn, WindowColumn, plain_parts, window_column
from ..read.fetched import FetchedRows, Part
from ..steps.pack import pack_parts, packed_bytes


class RowPlaces:
    """Where the rows of a window are stored.

    Args:
        places: file and row group of each unit, in words.
        rows: the rows of each unit that the window has, ascending int64.
        units: row groups, in the same order.
    """

    def __init__(self, places: Sequence[str], rows: Sequence[np.ndarray], units: Sequence[int]) -> None:
        self._places = places
        self._rows = rows
        self._units = np.asarray(units, dtype=np.int64)
        self._start = np.concatenate([[0], np.cumsum([len(part) for part in rows])])
        self._rows_inside: np.ndarray | None = None

    def __len__(self) -> int:
        return int(self._start[-1])

    def identify(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The row groups that rows of the window belong to, and their numbers inside them; int64 each."""
        part = np.searchsorted(self._start, rows, side="right") - 1
        if self._rows_inside is None:
            self._rows_inside = np.concatenate([np.zeros(0, np.int64), *self._rows])
        return self._units[part], self._rows_inside[rows]

    def describe(self, row: int) -> str:
        """Where a row of the window is stored: file, row group, and row."""
        part = int(np.searchsorted(self._start, row, side="right")) - 1
        return f"{self._places[part]}, row {self._rows[part][row - self._start[part]]}"


class LoadedWindow:
    """The fetched columns of a window: those of each row group, in the order of `WindowRows.units`.

    Columns are shared by every thread. ``reuse`` says that items share rows (n-gram windows), so that each row is
    decoded once and kept while the window is. ``packs`` are pack steps and the fields that they take; ``deal`` are
    fields to keep in the order of the window's items (``order``: the row of each; see `dealt`) instead of as read.
    """

    def __init__(
        self,
        fetched: Sequence[FetchedRows],
        places: Sequence[str],
        rows: Sequence[np.ndarray],
        fields: Sequence[UnischemaField],
        *,
        units: Sequence[int],
        reuse: bool = False,
        packs: Sequence[tuple[PackStep, tuple[int, ...]]] = (),
        deal: Sequence[int] = (),
        order: np.ndarray | None = None,
    ) -> None:
        for part, place, wanted in zip(fetched, places, rows, strict=True):
            part.check(len(wanted), place)
        self._arrays = [[rows.columns[number] for rows in fetched] for number in range(len(fields))]
        # Columns name their rows in errors; they must not hold the window that holds them, or its memory would stay
        # until the garbage collector finds it.
        self._where = RowPlaces(places, rows, units)
        self._fields = fields
        self._reuse = reuse
        self._packed: dict[Path, np.ndarray] = {}
        packed: set[int] = set()
        rows_inside = len(self._where)
        if packs:
            describe = self._where.describe
            region = WINDOW_REGIONS.acquire(sum(packed_bytes(step, rows_inside) for step, _ in packs))
            try:
                for step, numbers in packs:
                    parts = [plain_parts(fields[number], self._parts(number), describe) for number in numbers]
                    matrix = pack_parts(step, parts, region)
                    if matrix is not None:
                        self._packed[step.output.path] = matrix
                        packed.update(numbers)
            finally:
                region.end()
        self._columns: list[WindowColumn | None] = [
            None if number in packed else self._made(number) for number in range(len(fields))
        ]
        self.dealt: dict[int, FixedColumn] = {}
        self._order = order
        if order is not None and len(order) == rows_inside:  # each row is one item
            self._deal(deal, order)

    def column(self, number: int) -> WindowColumn:
        """The column of the recipe's ``number``-th field."""
        column = self._columns[number]
        if column is None:  # it was packed or dealt, and is wanted beside that
            column = self._undealt(number) if number in self.dealt else self._made(number)
            self._columns[number] = column
        return column

    def _deal(self, numbers: Sequence[int], order: np.ndarray) -> None:
        """Puts columns into the order of items, in memory that earlier windows had: fresh pages cost most of it."""
        chosen = [(n, c) for n in numbers if isinstance(c := self._columns[n], FixedColumn) and not c.large]
        if not chosen:
            return
        region = WINDOW_REGIONS.acquire(sum(column.arena_bytes for _, column in chosen))
        scratch: dict[Any, np.ndarray] = {}
        try:
            for number, column in chosen:
                self.dealt[number] = column.in_order(order, region, scratch)
                self._columns[number] = None
                self._arrays[number] = []  # the values would be kept twice
        finally:
            region.end()

    def _undealt(self, number: int) -> WindowColumn:
        assert self._order is not None
        return self.dealt[number].in_order(np.argsort(self._order), Heap())

    def _made(self, number: int) -> WindowColumn:
        return window_column(self._fields[number], self._parts(number), self._where.describe, reuse=self._reuse)

    def _parts(self, number: int) -> list[Part]:
        return self._arrays[number]

    def identify(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `RowPlaces.identify`."""
        return self._where.identify(rows)

    def packed(self, step: PackStep) -> np.ndarray | None:
        """All rows of a pack step as one matrix; ``None`` where it cannot be made of whole columns."""
        return self._packed.get(step.output.path)

    def describe(self, row: int) -> str:
        """See `RowPlaces.describe`."""
        return self._where.describe(row)
