"""Small row groups that are neighbors in a file share a block where nothing is shuffled, and no item moves."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_store import Store
from oracle import examples

from parquetry.common import Pipeline
from parquetry.common.plan.order.epoch import EpochOrder, OrderSpec, RowGroupSizes
from parquetry.common.plan.order.leftovers import Leftovers
from parquetry.common.plan.order.quality import epoch_items
from parquetry.common.schema.ragged import ends_of

MOST_BYTES, MOST = 128 << 10, 64


def sizes_of(num_bytes: list[int], files: list[int] | None = None) -> RowGroupSizes:
    return RowGroupSizes(
        file=np.zeros(len(num_bytes), np.int64) if files is None else np.array(files, np.int64),
        num_bytes=np.array(num_bytes, np.int64),
    )


def lengths_of(sizes: RowGroupSizes) -> list[int]:
    """Returns the number of row groups of each block."""
    lengths: list[int] = np.diff(sizes.blocks(np.arange(len(sizes.file)))).tolist()
    return lengths


def test_blocks_of_small_row_groups_grow_from_one_to_sixty_four_and_end_with_their_file() -> None:
    assert lengths_of(sizes_of([])) == []
    assert lengths_of(sizes_of([320] * 200)) == [1, 2, 4, 8, 16, 32, 64, 64, 9]
    assert lengths_of(sizes_of([320] * 7, [0, 0, 1, 1, 1, 2, 3])) == [1, 1, 1, 2, 1, 1]
    assert lengths_of(sizes_of([320] * 127, [0] * 100 + [1] * 27)) == [1, 2, 4, 8, 16, 32, 37, 27]


def test_large_row_groups_have_blocks_of_their_own() -> None:
    assert lengths_of(sizes_of([MOST_BYTES + 1] * 3)) == [1, 1, 1]
    # Neither do small ones wait for a large neighbor.
    assert lengths_of(sizes_of([320, 320, 320, 10 << 20, 320, 320])) == [1, 2, 1, 2]


@examples(200)
@given(
    groups=st.lists(st.tuples(st.sampled_from([0, 1, 320, 9_000, 60_000, 140_000, 1 << 30]), st.booleans()), min_size=1)
)
def test_blocks_are_runs_of_one_file_that_keep_both_limits(groups: list[tuple[int, bool]]) -> None:
    num_bytes, begins = (np.array(each) for each in zip(*groups, strict=True))
    files = np.cumsum(begins)
    bounds = sizes_of(num_bytes.tolist(), files.tolist()).blocks(np.arange(len(groups)))
    assert bounds[0] == 0
    assert bounds[-1] == len(groups)
    assert (np.diff(bounds) > 0).all()
    for begin, end in pairwise(bounds):
        assert len(set(files[begin:end].tolist())) == 1
        assert end - begin == 1 or num_bytes[begin:end].sum() <= MOST_BYTES
        assert end - begin <= MOST


@examples(150)
@given(data=st.data())
def test_no_item_moves_when_row_groups_share_blocks(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=40), "items of row groups")
    num_bytes = data.draw(st.lists(st.sampled_from([320, 40_000, 1 << 20]), min_size=len(counts), max_size=len(counts)))
    streams = data.draw(st.integers(1, 4), "streams")
    again = data.draw(st.integers(1, 5), "streams of what is left")
    rows = data.draw(st.integers(0, sum(counts)), "rows taken")
    before, spec = ends_of(np.array(counts)), OrderSpec(streams=streams)
    alone, joined = (EpochOrder(before, spec, 0, sizes=sizes) for sizes in (None, sizes_of(num_bytes)))
    assert epoch_items(joined).tolist() == epoch_items(alone).tolist()
    rest = [
        EpochOrder(before, replace(spec, streams=again), 0, Leftovers(order, rows), sizes)
        for order, sizes in ((alone, None), (joined, sizes_of(num_bytes)))
    ]
    assert epoch_items(rest[1]).tolist() == epoch_items(rest[0]).tolist()


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """A file of 200 row groups of five numbers, with texts beside them."""
    numbers = np.arange(1000)
    table = pa.table({"id": numbers, "half": numbers / 2, "text": numbers.astype(str)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=5)
    return tmp_path


def blocks_of(pipeline: Pipeline) -> int:
    return len(pipeline.plan().epoch_order(0).stream(0).block_segment) - 1


def test_only_numbers_as_they_are_stored_share_blocks(many: Path) -> None:
    rows = Pipeline(str(many))
    assert blocks_of(rows.select(["id", "half"])) == 9
    assert blocks_of(rows) == 200  # a text of another size than expected must not hold up those before it


def test_row_groups_in_a_store_have_blocks_of_their_own(many: Path, tmp_path: Path) -> None:
    store = Store(name=str(tmp_path))
    store.put_file_bytes("data/rows.parquet", (many / "rows.parquet").read_bytes())
    assert blocks_of(Pipeline("data", ["id", "half"], filesystem=store)) == 200  # requests join them


def test_row_groups_of_which_few_rows_are_left_count_with_all(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": np.arange(160_000)}), tmp_path / "rows.parquet", row_group_size=20_000)
    rows = Pipeline(str(tmp_path)).where(pc.field("id").isin(range(5, 160_000, 20_000)))
    assert len(rows) == 8
    assert blocks_of(rows) == 8


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_rows_come_in_order_from_any_state(many: Path, executor: str) -> None:
    batches = Pipeline(str(many), executor=executor).select(["id", "half"]).batch(7)
    iterator = iter(batches)
    numbers = [next(iterator)["id"] for _ in range(40)]
    resumed = iter(batches).load_state_dict(iterator.state_dict())
    numbers += [batch["id"] for batch in resumed]
    assert np.concatenate(numbers).tolist() == list(range(1000))
