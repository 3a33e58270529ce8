"""Values that claim more than they hold, or hold too much, are refused before memory is allocated."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from parquetry.common import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    NdarrayCodec,
    Pipeline,
    Unischema,
    UnischemaField,
)
from parquetry.common.apps.reports.verifying import verify
from parquetry.common.base.errors import DatasetError, DecodeError, ParquetryError, SchemaError
from parquetry.common.dataset import row_groups
from parquetry.common.engine.columns.list_column import SizeLimit
from parquetry.common.engine.columns.protocols import DecodeContext
from parquetry.common.parquet import value_bounds
from parquetry.common.parquet.value_bounds import most_bytes
from parquetry.common.schema import images
from parquetry.common.schema.codec import Codec
from parquetry.common.schema.field import schema_to_metadata
from parquetry.common.schema.npy import npy_header


def stored(path: Path, field: UnischemaField, *values: bytes) -> Path:
    """Writes a file with these bytes as the values of the field."""
    metadata = schema_to_metadata(Unischema("bombs", [field]))
    schema = pa.schema([pa.field("x", pa.binary(), nullable=False)], metadata=metadata)
    pq.write_table(pa.table([pa.array(values, pa.binary())], schema=schema), path)
    return path


def npy(text: str, data: bytes = b"") -> bytes:
    header = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def png(width: int, height: int) -> bytes:
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + struct.pack(">I", 13)
        + head
        + struct.pack(">I", zlib.crc32(head))
        + b"\0\0\0\x09IDATabcdefghijklm"
    )


def claiming(file_format: str, width: int, height: int) -> bytes:
    """Returns an 8 x 8 pixel file whose header claims another size."""
    stream = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(stream, file_format, lossless=True)
    data = bytearray(stream.getvalue())
    if file_format == "jpeg":
        at = data.index(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", height, width)
    elif file_format == "webp":
        data[21:25] = struct.pack("<I", width - 1 | height - 1 << 14)
    elif file_format == "bmp":
        data[18:26] = struct.pack("<II", width, height)
    elif file_format == "gif":
        data[6:10] = struct.pack("<HH", width, height)
    elif file_format == "tiff":
        first = struct.unpack("<I", data[4:8])[0] + 2
        for place, size in ((first, width), (first + 12, height)):
            data[place + 8 : place + 12] = struct.pack("<I", size)
    return bytes(data)


def zipped(content: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("arr.npy", content)
    return stream.getvalue()


HUGE = "{'descr': '|u1', 'fortran_order': False, 'shape': (65000, 65000), }"
BOMBS: dict[str, tuple[Codec, bytes]] = {
    "an image": (CompressedImageCodec("png"), png(65_000, 65_000)),
    "a zip file": (CompressedNdarrayCodec(), zipped(npy(HUGE, b"\0" * 1000))),
    "an array": (NdarrayCodec(), npy(HUGE)),
    "a shape that wraps": (NdarrayCodec(), npy(HUGE.replace("65000, 65000", f"{1 << 62}, 4"))),
}


@pytest.mark.parametrize("file_format", ["jpeg", "webp", "bmp", "gif", "tiff"])
@pytest.mark.parametrize("shape", [(None, None, 3), (8, 8, 3)])
@pytest.mark.parametrize("ahead", ["decode", "resize", "center_crop", "transform"])
def test_images_of_every_format_are_measured_before_they_are_decoded(
    tmp_path: Path, file_format: str, shape: tuple[int | None, ...], ahead: str
) -> None:
    field = UnischemaField("x", np.uint8, shape, CompressedImageCodec("jpeg", convert=True))
    path = stored(tmp_path / "x.parquet", field, claiming(file_format, 8_000, 8_000))
    pipeline = Pipeline(path, max_value_bytes=1_000_000, executor="threads")
    if ahead == "resize":
        pipeline = pipeline.resize("x", (4, 4))
    elif ahead == "center_crop":
        pipeline = pipeline.center_crop("x", (4, 4))
    elif ahead == "transform":
        pipeline = pipeline.transform(lambda row: row)
    with pytest.raises(
        DecodeError,
        match=r"field 'x', file .*x\.parquet, row group 0, row 0: .*(at most 1000000 bytes|expected an image of shape|too small)",
    ):
        list(pipeline.batch(1))


@pytest.mark.parametrize("executor", ["threads", pytest.param("sidecar", marks=pytest.mark.slow)])
def test_without_simplejpeg_and_in_workers_the_limit_holds(
    tmp_path: Path, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if executor == "threads":
        monkeypatch.setattr(images, "simplejpeg", None)
    field = UnischemaField("x", np.uint8, (None, None, 3), CompressedImageCodec("jpeg"))
    path = stored(tmp_path / "x.parquet", field, claiming("jpeg", 8_000, 8_000))
    with pytest.raises(DecodeError, match="expected at most 1000000 bytes, got a value of shape"):
        list(Pipeline(path, max_value_bytes=1_000_000, executor=executor, workers=1).batch(1))


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("shape", [(None, None), (4, 4)])
def test_a_claim_of_gigabytes_is_refused_by_its_header(
    tmp_path: Path, name: str, shape: tuple[int | None, int | None]
) -> None:
    codec, value = BOMBS[name]
    path = stored(tmp_path / "x.parquet", UnischemaField("x", np.uint8, shape, codec), value)
    with pytest.raises(DecodeError, match=r"field 'x', file .*x\.parquet, row group 0, row 0: .*(expected|bomb)"):
        list(Pipeline(path))


def test_the_limit_is_an_option_and_holds_for_values_and_batches(tmp_path: Path) -> None:
    codec = NdarrayCodec()
    field = UnischemaField("x", np.uint8, (None,), codec)
    value = codec.encode(field, np.zeros(100, np.uint8))
    path = stored(tmp_path / "x.parquet", field, *[value] * 20)
    assert len(list(Pipeline(path, max_value_bytes=100))) == 20
    with pytest.raises(DecodeError, match=r"row 0: .* expected at most 99 bytes.*max_value_bytes= allows more"):
        next(iter(Pipeline(path, max_value_bytes=99)))
    with pytest.raises(
        DecodeError, match=r"at most 1600 bytes, got a batch of 20 values from here on, which takes 2000"
    ):
        list(Pipeline(path, max_value_bytes=100).batch(20))
    assert len(list(Pipeline(path, max_value_bytes=99, executor="threads").with_options(max_value_bytes=None))) == 20


def test_a_declared_shape_beyond_the_limit_is_an_error(tmp_path: Path) -> None:
    field = UnischemaField("x", np.uint8, (1 << 20, 1 << 20), NdarrayCodec())
    with pytest.raises(SchemaError, match=r"field 'x' of .*x\.parquet: expected values of at most 1073741824 bytes"):
        list(Pipeline(stored(tmp_path / "x.parquet", field, b"")))


HEADERS = [
    "",
    "{",
    "(" * 9000,
    "{'descr': '" + "9" * 5000 + "', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': 'O', 'fortran_order': False, 'shape': (1,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",), }",
    "{'descr': [('a', '<f4', (2**40,))], 'fortran_order': 1, 'shape': 3, }",
    "{'descr': '|S0', 'fortran_order': False, 'shape': (99999999999,), }",
    "'''",
    "\\\n\\",
]


@pytest.mark.parametrize("text", HEADERS, ids=range(len(HEADERS)))
def test_headers_that_are_none_are_errors_of_ours(tmp_path: Path, text: str) -> None:
    path = stored(tmp_path / "x.parquet", UnischemaField("x", np.float32, (None,), NdarrayCodec()), npy(text))
    with pytest.raises(ParquetryError, match=r"x\.parquet"):
        list(Pipeline(path))


def test_a_header_has_a_bounded_length() -> None:
    head = b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 30) + b"{" * 100
    with pytest.raises(ValueError, match="header of at most 65536 bytes, got 1073741836"):
        npy_header(memoryview(head))


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b"[]", b"3", b'{"version": 1}', b'{"version": 1, "name": 1, "fields": [3]}']
)
def test_metadata_that_is_none_names_its_file(tmp_path: Path, text: bytes) -> None:
    schema = pa.schema([pa.field("x", pa.int64())], metadata={b"parquetry.unischema.v1": text})
    pq.write_table(pa.table([[1]], schema=schema), tmp_path / "x.parquet")
    with pytest.raises(ParquetryError, match=r"x\.parquet"):
        list(Pipeline(tmp_path))


def test_bytes_that_are_not_text_name_their_row(tmp_path: Path) -> None:
    field = UnischemaField("x", np.str_, (None,), NdarrayCodec())
    good, bad = (
        npy("{'descr': '|S2', 'fortran_order': False, 'shape': (1,), }", data) for data in (b"ok", b"\xff\xfe")
    )
    path = stored(tmp_path / "x.parquet", field, good, bad)
    assert next(iter(Pipeline(path)))["x"].tolist() == ["ok"]
    with pytest.raises(DecodeError, match=r"field 'x', file .*x\.parquet, row group 0, row 1: .*utf-8"):
        list(Pipeline(path))


def test_bytes_that_are_not_an_image_are_reported_without_an_address(tmp_path: Path) -> None:
    field = UnischemaField("x", np.uint8, (None, None, 3), CompressedImageCodec("png"))
    message = r"row 0: .*cannot identify image file that begins with b'rubbish'\.$"
    with pytest.raises(DecodeError, match=message):
        list(Pipeline(stored(tmp_path / "x.parquet", field, b"rubbish"), executor="threads"))


WITHOUT_A_CODEC = {
    "text": (["a", "b" * 99, None], pa.string()),
    "bytes": ([b"a", b"b" * 99, b""], pa.large_binary()),
    "numbers": ([[1], [2] * 25, None], pa.list_(pa.int32())),
    "a list of text": ([["a"], ["b" * 50] * 2, []], pa.list_(pa.string())),
    "a matrix": ([[[1, 2]], [[3, 4]] * 25, [[]]], pa.list_(pa.list_(pa.int16()))),
    "lists of lists": ([[[1], [2, 3]], [[1], [2] * 24], []], pa.list_(pa.list_(pa.int32()))),
}


@pytest.mark.parametrize("executor", ["threads", pytest.param("sidecar", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", WITHOUT_A_CODEC)
def test_the_limit_holds_for_columns_without_a_codec(tmp_path: Path, kind: str, executor: str) -> None:
    values, arrow = WITHOUT_A_CODEC[kind]
    pq.write_table(pa.table({"id": range(3), "x": pa.array(values, arrow)}), tmp_path / "a.parquet")
    stored_rows = Pipeline(tmp_path, executor=executor)
    every = (stored_rows.nested("x") if kind == "lists of lists" else stored_rows).nulls("mask")
    assert len(list(every.with_options(max_value_bytes=100))) == 3
    rows = every.with_options(max_value_bytes=98)
    for chain in (rows, rows.batch(2), rows.shuffle(3, seed=1).batch(3)):
        with pytest.raises(DecodeError, match=r"'x', file .*a\.parquet, row group 0, row 1: expected at most 98 bytes"):
            list(chain)
    kept = rows.with_options(on_error="skip")
    assert [int(row["id"]) for row in kept] == [0, 2]


def test_texts_of_a_batch_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "MAX_VALUE_BYTES", 100)
    context = DecodeContext(describe="row {}".format, max_value_bytes=100)
    limit = SizeLimit(UnischemaField("x", str), pa.array(["a" * 100, "b"], pa.large_string()), context)
    limit.check(np.zeros(16, np.int64))
    with pytest.raises(DecodeError, match=r"row 1: .* 1600 bytes, got a batch of 17 values .* which takes 1601"):
        limit.check(np.array([1] + [0] * 16))


ROWS = 30_000
BIG_TEXT = "a" * 90_000
EXPANDING = {
    "a dictionary": (pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), [BIG_TEXT]), {}),
    "shared beginnings": (pa.array([BIG_TEXT] * 100), {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}),
    "dictionary of lists": (
        pa.ListArray.from_arrays(
            pa.array(range(0, ROWS + 1, 100), pa.int32()),
            pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), [BIG_TEXT]),
        ),
        {},
    ),
}


@pytest.mark.parametrize("memory_limit", [1 << 20, 1 << 30])
@pytest.mark.parametrize("kind", EXPANDING)
def test_a_row_group_that_expands_a_thousandfold_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, memory_limit: int
) -> None:
    values, written = EXPANDING[kind]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": values}), path, compression="zstd", **written)
    assert path.stat().st_size < 6000
    monkeypatch.setattr(row_groups, "MAX_VALUE_BYTES", 100_000)
    rows = Pipeline(path, executor="threads", memory_limit=memory_limit, max_value_bytes=1000)
    for chain in (rows.batch(2), rows.shuffle(10, seed=1), rows.filter([("x", "!=", "b")]).batch(2)):
        with pytest.raises(DatasetError, match=r"a\.parquet, row group 0: .*1000 times.*pass a larger max_value_bytes"):
            next(iter(chain))


def varint(number: int, size: int = 1) -> bytes:
    """Returns a zigzag number of Thrift, in at least so many bytes."""
    left, found = number << 1, []
    while left or len(found) < size:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found[:-1], found[-1] & 0x7F])


def claim(path: Path, field: bytes, true: int, claimed: int, *, places: int = 1) -> None:
    """Changes the first of some equal numbers in the footer of a file, without changing its length."""
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    before = field + varint(true)
    assert content.count(before, begin) == places
    after = content[begin:].replace(before, field + varint(claimed, len(before) - 1), 1)
    path.write_bytes(content[:begin] + after)


VALUES_FIELD = b"\x16"  # a 64-bit integer, one field after the one before it
LATE = pa.array(["b"] * 100 + [BIG_TEXT] * 300)
ONE_ROW = {
    "a dictionary": (pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), [BIG_TEXT]), {}),
    "plain text": (pa.array([BIG_TEXT] * 300), {"use_dictionary": False}),
    "shared beginnings": (pa.array([BIG_TEXT] * 300), {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}),
    "numbers": (pa.array(np.zeros(5_000_000, np.int64)), {}),
}


@pytest.mark.parametrize("memory_limit", [1 << 20, 1 << 30])
@pytest.mark.parametrize("kind", ONE_ROW)
def test_a_footer_that_claims_one_value_where_pages_have_many_is_not_believed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, memory_limit: int
) -> None:
    values, written = ONE_ROW[kind]
    path = tmp_path / "a.parquet"
    column = pa.ListArray.from_arrays([0, len(values)], values)
    pq.write_table(
        pa.table({"x": column}), path, compression="zstd", data_page_size=1 << 30, max_rows_per_page=1 << 40, **written
    )
    claim(path, VALUES_FIELD, len(values), 1)
    assert pq.read_metadata(path).row_group(0).column(0).num_values == 1
    monkeypatch.setattr(row_groups, "MAX_VALUE_BYTES", 100_000)
    rows = Pipeline(path, executor="threads", memory_limit=memory_limit, max_value_bytes=1000)
    with pytest.raises(DatasetError, match=r"a\.parquet, row group 0: .*1000 times"):
        next(iter(rows.batch(1)))


@pytest.mark.parametrize("memory_limit", [1 << 20, 1 << 30])
def test_beginnings_that_grow_late_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, memory_limit: int
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"x": LATE}), path, compression="zstd", use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY"
    )
    monkeypatch.setattr(row_groups, "MAX_VALUE_BYTES", 100_000)
    rows = Pipeline(path, executor="threads", memory_limit=memory_limit, max_value_bytes=1000)
    with pytest.raises(DatasetError, match=r"a\.parquet, row group 0: .*1000 times"):
        next(iter(rows.batch(1)))


def test_one_row_with_all_uses_of_a_dictionary_is_counted_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    values = pa.DictionaryArray.from_arrays(pa.array([0] * ROWS, pa.int32()), [BIG_TEXT])
    pq.write_table(pa.table({"x": pa.ListArray.from_arrays([0, ROWS], values)}), path, store_schema=False)
    pool = pa.system_memory_pool()
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        with pa.OSFile(str(path)) as source, pq.ParquetFile(source) as reader:
            assert most_bytes(source, reader, 0, [0], enough=1 << 30) > 1 << 30
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 100 << 20


def test_verify_reports_a_row_group_that_expands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values, _ = EXPANDING["a dictionary"]
    pq.write_table(pa.table({"x": values}), tmp_path / "a.parquet", store_schema=False)
    monkeypatch.setattr(row_groups, "MAX_VALUE_BYTES", 100_000)
    (damage,) = verify(Pipeline(tmp_path, max_value_bytes=1000)).damages
    assert damage.check == "bytes"
    assert "1000 times" in damage.what


def test_chunks_of_old_writers_may_be_longer_than_their_footer_says(tmp_path: Path) -> None:
    """Until 1.2.8, parquet-mr left out the header of the dictionary page (PARQUET-816)."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": ["a"] * 10}), path, compression="gzip", store_schema=False)
    column = pq.read_metadata(path).row_group(0).column(0)
    claim(path, VALUES_FIELD, column.total_compressed_size, column.total_compressed_size - 14, places=2)
    content, writer = path.read_bytes(), pq.read_metadata(path).created_by.encode()
    path.write_bytes(content.replace(writer, b"parquet-mr version 1.2.8".ljust(len(writer))))
    assert pq.read_table(path)["x"].to_pylist() == ["a"] * 10
    assert [row["x"] for row in Pipeline(path, executor="threads")] == ["a"] * 10


def test_the_size_of_a_large_dictionary_is_not_that_of_the_footer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "a.parquet"
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 3000, pa.int32()), [BIG_TEXT])
    pq.write_table(pa.table({"x": column}), path, compression="zstd", store_schema=False)
    claim(path, VALUES_FIELD, pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size, 100, places=2)
    assert pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 100
    monkeypatch.setattr(value_bounds, "_MOST_DICTIONARY_BYTES", 1000)
    monkeypatch.setattr(row_groups, "MAX_VALUE_BYTES", 100_000)
    rows = Pipeline(path, executor="threads", max_value_bytes=1000)
    with pytest.raises(DatasetError, match=r"a\.parquet, row group 0: .*1000 times"):
        next(iter(rows.batch(1)))
