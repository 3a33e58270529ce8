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
    size=st.integers(0, 5_000) | st.integers(60_000, 300_000),
    begin=st.integers(0, 130),
    source_begin=st.integers(0, 130),
    dtype=st.sampled_from(["u1", "<f4", ">i8", "?"]),
)
def test_a_value_arrives_unchanged_and_alone(size: int, begin: int, source_begin: int, dtype: str) -> None:
    noise = np.random.default_rng(size)
    size -= size % np.dtype(dtype).itemsize
    source = noise.integers(0, 2 if dtype == "?" else 256, source_begin + size + 7, np.uint8)
    memory = np.full(begin + size + 150, 77, np.uint8)
    value = source[source_begin : source_begin + size].view(dtype)
    copy_value(value, memory[begin : begin + size].view(dtype))
    np.testing.assert_array_equal(memory[begin : begin + size], source[source_begin : source_begin + size])
    assert (memory[:begin] == 77).all()
    assert (memory[begin + size :] == 77).all()


def test_other_layouts_and_dtypes_are_converted_as_numpy_does() -> None:
    value = np.arange(90_000, dtype=np.int32).reshape(300, 300)
    for source, out in (
        (value.T, np.zeros((300, 300), np.int32)),
        (value, np.zeros((300, 300), np.int64)),
        (value, np.zeros((300, 600), np.int32)[:, ::2]),
        (value[:1], np.zeros((300, 300), np.int32)),
        (np.array(value, object), np.zeros((300, 300), object)),
    ):
        copy_value(source, out)
        np.testing.assert_array_equal(out, np.broadcast_to(source, out.shape))


def test_memory_that_must_not_be_written_is_refused() -> None:
    out = np.zeros(100_000, np.uint8)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        copy_value(np.ones(100_000, np.uint8), out)
