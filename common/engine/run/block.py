"""`LoadedBlock`: the loaded rows of one shuffle block (`plan.block_reads.BlockRows`).

A block holds the encoded columns of the rows that its items need, each row once. Items refer to rows by their number in
the block. It is built from what was fetched (`BlockParts`): in storage order (`block_by_row`), with its numbers in the
order of its items (`block_by_item`), or with its row groups joined (`joined_block`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import numpy as np

from ...base.memory.arena import BLOCK_REGIONS, Heap, array_bytes
from ...dataset.row_groups import MAX_VALUE_BYTES
from ...parquet.native_decode import OrderedNumbers
from ...plan.program import ElementProgram
from ...plan.selection.rows import RowNumbers
from ...schema.element import Path
from ...schema.field import UnischemaField
from ...stages.pack import PackStep
from ..columns.block_column import block_column
from ..columns.fixed_column import FixedColumn
from ..columns.plain_numbers import numbers_of, plain_parts
from ..columns.protocols import BlockColumn, DecodeContext
from ..columns.stored_values import IntactRows
from ..columns.video_column import kept_bytes
from ..read.block_layout import StackedColumns, in_order
from ..read.large_blocks import BlockColumns, LargeColumns
from ..steps.pack import pack_parts, packed_bytes
from ..steps.source import RowPlaces


class BlockParts:
    """The fetched columns of a block: those of each row group, in the order of `BlockRows.row_groups`.

    ``program`` decides how a block keeps them: rows that n-gram windows share are decoded once, and packed fields
    become one matrix. ``intact`` returns what is known about the images of a field, given its number. ``memory_bytes``
    is the memory for a block and for decoded values that several items share.

    Attributes:
        where: where the rows are stored, in how many ``row_groups``.
        by_field: for each field, its values in each row group; empty once a copy has taken their place.
        ordered, stacked: numbers that were put in item order while they were read, by field, and laid out together.
        packs: the steps that pack fields, with the numbers of these.
        numbers: the fields that jobs may gather together. A large block (`LargeColumns`) has none, because nothing of
            it is copied or joined.
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
        max_value_bytes: int = MAX_VALUE_BYTES,
        intact: Callable[[int], IntactRows] | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        # Columns name their rows in errors. They must not refer to the block, because that cycle would keep its memory
        # until the garbage collector runs.
        self.where = RowPlaces(places, rows, row_groups)
        self.row_groups = len(rows)
        self.fields = fields
        self._context = DecodeContext(
            describe=self.where.describe,
            max_value_bytes=max_value_bytes,
            reuse=program is not None and program.shares_rows,
            kept_bytes=partial(kept_bytes, fields, memory_bytes),
        )
        self._intact = intact
        self.ordered: dict[int, FixedColumn] = {}
        self.stacked: list[StackedColumns] = []
        if isinstance(fetched, LargeColumns):
            fetched.check(len(self.where), places[0])
            self.by_field = [list(parts) for parts in fetched.parts]
            program = None
        else:
            for part, place, row_numbers in zip(fetched, places, rows, strict=True):
                part.check(len(row_numbers), place)
            self.by_field = [[part.columns[number] for part in fetched] for number in range(len(fields))]
            self._take_ordered(fetched[0].stacked if fetched else ())
        self.packs = () if program is None else program.packs
        self.numbers = () if program is None else program.fields_by_item

    def _take_ordered(self, stacked: Sequence[StackedColumns]) -> None:
        for number, parts in enumerate(self.by_field):
            if len(parts) == 1 and isinstance(ordered := parts[0], OrderedNumbers):
                self.ordered[number] = FixedColumn([ordered.values], ordered.valid)
                self.by_field[number] = []
        self.stacked = [group for group in stacked if self.ordered.keys() >= {*group.numbers}]

    def __len__(self) -> int:
        return len(self.where)

    def column(self, number: int) -> BlockColumn:
        """Returns a new column of a field, in storage order."""
        return block_column(
            self.fields[number],
            self.by_field[number],
            self._context,
            intact=None if self._intact is None else partial(self._intact, number),
        )


class LoadedBlock:
    """The columns of a block. All threads share them.

    Attributes:
        where: where the rows are stored.
        by_item: numbers in item order, by field.
        stacked: the same numbers, laid out by dtype and shape.
        by_row: numbers in storage order that jobs gather together, by field.

    Args:
        parts: what the block is built from.
        columns: for each field, its column in storage order; ``None`` for those that are packed or in item order.
        packed: the matrix of each pack step that could be made from whole columns.
        order: the row of each item, if there are columns in item order.
    """

    def __init__(
        self,
        parts: BlockParts,
        columns: list[BlockColumn | None],
        packed: dict[Path, np.ndarray],
        *,
        by_row: dict[int, FixedColumn] | None = None,
        by_item: dict[int, FixedColumn] | None = None,
        stacked: Sequence[StackedColumns] = (),
        order: np.ndarray | None = None,
    ) -> None:
        self.where = parts.where
        self._parts = parts
        self._columns = columns
        self._packed = packed
        self._order = order
        self.by_row = by_row or {}
        self.by_item = by_item or {}
        self.stacked = stacked

    def column(self, number: int) -> BlockColumn:
        """Returns the column of the program's ``number``-th field."""
        column = self._columns[number]
        if column is None:  # it was packed or put in item order, but is also needed as it was
            column = self._by_row(number) if number in self.by_item else self._parts.column(number)
            self._columns[number] = column
        return column

    def _by_row(self, number: int) -> BlockColumn:
        assert self._order is not None
        items = np.zeros(len(self._parts), np.int64)
        items[self._order] = np.arange(len(self._order))  # any item of each row; every row has one
        column = self.by_item[number]
        (made,) = in_order({number: column.parts}, items, Heap())
        return FixedColumn([made.values[0]], column.valid(items))

    def packed(self, step: PackStep) -> np.ndarray | None:
        """Returns all rows of a pack step as one matrix, or ``None`` if it cannot be made from whole columns."""
        return self._packed.get(step.output.path)


def block_by_row(parts: BlockParts) -> LoadedBlock:
    """Builds a block in storage order. Jobs gather the numbers of a block that is one row group together."""
    packed, numbers = _packed(parts)
    columns = _columns(parts, numbers)
    return LoadedBlock(parts, columns, packed, by_row=_small(parts, columns) if parts.row_groups == 1 else {})


def block_by_item(parts: BlockParts, order: np.ndarray) -> LoadedBlock:
    """Builds a block with its numbers in item order, given the row of each item.

    They are copied to memory of earlier blocks, because fresh pages would dominate the cost.
    """
    packed, numbers = _packed(parts)
    by_item, stacked = dict(parts.ordered), parts.stacked
    moved: dict[int, Sequence[np.ndarray]] = {}
    for number in parts.numbers:  # a wide table has many, which need no column before
        values = None if number in numbers or number in by_item else numbers_of(parts.by_field[number])
        if values is not None:
            moved[number] = values
    columns = _columns(parts, {*numbers, *by_item, *moved})
    small = _small(parts, columns)
    moved |= {number: column.parts for number, column in small.items()}
    if moved:
        kinds = [(each[0].dtype, (len(order), *each[0].shape[1:])) for each in moved.values()]
        region = BLOCK_REGIONS.acquire(sum(array_bytes(*each) for each in kinds))
        try:
            groups = in_order(moved, order, region)
        finally:
            region.end()
        stacked = [*stacked, *groups]
        for number, values in (each for group in groups for each in zip(group.numbers, group.values, strict=True)):
            validity = small[number].validity if number in small else None
            by_item[number] = FixedColumn([values], None if validity is None else validity[order])
            columns[number] = None
            parts.by_field[number] = []  # otherwise the values would be kept twice
    return LoadedBlock(parts, columns, packed, by_item=by_item, stacked=stacked, order=order)


def joined_block(parts: BlockParts) -> LoadedBlock:
    """Builds a block in storage order, with the row groups of its numbers joined in memory of earlier blocks.

    It is for a process that uses few of its items.
    """
    packed, numbers = _packed(parts)
    columns = _columns(parts, numbers)
    by_row = _small(parts, columns)
    several = {number: column for number, column in by_row.items() if len(column.parts) > 1}
    if several:
        region = BLOCK_REGIONS.acquire(sum(each.arena_bytes(len(parts)) for each in several.values()))
        try:
            by_row |= {number: column.joined_in(region) for number, column in several.items()}
        finally:
            region.end()
    for number in several:
        columns[number] = by_row[number]
        parts.by_field[number] = []
    return LoadedBlock(parts, columns, packed, by_row=by_row)


def _packed(parts: BlockParts) -> tuple[dict[Path, np.ndarray], set[int]]:
    """Returns the matrix of each pack step that can be made from whole columns, and the fields that are in them."""
    packed: dict[Path, np.ndarray] = {}
    fields: set[int] = set()
    if parts.packs:
        region = BLOCK_REGIONS.acquire(sum(packed_bytes(step, len(parts)) for step, _ in parts.packs))
        try:
            for step, numbers in parts.packs:
                plain = [plain_parts(parts.fields[number], parts.by_field[number]) for number in numbers]
                matrix = pack_parts(step, plain, region)
                if matrix is not None:
                    packed[step.output.path] = matrix
                    fields.update(numbers)
        finally:
            region.end()
    return packed, fields


def _columns(parts: BlockParts, but: Collection[int]) -> list[BlockColumn | None]:
    """Returns the column of each field in storage order, with ``None`` for some."""
    return [None if number in but else parts.column(number) for number in range(len(parts.fields))]


def _small(parts: BlockParts, columns: Sequence[BlockColumn | None]) -> dict[int, FixedColumn]:
    """Returns the columns of small values that jobs may gather together."""
    return {n: c for n in parts.numbers if isinstance(c := columns[n], FixedColumn) and not c.large}
