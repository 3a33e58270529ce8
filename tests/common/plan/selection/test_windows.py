"""Timestamps are compared and subtracted exactly, whatever their type."""

from __future__ import annotations

import itertools
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError, PipelineError
from parquetry.common.plan.selection.windows import stamps_of

pytestmark = pytest.mark.versions

EXTREMES = [0, 1, -1, 2, 2**63 - 1, -(2**63), 2**53, 2**53 + 1, -(2**53) - 1]
UNSIGNED = [0, 1, 2**63, 2**64 - 1, 2**53 + 1]
DIGITS = [0, 1, -1, 10**18, 10**37, -(10**37), 2**64, 2**64 - 1, 2**63, 10**38 - 1, -(10**38) + 1]
HUGE = [*DIGITS, 10**75, -(10**75), 10**76 - 1, -(10**76) + 1, 2**128, 2**192 + 1]


def decimals(numbers: list[int], kind: pa.DataType) -> pa.Array:
    """Returns decimals of these digits; Arrow accepts no more than it has room for."""
    with localcontext() as context:
        context.prec = 100
        return pa.array([Decimal(number).scaleb(-kind.scale) for number in numbers], kind)


def columns() -> st.SearchStrategy[tuple[pa.ChunkedArray, list[Fraction]]]:
    """Returns a column in several chunks, and its values."""

    def drawn(values: list[int], kind: pa.DataType) -> st.SearchStrategy[tuple[pa.ChunkedArray, list[Fraction]]]:
        scale = kind.scale if pa.types.is_decimal(kind) else 0

        def made(chosen: list[int]) -> tuple[pa.ChunkedArray, list[Fraction]]:
            array = decimals(chosen, kind) if scale or pa.types.is_decimal(kind) else pa.array(chosen, kind)
            half = len(array) // 2
            chunks = pa.chunked_array([array[:half], array[half:]])
            return chunks, [Fraction(number, 10**scale) for number in chosen]

        return st.lists(st.sampled_from(values), min_size=2, max_size=6).map(made)

    return st.one_of(
        drawn(EXTREMES, pa.int64()),
        drawn(UNSIGNED, pa.uint64()),
        drawn([-128, 127, 0], pa.int8()),
        drawn(DIGITS, pa.decimal128(38, 18)),
        drawn(DIGITS, pa.decimal128(38, 0)),
        drawn(HUGE, pa.decimal256(76, 9)),
    )


@examples(150)
@given(columns(), st.sampled_from([0, 1, 2, 0.1, 0.7, 1e-9, 2**63, 2**64 - 1, 10.0**20, 10**30, 1e70, float("inf")]))
def test_order_and_gaps_equal_those_of_fractions(drawn: tuple[pa.ChunkedArray, list[Fraction]], max_gap: float) -> None:
    column, values = drawn
    stamps = stamps_of(column, "t")
    pairs = list(itertools.pairwise(values))
    assert stamps.ascends.tolist() == [earlier <= later for earlier, later in pairs]
    assert stamps.descends.tolist() == [earlier >= later for earlier, later in pairs]
    assert np.diff(stamps.ranks).tolist() == [int(earlier < later) for earlier, later in pairs]
    limit = None if max_gap == float("inf") else Fraction(str(max_gap))
    wide = [limit is not None and later - earlier > limit for earlier, later in pairs]
    assert stamps.gap_too_wide(max_gap).tolist() == wide
    assert [Fraction(stamps.text(row)) for row in range(len(values))] == values


def test_floats_keep_their_own_arithmetic() -> None:
    stamps = stamps_of(pa.chunked_array([[0.0, 0.5, float("inf"), float("inf"), float("nan")]]), "t")
    assert stamps.ascends.tolist() == [True, True, True, False]
    assert stamps.gap_too_wide(0.5).tolist() == [False, True, False, False]
    assert stamps.text(1) == "0.5"


def test_a_column_of_text_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"timestamp='t' to be a number or a time, got string"):
        stamps_of(pa.chunked_array([["a"]]), "t")


def windows(tmp_path: Path, column: pa.Array, **options: Any) -> list[int]:
    pq.write_table(pa.table({"id": range(len(column)), "t": column}), tmp_path / "a.parquet")
    made = Pipeline(str(tmp_path)).ngram({0: ["id"], 1: ["id"]}, timestamp="t", **options)
    return [int(row[0]["id"]) for row in made]


def test_no_window_is_lost_to_rounding(tmp_path: Path) -> None:
    seconds = ["1700000000.0", "1700000000.1", "1700000000.2", "1700000000.300000001"]
    column = pa.array(map(Decimal, seconds), pa.decimal128(38, 18))
    assert windows(tmp_path, column, max_gap=0.1) == [0, 1]


def test_rows_of_one_time_stamp_stay_with_their_window(tmp_path: Path) -> None:
    column = pa.array(map(Decimal, ["1e-18", "2e-18", "2e-18", "3e-18", "4e-18"]), pa.decimal128(38, 18))
    assert windows(tmp_path, column, overlap=False) == [0, 3]


def test_a_time_stamp_that_decreases_by_the_last_digit_is_found(tmp_path: Path) -> None:
    column = pa.array(map(Decimal, ["1700000000.000000002", "1700000000.000000001"]), pa.decimal128(38, 9))
    with pytest.raises(DatasetError, match=r"row 1: .* got 1700000000\.000000001 after 1700000000\.000000002"):
        windows(tmp_path, column)


def test_a_time_difference_in_a_coarser_unit_does_not_overflow(tmp_path: Path) -> None:
    column = pa.array([0, 1, 2**62], pa.timestamp("ns"))
    assert windows(tmp_path, column, max_gap=np.timedelta64(10**6, "D")) == [0, 1]
    assert windows(tmp_path, column, max_gap=np.timedelta64(1, "ns")) == [0]
