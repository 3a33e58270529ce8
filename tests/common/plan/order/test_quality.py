"""How well a shuffle mixes: the figures have known values at both ends and grow with the buffer in between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import build

from parquetry.common.plan.order.epoch import EpochOrder, OrderSpec
from parquetry.common.plan.order.quality import ShuffleQuality, epoch_items, shuffle_quality

GROUPS, ROWS, BATCH = 200, 20, 64
BEFORE = np.arange(GROUPS + 1) * ROWS


def quality(buffer_size: int | None, streams: int = 1) -> ShuffleQuality:
    found = [
        shuffle_quality(EpochOrder(BEFORE, OrderSpec(seed=3, buffer_size=buffer_size, streams=streams), epoch), BEFORE, BATCH)
        for epoch in range(8 if buffer_size else 1)
    ]  # fmt: skip
    measured = [each for each in found if each is not None]
    return ShuffleQuality(
        rank_correlation=float(np.mean([each.rank_correlation for each in measured])),
        displacement=float(np.mean([each.displacement for each in measured])),
        row_groups_per_batch=float(np.mean([each.row_groups_per_batch for each in measured])),
        row_groups_per_batch_least=min(each.row_groups_per_batch_least for each in measured),
        row_groups_per_batch_full=measured[0].row_groups_per_batch_full,
    )


def test_the_natural_order_is_not_shuffled_at_all() -> None:
    found = quality(None)
    assert found.rank_correlation == pytest.approx(1)
    assert found.displacement == 0
    assert found.row_groups_per_batch < 5


def test_a_buffer_of_everything_is_a_full_permutation() -> None:
    found = quality(GROUPS * ROWS)
    assert found.rank_correlation < 0.03
    assert found.displacement == pytest.approx(1, abs=0.03)
    assert found.row_groups_per_batch == pytest.approx(found.row_groups_per_batch_full, rel=0.02)


def test_more_buffer_lets_more_row_groups_meet_and_none_keeps_a_trend() -> None:
    sizes = [1, 100, 400, 1000, 4000]
    found = [quality(size) for size in sizes]
    met = [one.row_groups_per_batch for one in found]
    assert met == sorted(met)
    assert met[0] < 6
    assert met[-1] > 50
    least = [one.row_groups_per_batch_least for one in found]
    assert least == sorted(least)
    assert least[0] < 5 < 40 < least[-1]
    assert all(one.rank_correlation < 0.15 and one.displacement > 0.9 for one in found)


@pytest.mark.parametrize("streams", [1, 3, 7])
def test_an_epoch_holds_every_item_once(streams: int) -> None:
    order = EpochOrder(BEFORE, OrderSpec(seed=1, buffer_size=50, streams=streams), 2)
    assert sorted(epoch_items(order).tolist()) == list(range(GROUPS * ROWS))


def test_explain_tells_the_figures(tmp_path: Path) -> None:
    pipeline = build(tmp_path, [[5, 5], [7]]).pipeline("id").shuffle(6, seed=1).batch(4)
    assert "of a full permutation's, rank correlation 0." in pipeline.explain()
    assert "row groups meet in 4 rows, at least 2 (a full permutation:" in pipeline.explain()
