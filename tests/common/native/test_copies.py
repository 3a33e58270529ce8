"""Large values copied around the cache arrive unchanged, and nothing beside them is written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.native.kernels import copy_value


@examples(100)
@given(
    size=st.integers(0, 5_000) | st.integers(60_000, 200_000),
    begin=st.integers(0, 130),
    source_begin=st.integers(0, 130),
    dtype=st.sampled_from(["u1", "<f4", ">i8", "?"]),
    rows=st.lists(st.integers(0, 4), max_size=5, unique=True),
)
def test_a_value_arrives_unchanged_and_only_where_it_belongs(
    size: int, begin: int, source_begin: int, dtype: str, rows: list[int]
) -> None:
    noise = np.random.default_rng(size)
    size -= size % np.dtype(dtype).itemsize
    source = noise.integers(0, 2 if dtype == "?" else 256, source_begin + size + 7, np.uint8)
    memory = np.full(begin + 5 * size + 150, 77, np.uint8)
    value = source[source_begin : source_begin + size].view(dtype)
    copy_value(value, memory[begin : begin + 5 * size].view(dtype).reshape(5, -1), rows)
    expected = np.full(len(memory), 77, np.uint8)
    for row in rows:
        place = begin + row * size
        expected[place : place + size] = source[source_begin : source_begin + size]
    np.testing.assert_array_equal(memory, expected)


def test_other_layouts_and_dtypes_are_converted_as_numpy_does() -> None:
    value = np.arange(90_000, dtype=np.int32).reshape(300, 300)
    for source, out in (
        (value.T, np.zeros((300, 300), np.int32)),
        (value, np.zeros((300, 300), np.int64)),
        (value, np.zeros((300, 600), np.int32)[:, ::2]),
        (value[:1], np.zeros((300, 300), np.int32)),
        (np.array(value, object), np.zeros((300, 300), object)),
    ):
        both = np.stack([out] * 3) if out.flags.c_contiguous else np.zeros((3, 300, 600), np.int32)[..., ::2]
        copy_value(source, both, [2, 0])
        np.testing.assert_array_equal(both[[0, 2]], np.broadcast_to(source, (2, *out.shape)))
        np.testing.assert_array_equal(both[1], out)


def test_memory_that_must_not_be_written_is_refused() -> None:
    out = np.zeros((1, 100_000), np.uint8)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        copy_value(np.ones(100_000, np.uint8), out, [0])
