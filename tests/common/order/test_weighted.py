"""Systematic sampling in exact integers, compared with the definition in fractions."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common.order.weighted import WeightedDraws, weight_bounds

pytestmark = pytest.mark.versions

whole = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=40).filter(any)
fractions = st.lists(st.floats(0, 1e300, allow_subnormal=True), min_size=1, max_size=40).filter(any)


def drawn(weights: np.ndarray, count: int, epoch: int = 0) -> np.ndarray:
    return WeightedDraws(weight_bounds(weights), count, 5, epoch).rows(np.arange(count))


@given(whole, st.integers(1, 300), st.integers(0, 5))
def test_each_row_comes_as_often_as_its_share_says_rounded_down_or_up(
    weights: list[int], count: int, epoch: int
) -> None:
    found = drawn(np.array(weights), count, epoch)
    assert (np.diff(found) >= 0).all()
    times = Counter(found.tolist())
    for row, weight in enumerate(weights):
        share = Fraction(weight * count, sum(weights))
        assert times[row] in (math.floor(share), math.ceil(share))


@given(fractions, st.integers(1, 300))
def test_weights_of_any_size_draw_exactly_as_many_items(weights: list[float], count: int) -> None:
    found = drawn(np.array(weights), count)
    assert len(found) == count
    assert {0.0}.isdisjoint(weights[row] for row in found.tolist())


@given(st.integers(1, 1000), st.floats(1e-300, 1e300), st.integers(0, 9))
def test_equal_weights_give_each_row_once(rows: int, weight: float, epoch: int) -> None:
    assert drawn(np.full(rows, weight), rows, epoch).tolist() == list(range(rows))


@given(whole, st.integers(1, 300))
def test_the_items_before_a_row_are_those_drawn_from_the_rows_before(weights: list[int], count: int) -> None:
    draws = WeightedDraws(weight_bounds(np.array(weights)), count, 1, 2)
    rows = np.arange(len(weights) + 1)
    assert draws.items_before(rows).tolist() == np.searchsorted(draws.rows(np.arange(count)), rows).tolist()


def test_starts_differ_by_seed_and_epoch_and_every_row_comes_as_often_as_it_should() -> None:
    weights = np.array([1.0, 2.0, 4.0, 3.0])
    times = sum(np.bincount(drawn(weights, 3, epoch), minlength=4) for epoch in range(4000)) / 4000
    assert np.allclose(times, 3 * weights / 10, atol=0.03)


def test_as_many_items_as_fit_into_the_numbers_are_exact() -> None:
    count = (1 << 31) - 1
    bounds = weight_bounds(np.array([0.1, 0.7, 0.2]))
    draws = WeightedDraws(bounds, count, 1, 1)
    before = draws.items_before(np.arange(4)).tolist()
    shares = [Fraction(count * int(bound), int(bounds[-1])) for bound in bounds.tolist()]
    assert all(abs(found - share) < 1 for found, share in zip(before, shares, strict=True))
    edges = np.array([before[1] - 1, before[1], before[2] - 1, before[2], count - 1])
    assert draws.rows(edges).tolist() == [0, 1, 1, 2, 2]
