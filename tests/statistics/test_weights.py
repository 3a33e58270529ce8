"""The draws of ``weigh`` and ``balance``: many different samples, in which rows come independently of their neighbours.

Seeds are fixed, so a test gives the same result in every run. Limits are five standard deviations of the result.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline
from parquetry.common.plan.plan import Plan

ROWS, HALF = 600, 300
LIMIT = 5.0
LAYOUTS = [(600, 100), (100, 100), (1, 300)]  # the rows of a row group, and how many epochs are quick


@pytest.fixture(autouse=True)
def _small_sections(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes sections so small that the few rows of a quick test have several."""
    if "nightly" not in request.keywords:
        monkeypatch.setattr("parquetry.common.plan.weighted_items._SECTION_ITEMS", 64, raising=False)


def stored(folder: Path, labels: np.ndarray, group_rows: int) -> Pipeline:
    """Writes rows with these labels, and their numbers as ids."""
    table = pa.table({"id": np.arange(len(labels)), "label": labels})
    pq.write_table(table, folder / "a.parquet", row_group_size=group_rows)
    return Pipeline(folder, executor="threads", workers=1)


def times(pipeline: Pipeline, rows: int, items: int, epochs: int) -> np.ndarray:
    """Returns how often each row comes in each epoch, int8 ``[epochs, rows]``."""
    plan = pipeline.plan()
    if isinstance(plan, Plan) and len(plan.dataset.row_groups.rows) == rows:  # the plan says it without a read
        return np.stack([np.diff(plan.items.items_before(epoch)).astype(np.int8) for epoch in range(epochs)])
    batches = pipeline.select("id").repeat(epochs).batch(items)
    return np.stack([np.bincount(batch["id"], minlength=rows).astype(np.int8) for batch in batches])


def deviation(values: np.ndarray, mean: float, variance: float) -> float:
    """Returns by how many standard deviations the chi-square sum of normal values differs from its mean.

    Source: Wilson and Hilferty (1931): the cube root of chi-square over its degrees of freedom is nearly normal.
    """
    count = len(values)
    ratio = (((values - mean) ** 2).sum() / variance / count) ** (1 / 3)
    return float((ratio - (1 - 2 / (9 * count))) / np.sqrt(2 / (9 * count)))


def shift(values: np.ndarray, mean: float) -> float:
    """Returns by how many standard errors the mean of values, one for each epoch, differs from the expected mean."""
    return float((values.mean() - mean) / max(values.std() / np.sqrt(len(values)), 1e-12))


def overlap(count: int, drawn: int, other: int) -> tuple[float, float]:
    """Returns the mean and the variance of how many of ``other`` rows are among ``drawn`` of ``count`` rows."""
    share = other / count
    return drawn * share, drawn * share * (1 - share) * (count - drawn) / (count - 1)


@pytest.mark.parametrize(("group_rows", "epochs"), LAYOUTS)
def test_half_of_the_rows_is_another_sample_in_each_epoch(tmp_path: Path, group_rows: int, epochs: int) -> None:
    drive = stored(tmp_path, np.arange(ROWS) % 2, group_rows).weigh(np.ones(ROWS), HALF, seed=1)
    drawn = times(drive, ROWS, HALF, epochs)
    assert drawn.max() == 1
    assert len(np.unique(drawn, axis=0)) == epochs
    mean, variance = overlap(ROWS, HALF, HALF)
    even = drawn[:, ::2].sum(axis=1)  # rows of every other label
    assert abs(deviation(even, mean, variance)) < LIMIT
    assert abs(shift(even, mean)) < LIMIT
    both = (drawn[1:] & drawn[:-1]).sum(axis=1)  # rows that two epochs in a row have
    assert abs(deviation(both, mean, variance)) < LIMIT
    assert abs(shift(both, mean)) < LIMIT


@pytest.mark.parametrize(("group_rows", "epochs"), LAYOUTS)
def test_rows_come_together_as_often_as_independent_ones(tmp_path: Path, group_rows: int, epochs: int) -> None:
    labels = (np.random.default_rng(1).permutation(ROWS) < ROWS // 20).astype(np.int64)
    drawn = times(stored(tmp_path, labels, group_rows).balance("label", seed=1), ROWS, ROWS, epochs)
    assert len(np.unique(drawn, axis=0)) == epochs
    assert set(np.unique(drawn[:, labels == 1])) == {10}
    common = labels == 0
    share = HALF / common.sum()
    # Of a class, HALF rows are drawn, so two rows come together a little less often than independent ones.
    together = share * (HALF - 1) / (common.sum() - 1)
    assert together == pytest.approx(share**2, rel=0.01)
    for distance in (1, 2, 3, 7, 20, 100):
        both = drawn[:, distance:] & drawn[:, :-distance]
        counts = both[:, common[distance:] & common[:-distance]].mean(axis=1)
        assert abs(shift(counts, together)) < LIMIT, distance
    assert abs(deviation(drawn[:, common].sum(axis=0), epochs * share, epochs * share * (1 - share))) < LIMIT


@pytest.mark.parametrize("group_rows", [600, 100, 30, 1])
def test_each_class_has_its_share_whatever_the_period_of_the_labels(tmp_path: Path, group_rows: int) -> None:
    labels = (np.arange(ROWS) % 3 == 0).astype(np.int64)
    for pipeline in (
        stored(tmp_path, labels, group_rows).balance("label", seed=1),
        stored(tmp_path, labels, group_rows).weigh({"label": {0: 1.0, 1: 2.0}}, seed=1),
    ):
        drawn = times(pipeline, ROWS, ROWS, 12)
        assert set(drawn[:, labels == 1].sum(axis=1)) == {HALF}
        assert len(np.unique(drawn, axis=0)) == 12


def test_classes_of_one_row_come_together_as_often_as_independent_ones(tmp_path: Path) -> None:
    drawn = times(stored(tmp_path, np.arange(ROWS), 100).balance("label", HALF, seed=1), ROWS, HALF, 100)
    mean, variance = overlap(ROWS, HALF, HALF)
    assert abs(deviation(drawn[:, ::2].sum(axis=1), mean, variance)) < LIMIT
    assert abs(shift((drawn[:, 1:] & drawn[:, :-1]).mean(axis=1), 0.5 * (HALF - 1) / (ROWS - 1))) < LIMIT


@pytest.mark.parametrize(("group_rows", "epochs"), LAYOUTS)
def test_rows_of_unequal_weight_come_as_often_as_their_shares_say(tmp_path: Path, group_rows: int, epochs: int) -> None:
    weights = np.tile([1.0, 2.0, 3.0], ROWS // 3)
    drawn = times(stored(tmp_path, np.zeros(ROWS), group_rows).weigh(weights, HALF, seed=1), ROWS, HALF, epochs)
    shares = HALF * weights / weights.sum()
    assert drawn.max() == 1
    assert len(np.unique(drawn, axis=0)) == epochs
    for start in range(3):
        own = drawn[:, start::3]
        share = shares[start]
        assert abs(shift(own.mean(axis=1), share)) < LIMIT
        assert abs(deviation(own.sum(axis=0), epochs * share, epochs * share * (1 - share))) < LIMIT
        both = (own[:, 1:] & own[:, :-1]).mean(axis=1)
        assert abs(shift(both, share**2)) < LIMIT  # less than one in 300 of it is too small to be seen


@pytest.mark.nightly
@pytest.mark.parametrize("group_rows", [100_000, 10_000, 1_000])
def test_many_rows_come_together_as_often_as_independent_ones(tmp_path: Path, group_rows: int) -> None:
    rows, epochs = 200_000, 300
    labels = (np.random.default_rng(1).permutation(rows) < rows // 20).astype(np.int64)
    drawn = times(stored(tmp_path, labels, group_rows).balance("label", seed=1), rows, rows, epochs)
    assert len({epoch.tobytes() for epoch in drawn}) == epochs
    assert set(drawn[:, labels == 1].sum(axis=1)) == {rows // 2}
    common = labels == 0
    share = rows / 2 / common.sum()
    for distance in (1, 2, 3, 10, 1_000, 20_000):
        both = drawn[:, distance:] & drawn[:, :-distance]
        counts = both[:, common[distance:] & common[:-distance]].mean(axis=1)
        assert abs(shift(counts, share**2)) < LIMIT, distance
    of_rows = drawn[:, common].sum(axis=0)
    assert abs(deviation(of_rows, epochs * share, epochs * share * (1 - share))) < LIMIT
