"""`BlockLoader`: builds the blocks of one source from the columns that its `Fetcher` reads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...plan.block_reads import BlockRows
from ...plan.plan import BasePlan
from ...plan.program import ElementProgram
from ..columns.stored_values import IntactRows
from ..read.block_layout import ItemOrder, keeps_item_order
from ..read.fetch import Fetcher
from ..read.large_blocks import BlockColumns
from .block import BlockParts, LoadedBlock, block_by_item, block_by_row, joined_block

_SHARE_IN_ORDER = 0.5  # a process that uses less of a block gathers its rows as it needs them


class BlockLoader:
    """Builds the blocks of one source.

    Args:
        fetcher: reads the row groups.
        program: how rows become elements; ``None`` if rows are only gathered.
        shuffled: whether items are in another order than rows.
    """

    def __init__(self, fetcher: Fetcher, program: ElementProgram | None = None, *, shuffled: bool = False) -> None:
        self._fetcher = fetcher
        self._program = program
        self._in_item_order = program is not None and shuffled and bool(program.fields_by_item)
        self._shared_by_workers = fetcher.context.share < _SHARE_IN_ORDER
        self._numbers: dict[str, int] = {}
        if program is not None and self._in_item_order and not self._shared_by_workers:
            packed = {number for _, numbers in program.packs for number in numbers}
            names = {fetcher.fields[n].name: n for n in program.fields_by_item if n not in packed}
            in_rows = {name for columns in fetcher.dataset.frame_columns.values() for name in columns}
            self._numbers = {name: number for name, number in names.items() if name not in in_rows}
        self._names = frozenset(self._numbers)

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit; ``None`` = none."""
        return self._fetcher.context.room_bytes

    def places(self, row_groups: Sequence[int]) -> list[str]:
        """Describes the file and number of each row group, for error texts."""
        return self._fetcher.places(row_groups)

    def order_of(self, rows: BlockRows) -> ItemOrder | None:
        """Returns the order that numbers can be put in while they are read; ``None`` = as stored."""
        if not self._numbers or len(rows.row_groups) != 1 or rows.item_rows is None:
            return None
        order = rows.item_rows[:, 0]
        return ItemOrder(order, self._numbers, self._names) if keeps_item_order(order, len(rows.rows[0])) else None

    def load(self, rows: BlockRows) -> LoadedBlock:
        """Reads all row groups of a block. Each that takes more than its room goes to temporary files."""
        parts, order = zip(rows.row_groups, rows.rows, strict=True), self.order_of(rows)
        return self.assemble(rows, [self._fetcher.fetch_within(row_group, some, order) for row_group, some in parts])

    def assemble(self, rows: BlockRows, parts: BlockColumns) -> LoadedBlock:
        """Builds a block from the columns of its row groups."""
        made = BlockParts(
            parts,
            self._fetcher.places(rows.row_groups),
            rows.rows,
            self._fetcher.fields,
            row_groups=rows.row_groups,
            program=self._program,
            max_value_bytes=self._fetcher.dataset.max_value_bytes,
            intact=partial(self._intact_rows, rows),
            memory_bytes=self.memory_bytes,
        )
        if self._shared_by_workers or rows.item_rows is None:
            return joined_block(made)
        order = rows.item_rows[:, 0] if self._in_item_order else None
        if order is None or not keeps_item_order(order, len(made)):
            return block_by_row(made)
        return block_by_item(made, order)

    def _intact_rows(self, rows: BlockRows, number: int) -> IntactRows:
        """Returns what is known about the images of the ``number``-th field in the rows of a block."""
        keys = [self._fetcher.lasting_key(row_group, number) for row_group in rows.row_groups]
        totals = self._fetcher.dataset.row_groups.rows[list(rows.row_groups)]
        return IntactRows(keys, rows.rows, totals.tolist())


def loaders_of(plan: BasePlan, fetchers: Sequence[Fetcher]) -> list[BlockLoader]:
    """Creates block loaders, one for each source of a plan and its fetcher."""
    return [
        BlockLoader(fetcher, part.program, shuffled=part.order.shuffle is not None)
        for fetcher, part in zip(fetchers, plan.parts, strict=True)
    ]
