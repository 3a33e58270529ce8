"""What ranks have left of an epoch is cut into streams for other numbers of ranks: each item once, and few row groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.plan.order.epoch import EpochOrder, OrderSpec
from parquetry.common.plan.order.leftovers import Leftovers, items_left
from parquetry.common.schema.ragged import ends_of


def order_of(counts: list[int], spec: OrderSpec, leftovers: Leftovers | None = None) -> EpochOrder:
    return EpochOrder(ends_of(np.array(counts)), spec, 3, leftovers)


def spec_of(streams: int, buffer_size: int | None, *, shard_first: bool = False) -> OrderSpec:
    return OrderSpec(seed=5, buffer_size=buffer_size, streams=streams, shard_first=shard_first)


def items_at(order: EpochOrder, rows: int) -> list[int]:
    """Returns the items at the first positions of an order."""
    stream, position = order.locate(np.arange(rows))
    items = np.empty(rows, np.int64)
    for number in np.unique(stream).tolist():
        blocks = range(len(order.stream(number).block_segment) - 1)
        own = np.concatenate([order.block_items(number, block) for block in blocks])
        items[stream == number] = own[position[stream == number]]
    return [int(item) for item in items]


@examples(150)
@given(data=st.data())
def test_each_item_comes_once_however_often_the_rest_is_cut(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=12), "items of row groups")
    buffer_size = data.draw(st.sampled_from([None, 1, 4, 9, 100]), "buffer size")
    shard_first = data.draw(st.booleans(), "shard first")
    ranks = data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=5), "ranks")
    order = order_of(counts, spec_of(ranks[0], buffer_size, shard_first=shard_first))
    taken: list[int] = []
    for streams in ranks[1:]:
        rows = data.draw(st.integers(0, order.total), "rows")
        taken += items_at(order, rows)
        leftovers = Leftovers(order, rows)
        assert leftovers.items == order.total - rows == items_left(order.total, order.spec.streams, rows).sum()
        order = order_of(counts, spec_of(streams, buffer_size, shard_first=shard_first), leftovers)
        lengths = [order.stream_items(stream) for stream in range(streams)]
        assert max(lengths) - min(lengths) <= 1
    taken += items_at(order, order.total)
    assert sorted(taken) == list(range(sum(counts)))


@pytest.mark.parametrize("buffer_size", [None, 10, 25, 300])
@pytest.mark.parametrize(
    ("before", "after"), [(16, 15), (16, 17), (15, 4), (5, 16), (3, 40), (1, 8), (40, 39), (39, 40)]
)
@pytest.mark.parametrize("part", [0.02, 0.45, 0.9])
def test_a_rank_reads_its_share_of_the_row_groups(
    before: int, after: int, buffer_size: int | None, part: float
) -> None:
    """Besides up to four row groups for each stream that it continues, which other ranks read in part."""
    counts = [10] * 400
    order = order_of(counts, spec_of(before, buffer_size))
    rest = order_of(counts, spec_of(after, buffer_size), Leftovers(order, int(part * order.total)))
    for stream in range(after):
        streams_continued = before / after + 2
        read = len(np.unique(rest.stream(stream).row_group))
        assert read <= len(counts) / after + 4 * streams_continued


def test_a_chain_of_cuts_reads_a_share_of_the_row_groups() -> None:
    counts = [10] * 1000
    order = order_of(counts, spec_of(32, 20))
    for streams in (31, 30, 24, 7, 9):
        order = order_of(counts, spec_of(streams, 20), Leftovers(order, order.total // 7))
        most = max(len(np.unique(order.stream(stream).row_group)) for stream in range(streams))
        assert most <= 2 * len(counts) / streams
    assert order.cuts == 5


def test_a_block_that_nobody_began_is_shuffled_and_a_row_group_is_in_one_block() -> None:
    order = order_of([50] * 16, spec_of(3, 100))
    rest = order_of([50] * 16, spec_of(2, 100), Leftovers(order, 30))
    plan = rest.stream(0)
    assert len(plan.block_segment) > 2
    for block in range(len(plan.block_segment) - 1):
        items = rest.block_items(0, block)
        assert items.tolist() != sorted(items.tolist())
    row_groups = [set(rest.block_segments(0, block)[0].tolist()) for block in range(len(plan.block_segment) - 1)]
    assert sum(map(len, row_groups)) == len(set.union(*row_groups))
