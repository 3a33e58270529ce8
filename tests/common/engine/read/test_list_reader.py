"""Lists of known lengths read without Arrow: the same as Arrow reads from the file, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquetry.common import Pipeline
from parquetry.common.engine.read.column_reader import ReadRequest
from parquetry.common.engine.read.fetch import fetchers_of
from parquetry.common.engine.read.list_reader import ListReader
from parquetry.common.parquet.list_pages import list_numbers

PLAIN: dict[str, Any] = {"use_dictionary": False}


def written(path: Path, rows: Sequence[Any], arrow: pa.DataType, *, nullable: bool = True, **options: Any) -> Path:
    schema = pa.schema([pa.field("x", arrow, nullable=nullable)])
    pq.write_table(pa.table([pa.array(rows, arrow)], schema=schema), path, **{**PLAIN, **options})
    return path


def reader(path: Path, lengths: Sequence[int] | None) -> ListReader:
    plan = Pipeline(path).plan()
    known = None if lengths is None else np.asarray(lengths, np.int64)
    return ListReader(plan.dataset, plan.program.fields, lambda row_group: known)


def read(path: Path, lengths: Sequence[int] | None) -> pa.Array | None:
    """Returns the first row group's lists, if this reader reads them."""
    return reader(path, lengths).read(ReadRequest(row_group=0)).values.get("x")


def bits(lists: pa.Array) -> bytes:
    """Returns the numbers as bytes, because NaN is not equal to itself."""
    return np.asarray(lists.flatten()).tobytes()


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=40),
    value=st.sampled_from(["int8", "uint16", "int32", "uint32", "int64", "uint64", "float", "double"]),
    large=st.booleans(),
    nullable=st.booleans(),
    chosen=st.data(),
    compression=st.sampled_from(["none", "snappy", "zstd", "gzip", "brotli"]),
    version=st.sampled_from(["1.0", "2.0"]),
    page=st.sampled_from([1, 64, 1 << 20]),
    checksum=st.booleans(),
)
def test_lists_are_those_that_arrow_reads(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    value: str,
    large: bool,
    nullable: bool,
    chosen: st.DataObject,
    compression: str,
    version: str,
    page: int,
    checksum: bool,
) -> None:
    number = pa.type_for_alias(value)
    lists = pa.large_list(number) if large else pa.list_(pa.field("item", number, nullable=nullable))
    random = np.random.default_rng(0)
    dtype = np.dtype(number.to_pandas_dtype())
    rows = [np.frombuffer(random.bytes(size * dtype.itemsize), dtype) for size in lengths]
    path = written(
        tmp_path_factory.mktemp("lists") / "x.parquet",
        rows,
        lists,
        nullable=nullable,
        compression=compression,
        data_page_version=version,
        data_page_size=page,
        write_batch_size=3,
        write_page_checksum=checksum,
    )
    wanted = np.array(sorted(chosen.draw(st.sets(st.integers(0, len(rows) - 1)))), np.int64)
    stored = pq.read_table(path).column("x").combine_chunks().cast(pa.large_list(number))
    lists_of = reader(path, lengths)
    for some in (None, wanted, np.arange(len(rows) // 2, len(rows))):
        found = lists_of.read(ReadRequest(row_group=0, rows=some)).values["x"]
        want = stored if some is None else stored.take(pa.array(some))
        found.validate(full=True)
        assert (found.type, bits(found)) == (stored.type, bits(want))
        assert found.value_lengths().equals(want.value_lengths())


@pytest.mark.parametrize(
    "options",
    [{"use_dictionary": True}, {"compression": "lz4"}, {"column_encoding": {"x.list.element": "DELTA_BINARY_PACKED"}}],
)
def test_what_is_not_plain_is_left_to_arrow(tmp_path: Path, options: dict[str, Any]) -> None:
    rows = [[1, 2], [3], [4, 5, 6]]
    assert read(written(tmp_path / "x.parquet", rows, pa.list_(pa.int32()), **options), [2, 1, 3]) is None


def test_other_lengths_than_the_file_has_are_left_to_arrow(tmp_path: Path) -> None:
    path = written(tmp_path / "x.parquet", [[1, 2], None, [3, None, 4]], pa.list_(pa.int32()))
    assert read(path, [2, 0, 2]) is not None  # the lengths match the file
    assert read(path, [2, 0, 3]) is None
    assert read(path, None) is None


@pytest.mark.parametrize("arrow", [pa.list_(pa.list_(pa.int32())), pa.list_(pa.string()), pa.list_(pa.time32("s"))])
def test_lists_of_other_values_are_left_to_arrow(tmp_path: Path, arrow: pa.DataType) -> None:
    assert read(written(tmp_path / "x.parquet", [[], []], arrow), [0, 0]) is None


@pytest.mark.parametrize("codec", [None, "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_damaged_pages_are_left_to_arrow(tmp_path: Path, codec: str | None, version: str) -> None:
    path = written(
        tmp_path / "x.parquet",
        [list(range(9)), [], [7] * 30],
        pa.list_(pa.int32()),
        compression=codec or "none",
        data_page_version=version,
    )
    meta = pq.read_metadata(path).row_group(0).column(0)
    size, most = meta.total_compressed_size, meta.total_uncompressed_size
    chunk = np.fromfile(path, np.uint8)[meta.data_page_offset :][:size]
    decompressor = None if codec is None else pa.Codec(codec)

    def count(stored: np.ndarray) -> int | None:
        pages = list_numbers(stored, decompressor, most)
        return None if pages is None else sum(map(len, pages))

    assert count(chunk) == 4 * 39
    assert all(count(chunk[:end]) is None for end in range(1, size))
    random = np.random.default_rng(0)
    for _ in range(300):  # the result is always a byte count or None
        damaged = chunk.copy()
        damaged[random.integers(0, min(size, 60))] = random.integers(0, 256)
        found = count(damaged)
        assert found is None or 0 <= found <= most


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "brotli"])
@pytest.mark.parametrize("real", [8, 16, 32])
def test_a_page_that_holds_more_or_less_than_it_claims_is_left_to_arrow(codec: str, real: int) -> None:
    def numbers(stored_bytes: int) -> list[np.ndarray] | None:
        content = pa.compress(bytes(range(stored_bytes)), codec, asbytes=True)
        return list_numbers(np.frombuffer(page_of(24, content), np.uint8), pa.Codec(codec), 1 << 10)

    [found] = numbers(24) or []
    assert found.tobytes() == bytes(range(24))
    assert numbers(real) is None


@pytest.mark.parametrize("codec", ["snappy", "zstd", "gzip", "brotli"])
def test_no_memory_is_set_aside_for_what_headers_claim(tmp_path: Path, codec: str) -> None:
    content = pa.compress(bytes(24), codec, asbytes=True)
    huge, plain = page_of(1 << 50, content), page_of(24, content)
    assert list_numbers(np.frombuffer(huge, np.uint8), pa.Codec(codec), 1 << 10) is None
    assert list_numbers(np.frombuffer(plain * 2, np.uint8), pa.Codec(codec), 48) is not None
    assert list_numbers(np.frombuffer(plain * 2, np.uint8), pa.Codec(codec), 47) is None

    path = written(tmp_path / "x.parquet", [[1, 2], [3]], pa.list_(pa.int32()), compression=codec)
    lists_of, claimed = reader(path, [2, 1]), pq.read_metadata(path).row_group(0).column(0)
    for begin, size in ((claimed.data_page_offset, 1 << 50), (claimed.data_page_offset, -1), (-1, 4)):
        chunk = SimpleNamespace(data_page_offset=begin, total_compressed_size=size)
        assert lists_of._bytes(0, chunk) is None  # type: ignore[arg-type]  # what a footer may say


def page_of(claimed_bytes: int, content: bytes) -> bytes:
    """Returns a data page (version 2) without levels whose header claims a size, in the Thrift compact protocol."""

    def number(value: int) -> bytes:
        value, result = value << 1, b""
        while value > 0x7F:
            result, value = result + bytes([value & 0x7F | 0x80]), value >> 7
        return result + bytes([value])

    page = b"".join(b"\x15" + number(value) for value in (6, 0, 6, 0, 0, 0))  # values, nulls, rows, plain, no levels
    header = [b"\x15", number(3), b"\x16", number(claimed_bytes), b"\x15", number(len(content)), b"\x5c", page]
    return b"".join([*header, b"\x00\x00", content])


def test_only_row_groups_whose_lengths_are_all_known_are_read_so(tmp_path: Path) -> None:
    rows = [[number] * number for number in range(1, 9)]
    pipeline = Pipeline(written(tmp_path / "x.parquet", rows, pa.list_(pa.int32()), row_group_size=4))
    whole, part = pipeline.concat(3, "x").plan(), pipeline.skip(1).concat(3, "x").plan()
    assert [whole.list_lengths(0).tolist(), whole.list_lengths(1).tolist()] == [[1, 2, 3, 4], [5, 6, 7, 8]]  # type: ignore[union-attr]
    assert part.list_lengths(0) is None
    assert part.list_lengths(1).tolist() == [5, 6, 7, 8]  # type: ignore[union-attr]
    assert pipeline.batch(2).plan().list_lengths(0) is None
    for plan in (whole, part):
        [found] = fetchers_of(plan)[0].fetch(0, np.array([1, 3])).columns
        assert found.to_pylist() == [rows[1], rows[3]]  # type: ignore[union-attr]
