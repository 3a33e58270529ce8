"""Blocks: all are about equally large, so that the last batches of an epoch mix as well as the first ones."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common import Pipeline
from parquetry.common.plan.bucket_items import Buckets
from parquetry.common.plan.order.epoch import EpochOrder, OrderSpec, equal_groups

ROW_GROUPS = st.lists(st.integers(0, 300), min_size=1, max_size=40)


@given(ROW_GROUPS, st.integers(1, 700))
def test_there_are_as_many_groups_as_possible_and_none_is_a_rest(sizes: list[int], minimum: int) -> None:
    before = np.concatenate([[0], np.cumsum(sizes)])
    bounds = equal_groups((before, minimum))
    assert (bounds[0], bounds[-1]) == (0, len(sizes))
    groups = np.diff(before[bounds])
    most = held = 0
    for size in sizes:
        held += size
        if held >= minimum:
            most, held = most + 1, 0
    assert len(groups) == max(most, 1)
    assert len(groups) == 1 or groups.min() >= minimum


@pytest.mark.parametrize(("row_groups", "buffer_size"), [(10, 9_000), (10, 3_000), (100, 9_000), (23, 5_000)])
def test_blocks_of_equal_row_groups_differ_by_one_row_group(row_groups: int, buffer_size: int) -> None:
    order = EpochOrder(np.arange(row_groups + 1) * 1000, OrderSpec(seed=1, buffer_size=buffer_size), 0)
    sizes = np.diff(order.stream(0).block_position)
    assert sizes.max() - sizes.min() <= 1000
    assert sizes.min() >= buffer_size


@pytest.mark.parametrize("epochs", [20, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_the_last_batches_draw_from_as_many_row_groups_as_the_first(tmp_path: Path, epochs: int) -> None:
    pq.write_table(pa.table({"id": np.arange(1000)}), tmp_path / "a.parquet", row_group_size=100)
    pipeline = Pipeline(tmp_path, executor="threads", workers=1).select("id").shuffle(300, seed=2).batch(50)
    drawn = np.array([[len(np.unique(batch["id"] // 100)) for batch in pipeline] for _ in range(epochs)])
    first, last = drawn[:, :2].mean(axis=1), drawn[:, -2:].mean(axis=1)
    assert abs((first - last).mean()) < 5 * max((first - last).std(), 0.1) / np.sqrt(epochs)
    assert drawn.min() == 3
    assert "at least 3 (" in pipeline.explain()


def test_explain_says_the_least_number_of_row_groups_in_a_batch(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": np.arange(1000)}), tmp_path / "a.parquet", row_group_size=100)
    assert "1.0 row groups meet in 20 rows, at least 1 (" in Pipeline(tmp_path).shuffle(100, seed=1).batch(20).explain()


@pytest.mark.parametrize("group_rows", [9_000, 3_500])
def test_buckets_have_no_group_with_more_short_batches(group_rows: int) -> None:
    lengths = np.random.default_rng(2).integers(1, 100, 10_000)
    buckets = Buckets(lengths, np.array([25, 50, 75]), np.full(4, 64), np.arange(11) * 1000, group_rows)
    rows = np.diff(buckets.rows)
    assert rows.min() >= group_rows
    short = buckets.batches.sum(axis=1) - rows // 64
    assert short.max() <= 4


def test_batches_of_similar_length_are_others_in_each_epoch(tmp_path: Path) -> None:
    lengths = np.random.default_rng(3).integers(1, 20, 800)
    lists = [np.zeros(length, np.int32) for length in lengths]
    pq.write_table(pa.table({"id": np.arange(800), "tokens": lists}), tmp_path / "a.parquet", row_group_size=100)
    pipeline = Pipeline(tmp_path, executor="threads", workers=1).shuffle(100, seed=1)
    batches = pipeline.bucket("tokens", [5, 10, 15], batch_size=25)
    epochs = [{tuple(sorted(batch["id"].tolist())) for batch in batches} for _ in range(3)]
    assert all(not one & other for one, other in itertools.combinations(epochs, 2))
