"""Texts and byte strings that the core makes of runs of bytes are Python's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from parquetry.common.base.native.values import objects, objects_by_arrow
from parquetry.common.engine.columns.batch import Strings

pytestmark = pytest.mark.versions


def runs_of(values: list[bytes | None], before: bytes = b"") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    data = before + b"".join(value or b"" for value in values)
    offsets = np.cumsum([len(before), *(len(value or b"") for value in values)], dtype=np.int64)
    return offsets, np.frombuffer(data, np.uint8), np.array([value is not None for value in values], np.bool_)


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


@pytest.mark.parametrize("function", [objects, objects_by_arrow])
def test_bytes_that_are_not_utf_8_are_an_error(function: Callable[..., list[Any]]) -> None:
    offsets, data, valid = runs_of([b"a", b"\xff", None])
    with pytest.raises(UnicodeDecodeError, match="position 0"):
        function(offsets, data, valid, text=True)
    assert function(offsets, data, np.array([True, False, False]), text=True) == ["a", None, None]
    assert function(offsets, data, valid, text=False) == [b"a", b"\xff", None]


def test_nothing_is_kept() -> None:
    offsets, data, valid = runs_of([b"x" * 100, None] * 50)
    found = objects(offsets, data, valid, text=False)
    assert max(sys.getrefcount(found[number]) for number in range(0, 100, 2)) <= 2  # the list and the call
    before = sys.getrefcount(None)
    for _ in range(100):
        objects(offsets, data, valid, text=False)
    assert abs(sys.getrefcount(None) - before) < 100
