"""Texts and byte strings that the core makes of runs of bytes are Python's own."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.engine.columns.batch import Strings
from parquetry.common.native.objects import objects

pytestmark = pytest.mark.versions

RUNS = st.lists(st.none() | st.text(max_size=9), max_size=30)


def runs_of(values: list[bytes | None], before: bytes = b"") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    data = before + b"".join(value or b"" for value in values)
    offsets = np.cumsum([len(before), *(len(value or b"") for value in values)], dtype=np.int64)
    return offsets, np.frombuffer(data, np.uint8), np.array([value is not None for value in values], np.bool_)


@examples(200)
@given(values=RUNS, before=st.binary(max_size=3))
def test_every_value_is_there(values: list[str | None], before: bytes) -> None:
    stored = [None if value is None else value.encode() for value in values]
    offsets, data, valid = runs_of(stored, before)
    assert objects(offsets, data, valid, text=True) == values
    assert objects(offsets, data, valid, text=False) == stored
    assert objects(offsets, data, None, text=True) == [value or "" for value in values]


@examples(100)
@given(values=RUNS, text=st.booleans())
def test_columns_give_the_same_without_the_core(values: list[str | None], text: bool) -> None:
    offsets, data, valid = runs_of([None if value is None else value.encode() for value in values])
    column = Strings(offsets, data, (len(values),), valid)
    found = column.to_list(text=text), column.to_objects(text=text).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("parquetry.common.engine.columns.batch.objects", lambda *_, **__: None)
        assert found == (column.to_list(text=text), column.to_objects(text=text).tolist())
    assert found[0] == found[1] == [value if text or value is None else value.encode() for value in values]


@pytest.mark.parametrize("shape", [(2, 3), (3, 2, 1), (6,)])
@pytest.mark.parametrize("with_nulls", [False, True])
def test_nulls_of_rows_with_several_values_are_none_in_all_of_them(shape: tuple[int, ...], with_nulls: bool) -> None:
    offsets, data, _ = runs_of([b"%d" % number for number in range(6)])
    valid = np.arange(shape[0]) != 1 if with_nulls else None
    found = Strings(offsets, data, shape, valid)
    wanted = np.array([str(number) for number in range(6)], object).reshape(shape)
    if valid is not None:
        wanted[~valid] = None
    assert found.to_objects(text=True).tolist() == found.to_list(text=True) == wanted.tolist()


def test_bytes_that_are_not_utf_8_are_an_error() -> None:
    offsets, data, valid = runs_of([b"a", b"\xff", None])
    with pytest.raises(UnicodeDecodeError, match="position 0"):
        objects(offsets, data, valid, text=True)
    assert objects(offsets, data, valid, text=False) == [b"a", b"\xff", None]


def test_nothing_is_kept() -> None:
    offsets, data, valid = runs_of([b"x" * 100, None] * 50)
    found = objects(offsets, data, valid, text=False)
    assert found is not None
    assert max(sys.getrefcount(found[number]) for number in range(0, 100, 2)) <= 2  # the list and the call
    before = sys.getrefcount(None)
    for _ in range(100):
        objects(offsets, data, valid, text=False)
    assert abs(sys.getrefcount(None) - before) < 100


def test_without_the_core_there_are_none(by_numpy: None) -> None:
    assert objects(np.zeros(1, np.int64), np.zeros(0, np.uint8), None, text=True) is None
