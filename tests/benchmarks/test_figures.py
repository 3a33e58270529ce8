"""Medians, ranges, and ratios of measured pairs."""

from __future__ import annotations

import pytest

from benchmarks.figures import Pair, Spread, speed_up, summary


def test_a_spread_is_the_median_and_the_range() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 10.0]) == Spread(median=2.5, low=1.0, high=10.0)
    assert Spread.of([]) is None


def test_ratios_are_taken_pair_by_pair() -> None:
    # The machine was half as fast in the second round: the ratio of medians would hide that both were.
    figures = summary([Pair(rate=90, limit=100), Pair(rate=45, limit=50), Pair(rate=80, limit=100)])
    assert figures is not None
    assert figures.rate == Spread(median=80, low=45, high=90)
    assert figures.ratio == Spread(median=0.9, low=0.8, high=0.9)


def test_costs_are_per_row_and_memory_is_the_largest() -> None:
    figures = summary(
        [
            Pair(rate=1, rows=500, cpu_s=1.0, read_bytes=1_000, memory_bytes=5),
            Pair(rate=1, rows=1_000, cpu_s=4.0, read_bytes=4_000, memory_bytes=9),
            Pair(rate=1, rows=1_000, cpu_s=3.0, read_bytes=3_000, memory_bytes=7),
        ]
    )
    assert figures is not None
    assert figures.cpu_s_per_1000 == pytest.approx(3.0)
    assert figures.read_bytes_per_row == pytest.approx(3.0)
    assert figures.memory_bytes == 9


def test_without_a_limit_there_are_rates_and_no_ratio() -> None:
    figures = summary([Pair(rate=90)])
    assert figures is not None
    assert figures.rate.median == 90
    assert figures.ratio is None
    assert figures.cpu_s_per_1000 is None


def test_nothing_measured_gives_nothing() -> None:
    assert summary([]) is None
    assert speed_up([]) == []


def test_speed_up_counts_from_the_fewest_cores() -> None:
    assert speed_up([(4, 700.0), (1, 200.0)]) == [(1, 1.0, 1.0), (4, 3.5, 0.875)]
