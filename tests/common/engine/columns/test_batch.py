"""Columns are joined along their first axis, in memory that later columns may use once they are gone."""

from __future__ import annotations

import numpy as np
import pytest

from parquetry.common.engine.columns.batch import Ragged, Strings, concat_columns

LARGE = 1 << 18  # from here on, memory is reused


def lists(values: np.ndarray) -> Ragged:
    return Ragged(np.array([[len(values)]]), values, (1,))


def joined(*values: np.ndarray) -> np.ndarray:
    column = concat_columns([*map(lists, values)])
    assert isinstance(column, Ragged)
    assert isinstance(column.values, np.ndarray)
    assert column.shapes[:, 0].tolist() == [*map(len, values)]
    return column.values


@pytest.mark.parametrize("count", [0, 1, LARGE])
@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, "datetime64[us]", "S3"])
def test_values_of_one_dtype_are_joined(dtype: object, count: int) -> None:
    parts = [
        np.arange(first, first + count).astype("S3" if dtype == "S3" else np.int64).astype(dtype) for first in (0, 7)
    ]
    assert joined(*parts).dtype == parts[0].dtype
    np.testing.assert_array_equal(joined(*parts), np.concatenate(parts))


def test_values_of_several_dtypes_become_the_wider_one() -> None:
    values = joined(np.array([1], np.int32), np.array([1 << 40], np.int64))
    assert (values.dtype, values.tolist()) == (np.int64, [1, 1 << 40])


def test_objects_are_joined() -> None:
    assert joined(np.array([None], object), np.array(["text"], object)).tolist() == [None, "text"]


def test_joined_values_stay_while_others_are_joined() -> None:
    kept = [joined(np.full(LARGE, number), np.full(LARGE, -number)) for number in range(5)]
    for number, values in enumerate(kept):
        assert (set(values[:LARGE].tolist()), set(values[LARGE:].tolist())) == ({number}, {-number})


def test_large_values_take_the_memory_of_values_that_are_gone() -> None:
    others, places = [], set()
    for number in range(5):
        places.add(joined(np.full(LARGE, number), np.full(LARGE, number)).ctypes.data)
        others.append(np.full(2 * LARGE, number))  # takes what the allocator has free
    assert len(places) == 1


def test_texts_are_joined() -> None:
    parts = [Strings(np.array([0, 1, size]), np.full(size, ord("a"), np.uint8), (2,)) for size in (3, LARGE)]
    column = concat_columns(parts)
    assert isinstance(column, Strings)
    assert (column.offsets.tolist(), column.shape) == ([0, 1, 3, 4, 3 + LARGE], (4,))
    assert column.data.tobytes() == b"a" * (3 + LARGE)
