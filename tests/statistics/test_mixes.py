"""Mixes: rows come from sources by their weights, independently of each other, and equal seeds do not move in step.

Seeds are fixed, so no test flickers. Limits are five standard deviations.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from builders import write_table

from parquetry.common import Pipeline, mix
from parquetry.common.plan.order.mixing import SOURCE_SHIFT, MixView, Phase
from parquetry.common.plan.order.positions import Epoch, RepeatView

ROWS = 400
LIMIT = 5.0
ENDLESS = RepeatView(Epoch(100, 1, "none"), None)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Pipeline]:
    """Four datasets of one layout, whose ids differ by thousands."""
    directory: Path = tmp_path_factory.mktemp("mixes")
    tables = [pa.table({"id": np.arange(ROWS) + 1_000 * number}) for number in range(4)]
    urls = [write_table(directory / str(number), table, row_group_size=50) for number, table in enumerate(tables)]
    return [Pipeline(url, ["id"]).shuffle(100, seed=3) for url in urls]


@pytest.mark.parametrize(
    "rows", [40_000, pytest.param(4_000_000, marks=pytest.mark.nightly)], ids=["few rows", "many rows"]
)
def test_the_source_of_a_row_is_drawn_by_the_weights_alone(rows: int) -> None:
    weights = np.array([5.0, 3.0, 2.0])
    drawn = []
    for seed in (1, 2):
        view = MixView([ENDLESS] * 3, [0, 1, 2], [Phase(0, tuple(weights))], seed, "first")
        drawn.append(view.resolve(np.arange(rows))[1] >> SOURCE_SHIFT)
    shares = weights / weights.sum()
    pairs = np.outer(shares, shares)
    lags = [(each[lag:], each[:-lag]) for each in drawn for lag in (1, 2, 1 << 14)]  # draws are made in blocks of 2**14
    for one, other in (*lags, (drawn[0], drawn[1])):
        counts = np.bincount(one * 3 + other, minlength=9).reshape(3, 3)
        expected = pairs * len(one)
        assert np.abs((counts - expected) / np.sqrt(expected * (1 - pairs))).max() < LIMIT


def _drawn(mixed: Pipeline) -> list[set[int]]:
    """Returns which rows of each of two sources come."""
    ids = np.concatenate([batch["id"] for batch in mixed.batch(100)])
    return [set((ids[ids // 1_000 == number] % 1_000).tolist()) for number in range(2)]


WEIGHTED: dict[str, Callable[[Pipeline], Pipeline]] = {
    "in storage order": lambda rows: rows.weigh(np.ones(ROWS), num_items=ROWS // 2, seed=4),
    "with the seed of the shuffle": lambda rows: rows.weigh(np.ones(ROWS), num_items=ROWS // 2, seed=4).shuffle(99, 4),
    "without a seed": lambda rows: rows.weigh(np.ones(ROWS), num_items=ROWS // 2).shuffle(99, 4),
}


@pytest.mark.parametrize("made", WEIGHTED.values(), ids=WEIGHTED)
def test_sources_with_one_seed_draw_rows_of_their_own(sources: list[Pipeline], made: object) -> None:
    assert callable(made)
    weighted = [made(Pipeline(source.urls, ["id"])) for source in sources[:2]]
    mixed = mix(weighted, seed=1, stop="all")
    epochs = [_drawn(mixed) for _ in range(3)]
    for first, second in epochs:
        assert len(first) == len(second) == ROWS // 2
        assert abs(len(first & second) - ROWS / 4) < LIMIT * np.sqrt(ROWS) / 4  # hypergeometric
    assert epochs[0][0] == {int(row["id"]) for row in weighted[0]}


@pytest.mark.parametrize("outer", [3, 8], ids=["one seed for all", "one seed for both"])
def test_nested_mixes_with_one_seed_draw_sources_of_their_own(sources: list[Pipeline], outer: int) -> None:
    repeated = [source.repeat(5) for source in sources]
    mixed = mix([mix(repeated[:2], seed=3), mix(repeated[2:], seed=3)], seed=outer)
    number = np.concatenate([batch["id"] for batch in mixed.batch(100)]) // 1_000
    first, second = number[number < 2] == 0, number[number >= 2] == 2
    rows = min(len(first), len(second))
    assert abs((first[:rows] == second[:rows]).mean() - 0.5) < LIMIT * 0.5 / np.sqrt(rows)


MIXES: dict[str, Callable[[list[Pipeline]], Pipeline]] = {
    "flat": lambda sources: mix(sources, seed=1, stop="all"),
    "nested": lambda sources: mix([sources[0], mix(sources[1:], seed=2, stop="all")], seed=1, stop="all"),
    "nested first": lambda sources: mix([mix(sources[:2], seed=2, stop="all"), sources[2]], seed=1, stop="all"),
}


@pytest.mark.parametrize("made", MIXES.values(), ids=MIXES)
def test_sources_with_one_seed_come_in_orders_of_their_own(sources: list[Pipeline], made: object) -> None:
    assert callable(made)
    mixed: Pipeline = made(sources[:3]).batch(100)
    for _ in range(2):
        ids = np.concatenate([batch["id"] for batch in mixed])
        orders = [ids[ids // 1_000 == number] % 1_000 for number in range(3)]
        assert all(sorted(order.tolist()) == list(range(ROWS)) for order in orders)
        for one, other in itertools.combinations(orders, 2):
            correlation = np.corrcoef(np.argsort(one), np.argsort(other))[0, 1]
            assert abs(correlation) < 0.75  # eight row groups in a random order: a deviation of 1 / sqrt(7)
            assert (one == other).mean() < 0.05


def test_the_first_source_with_a_seed_comes_as_alone(sources: list[Pipeline]) -> None:
    ids = [int(row["id"]) for row in mix(sources, seed=1, stop="all")]
    assert [number for number in ids if number < 1_000] == [int(row["id"]) for row in sources[0]]
    other = mix([sources[0], sources[1].where([("id", ">=", 0)])], seed=1, stop="all")
    assert Pipeline.from_json(other.to_json()).plan().fingerprint == other.plan().fingerprint
    iterator = iter(other)
    head = [int(next(iterator)["id"]) for _ in range(300)]
    rest = iter(other).load_state_dict(iterator.state_dict())
    iterator.close()
    assert head + [int(row["id"]) for row in rest] == [int(row["id"]) for row in other.at_epoch(0)[:]]
