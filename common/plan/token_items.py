"""`TokenItems`: items that are runs of consecutive tokens, regardless of row boundaries.

From the wanted rows and their token counts, it derives the order of an epoch and the pieces of rows that make up an
item. It finds the pieces by search, without iterating over rows.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..base.process.forks import cached_property
from ..schema.ragged import concat_ranges, ends_of
from .block_reads import BlockKey, BlockRead, BlockRows
from .items import RowItems, distinct
from .order.epoch import EpochOrder, OrderSpec
from .order.leftovers import Leftovers
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

    def order(self, spec: OrderSpec, epoch: int, leftovers: Leftovers | None = None) -> TokenOrder:
        assert leftovers is None
        return TokenOrder(self._ends, self._selection.rows.before, self._length, self._items, spec, epoch)

    def reads(self, order: TokenOrder, pass_number: int, index: np.ndarray) -> list[BlockRead]:  # type: ignore[override]  # its own order
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
                key = BlockKey(epoch=order.number, stream=number, block=block)
                row, spans = self._pieces(order, key, begin - starts[block], end - starts[block])
                item, spans = spans[:, 0], spans[:, 1:]
                result.append(BlockRead(key=key, items=row, places=places[item], pass_number=pass_number, spans=spans))
        return result

    def reads_between(self, order: EpochOrder, pass_number: int, first: int, last: int) -> None:
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
            `BlockRead.spans`.
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


class TokenOrder(EpochOrder):
    """The order of one epoch, on an axis of tokens, with all rows laid end to end; a pure function of its arguments.

    Streams are cut at multiples of the item length, so they differ by one item at most. A row across a cut belongs to
    both streams, and each has its part of it.

    Args:
        ends: int64 ``[rows + 1]``: the number of tokens before each row, in storage order; the last entry is the total.
        rows_before: int64 ``[row_groups + 1]``: rows before each row group.
        length: the number of tokens in an item.
        items: the number of items. The remaining tokens belong to the last stream that has an item.
    """

    def __init__(
        self, ends: np.ndarray, rows_before: np.ndarray, length: int, items: int, spec: OrderSpec, epoch: int
    ) -> None:
        super().__init__(ends[rows_before], spec, epoch)
        self._ends = ends
        self._length = length
        self._tokens = self._total
        self._total = items
        self.block_parts = lru_cache(maxsize=2 * spec.streams + 2)(self._block_parts)

    def is_last(self, stream: int) -> bool:
        """Returns whether the stream ends with the last item and the remainder after it."""
        start, stop = super()._extent(stream)
        return start < stop == self._total

    def _extent(self, stream: int) -> tuple[int, int]:
        start, stop = super()._extent(stream)
        if start == stop:
            return self._tokens, self._tokens
        return start * self._length, self._tokens if self.is_last(stream) else stop * self._length

    def _pieces(self, row_group: int) -> tuple[np.ndarray, np.ndarray]:
        bounds, words = super()._pieces(row_group)
        first, last = self.items_before[row_group : row_group + 2]
        around, place = np.divmod(bounds, last - first)
        row = np.searchsorted(self._ends, first + place)
        return around * (last - first) + self._ends[row] - first, words

    def _rows(self, first: np.ndarray, length: np.ndarray) -> np.ndarray:
        rows: np.ndarray = np.searchsorted(self._ends, first + length) - np.searchsorted(self._ends, first, "right") + 1
        return rows

    def _block_parts(self, stream: int, block: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the rows of a block that have tokens, in the order of their tokens.

        Returns:
            ``(row, first, before)``: positions among the selected rows; the first token of each row that is in the
            stream; and the number of the block's tokens before each row, with the total at the end. All int64.
        """
        _, begin, count = self.block_segments(stream, block)
        lo = np.searchsorted(self._ends, begin, "right") - 1
        rows = np.searchsorted(self._ends, begin + count) - lo
        row = concat_ranges(lo, rows)
        first = np.maximum(self._ends[row], np.repeat(begin, rows))
        tokens = np.minimum(self._ends[row + 1], np.repeat(begin + count, rows)) - first
        first -= self._ends[row]
        chosen = np.flatnonzero(tokens)
        order = self.block_permutation(stream, block, len(chosen))
        chosen = chosen if order is None else chosen[order]
        return row[chosen], first[chosen], ends_of(tokens[chosen])
