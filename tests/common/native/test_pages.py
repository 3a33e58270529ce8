"""Column chunks decoded by the compiled core: the values that Arrow reads, or nothing."""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.layout.page_header import data_page
from parquetry.common.native.library import library
from parquetry.common.native.pages import CHUNK, SLACK, decode_chunks

_STORED = {"INT32": 4, "INT64": 8, "FLOAT": 4, "DOUBLE": 8}


class Chunk:
    """A column chunk in memory that ends where the memory does, and how to decode it."""

    def __init__(self, values: pa.Array, *, nullable: bool = True, **options: Any) -> None:
        schema = pa.schema([pa.field("x", values.type, nullable=nullable)])
        sink = io.BytesIO()
        pq.write_table(pa.table([values], schema=schema), sink, **options)
        content = sink.getvalue()
        chunk = pq.read_metadata(io.BytesIO(content)).row_group(0).column(0)
        begin = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
        self.rows = len(values)
        self.dtype = np.dtype(values.type.to_pandas_dtype())
        self.bytes = content[begin : begin + chunk.total_compressed_size]
        self._stored = _STORED[chunk.physical_type]
        self._compressed = chunk.compression == "SNAPPY"
        self._optional = nullable
        self._page_bytes = chunk.total_uncompressed_size

    def decode(self, data: bytes, *, checked: bool = True, rows: int | None = None) -> np.ndarray | None:
        """Returns the values in some bytes, or ``None`` if the core leaves them to Arrow."""
        rows = self.rows if rows is None else rows
        padded = np.frombuffer(data + bytes(SLACK), np.uint8).copy()
        page, dictionary = np.empty(self._page_bytes + SLACK, np.uint8), np.empty(self._page_bytes, np.uint8)
        target = np.empty(rows, self.dtype)
        described = np.array(
            [
                (
                    padded.ctypes.data,
                    len(data),
                    self._stored,
                    self.dtype.itemsize,
                    self._compressed,
                    self._optional,
                    target.ctypes.data,
                    0,
                )
            ],
            CHUNK,
        )
        decode_chunks(described, rows, checked=checked, page=page, dictionary=dictionary)
        return target if described["done"][0] else None


def numbers(draw: Any, kind: str, rows: int) -> pa.Array:
    """Draws numbers that repeat, run, or differ."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    dtype = np.dtype(pa.type_for_alias(kind).to_pandas_dtype())
    pool = np.frombuffer(random.bytes(draw(st.sampled_from([1, 3, 200, 5000])) * dtype.itemsize), dtype)
    chosen = random.integers(0, len(pool), rows)
    return pa.array(pool[np.sort(chosen) if draw(st.booleans()) else chosen])


KINDS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float", "double"]


@st.composite
def chunks(draw: Any) -> tuple[Chunk, pa.Array]:
    values = numbers(draw, draw(st.sampled_from(KINDS)), draw(st.sampled_from([1, 7, 8, 9, 63, 1000, 5000])))
    chunk = Chunk(
        values,
        nullable=draw(st.booleans()),
        compression=draw(st.sampled_from(["none", "snappy"])),
        use_dictionary=draw(st.booleans()),
        dictionary_pagesize_limit=draw(st.sampled_from([200, 1 << 20])),
        data_page_version=draw(st.sampled_from(["1.0", "2.0"])),
        data_page_size=draw(st.sampled_from([1, 1000, 1 << 20])),
        write_batch_size=draw(st.sampled_from([5, 1000])),
        write_page_checksum=draw(st.booleans()),
    )
    return chunk, values


@examples(150)
@given(drawn=chunks())
def test_values_are_those_that_were_written(drawn: tuple[Chunk, pa.Array]) -> None:
    chunk, values = drawn
    found = chunk.decode(chunk.bytes)
    assert found is not None
    assert found.tobytes() == np.asarray(values).tobytes()
    assert chunk.decode(chunk.bytes, rows=chunk.rows + 1) is None
    assert chunk.decode(chunk.bytes, rows=chunk.rows - 1) is None


@examples(300)
@given(drawn=chunks(), data=st.data())
def test_damaged_bytes_do_no_harm(drawn: tuple[Chunk, pa.Array], data: st.DataObject) -> None:
    chunk, _ = drawn
    damaged = bytearray(chunk.bytes)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] ^= data.draw(st.integers(1, 255))
    chunk.decode(bytes(damaged), checked=False)
    chunk.decode(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]), checked=False)


@examples(100)
@given(data=st.data())
def test_a_flipped_bit_in_a_page_does_not_pass_its_checksum(data: st.DataObject) -> None:
    chunk = Chunk(
        numbers(data.draw, data.draw(st.sampled_from(KINDS)), 500),
        compression=data.draw(st.sampled_from(["none", "snappy"])),
        use_dictionary=False,
        write_page_checksum=True,
    )
    begin = data_page(lambda first, last: memoryview(chunk.bytes)[first:last], 0, len(chunk.bytes)).begin
    flipped = bytearray(chunk.bytes)
    flipped[data.draw(st.integers(begin, len(flipped) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert chunk.decode(bytes(flipped)) is None


@examples(100)
@given(data=st.binary(max_size=300), rows=st.integers(0, 20))
def test_arbitrary_bytes_do_no_harm(data: bytes, rows: int) -> None:
    chunk = Chunk(pa.array(np.arange(20)), compression="snappy")
    chunk.decode(data, rows=rows)
    plain = Chunk(pa.array(np.arange(20)), compression="none", nullable=False)
    plain.decode(data, rows=rows)


@pytest.mark.parametrize("rows", [[None] * 50, [1, None, 3] * 20])
def test_nulls_are_left_to_arrow(rows: list[int | None]) -> None:
    for version in ("1.0", "2.0"):
        for use_dictionary in (False, True):
            chunk = Chunk(pa.array(rows, pa.int64()), data_page_version=version, use_dictionary=use_dictionary)
            assert chunk.decode(chunk.bytes) is None


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_other_compressions_are_not_taken_for_values(compression: str) -> None:
    chunk = Chunk(pa.array(np.arange(5000)), compression=compression)
    assert chunk.decode(chunk.bytes) is None


@examples(100)
@given(data=st.binary(max_size=5000), skipped=st.integers(0, 70))
def test_checksums_are_those_of_zlib(data: bytes, skipped: int) -> None:
    core = library()
    assert core is not None
    for each in (data, data[skipped:], data[:skipped]):
        assert core.parquetry_checksum(each, len(each)) == zlib.crc32(each)


def test_checksums_of_long_data() -> None:
    core = library()
    assert core is not None
    data = np.random.default_rng(0).bytes(1 << 20)
    assert core.parquetry_checksum(data, len(data)) == zlib.crc32(data)
