"""Rows taken as runs of bytes, compared with Arrow's own ``take``."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common import UnischemaField
from parquetry.common.engine.columns.arrow_take import runs_of, take_runs
from parquetry.common.engine.columns.batch import Ragged, Strings, take_column
from parquetry.common.engine.columns.list_column import ListColumn
from parquetry.common.engine.columns.protocols import DecodeContext
from parquetry.common.schema.codecs import ListCodec

pytestmark = pytest.mark.versions

TYPES = [pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.float16(), pa.float32(), pa.float64()]


@st.composite
def lists(draw: st.DrawFn) -> tuple[pa.Array, np.ndarray]:
    """Draws lists of numbers, sliced from longer ones and with nulls, and row numbers in any order."""
    arrow = draw(st.sampled_from(TYPES))
    cells = st.one_of(st.none(), st.lists(st.integers(0, 100), max_size=5))
    rows = draw(st.lists(cells, min_size=1, max_size=12))
    numbers = [None if row is None else [arrow.to_pandas_dtype()(number) for number in row] for row in rows]
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    other = [arrow.to_pandas_dtype()(7)]
    whole = pa.array([*[other] * before, *numbers, *[other] * after], pa.large_list(arrow))
    return whole.slice(before, len(rows)), np.array(
        draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)), np.int64
    )


@pytest.mark.slow
@examples(200)
@given(lists(), st.booleans())
def test_a_column_of_lists_is_gathered_alike_with_and_without_the_fast_path(
    case: tuple[pa.Array, np.ndarray], two_parts: bool
) -> None:
    array, rows = case
    field = UnischemaField("x", array.type.value_type.to_pandas_dtype(), (None,), ListCodec(), nullable=True)
    parts = [array.slice(0, len(array) // 2), array.slice(len(array) // 2)] if two_parts else [array]
    fast, plain = (ListColumn(field, parts, DecodeContext(describe=str)) for _ in range(2))
    assert fast._runs is not None
    plain._runs = None
    one, other = fast.gather(rows, None), plain.gather(rows, None)
    assert isinstance(one, Ragged)
    assert isinstance(other, Ragged)
    assert isinstance(one.values, np.ndarray)
    assert isinstance(other.values, np.ndarray)
    assert (one.lead, one.values.dtype) == (other.lead, other.values.dtype)
    np.testing.assert_array_equal(one.shapes, other.shapes)
    np.testing.assert_array_equal(one.values, other.values)
    assert (one.valid is None) == (other.valid is None)
    np.testing.assert_array_equal(one.valid, other.valid)
    one.values[:] = 0  # not shared memory
    np.testing.assert_array_equal(fast.gather(rows, None).values, other.values)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "array",
    [
        pa.array([["a"], []], pa.large_list(pa.large_string())),
        pa.array([[True], []], pa.large_list(pa.bool_())),
        pa.array([[1, None]], pa.large_list(pa.int32())),
        pa.array([[[1]]], pa.large_list(pa.large_list(pa.int32()))),
        pa.array([[1, 2]], pa.list_(pa.int32(), 2)),
        pa.array([], pa.large_list(pa.int32())),
    ],
    ids=lambda array: str(array.type),
)
def test_other_lists_are_left_to_arrow(array: pa.Array) -> None:
    assert runs_of(array) is None


@examples(100)
@given(st.lists(st.binary(max_size=6), min_size=1, max_size=10), st.data())
def test_runs_strings_and_ragged_rows_are_taken_by_number(items: list[bytes], data: st.DataObject) -> None:
    rows = np.array(data.draw(st.lists(st.integers(0, len(items) - 1), max_size=15)), np.int64)
    sizes = np.array([len(item) for item in items])
    offsets, raw = np.concatenate([[0], np.cumsum(sizes)]), np.frombuffer(b"".join(items), np.uint8)
    ends, taken = take_runs(offsets, raw, rows)
    assert [taken[lo:hi].tobytes() for lo, hi in itertools.pairwise(ends)] == [items[row] for row in rows]
    strings = take_column(Strings(offsets, raw, (len(items),)), rows, (len(rows),))
    assert isinstance(strings, Strings)
    assert strings.to_objects(text=False).tolist() == [items[row] for row in rows]
    numbers: Any = raw.astype(np.float32)
    ragged = take_column(Ragged(sizes[:, None], numbers, (len(items),)), rows, (len(rows),))
    assert isinstance(ragged, Ragged)
    assert isinstance(ragged.values, np.ndarray)
    assert ragged.values.dtype == np.float32
    assert ragged.values.tolist() == [number for row in rows for number in items[row]]
    assert ragged.shapes[:, 0].tolist() == [len(items[row]) for row in rows]
