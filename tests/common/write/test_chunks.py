"""Pieces of the caller's columns."""

from __future__ import annotations

import numpy as np

from parquetry.common.schema import Unischema, UnischemaField
from parquetry.common.write.chunks import WHOLE_CHUNK_ROWS, column_chunks

SCHEMA = Unischema("numbers", [UnischemaField("x", "int64"), UnischemaField("name", str)])


def test_a_list_that_fits_into_one_piece_is_not_copied() -> None:
    columns = {"x": list(range(WHOLE_CHUNK_ROWS)), "name": ["a"] * WHOLE_CHUNK_ROWS}
    (chunk,) = column_chunks(SCHEMA, columns, WHOLE_CHUNK_ROWS)
    assert chunk["x"] is columns["x"]
    assert chunk["name"] is columns["name"]


def test_pieces_hold_all_rows_in_order() -> None:
    count = 2 * WHOLE_CHUNK_ROWS + 5
    columns = {"x": np.arange(count), "name": [f"name {number}" for number in range(count)]}
    chunks = list(column_chunks(SCHEMA, columns, count))
    assert [len(chunk["x"]) for chunk in chunks] == [len(chunk["name"]) for chunk in chunks]
    assert max(len(chunk["x"]) for chunk in chunks) <= WHOLE_CHUNK_ROWS
    assert np.concatenate([chunk["x"] for chunk in chunks]).tolist() == list(range(count))
    assert [name for chunk in chunks for name in chunk["name"]] == columns["name"]
