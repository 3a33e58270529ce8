"""Readers that are tried in order: each field is read once, by the first reader that can, within the room left."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pytest

from parquetry.common.engine.read.column_reader import (
    NOTHING,
    ColumnReader,
    ReaderChain,
    ReadRequest,
    ReadResult,
    some_rows,
)


class Fixed:
    """A reader of some fields, which notes what it is asked for."""

    def __init__(self, values: Mapping[str, int], num_bytes: int = 0, unread_bytes: int = 0) -> None:
        self.requests: list[ReadRequest] = []
        self._values = values
        self._sizes = num_bytes, unread_bytes

    def read(self, request: ReadRequest) -> ReadResult:
        self.requests.append(request)
        values = {name: np.array([each]) for name, each in self._values.items() if name not in request.done}
        return ReadResult(values, self._sizes[0], unread_bytes=self._sizes[1]) if values else NOTHING


def test_the_first_reader_that_can_reads_a_field() -> None:
    readers: list[ColumnReader] = [Fixed({}), Fixed({"a": 1}), Fixed({"a": 2, "b": 2}), Fixed({"b": 3, "c": 3})]
    columns = ReaderChain(readers, 3).read(ReadRequest(row_group=0))
    assert {name: values.tolist() for name, values in columns.values.items()} == {"a": [1], "b": [2], "c": [3]}


def test_what_a_reader_took_is_not_left_to_the_next_one() -> None:
    first, second, third = Fixed({"a": 1}, 30, 5), Fixed({"b": 2}, 20, 7), Fixed({"c": 3})
    columns = ReaderChain([first, second, third], 3).read(ReadRequest(row_group=4, room_bytes=100))
    assert [each.requests[0].room_bytes for each in (first, second, third)] == [100, 70, 50]
    assert (columns.num_bytes, columns.unread_bytes) == (50, 12)


def test_no_reader_is_tried_once_all_fields_are_read() -> None:
    last = Fixed({"b": 2})
    ReaderChain([Fixed({"a": 1, "b": 1}), last], 2).read(ReadRequest(row_group=0))
    assert not last.requests


@pytest.mark.parametrize("rows", [None, [], [2], [1, 2, 3], [0, 2, 4]])
def test_rows_are_the_same_from_any_kind_of_values(rows: list[int] | None) -> None:
    values = np.arange(10, 15)
    numbers = None if rows is None else np.array(rows, np.int64)
    expected = values.tolist() if rows is None else values[rows].tolist() if rows else []
    array = pa.array(values)
    assert some_rows(values, numbers).tolist() == expected
    assert some_rows(array, numbers).to_pylist() == expected
    assert some_rows(pa.chunked_array([array[:2], array[2:]]), numbers).to_pylist() == expected
    assert some_rows(pa.table({"x": array}), numbers)["x"].to_pylist() == expected
