"""The compiled core passes no footer that Python refuses."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.base.native import parquet
from parquetry.common.parquet.footer_check import check_slowly

TABLE = pa.table(
    {
        "id": [1, 2, 3],
        "text": ["x", "y", None],
        "list": pa.array([[1.0], [2.0, 3.0], []]),
        "d\u00e9t\U0001f600il": ["a", "b", "c"],
        "inside": pa.array([{"x": 1, "y": [{"z": "a"}]}] * 3),
        "fixed": pa.array([b"ab", b"cd", b"ef"], pa.binary(2)),
        "digits": pa.array([1, 2, 3], pa.decimal128(25, 2)),
        "half": pa.array(np.array([1, 2, 3], np.float16)),
        "map": pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
    }
)


def stored(table: pa.Table, rows: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=rows, store_schema=False)
    return sink.getvalue()


def footer_of(content: bytes) -> bytes:
    return content[-8 - int.from_bytes(content[-8:-4], "little") : -8]


CONTENT = stored(TABLE, 2)


def test_a_sound_footer_passes_the_fast_check() -> None:
    footer = footer_of(CONTENT)
    columns = pq.read_metadata(io.BytesIO(CONTENT)).num_columns
    assert parquet.passes(footer, columns, len(CONTENT) - len(footer))
    assert not parquet.passes(footer, columns + 1, len(CONTENT) - len(footer))
    assert not parquet.passes(footer, columns, 10)
    assert not parquet.passes(b"", 0, 0)


@examples(400)
@given(place=st.integers(0, len(footer_of(CONTENT)) - 1), bit=st.integers(0, 7))
def test_what_passes_the_fast_check_passes_the_slow_one(place: int, bit: int) -> None:
    footer = bytearray(footer_of(CONTENT))
    footer[place] ^= 1 << bit
    content = CONTENT[: -8 - len(footer)] + bytes(footer) + CONTENT[-8:]
    try:
        metadata = pq.read_metadata(pa.BufferReader(content))
    except (pa.ArrowException, OSError, ValueError):
        return
    if parquet.passes(bytes(footer), metadata.num_columns, len(content) - len(footer)):
        assert check_slowly(bytes(footer), metadata, len(content)) == []


@examples(200)
@given(data=st.binary(max_size=200), columns=st.integers(0, 5))
def test_arbitrary_bytes_do_no_harm(data: bytes, columns: int) -> None:
    parquet.passes(data, columns, 1000)
    parquet.footer_fields(data)
    parquet.cut_row_groups(data, 0, columns, bytes([1, 0, 1]), bare=True)


def test_fields_and_row_groups_are_found() -> None:
    footer = footer_of(CONTENT)
    fields = parquet.footer_fields(footer)
    assert fields is not None
    places, end = fields
    assert end == len(footer)
    assert [bool(place) for place in places] == [False, *[True] * 4, False, True, True, False, False]
    columns = pq.read_metadata(io.BytesIO(CONTENT)).num_columns
    groups = parquet.cut_row_groups(footer, places[4].start, 2, bytes([1]) * columns, bare=False)
    assert groups is not None
    assert groups.rows.tolist() == [2, 1]
    assert groups.ends[-1] == len(groups.stored)
    assert parquet.cut_row_groups(footer, places[4].start, 3, bytes(columns), bare=False) is None
    assert parquet.cut_row_groups(footer, places[4].start, 2, bytes(columns + 1), bare=False) is None


def test_a_second_list_of_row_groups_is_refused() -> None:
    footer = footer_of(CONTENT)
    fields = parquet.footer_fields(footer)
    assert fields is not None
    place = fields[0][4]
    again = b"\x09\x08" + footer[place.start : place.stop]  # a field of type list, whose id (4) is written out
    assert parquet.footer_fields(footer[: place.stop] + again + footer[place.stop :]) is None
