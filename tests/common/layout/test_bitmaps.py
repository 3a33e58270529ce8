"""Roaring bitmaps: `layout.bitmaps` reads what was written."""

from __future__ import annotations

import delta_tables
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common.layout.bitmaps import decode_bitmap64

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
    np.testing.assert_array_equal(decode_bitmap64(data[4:]), np.array(numbers, np.int64))


@given(st.sets(st.integers(0, 300_000), max_size=200), st.booleans())
def test_any_numbers_come_back(numbers: set[int], runs: bool) -> None:
    found = decode_bitmap64(delta_tables.bitmap(numbers, runs)[4:])
    assert found.tolist() == sorted(numbers)


@pytest.mark.parametrize("numbers", CASES, ids=lambda numbers: str(len(numbers)))
def test_what_the_reference_library_writes_is_read(numbers: list[int]) -> None:
    pyroaring = pytest.importorskip("pyroaring")
    written = pyroaring.BitMap64(numbers)
    for optimized in (False, True):
        if optimized:
            written.run_optimize()
        np.testing.assert_array_equal(decode_bitmap64(written.serialize()), np.array(numbers, np.int64))


@pytest.mark.parametrize("cut", [1, 8, 12, 20])
def test_a_bitmap_that_is_cut_off_is_an_error(cut: int) -> None:
    data = delta_tables.bitmap([1, 2, 70000])[4:]
    with pytest.raises(ValueError, match="expected"):
        decode_bitmap64(data[:-cut])


def test_a_foreign_cookie_is_an_error() -> None:
    data = bytearray(delta_tables.bitmap([1])[4:])
    data[12] = 7
    with pytest.raises(ValueError, match="expected the cookie"):
        decode_bitmap64(bytes(data))
