"""Ranks: each row comes to each rank equally often over epochs, also if ranks share row groups.

Seeds are fixed, so a test gives the same result in every run. Limits are five standard deviations of the result.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline
from parquetry.common.plan.order.epoch import EpochOrder, OrderSpec
from parquetry.common.plan.token_items import TokenOrder

LIMIT = 5.0
EPOCHS = [200, pytest.param(4000, marks=pytest.mark.nightly)]
LAYOUTS = [([2000], 2), ([2000], 8), ([500] * 4, 8), ([700, 100, 900, 300], 3)]  # the rows of row groups, and ranks


def items_of_stream(order: EpochOrder, stream: int) -> np.ndarray:
    """Returns the items of a stream in an epoch, in its order."""
    blocks = len(order.stream(stream).block_segment) - 1
    return np.concatenate([order.block_items(stream, block) for block in range(blocks)])


def orders(row_groups: list[int], ranks: int, epochs: int, buffer_size: int = 100) -> list[EpochOrder]:
    """Returns the orders of epochs."""
    before = np.concatenate([[0], np.cumsum(row_groups)])
    spec = OrderSpec(seed=3, buffer_size=buffer_size, streams=ranks)
    return [EpochOrder(before, spec, epoch) for epoch in range(epochs)]


def z_scores(counts: np.ndarray, epochs: int, share: float) -> np.ndarray:
    """Returns by how many standard deviations counts differ from those of a binomial distribution."""
    scores: np.ndarray = (counts - epochs * share) / np.sqrt(epochs * share * (1 - share))
    return scores


@pytest.mark.parametrize("epochs", EPOCHS)
@pytest.mark.parametrize(("row_groups", "ranks"), LAYOUTS)
def test_each_row_comes_to_a_rank_equally_often(row_groups: list[int], ranks: int, epochs: int) -> None:
    rows = sum(row_groups)
    seen = np.zeros(rows)
    for order in orders(row_groups, ranks, epochs):
        seen[items_of_stream(order, 1)] += 1
    assert np.abs(z_scores(seen, epochs, 1 / ranks)).max() < LIMIT


@pytest.mark.parametrize("epochs", EPOCHS)
@pytest.mark.parametrize(("row_groups", "ranks"), LAYOUTS)
def test_a_rank_has_all_classes_of_sorted_rows(row_groups: list[int], ranks: int, epochs: int) -> None:
    rows = sum(row_groups)
    shares = np.array([np.mean(items_of_stream(order, 0) < rows / 2) for order in orders(row_groups, ranks, epochs)])
    assert abs(shares.mean() - 0.5) / (shares.std() / np.sqrt(epochs)) < LIMIT
    if len(row_groups) == 1:
        assert shares.std() < 0.6 / np.sqrt(64 / ranks)  # as if it drew about 64 / ranks pieces


def test_a_rank_that_is_cut_before_the_shuffle_keeps_its_rows_in_other_orders() -> None:
    spec = OrderSpec(seed=3, buffer_size=100, streams=3, shard_first=True)
    before = np.array([0, 700, 800, 1700, 2000])
    for stream in range(3):
        epochs = [items_of_stream(EpochOrder(before, spec, epoch), stream) for epoch in range(20)]
        assert len({np.sort(epoch).tobytes() for epoch in epochs}) == 1
        assert len({epoch.tobytes() for epoch in epochs}) == 20


def test_neighboring_epochs_give_a_rank_unrelated_rows() -> None:
    masks = []
    for order in orders([2000], 2, 200):
        mask = np.zeros(2000)
        mask[items_of_stream(order, 0)] = 1
        masks.append(mask - mask.mean())
    same = np.array([(one * other).mean() / one.std() / other.std() for one, other in itertools.pairwise(masks)])
    assert abs(same.mean()) < LIMIT * same.std() / np.sqrt(len(same))
    assert len({mask.tobytes() for mask in masks}) == 200


@pytest.mark.parametrize("ranks", [2, 7])
def test_rows_that_are_dropped_or_repeated_come_from_everywhere(ranks: int) -> None:
    """The last position of the longer streams is dropped, and the first of the shorter ones repeated."""
    epochs, rows = 400, 1003 + (ranks == 7)
    dropped, repeated = [], []
    for order in orders([rows], ranks, epochs):
        longer = rows % ranks
        dropped += [int(items_of_stream(order, stream)[-1]) for stream in range(longer)]
        repeated += [int(items_of_stream(order, stream)[0]) for stream in range(longer, ranks)]
    for places in (dropped, repeated):
        quarters = np.bincount(np.array(places) * 4 // rows, minlength=4)
        expected = len(places) / 4
        assert np.abs(quarters - expected).max() < LIMIT * np.sqrt(expected)


def test_runs_of_tokens_are_cut_between_rows() -> None:
    lengths = np.random.default_rng(1).integers(0, 30, 500)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    items = int(ends[-1]) // 16
    seen = np.zeros(500)
    for epoch in range(200):
        order = TokenOrder(ends, np.array([0, 500]), 16, items, OrderSpec(seed=1, buffer_size=10, streams=2), epoch)
        parts = [order.block_parts(stream, 0) for stream in range(2)]
        rows = np.concatenate([part[0] for part in parts])
        whole = np.bincount(rows, minlength=500)
        assert (whole[lengths > 0] >= 1).all()
        assert (whole == 2).sum() <= 1  # the row across the cut
        assert sum(int(part[2][-1]) for part in parts) == ends[-1]
        seen[np.unique(parts[0][0])] += 1
    assert np.abs(z_scores(seen[lengths > 0], 200, 0.5)).max() < LIMIT


def test_ranks_of_one_row_group_share_it_anew_in_each_epoch(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": np.arange(600)}), tmp_path / "a.parquet")
    shuffled = Pipeline(tmp_path, executor="threads", workers=1).shuffle(100, seed=1)
    ranks = [shuffled.shard(3, rank) for rank in range(3)]
    seen: set[int] = set()
    for _ in range(12):
        epoch = [[int(row["id"]) for row in rank] for rank in ranks]
        assert sorted(itertools.chain.from_iterable(epoch)) == list(range(600))
        seen |= set(epoch[0])
    assert len(seen) > 580  # a row is in none of 12 epochs with a probability of 0.8 %
    assert "a rank sees 33.3% of the rows in an epoch, others in the next" in ranks[0].explain()
    assert "it reads 3.0 shares" in ranks[0].explain()
    fixed = Pipeline(tmp_path).shard(3, 0).shuffle(100, seed=1)
    assert "a rank sees 33.3% of the rows in an epoch, the same ones in each" in fixed.explain()
