"""`TokenItems`: items that are runs of consecutive tokens, regardless of row boundaries.

From the wanted rows and their token counts, it derives the order of an epoch and the pieces of rows that make up an
item. It finds the pieces by search, without iterating over rows.
"""

from __future__ import annotations

import numpy as np

from ..base.process.forks import cached_property
from ..schema.ragged import concat_ranges, ends_of
from .draws import BlockKey, BlockRows, Draw
from .items import RowItems, distinct
from .order.epoch import EpochOrder, OrderSpec
from .order.tokens import TokenOrder
from .selection.selection import Selection


class TokenItems(RowItems):
    """Items of ``length`` tokens. Every token is in exactly one item, except for the remainder.

    Args:
        selection: the wanted rows, with their lengths as the measured values.
        separated: whether a separator token stands between one row and the next.
        padded: whether the remainder becomes a padded item; otherwise it is left out.
    """

    def __init__(self, selection: Selection, length: int, *, separated: bool, padded: bool) -> None:
        super().__init__(selection)
        assert selection.measured is not None
        self._length = length
        self._separated = separated
        self._lengths = selection.measured
        self._ends = ends_of(self._lengths + separated)
        self._tokens = max(int(self._ends[-1]) - separated, 0)  # no separator after the last row
        self._items = -(-self._tokens // length) if padded else self._tokens // length

    @property
    def num_items(self) -> int:
        return self._items

    @cached_property
    def _items_before(self) -> np.ndarray:
        """The number of tokens before each row group, from which `EpochOrder` builds the order."""
        before: np.ndarray = self._ends[self._selection.rows.before]
        return before

    @property
    def explained(self) -> list[str]:
        left = self._tokens - self._items * self._length
        rest = f", {left:,} left out" if left > 0 else f", {-left:,} places padded" if left < 0 else ""
        return [f"{self._tokens:,} tokens end to end, cut into {self._items:,} items of {self._length:,}{rest}"]

    def order(self, spec: OrderSpec, epoch: int) -> TokenOrder:
        return TokenOrder(self._ends, self._selection.rows.before, self._length, self._items, spec, epoch)

    def draws(self, order: TokenOrder, pass_number: int, index: np.ndarray) -> list[Draw]:  # type: ignore[override]  # its own order
        """Returns the pieces of rows that make up the items at global positions ``index`` of an epoch."""
        result = []
        stream, position = order.locate(index)
        for number, mine in distinct(stream):
            own = position if mine is None else position[mine]
            places = np.arange(len(index)) if mine is None else mine
            starts = order.stream(number).block_position
            begin = own * self._length
            end = np.minimum(begin + self._length, starts[-1] - self._unused(order, number))
            first = np.searchsorted(starts, begin, side="right") - 1
            last = np.searchsorted(starts, end, side="left")
            for block in np.unique(concat_ranges(first, last - first)).tolist():
                key = BlockKey(epoch=order.epoch, stream=number, block=block)
                row, spans = self._pieces(order, key, begin - starts[block], end - starts[block])
                item, spans = spans[:, 0], spans[:, 1:]
                result.append(Draw(key=key, items=row, places=places[item], pass_number=pass_number, spans=spans))
        return result

    def draws_between(self, order: EpochOrder, pass_number: int, first: int, last: int) -> None:
        """Returns nothing: the rows of consecutive items are not consecutive."""

    def _unused(self, order: TokenOrder, stream: int) -> int:
        """Returns 1 for the stream whose last token would be a separator with no row after it, otherwise 0."""
        return int(self._separated and order.is_last(stream))

    def _pieces(
        self, order: TokenOrder, key: BlockKey, begin: np.ndarray, end: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds the pieces of rows for items that cover tokens ``begin`` to ``end`` of a block.

        Returns:
            The row of each piece in the block's order, and the number of its item followed by the columns of
            `Draw.spans`.
        """
        row, first, before = order.block_parts(key.stream, key.block)
        lo, hi = np.maximum(begin, 0), np.minimum(end, before[-1])
        items = np.flatnonzero(lo < hi)
        lo, hi = lo[items], hi[items]
        part = np.searchsorted(before, lo, side="right") - 1
        pieces = np.searchsorted(before, hi, side="left") - part
        part, item = concat_ranges(part, pieces), np.repeat(np.arange(len(items)), pieces)
        start = np.maximum(lo[item], before[part])
        stop = np.minimum(hi[item], before[part + 1])
        taken = first[part] + start - before[part]
        tokens = np.minimum(stop - start, self._lengths[row[part]] - taken)
        separators = stop - start - tokens
        return part, np.stack([items[item], taken, tokens, start - begin[items[item]], separators], axis=1)

    def block_rows(self, order: TokenOrder, key: BlockKey) -> BlockRows:  # type: ignore[override]  # its own order
        return self.rows_at(order.block_parts(key.stream, key.block)[0][:, None])
