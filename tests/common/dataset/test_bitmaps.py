"""Roaring bitmaps: `dataset.bitmaps` reads what was written."""

from __future__ import annotations

import struct
import tracemalloc

import delta_tables
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common.dataset.bitmaps import decode_bitmap64

# Arrays, bitmaps (over 4096 numbers), several containers, and numbers beyond 32 bits.
CASES = [
    [],
    [0],
    [65535, 65536],
    list(range(5000)),
    list(range(0, 20000, 2)),
    [*range(70000), 200000],
    [n << 16 for n in range(6)],
    [3, (1 << 32) + 4, (5 << 32) + 70000],
]


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("numbers", CASES, ids=lambda numbers: str(len(numbers)))
def test_every_kind_of_container_is_read(numbers: list[int], runs: bool) -> None:
    data = delta_tables.bitmap(numbers, runs)
    np.testing.assert_array_equal(decode_bitmap64(data[4:], len(numbers)), np.array(numbers, np.int64))


@given(st.sets(st.integers(0, 300_000), max_size=200), st.booleans())
def test_any_numbers_come_back(numbers: set[int], runs: bool) -> None:
    found = decode_bitmap64(delta_tables.bitmap(numbers, runs)[4:], len(numbers))
    assert found.tolist() == sorted(numbers)


@pytest.mark.parametrize("numbers", CASES, ids=lambda numbers: str(len(numbers)))
def test_files_of_the_reference_library_are_read(numbers: list[int]) -> None:
    pyroaring = pytest.importorskip("pyroaring")
    written = pyroaring.BitMap64(numbers)
    for optimized in (False, True):
        if optimized:
            written.run_optimize()
        np.testing.assert_array_equal(decode_bitmap64(written.serialize(), len(numbers)), np.array(numbers, np.int64))


@pytest.mark.parametrize("cut", [1, 8, 12, 20])
def test_a_bitmap_that_is_cut_off_is_an_error(cut: int) -> None:
    data = delta_tables.bitmap([1, 2, 70000])[4:]
    with pytest.raises(ValueError, match="expected"):
        decode_bitmap64(data[:-cut], 3)


def test_a_foreign_cookie_is_an_error() -> None:
    data = bytearray(delta_tables.bitmap([1])[4:])
    data[12] = 7
    with pytest.raises(ValueError, match="expected the cookie"):
        decode_bitmap64(bytes(data), 1)


@pytest.mark.parametrize("numbers", CASES[1:], ids=lambda numbers: str(len(numbers)))
def test_more_numbers_than_expected_are_an_error(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="more rows than it should hold"):
        decode_bitmap64(delta_tables.bitmap(numbers)[4:], len(numbers) - 1)


def test_runs_that_claim_billions_of_numbers_take_no_memory() -> None:
    runs = np.tile(np.array([0, 65535], "<u2"), 65535).tobytes()
    data = struct.pack("<QIIBHHH", 1, 0, 12347, 1, 0, 65535, 65535) + runs
    tracemalloc.start()
    with pytest.raises(ValueError, match="expected a container of 65536 numbers, got 42949"):
        decode_bitmap64(data, 1 << 40)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()
