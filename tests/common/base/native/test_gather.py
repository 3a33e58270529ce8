"""Rows by number: neither the compiled core nor numpy accepts a number that is out of range."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from parquetry.common.base.native import gather

pytestmark = pytest.mark.versions

BOTH = pytest.mark.parametrize("copy_rows", [gather.gather, gather.gather_by_numpy])


def test_targets_may_be_parts_of_wider_arrays() -> None:
    wide = np.zeros((4, 6), np.int32)
    gather.gather([np.arange(20, dtype=np.int32).reshape(10, 2)], np.array([9, 0, 9, 3]), [wide[:, 1:3]])
    assert wide.tolist() == [[0, 18, 19, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 18, 19, 0, 0, 0], [0, 6, 7, 0, 0, 0]]


@pytest.mark.parametrize("rows", [[0, 5], [-1], [0, 2**40], [2**32], [-(2**63)]])
@pytest.mark.parametrize("count", [1, 8])
@BOTH
def test_rows_out_of_range_write_nothing(rows: list[int], count: int, copy_rows: Callable[..., None]) -> None:
    targets = [np.zeros(len(rows)) for _ in range(count)]
    with pytest.raises(IndexError, match=rf"expected row numbers from 0 up to 5, got {rows[-1]}\."):
        copy_rows([np.ones(5)] * count, np.array(rows), targets)
    with pytest.raises(IndexError, match="expected row numbers from 0 up to"):
        copy_rows([np.ones(5)] * count, np.zeros(len(rows), np.int64), targets, np.array(rows))
    assert not np.any(targets)


@BOTH
def test_columns_of_other_lengths_are_an_error(copy_rows: Callable[..., None]) -> None:
    sources, rows = [np.arange(5), np.arange(3)], np.array([4])
    with pytest.raises(IndexError, match=r"expected columns of one length, got \[3, 5\]"):
        copy_rows(sources, rows, [np.zeros(1, int), np.zeros(1, int)])


def test_targets_that_are_too_short_are_an_error() -> None:
    with pytest.raises(IndexError, match=r"expected targets of 3 rows, got 2\."):
        gather.gather([np.ones(5)], np.array([0, 1, 2]), [np.zeros(2)])


@pytest.mark.parametrize(
    ("offsets", "row", "message"),
    [
        ([0, 2, 4], 2, "expected row numbers from 0 up to 2, got 2"),
        ([0, 2, 4], -1, "expected row numbers from 0 up to 2, got -1"),
        ([0], 0, "expected row numbers from 0 up to 0, got 0"),
        ([0, 5], 0, "expected run 0 in 4 bytes, got 0 to 5"),
        ([3, 1], 0, "expected run 0 in 4 bytes, got 3 to 1"),
        ([-1, 1], 0, "expected run 0 in 4 bytes, got -1 to 1"),
    ],
)
def test_runs_out_of_range_are_errors(offsets: list[int], row: int, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        gather.gather_runs(np.array(offsets), np.zeros(4, np.uint8), np.array([row]))


@pytest.mark.parametrize(
    ("begin", "count", "place"),
    [(-1, 1, 0), (3, 2, 0), (0, -1, 0), (0, 1, -1), (0, 2, 1), (0, 1 << 62, 0), ((1 << 63) - 1, 1, 0), (5, 0, 0)],
)
def test_pieces_out_of_range_are_errors_and_copy_nothing(begin: int, count: int, place: int) -> None:
    pieces = [np.array([0, each]) for each in (begin, count, place)]
    pieces[1][0] = 1
    for copy in (gather.copy_pieces, gather.copy_pieces_by_numpy):
        out = np.zeros(2)
        with pytest.raises(IndexError, match=f"expected piece 1 in 4 values and 2 places, got {count} values"):
            copy(np.ones(4), *pieces[:2], out, pieces[2])
        assert not out.any()


@pytest.mark.parametrize("ends", [[0, 3], [0, -1], [2, 1], [3, 5], [-1, 1]])
def test_runs_that_do_not_fit_a_row_are_errors(ends: list[int]) -> None:
    for pad in (gather.pad_runs, gather.pad_runs_by_numpy):
        with pytest.raises(
            IndexError, match=rf"expected run 0 in 4 items and at most 2 long, got {ends[0]} to {ends[1]}"
        ):
            pad(np.array(ends), np.zeros(4), 0, [np.zeros((1, 2))])
        with pytest.raises(IndexError, match="expected a row for each of 1 runs, got 2"):
            pad(np.array(ends), np.zeros(4), 0, [np.zeros((2, 2))])
