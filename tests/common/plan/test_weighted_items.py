"""Systematic sampling in exact integers, compared with the definition in fractions."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from parquetry.common.plan import weighted_items
from parquetry.common.plan.weighted_items import WeightedDraws, WeightedRows, whole_weights

pytestmark = pytest.mark.versions

whole = st.lists(st.integers(0, 1 << 40), min_size=1, max_size=40).filter(any)
fractions = st.lists(st.floats(0, 1e300, allow_subnormal=True), min_size=1, max_size=40).filter(any)


@pytest.fixture(autouse=True)
def _small_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weighted_items, "_SECTION_ITEMS", 3)


def draws_of(
    weights: np.ndarray, count: int, epoch: int = 0, *, classes: np.ndarray | None = None, group_rows: int = 2
) -> WeightedDraws:
    rows = len(weights) if classes is None else len(classes)
    before = np.append(np.arange(0, rows, group_rows), rows)
    return WeightedDraws(WeightedRows(before, weights, classes, count), 5, epoch)


def drawn(weights: np.ndarray, count: int, epoch: int = 0, **options: Any) -> np.ndarray:
    return draws_of(weights, count, epoch, **options).rows_of(np.arange(count))[0]


@given(whole, st.integers(1, 300), st.integers(0, 5), st.integers(1, 4))
def test_each_row_comes_as_often_as_its_share_says_rounded_down_or_up(
    weights: list[int], count: int, epoch: int, group_rows: int
) -> None:
    found = drawn(np.array(weights), count, epoch, group_rows=group_rows)
    assert (np.diff(found) >= 0).all()
    times = Counter(found.tolist())
    for row, weight in enumerate(weights):
        share = Fraction(weight * count, sum(weights))
        assert times[row] in (math.floor(share), math.ceil(share))


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60), st.lists(st.integers(0, 9), min_size=4, max_size=4), st.data()
)
def test_each_class_comes_as_often_as_its_share_says_and_so_do_its_rows(
    classes: list[int], weights: list[int], data: st.DataObject
) -> None:
    counts = Counter(classes)
    total = sum(weights[each] * number for each, number in counts.items())
    assume(total)
    count, group_rows = data.draw(st.integers(1, 200), "items"), data.draw(st.integers(1, 5), "rows of a group")
    found = drawn(np.array(weights), count, classes=np.array(classes), group_rows=group_rows)
    times = np.bincount(found, minlength=len(classes))
    for each, number in counts.items():
        share = Fraction(weights[each] * count, total)
        of_rows = times[np.array(classes) == each]
        assert of_rows.sum() in (math.floor(share * number), math.ceil(share * number))
        assert {math.floor(share), math.ceil(share)} >= set(of_rows.tolist())


@given(fractions, st.integers(1, 300))
def test_weights_of_any_size_draw_exactly_as_many_items(weights: list[float], count: int) -> None:
    found = drawn(np.array(weights), count)
    assert len(found) == count
    assert {0.0}.isdisjoint(weights[row] for row in found.tolist())


def test_the_weight_of_a_class_without_rows_changes_nothing() -> None:
    weights, classes = np.array([1e-300, 1e300, 3e-300]), np.array([0, 2, 0, 2])
    assert Counter(classes[drawn(weights, 8, classes=classes)].tolist()) == {0: 2, 2: 6}


def test_weights_whose_sum_is_no_number_draw_as_others_do() -> None:
    assert Counter(drawn(np.full(4, 1.7e308), 8).tolist()) == dict.fromkeys(range(4), 2)


@given(st.integers(1, 1000), st.floats(1e-300, 1e300), st.integers(0, 9))
def test_equal_weights_give_each_row_once(rows: int, weight: float, epoch: int) -> None:
    assert drawn(np.full(rows, weight), rows, epoch).tolist() == list(range(rows))


@given(whole, st.integers(1, 300), st.integers(1, 4))
def test_the_items_before_a_row_group_are_those_drawn_from_the_rows_before(
    weights: list[int], count: int, group_rows: int
) -> None:
    draws = draws_of(np.array(weights), count, group_rows=group_rows)
    before = [*range(0, len(weights), group_rows), len(weights)]
    rows, repeats = draws.rows_of(np.arange(count))
    assert draws.items_before.tolist() == np.searchsorted(rows, before).tolist()
    assert repeats.tolist() == [rows[:item].tolist().count(row) for item, row in enumerate(rows.tolist())]
    some = np.random.default_rng(0).permutation(count)[:20]  # in any order, as a shuffle needs them
    assert draws.rows_of(some)[0].tolist() == rows[some].tolist()


def test_sections_are_whole_row_groups_and_none_is_a_remnant() -> None:
    rows = WeightedRows(np.arange(0, 21, 2), np.ones(20), None, 20)
    assert rows.sections.tolist() == [0, 2, 4, 6, 8, 10]
    assert WeightedRows(np.arange(0, 19, 2), np.ones(18), None, 18).sections.tolist() == [0, 2, 5, 7, 9]
    assert WeightedRows(np.arange(0, 19, 2), np.ones(18), None, 2).sections.tolist() == [0, 9]  # two items are too few


def test_a_section_of_one_row_group_is_not_drawn_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    before = np.repeat(np.arange(0, 1001, 50), 2)  # every other row group is empty
    draws = WeightedDraws(WeightedRows(before, np.random.default_rng(0).random(1000), None, 500), 5, 0)
    permuted: list[int] = []

    def permutation(count: int, *key: int) -> np.ndarray:
        permuted.append(count)
        return np.arange(count)

    monkeypatch.setattr(weighted_items, "permutation", permutation)
    items = draws.items_before
    assert permuted == []
    assert (items[::2] == items[1::2]).all()
    draws.rows_of(np.arange(items[5], items[6]))
    assert permuted == [50]


def test_starts_differ_by_seed_and_epoch_and_every_row_comes_as_often_as_it_should() -> None:
    weights = np.array([1.0, 2.0, 4.0, 3.0])
    times = sum(np.bincount(drawn(weights, 3, epoch), minlength=4) for epoch in range(4000)) / 4000
    assert np.allclose(times, 3 * weights / 10, atol=0.03)


def test_as_many_items_as_fit_into_the_numbers_are_exact() -> None:
    count = (1 << 31) - 1
    weights = np.array([0.1, 0.7, 0.2])
    draws = draws_of(weights, count, 1, group_rows=1)
    before = draws.items_before.tolist()
    whole = whole_weights(weights).tolist()
    shares = [Fraction(count * sum(whole[:row]), sum(whole)) for row in range(4)]
    assert all(abs(found - share) < 2 for found, share in zip(before, shares, strict=True))
    edges = np.array([before[1] - 1, before[1], before[2] - 1, before[2], count - 1])
    assert draws.rows_of(edges)[0].tolist() == [0, 1, 1, 2, 2]
