"""`LoadedBlock`: the loaded rows of one shuffle block (`plan.draws.BlockRows`).

A block holds the encoded columns of the rows that its items need, each row once. Items refer to rows by their number in
the block.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...layout.core_read import OrderedNumbers
from ...layout.row_groups import MAX_VALUE_BYTES
from ...memory.arena import BLOCK_REGIONS, Heap, array_bytes
from ...plan.program import ElementProgram
from ...schema.element import Path
from ...schema.field import UnischemaField
from ...schema.ragged import ends_of
from ...selection.rows import RowNumbers, rows_inside
from ...stages.pack import PackStep
from ..columns.block_column import block_column
from ..columns.fixed_column import FixedColumn
from ..columns.jpeg_files import IntactRows
from ..columns.plain_numbers import numbers_of, plain_parts
from ..columns.protocols import BlockColumn
from ..read.file_cells import Part
from ..read.item_order import keeps_item_order
from ..read.large_blocks import BlockColumns, LargeColumns
from ..read.listed_files import ListedPlace
from ..read.stacked_columns import StackedColumns, in_order
from ..steps.pack import pack_parts, packed_bytes


class RowPlaces:
    """Where the rows of a block are stored.

    Args:
        places: for each row group, its file and number as text.
        rows: for each row group, the rows that the block has of it.
        row_groups: the numbers of the row groups, in the same order.
    """

    def __init__(self, places: Sequence[str], rows: Sequence[RowNumbers], row_groups: Sequence[int]) -> None:
        self._places = places
        self._rows = rows
        self._row_groups = np.asarray(row_groups, dtype=np.int64)
        self._start = ends_of([len(part) for part in rows])
        self._rows_inside: Sequence[RowNumbers] | None = None

    def __len__(self) -> int:
        return int(self._start[-1])

    def identify(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the row group of each of the given rows, and the row's number in it; int64 each."""
        part = np.searchsorted(self._start, rows, side="right") - 1
        if self._rows_inside is None:
            listed = any(isinstance(each, np.ndarray) for each in self._rows)
            self._rows_inside = [rows_inside(self._rows, np.arange(len(self)))] if listed else self._rows
        return self._row_groups[part], rows_inside(self._rows_inside, rows)

    def describe(self, row: int) -> str:
        """Describes where a row of the block is stored: file, row group, and row."""
        _described.rows, _described.row = weakref.ref(self), row
        part = int(np.searchsorted(self._start, row, side="right")) - 1
        place, number = self._places[part], int(self._rows[part][row - self._start[part]])
        return place.describe(number) if isinstance(place, ListedPlace) else f"{place}, row {number}"


class _Described(threading.local):
    """The row that a thread described last."""

    rows: Callable[[], RowPlaces | None] | None = None  # a weak reference: a thread keeps no block
    row: int = 0


_described = _Described()


class LoadedBlock:
    """The fetched columns of a block: those of each row group, in the order of `BlockRows.row_groups`.

    Nothing of a large block (`LargeColumns`) is copied here.

    All threads share the columns. ``program`` decides how they are kept: rows that n-gram windows share are decoded
    once, and packed fields become one matrix. With ``order`` (the row of each item), numbers are kept in item order
    instead of storage order, unless ``shared_by_workers`` says that other processes use most items. ``intact`` returns
    what is known about the images of a field, given its number.

    Attributes:
        by_item: numbers in item order, by field.
        stacked: the same numbers, laid out by dtype and shape.
        by_row: numbers in storage order that jobs gather together, by field.
    """

    def __init__(
        self,
        fetched: BlockColumns,
        places: Sequence[str],
        rows: Sequence[RowNumbers],
        fields: Sequence[UnischemaField],
        *,
        row_groups: Sequence[int],
        program: ElementProgram | None = None,
        order: np.ndarray | None = None,
        shared_by_workers: bool = False,
        max_value_bytes: int = MAX_VALUE_BYTES,
        intact: Callable[[int], IntactRows] | None = None,
    ) -> None:
        self._max_value_bytes = max_value_bytes
        self._intact = intact
        large = isinstance(fetched, LargeColumns)
        if isinstance(fetched, LargeColumns):
            fetched.check(sum(map(len, rows)), places[0])
            self._arrays = [list(parts) for parts in fetched.parts]
        else:
            for part, place, wanted in zip(fetched, places, rows, strict=True):
                part.check(len(wanted), place)
            self._arrays = [[part.columns[number] for part in fetched] for number in range(len(fields))]
        # Columns name their rows in errors. They must not refer to the block, because that cycle would keep its memory
        # until the garbage collector runs.
        self._where = RowPlaces(places, rows, row_groups)
        self._fields = fields
        self._reuse = program is not None and program.shares_rows
        packs = program.packs if program is not None and not large else ()
        self._packed: dict[Path, np.ndarray] = {}
        packed: set[int] = set()
        rows_inside = len(self._where)
        if packs:
            region = BLOCK_REGIONS.acquire(sum(packed_bytes(step, rows_inside) for step, _ in packs))
            try:
                for step, numbers in packs:
                    parts = [plain_parts(fields[number], self._parts(number)) for number in numbers]
                    matrix = pack_parts(step, parts, region)
                    if matrix is not None:
                        self._packed[step.output.path] = matrix
                        packed.update(numbers)
            finally:
                region.end()
        by_item = program.fields_by_item if program is not None and not large else ()
        joins = shared_by_workers or order is None or not keeps_item_order(order, rows_inside)
        self.by_item: dict[int, FixedColumn] = {}
        self.stacked: list[StackedColumns] = []
        self._take_ordered(fetched)
        numbers_by_item: dict[int, Sequence[np.ndarray]] = {}
        for number in () if joins else by_item:  # a wide table has many, which need no column before
            found = None if number in packed or number in self.by_item else numbers_of(self._arrays[number])
            if found is not None:
                numbers_by_item[number] = found
        self._columns: list[BlockColumn | None] = [
            None if number in packed or number in numbers_by_item or number in self.by_item else self._made(number)
            for number in range(len(fields))
        ]
        self.by_row: dict[int, FixedColumn] = {}
        self._order = order
        if shared_by_workers:
            self._join_parts(by_item)
        elif order is not None and not joins:
            self._put_in_item_order(by_item, order, numbers_by_item)
        elif order is None and len(rows) == 1:
            self.by_row = self._small(by_item)

    def column(self, number: int) -> BlockColumn:
        """Returns the column of the program's ``number``-th field."""
        column = self._columns[number]
        if column is None:  # it was packed or put in item order, but is also needed as it was
            column = self._by_row(number) if number in self.by_item else self._made(number)
            self._columns[number] = column
        return column

    def _take_ordered(self, fetched: BlockColumns) -> None:
        """Takes the numbers that were put in item order while they were read."""
        for number, parts in enumerate(self._arrays):
            if len(parts) == 1 and isinstance(ordered := parts[0], OrderedNumbers):
                self.by_item[number] = FixedColumn([ordered.values], ordered.valid)
                self._arrays[number] = []
        if self.by_item and not isinstance(fetched, LargeColumns):
            self.stacked += [group for group in fetched[0].stacked if self.by_item.keys() >= {*group.numbers}]

    def _put_in_item_order(
        self, numbers: Sequence[int], order: np.ndarray, without_nulls: dict[int, Sequence[np.ndarray]]
    ) -> None:
        """Puts columns into item order, in memory of earlier blocks, because fresh pages would dominate the cost.

        Args:
            without_nulls: further columns, as plain values without nulls.
        """
        small = self._small(numbers)
        columns = without_nulls | {number: column.parts for number, column in small.items()}
        if not columns:
            return
        wanted = [(parts[0].dtype, (len(order), *parts[0].shape[1:])) for parts in columns.values()]
        region = BLOCK_REGIONS.acquire(sum(array_bytes(*each) for each in wanted))
        try:
            stacked = in_order(columns, order, region)
        finally:
            region.end()
        self.stacked += stacked
        ordered = [each for group in stacked for each in zip(group.numbers, group.values, strict=True)]
        for number, values in ordered:
            validity = small[number].validity if number in small else None
            self.by_item[number] = FixedColumn([values], None if validity is None else validity[order])
            self._columns[number] = None
            self._arrays[number] = []  # otherwise the values would be kept twice

    def _join_parts(self, numbers: Sequence[int]) -> None:
        """Joins the row groups of each column, if there are several, in memory of earlier blocks."""
        columns = self._small(numbers)
        several = {number: column for number, column in columns.items() if len(column.parts) > 1}
        if several:
            region = BLOCK_REGIONS.acquire(sum(each.arena_bytes(len(self._where)) for each in several.values()))
            try:
                several = {number: column.joined_in(region) for number, column in several.items()}
            finally:
                region.end()
        for number, column in several.items():
            self._columns[number] = column
            self._arrays[number] = []
        self.by_row = columns | several

    def _small(self, numbers: Sequence[int]) -> dict[int, FixedColumn]:
        return {n: c for n in numbers if isinstance(c := self._columns[n], FixedColumn) and not c.large}

    def _by_row(self, number: int) -> BlockColumn:
        assert self._order is not None
        items = np.zeros(len(self._where), np.int64)
        items[self._order] = np.arange(len(self._order))  # any item of each row; every row has one
        column = self.by_item[number]
        (made,) = in_order({number: column.parts}, items, Heap())
        return FixedColumn([made.values[0]], column.valid(items))

    def _made(self, number: int) -> BlockColumn:
        return block_column(
            self._fields[number],
            self._parts(number),
            self._where.describe,
            reuse=self._reuse,
            max_value_bytes=self._max_value_bytes,
            intact=None if self._intact is None else partial(self._intact, number),
        )

    def _parts(self, number: int) -> list[Part]:
        return self._arrays[number]

    def identify(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `RowPlaces.identify`."""
        return self._where.identify(rows)

    def packed(self, step: PackStep) -> np.ndarray | None:
        """Returns all rows of a pack step as one matrix, or ``None`` if it cannot be made from whole columns."""
        return self._packed.get(step.output.path)

    def describe(self, row: int) -> str:
        """See `RowPlaces.describe`."""
        return self._where.describe(row)

    @property
    def last_described_row(self) -> int | None:
        """The row that this thread described last, or ``None`` if that row is in another block."""
        return _described.row if _described.rows is not None and _described.rows() is self._where else None
