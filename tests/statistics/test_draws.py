"""Random numbers and orders: uniform, and independent between rows, copies, passes and iterators.

Seeds are fixed, so no test flickers. The limits are four deviations, about one in 30,000 for each of about forty figures.
"""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from parquetry.common.engine.steps.random_numbers import ItemKeys, generators, uniform
from parquetry.common.plan.order.epoch import EpochOrder, OrderSpec
from parquetry.common.plan.order.positions import Epoch, RepeatView, pass_numbers

DEVIATIONS = 4
CELLS = 64
ENDLESS = RepeatView(Epoch(4, 1, "none"), None)


def _excess(counts: np.ndarray) -> float:
    """Returns by how many deviations counts of equally likely cells differ from each other (Wilson and Hilferty)."""
    freedom, expected = counts.size - 1, counts.sum() / counts.size
    chi_square = float(((counts - expected) ** 2).sum() / expected)
    spread = 2 / (9 * freedom)
    return float(((chi_square / freedom) ** (1 / 3) - (1 - spread)) / np.sqrt(spread))


def _keys(passes: np.ndarray, rows: np.ndarray, copies: int = 0) -> ItemKeys:
    zeros = np.zeros_like(rows)
    return ItemKeys(passes, zeros, zeros, rows | copies << 32)


def _grid(passes: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pass and the row of each draw of an endless pipeline: half of the passes in a later iterator."""
    half = np.arange(passes // 2)
    numbers = np.concatenate([half, pass_numbers(3, half, ENDLESS)])
    return np.repeat(numbers, rows), np.tile(np.arange(rows), len(numbers))


@pytest.mark.parametrize(
    ("passes", "rows"), [(100, 200), pytest.param(1_000, 2_000, marks=pytest.mark.nightly)], ids=["few", "many"]
)
def test_numbers_are_uniform_and_independent(passes: int, rows: int) -> None:
    drawn = {copies: uniform((2, 7), _keys(*_grid(passes, rows), copies), 2) for copies in (0, 1, 5)}
    cells = [(each[:, 0] * CELLS).astype(np.int64) for each in drawn.values()]
    for each in cells:
        assert abs(_excess(np.bincount(each, minlength=CELLS))) < DEVIATIONS
    first, second = drawn[0].T
    table = first.reshape(-1, rows)
    pairs = {
        "numbers of a row": (first, second),
        "copies": (first, drawn[1][:, 0]),
        "later copies": (drawn[1][:, 0], drawn[5][:, 0]),
        "neighboring rows": (table[:, 1:].ravel(), table[:, :-1].ravel()),
        "neighboring passes": (table[1:].ravel(), table[:-1].ravel()),
        "iterators": (table[: len(table) // 2].ravel(), table[len(table) // 2 :].ravel()),
    }
    for name, (one, other) in pairs.items():
        assert abs(np.corrcoef(one, other)[0, 1]) * np.sqrt(len(one)) < DEVIATIONS, name
        joint = np.bincount((one * 8).astype(np.int64) * 8 + (other * 8).astype(np.int64), minlength=64)
        assert abs(_excess(joint)) < DEVIATIONS, name


def test_generators_of_functions_draw_uniform_and_independent_numbers() -> None:
    passes, rows = _grid(20, 200)
    drawn = np.array([rng.random(2) for rng in generators((8, 7), _keys(passes, rows))])
    assert abs(_excess(np.bincount((drawn[:, 0] * CELLS).astype(np.int64), minlength=CELLS))) < DEVIATIONS
    for one, other in ((drawn[1:, 0], drawn[:-1, 0]), (drawn[:, 0], drawn[:, 1])):
        assert abs(np.corrcoef(one, other)[0, 1]) * np.sqrt(len(one)) < DEVIATIONS
    others = np.array([rng.random() for rng in generators((8, 8), _keys(passes, rows))])
    assert abs(np.corrcoef(drawn[:, 0], others)[0, 1]) * np.sqrt(len(others)) < DEVIATIONS


@pytest.mark.parametrize(
    "passes", [60, pytest.param(400, marks=pytest.mark.nightly)], ids=["few passes", "many passes"]
)
def test_every_order_comes_equally_often_in_the_passes_of_many_iterators(passes: int) -> None:
    spec = OrderSpec(seed=5, buffer_size=4)
    items_before = np.array([0, 1, 2, 3, 4])
    numbers = [pass_numbers(iterator, np.arange(passes), ENDLESS).tolist() for iterator in range(40)]
    orders = [
        [tuple(EpochOrder(items_before, spec, each).block_items(0, 0).tolist()) for each in some] for some in numbers
    ]
    counts = Counter(itertools.chain.from_iterable(orders))
    assert len(counts) == 24
    assert abs(_excess(np.array(list(counts.values())))) < DEVIATIONS
    following = [one == other for some in orders for one, other in itertools.pairwise(some)]
    across = [
        one == other for some, later in itertools.pairwise(orders) for one, other in zip(some, later, strict=True)
    ]
    shifted = [
        one == other for some, later in itertools.pairwise(orders) for one, other in zip(some[1:], later, strict=False)
    ]
    for same in (following, across, shifted):
        expected = len(same) / 24
        assert abs(sum(same) - expected) < DEVIATIONS * np.sqrt(expected)


MANY_PASSES = pytest.mark.parametrize(
    "passes", [3_000, pytest.param(60_000, marks=pytest.mark.nightly)], ids=["few passes", "many passes"]
)


@MANY_PASSES
def test_row_groups_come_in_every_order_equally_often(passes: int) -> None:
    spec = OrderSpec(seed=5, buffer_size=1)
    orders = [tuple(EpochOrder(np.arange(5) * 3, spec, each).stream(0).row_group.tolist()) for each in range(passes)]
    counts = Counter(orders)
    assert len(counts) == 24
    assert abs(_excess(np.array(list(counts.values())))) < DEVIATIONS
    same = sum(one == other for one, other in itertools.pairwise(orders))
    assert abs(same - passes / 24) < DEVIATIONS * np.sqrt(passes / 24)


@MANY_PASSES
def test_each_block_of_each_stream_has_an_order_of_its_own(passes: int) -> None:
    spec = OrderSpec(seed=5, buffer_size=3, streams=2)
    places = {order: number for number, order in enumerate(itertools.permutations(range(3)))}
    drawn = np.empty((passes, 2, 2), np.int64)
    for each in range(passes):
        order = EpochOrder(np.arange(5) * 3, spec, each)
        for stream, block in itertools.product(range(2), range(2)):
            permutation = order.block_permutation(stream, block, 3)
            assert permutation is not None
            drawn[each, stream, block] = places[tuple(permutation.tolist())]
    pairs = {
        "blocks of a stream": (drawn[:, :, 0], drawn[:, :, 1]),
        "streams": (drawn[:, 0], drawn[:, 1]),
        "neighboring passes": (drawn[1:], drawn[:-1]),
    }
    for name, (one, other) in pairs.items():
        assert abs(_excess(np.bincount((one * 6 + other).ravel(), minlength=36))) < DEVIATIONS, name
