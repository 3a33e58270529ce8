"""Column chunks decoded by the compiled core: the values that Arrow reads, or nothing."""

from __future__ import annotations

import io
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.base.memory.arrow_views import as_arrow
from parquetry.common.base.native.library import CORE, has_zstd
from parquetry.common.base.native.parquet import SLACK, decode_chunks
from parquetry.common.parquet.group_footers import rewritten
from parquetry.common.parquet.native_decode import chunks_of, values_of
from parquetry.common.parquet.page_header import page_headers
from parquetry.common.storage.file_versions import FileVersion
from parquetry.common.storage.files import DataFile


class Chunk:
    """A column chunk in memory that ends where the memory does, and how to decode it."""

    def __init__(self, values: pa.Array, *, nullable: bool = True, **options: Any) -> None:
        schema = pa.schema([pa.field("x", values.type, nullable=nullable)])
        sink = io.BytesIO()
        pq.write_table(pa.table([values], schema=schema), sink, **options)
        content = sink.getvalue()
        footer = rewritten(pq.read_metadata(io.BytesIO(content)))
        self.rows = len(values)
        file = DataFile(version=FileVersion(path="x.parquet", size_bytes=len(content)), relative="x.parquet")
        described = footer.bare_groups(file)[0]
        (self._kind,) = kinds = described.columns.kinds(("x",), None, "")
        chunks = chunks_of([described], kinds)
        self._chunk, (self._page_bytes, self._dictionary_bytes) = chunks.chunks, chunks.scratch_bytes()
        ((begin, size),) = self._chunk[["begin", "size"]].tolist()
        self.bytes = content[begin : begin + size]

    def in_order(self, items: np.ndarray, data: bytes | None = None) -> tuple[np.ndarray, np.ndarray] | None:
        """Returns the numbers of the rows in ``items`` as bytes, and which are not null; ``None`` if it refuses."""
        data = self.bytes if data is None else data
        padded = np.frombuffer(data + bytes(SLACK), np.uint8).copy()
        chunk = self._chunk.copy()
        chunk["size"], chunk["data"], chunk["in_order"] = len(data), padded.ctypes.data, 1
        width = int(chunk["value_bytes"][0])
        values, validity = np.empty((len(items), width), np.uint8), np.zeros(-(-self.rows // 8), np.uint8)
        chunk["target"], chunk["validity"] = values.ctypes.data, validity.ctypes.data
        decode_chunks(
            chunk,
            self.rows,
            checked=True,
            page=np.empty(self._page_bytes + SLACK, np.uint8),
            dictionary=np.empty(self._dictionary_bytes, np.uint8),
            column=np.empty(self.rows * width, np.uint8),
            items=items,
        )
        if chunk["found"][0] != self.rows:
            return None
        valid = np.unpackbits(validity, count=self.rows, bitorder="little").view(np.bool_)
        return values, valid[items] if chunk["nulls"][0] else np.ones(len(items), bool)

    def decode(
        self, data: bytes, *, checked: bool = True, rows: int | None = None, wanted: np.ndarray | None = None
    ) -> pa.Array | None:
        """Returns the values in some bytes, or ``None`` if the core leaves them to Arrow."""
        rows = self.rows if rows is None else rows
        padded = np.frombuffer(data + bytes(SLACK), np.uint8).copy()
        page = np.empty(self._page_bytes + SLACK, np.uint8)
        dictionary = np.empty(self._dictionary_bytes, np.uint8)
        chunk = self._chunk.copy()
        chunk["size"], chunk["data"] = len(data), padded.ctypes.data
        offsets = np.empty(int(chunk["offset_bytes"][0]) * (rows + 1), np.uint8)
        validity = np.empty(-(-rows // 8), np.uint8)
        while True:
            width, capacity = int(chunk["value_bytes"][0]), int(chunk["capacity"][0])
            values = np.empty(width * capacity, np.uint8)
            chunk["target"], chunk["offsets"] = values.ctypes.data, offsets.ctypes.data
            chunk["validity"] = validity.ctypes.data
            decode_chunks(chunk, rows, checked=checked, page=page, dictionary=dictionary, wanted=wanted)
            found = int(chunk["found"][0])
            if found <= capacity or found > 1 << 24:
                break
            chunk["capacity"] = found
        if not 0 <= found <= capacity:
            return None
        block = np.concatenate([values, offsets, validity])
        begins = (0, len(values), len(values) + len(offsets))
        values = values_of(self._kind, rows, block, begins, found, int(chunk["nulls"][0]))
        return as_arrow(values) if isinstance(values, np.ndarray) else values


def bits(array: pa.Array) -> list[Any]:
    """Returns the values as bytes, because NaN is not equal to itself, and which of them are null."""
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return [np.diff(np.asarray(array.offsets)).tolist(), *bits(array.flatten())]
    if not pa.types.is_primitive(array.type):
        return array.to_pylist()
    values = np.asarray(array.drop_null())
    return [array.is_valid().to_pylist(), values.tobytes()]


def with_nulls(draw: Any, values: pa.Array) -> pa.Array:
    """Replaces values by nulls: some, runs of them, or all."""
    count = len(values)
    random = np.random.default_rng(draw(st.integers(0, 99)))
    mask = random.random(count) < draw(st.sampled_from([0.01, 0.5, 0.99, 1.0]))
    if draw(st.booleans()):
        mask = np.repeat(mask, draw(st.sampled_from([8, 30])))[:count]
    indices = pa.array(np.arange(count), mask=mask)
    return values.take(indices)


def numbers(draw: Any, kind: str, rows: int) -> pa.Array:
    """Draws numbers that repeat, run, or differ."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    dtype = np.dtype(pa.type_for_alias(kind).to_pandas_dtype())
    pool = np.frombuffer(random.bytes(draw(st.sampled_from([1, 3, 200, 5000])) * dtype.itemsize), dtype)
    chosen = random.integers(0, len(pool), rows)
    return pa.array(pool[np.sort(chosen) if draw(st.booleans()) else chosen])


def texts(draw: Any, rows: int) -> pa.Array:
    pool = draw(st.lists(st.text(max_size=20), min_size=1, max_size=30))
    chosen = np.random.default_rng(draw(st.integers(0, 99))).integers(0, len(pool), rows)
    return pa.array([pool[number] for number in chosen], draw(st.sampled_from(sorted(_TEXTS, key=str))))


def lists(draw: Any, kind: str, rows: int) -> pa.Array:
    """Draws lists that are short, long, or empty."""
    random = np.random.default_rng(draw(st.integers(0, 99)))
    lengths = random.integers(draw(st.integers(0, 2)), draw(st.sampled_from([3, 4, 50])), rows)
    if draw(st.booleans()):
        lengths[: rows // 2] = 0
    inside = numbers(draw, kind, int(lengths.sum()))
    item = pa.field("item", inside.type, nullable=draw(st.booleans()))
    kind_of_list, offsets = draw(st.sampled_from([(pa.list_, np.int32), (pa.large_list, np.int64)]))
    made = pa.LargeListArray if offsets is np.int64 else pa.ListArray
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(offsets)
    return made.from_arrays(pa.array(ends), inside, type=kind_of_list(item))


_TEXTS = [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()]
KINDS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float", "double"]


@st.composite
def chunks(draw: Any, kinds: Sequence[str] = ("number", "text", "list")) -> tuple[Chunk, pa.Array]:
    rows = draw(st.sampled_from([1, 7, 8, 9, 63, 1000, 5000]))
    what = draw(st.sampled_from(kinds))
    if what == "text":
        values = texts(draw, rows)
    else:
        values = (numbers if what == "number" else lists)(draw, draw(st.sampled_from(KINDS)), rows)
    nullable = draw(st.booleans())
    if nullable and what != "list" and draw(st.booleans()):
        values = with_nulls(draw, values)
    chunk = Chunk(
        values,
        nullable=nullable,
        compression=draw(st.sampled_from(["none", "snappy", *(["zstd"] if has_zstd() else [])])),
        use_dictionary=draw(st.booleans()),
        dictionary_pagesize_limit=draw(st.sampled_from([200, 1 << 20])),
        data_page_version=draw(st.sampled_from(["1.0", "2.0"])),
        data_page_size=draw(st.sampled_from([1, 1000, 1 << 20])),
        write_batch_size=draw(st.sampled_from([5, 1000])),
        write_page_checksum=draw(st.booleans()),
    )
    return chunk, values


@examples(200)
@given(drawn=chunks())
def test_values_are_those_that_were_written(drawn: tuple[Chunk, pa.Array]) -> None:
    chunk, values = drawn
    found = chunk.decode(chunk.bytes)
    assert found is not None
    found.validate(full=True)
    assert found.type == values.type
    assert bits(found) == bits(values)
    assert chunk.decode(chunk.bytes, rows=chunk.rows + 1) is None
    assert chunk.decode(chunk.bytes, rows=chunk.rows - 1) is None


@examples(200)
@given(drawn=chunks(kinds=["number", "text"]), data=st.data())
def test_pages_without_wanted_rows_are_left_out(drawn: tuple[Chunk, pa.Array], data: st.DataObject) -> None:
    """Whatever they contain: their headers alone say how many rows they have."""
    chunk, values = drawn
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    begin = data.draw(st.integers(0, chunk.rows))
    rows = np.arange(begin, data.draw(st.integers(begin, chunk.rows)))
    wanted = np.sort(random.permutation(rows)[: data.draw(st.sampled_from([0, 1, 3, chunk.rows]))])
    damaged, first = bytearray(chunk.bytes), 0
    for page in page_headers(lambda first, last: memoryview(chunk.bytes)[first:last], len(chunk.bytes)):
        if page.is_data:
            if not ((wanted >= first) & (wanted < first + page.values)).any():
                damaged[page.begin : page.end] = random.bytes(page.end - page.begin)
            first += page.values
    found = chunk.decode(bytes(damaged), wanted=wanted)
    assert found is not None
    found.validate(full=True)
    assert bits(found.take(pa.array(wanted))) == bits(values.take(pa.array(wanted)))


def plain_bytes(values: pa.Array) -> np.ndarray:
    """Returns numbers as bytes, ``[rows, bytes]``, with 0 in place of nulls."""
    numbers = np.asarray(values.fill_null(0))
    return numbers.view(np.uint8).reshape(len(values), numbers.itemsize)


@examples(150)
@given(drawn=chunks(kinds=["number"]), data=st.data())
def test_numbers_are_put_in_the_order_of_items(drawn: tuple[Chunk, pa.Array], data: st.DataObject) -> None:
    chunk, values = drawn
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    items = random.integers(0, chunk.rows, data.draw(st.sampled_from([0, 1, 15, 16, 17, 9000]))).astype(np.int32)
    found = chunk.in_order(items)
    assert found is not None
    assert np.array_equal(found[0], plain_bytes(values)[items])
    assert np.array_equal(found[1], np.asarray(values.is_valid())[items])
    damaged = bytearray(chunk.bytes)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    chunk.in_order(items, bytes(damaged))


@pytest.mark.parametrize("kind", ["int8", "int16", "float", "int64"])
@pytest.mark.parametrize("count", [1 << 20, (1 << 20) + 7])
def test_many_numbers_are_put_in_order_around_the_cache(kind: str, count: int) -> None:
    values = pa.array(np.arange(5000) % 100).cast(pa.type_for_alias(kind))
    items = np.random.default_rng(1).integers(0, 5000, count).astype(np.int32)
    found = Chunk(values, compression="snappy").in_order(items)
    assert found is not None
    assert np.array_equal(found[0], plain_bytes(values)[items])


def test_the_only_page_is_not_used_after_another_one() -> None:
    """Its numbers are taken from the memory of a page, which the next page overwrites."""
    chunk = Chunk(pa.array(np.arange(20)), nullable=False, compression="none", use_dictionary=False)
    header = bytes.fromhex("150015001500" + "2c1500150015061506" + "0000")  # no values, PLAIN
    assert chunk.decode(chunk.bytes + header) == pa.array(np.arange(20))
    items = np.array([3, 19, 4], np.int32)
    assert chunk.in_order(items) is not None
    assert chunk.in_order(items, chunk.bytes + header) is None


@pytest.mark.parametrize("row", [-1, 20, np.iinfo(np.int32).max, np.iinfo(np.int32).min])
def test_an_item_that_is_no_row_is_refused(row: int) -> None:
    chunk = Chunk(pa.array(np.arange(20)))
    assert chunk.in_order(np.array([3, row, 4], np.int32)) is None
    assert chunk.in_order(np.array([3, 19, 4], np.int32)) is not None


@examples(300)
@given(drawn=chunks(), data=st.data())
def test_damaged_bytes_do_no_harm(drawn: tuple[Chunk, pa.Array], data: st.DataObject) -> None:
    chunk, _ = drawn
    damaged = bytearray(chunk.bytes)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] ^= data.draw(st.integers(1, 255))
    for found in (chunk.decode(bytes(damaged), checked=False), chunk.decode(bytes(damaged), checked=True)):
        if found is not None:
            found.validate()
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
    page = next(page_headers(lambda first, last: memoryview(chunk.bytes)[first:last], len(chunk.bytes)))
    assert page.is_data
    begin = page.begin
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


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([[1], None, []] * 20, pa.list_(pa.int64())),
        ([[1], [2, None], []] * 20, pa.list_(pa.int64())),
    ],
)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("use_dictionary", [False, True])
def test_nulls_of_lists_are_left_to_arrow(
    values: list[Any], kind: pa.DataType, version: str, use_dictionary: bool
) -> None:
    options: dict[str, Any] = {"data_page_version": version, "use_dictionary": use_dictionary}
    whole = Chunk(pa.array([each for each in values if each] or [1], kind), **options)
    sink = io.BytesIO()
    pq.write_table(pa.table({"x": pa.array(values, kind)}), sink, **options)
    chunk = pq.read_metadata(sink).row_group(0).column(0)
    begin = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    stored = sink.getvalue()[begin : begin + chunk.total_compressed_size]
    assert whole.decode(stored, rows=len(values)) is None


@examples(100)
@given(data=st.binary(max_size=5000), skipped=st.integers(0, 70))
def test_checksums_match_zlib(data: bytes, skipped: int) -> None:
    for each in (data, data[skipped:], data[:skipped]):
        assert CORE.parquetry_checksum(each, len(each), 0) == zlib.crc32(each)


def test_checksums_of_long_data() -> None:
    data = np.random.default_rng(0).bytes(1 << 20)
    assert CORE.parquetry_checksum(data, len(data), 0) == zlib.crc32(data)


def varint(number: int) -> bytes:
    """Returns a number of Thrift's compact protocol."""
    number *= 2  # zigzag, none is negative
    return bytes([number]) if number < 128 else bytes([number % 128 + 128, number // 128])


def stored_page(content: bytes, stored: bytes, values: int, *, without: int = 0) -> bytes:
    """Returns a data page of the first version, of plain values; ``without`` leaves out a field of its header."""
    fields = [(1, values), (2, 0), (3, 3), (4, 3)]
    inside, last = b"", 0
    for number, value in fields:
        if number != without:
            inside += bytes([(number - last) << 4 | 5]) + varint(value)
            last = number
    head = b"\x15" + varint(0) + b"\x15" + varint(len(content)) + b"\x15" + varint(len(stored))
    return head + b"\x2c" + inside + b"\x00\x00" + stored


@pytest.mark.parametrize("without", [0, 1, 2, 3, 4])
def test_headers_have_all_the_fields_that_the_format_requires(without: int) -> None:
    values = pa.array([5, 6, 7, 8], pa.int32())
    chunk = Chunk(values, nullable=False, compression="none", use_dictionary=False)
    content = values.buffers()[1].to_pybytes()[:16]
    found = chunk.decode(stored_page(content, content, 4, without=without))
    assert found is None if without else bits(found) == bits(values)


@pytest.mark.skipif(not has_zstd(), reason="needs the library of Zstandard")
def test_only_a_single_frame_of_todays_zstandard_is_decompressed() -> None:
    values = pa.array(range(256), pa.int32())
    chunk = Chunk(values, nullable=False, compression="zstd", use_dictionary=False)
    content = values.buffers()[1].to_pybytes()[:1024]
    frame = pa.compress(content, "zstd", asbytes=True)
    halves = [pa.compress(half, "zstd", asbytes=True) for half in (content[:512], content[512:])]
    skippable = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    found = chunk.decode(stored_page(content, frame, 256))
    assert found is not None
    assert bits(found) == bits(values)
    old = b"\x27" + frame[1:]
    for stored in (
        b"".join(halves),
        skippable + frame,
        frame + skippable,
        frame + b"\x00",
        frame[:-1],
        pa.compress(content[:512], "zstd", asbytes=True),  # shorter than the page claims
        old,
        b"",
        b"\x28",
    ):
        assert chunk.decode(stored_page(content, stored, 256)) is None
