"""Parquet files from the wild: each reads as in pyarrow, or fails at once, with what is wrong and how to fix it.

The cases follow the descriptions in ``apache/parquet-testing`` (``data/README.md``, ``bad_data/README.md``). The tests
make the files with pyarrow, and change bytes where pyarrow cannot write such a file.
"""

from __future__ import annotations

import base64
import gzip
import struct
import zlib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders import write_table
from faces import THREADS
from ids import ids

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.base.errors import DatasetError, DecodeError, EmptySelectionError, SchemaError

pytestmark = pytest.mark.versions

COUNT = 300
RANDOM = np.random.default_rng(5)


def reader(path: Path | str, *fields: str) -> Pipeline:
    return Pipeline(str(path), list(fields) or None, executor="threads", workers=2)


def wide() -> pa.Table:
    """Returns a column of every physical type, all with nulls."""
    half = RANDOM.normal(size=COUNT).astype(np.float16)
    columns = {
        "flag": pa.array([k % 3 == 0 for k in range(COUNT)]),
        "i32": pa.array(RANDOM.integers(-(2**31), 2**31, COUNT), pa.int32()),
        "i64": pa.array(RANDOM.integers(-(2**63), 2**63 - 1, COUNT), pa.int64()),
        "u64": pa.array([2**64 - 1 - k for k in range(COUNT)], pa.uint64()),
        "f16": pa.array(half),
        "f32": pa.array(RANDOM.normal(size=COUNT).astype(np.float32)),
        "f64": pa.array(RANDOM.normal(size=COUNT)),
        "text": pa.array([f"common prefix {k // 7}" for k in range(COUNT)]),
        "raw": pa.array([bytes([k % 256, 0]) for k in range(COUNT)], pa.binary()),
        "flba": pa.array([struct.pack("<IB", k, 255) for k in range(COUNT)], pa.binary(5)),
        "price": pa.array([Decimal(k) / 8 for k in range(COUNT)], pa.decimal128(7, 3)),
    }
    rows = pa.array(np.arange(COUNT), mask=np.arange(COUNT) % 11 == 5)
    return pa.table({"id": pa.array(range(COUNT)), **{name: column.take(rows) for name, column in columns.items()}})


WIDE = wide()


def check_against_arrow(path: Path, table: pa.Table = WIDE) -> None:
    """Checks rows in order, a filter, and a shuffle against pyarrow."""
    held = pq.read_table(path)
    assert held.num_rows == table.num_rows
    expected = [_plain(row) for row in table.to_pylist()]
    assert THREADS.elements(reader(path)) == expected
    kept = reader(path).where((pc.field("i32") > 0) & pc.field("text").is_valid())
    wanted = [row for row in expected if row["i32"] is not None and row["i32"] > 0]
    assert THREADS.elements(kept) == wanted
    shuffled = THREADS.elements(reader(path, "id").shuffle(50, seed=3).batch(7))
    assert sorted(row["id"] for batch in shuffled for row in batch) == list(range(table.num_rows))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    def one(value: Any) -> Any:
        if isinstance(value, Decimal):
            return format(value.normalize(), "f")
        return value.item() if isinstance(value, np.generic) else value

    return {name: one(value) for name, value in row.items()}


NUMBERS = ["i32", "i64", "f32", "f64"]
ENCODINGS: dict[str, dict[str, Any]] = {
    "plain": {"use_dictionary": False},
    "dictionary that falls back to plain": {"dictionary_pagesize_limit": 100},
    "delta_binary_packed": {"use_dictionary": False, "column_encoding": {"i32": "DELTA_BINARY_PACKED", "i64": "DELTA_BINARY_PACKED"}},
    "delta_length_byte_array": {"use_dictionary": False, "column_encoding": {"text": "DELTA_LENGTH_BYTE_ARRAY", "raw": "DELTA_LENGTH_BYTE_ARRAY"}},
    "delta_byte_array": {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY", "raw": "DELTA_BYTE_ARRAY", "flba": "DELTA_BYTE_ARRAY"}},
    "byte_stream_split": {"use_dictionary": False, "column_encoding": dict.fromkeys([*NUMBERS, "f16", "flba", "price"], "BYTE_STREAM_SPLIT"), "compression": "zstd"},
    "rle boolean": {"data_page_version": "2.0", "use_dictionary": False, "column_encoding": {"flag": "RLE"}},
    "tiny pages with page index": {"data_page_size": 1, "write_batch_size": 3, "write_page_index": True},
    "tiny dictionary pages v2": {"data_page_size": 1, "write_batch_size": 2, "data_page_version": "2.0", "compression": "gzip"},
    "checksums": {"write_page_checksum": True, "compression": "snappy"},
    "bloom of statistics off": {"write_statistics": False},
    "statistics of some": {"write_statistics": ["id", "text"]},
    "sorting columns": {"sorting_columns": [pq.SortingColumn(0)]},
    "brotli": {"compression": "brotli"},
    "lz4": {"compression": "lz4"},
    "another codec for each": {"compression": {"id": "none", "text": "gzip", "f64": "zstd", "raw": "snappy"}},
    "no arrow schema": {"store_schema": False},
}  # fmt: skip


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_reads_as_pyarrow_reads_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(WIDE, path, row_group_size=110, **ENCODINGS[name])
    check_against_arrow(path)


def test_a_row_group_of_more_pages_than_a_short_counts(tmp_path: Path) -> None:
    count = 2**15 + 100
    path = tmp_path / "a.parquet"
    table = pa.table({"id": pa.array(range(count), pa.int32())})
    pq.write_table(table, path, data_page_size=1, write_batch_size=1, use_dictionary=False, compression="none")
    assert path.stat().st_size > count * 20  # one page header per row
    assert ids(reader(path).skip(count - 3)) == [count - 3, count - 2, count - 1]
    assert len(reader(path).where(pc.field("id") >= count - 5)) == 5


def test_concatenated_gzip_members_are_one_page(tmp_path: Path) -> None:
    values = np.arange(513, dtype=np.uint64) // 2 * 1000
    path = tmp_path / "a.parquet"
    table = pa.table({"id": values})
    pq.write_table(table, path, compression="gzip", compression_level=1, use_dictionary=False, write_statistics=False)
    raw = path.read_bytes()
    begin = raw.index(b"\x1f\x8b")
    stream = zlib.decompressobj(wbits=31)
    page = stream.decompress(raw[begin:])
    end = len(raw) - len(stream.unused_data)
    members = [_gzip_member(page[:4000], 0), _gzip_member(page[4000:], 0)]
    room = end - begin - sum(map(len, members))
    assert room >= 2
    raw = raw[:begin] + _gzip_member(page[:4000], room) + members[1] + raw[end:]
    path.write_bytes(raw)
    assert pq.read_table(path).column("id").to_pylist() == values.tolist()
    assert ids(reader(path)) == values.tolist()


def _gzip_member(data: bytes, room: int) -> bytes:
    """Lengthens a member by ``room`` bytes (0, or at least 2) in the header's extra field; see RFC 1952."""
    member = gzip.compress(data, 9, mtime=0)
    if not room:
        return member
    return member[:3] + b"\x04" + member[4:10] + (room - 2).to_bytes(2, "little") + bytes(room - 2) + member[10:]


# --- statistics ---


def patched(path: Path, before: bytes, after: bytes) -> None:
    """Replaces a value in the footer with another of the same length."""
    raw = path.read_bytes()
    footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    assert len(before) == len(after)
    assert before in raw[footer:]
    path.write_bytes(raw[:footer] + raw[footer:].replace(before, after))


@pytest.mark.parametrize("bound", ["minimum", "maximum", "both"])
def test_statistics_that_are_nan_prove_nothing(tmp_path: Path, bound: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(4), "x": [1.25, 3.75, float("nan"), 2.5]}), path, row_group_size=4)
    for value in {"minimum": [1.25], "maximum": [3.75], "both": [1.25, 3.75]}[bound]:
        patched(path, struct.pack("<d", value), struct.pack("<d", float("nan")))
    statistics = pq.read_metadata(path).row_group(0).column(1).statistics
    assert not statistics.has_min_max or np.isnan([statistics.min, statistics.max]).any()
    for expression, expected in (
        (pc.field("x") > 3, [1]), (pc.field("x") < 2, [0]), (pc.field("x") > 5, []), (~(pc.field("x") > 0), [2]),
        (pc.is_nan(pc.field("x")), [2]), (pc.field("x") == 2.5, [3]),
    ):  # fmt: skip
        assert ids(reader(path).where(expression).take(9)) == expected if expected else not _left(path, expression)


def _left(path: Path, expression: pc.Expression) -> int:
    return len(reader(path).where(expression))


@pytest.mark.parametrize(("stored", "written"), [(0.0, [-0.0, -0.0]), (-0.0, [0.0, 0.0])])
def test_a_zero_of_either_sign_in_statistics_is_both(tmp_path: Path, stored: float, written: list[float]) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(2), "x": written}), path)
    for before in (0.0, -0.0):
        raw = path.read_bytes()
        if struct.pack("<d", before) in raw[-200:]:
            patched(path, struct.pack("<d", before), struct.pack("<d", stored))
    for zero in (0.0, -0.0):
        assert len(reader(path).where(pc.field("x") == zero)) == 2
        assert len(reader(path).where((pc.field("x") < zero) | (pc.field("x") > zero))) == 0


def test_bounds_of_text_that_were_cut_off_prove_nothing(tmp_path: Path) -> None:
    """Like parquet-rs with a truncation length: the bounds enclose the values but are not values themselves."""
    path = tmp_path / "a.parquet"
    names = ["Blart", "Alice", "Bob", "Kevin"]
    pq.write_table(pa.table({"id": range(4), "x": names, "raw": [n.encode() for n in names]}), path)
    patched(path, b"Alice", b"Al\0\0\0")
    patched(path, b"Kevin", b"Kf\xc2\x80\0")
    for name in ("x", "raw"):
        make = str if name == "x" else str.encode
        for expression, expected in (
            (pc.field(name) == make("Alice"), [1]), (pc.field(name) >= make("Kevin"), [3]),
            (pc.field(name) < make("Alice"), []), (pc.field(name) != make("Al\0\0\0"), [0, 1, 2, 3]),
            (pc.field(name).isin([make("Bob"), make("Kf")]), [2]), (pc.field(name) > make("L"), []),
        ):  # fmt: skip
            assert _left(path, expression) == len(expected)
            if expected:
                assert ids(reader(path).where(expression)) == expected


def test_half_floats_with_nan_and_zeros_filter_by_their_values(tmp_path: Path) -> None:
    values = np.array([1, -2, np.nan, 0, -1, -0.0, 2], np.float16)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(8), "x": pa.array([None, *values], pa.float16())}), path)
    assert ids(reader(path).where(lambda row: row["x"] is not None and row["x"] > 0, fields=["x"])) == [1, 7]
    assert ids(reader(path).where(pc.field("x").is_null())) == [0]
    assert ids(reader(path).where(pc.field("x").is_valid())) == [1, 2, 3, 4, 5, 6, 7]


def test_pages_and_columns_of_nothing_but_nulls_are_nulls(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": range(30),
            "none": pa.nulls(30, pa.int32()),
            "pages": pa.array([None if k // 10 == 1 else k for k in range(30)], pa.int32()),
            "lists": pa.nulls(30, pa.list_(pa.float32())),
        }
    )
    for options in ({}, {"data_page_version": "2.0", "compression": "zstd"}, {"write_page_index": True}):
        path = tmp_path / "a.parquet"
        pq.write_table(table, path, row_group_size=15, data_page_size=1, write_batch_size=5, **options)
        rows = THREADS.elements(reader(path))
        assert rows == [{**row, "lists": None} for row in table.to_pylist()]
        assert ids(reader(path).where(pc.field("none").is_null() & (pc.field("pages") >= 20))) == list(range(20, 30))
        assert _left(path, pc.field("none") > 0) == 0


# --- names and types ---


def test_a_name_that_occurs_twice_is_refused_unless_deselected(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table([pa.array([1, 2]), pa.array([3, 4]), pa.array([0, 1])], names=["x", "x", "id"]), path)
    for pipeline in (reader(path), reader(path, "x"), reader(path, "id").where(pc.field("x") > 1)):
        with pytest.raises(SchemaError, match=r"field 'x': expected one column of this name in .*a\.parquet, got 2"):
            next(iter(pipeline))
    assert ids(reader(path, "id").where(pc.field("id") > 0)) == [1]


def test_a_struct_member_and_a_dotted_name_may_not_be_the_same(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [0, 1], "a.b": [1, 2], "a": [{"b": 5, "c": 6}] * 2}), path)
    with pytest.raises(SchemaError, match=r"field 'a\.b': expected one column of this name in .*Rename them"):
        next(iter(reader(path)))
    assert THREADS.elements(reader(path, "id", "a.c")) == [{"id": 0, "a.c": 6}, {"id": 1, "a.c": 6}]


@pytest.mark.parametrize(
    "column", [pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8())), pa.array([{"key": "x"}] * 2)]
)
def test_the_keys_of_a_map_and_a_dotted_name_may_not_be_the_same(tmp_path: Path, column: pa.Array) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [0, 1], "m": column, "m.key": [1, 2]}), path)
    with pytest.raises(SchemaError, match=r"field 'm\.key': expected one column of this name in .*ambiguous\. Rename"):
        next(iter(reader(path)))
    assert ids(reader(path, "id").where(pc.field("id") > 0)) == [1]


def test_a_filter_by_what_no_tensor_holds_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [0, 1], "x": [[{"a": 1}], None]}), path)
    message = (
        r"where\(is_valid\(x\)\): field 'x': Arrow type .* cannot become a tensor\. Filters read only .* Filter by "
        "another column, or store what you test"
    )
    with pytest.raises(SchemaError, match=message) as info:
        next(iter(reader(path, "id").where(pc.field("x").is_valid())))
    assert "Deselect" not in str(info.value)


def test_a_column_without_a_name_is_refused_unless_deselected(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"": [1], "id": [2]}), path)
    with pytest.raises(SchemaError, match=r"expected every column to have a name, got a nameless column of type int64"):
        next(iter(reader(path)))
    assert ids(reader(path, "id")) == [2]


def test_names_that_differ_in_case_are_two_names(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"A": [1, 2], "a": [3, 4]}), path)
    assert THREADS.elements(reader(path).where(pc.field("a") > 3)) == [{"A": 2, "a": 4}]


NESTED: dict[str, tuple[pa.Array, str]] = {
    "list of struct": (pa.array([[{"a": 1, "b": "x"}], None, []]), r"field 'x': Arrow type struct<a: int64, b: string>"),
    "struct of list of struct": (pa.array([{"l": [{"a": 1}], "i": 1}, None, {"l": [], "i": 2}]), r"field 'x\.l': Arrow type struct"),
    "map of struct": (pa.array([[("k", {"z": 1})], None, []], pa.map_(pa.string(), pa.struct([("z", pa.int8())]))), r"field 'x\.value': Arrow type struct"),
    "map of map": (pa.array([[("k", [("q", 1)])], None, []], pa.map_(pa.string(), pa.map_(pa.string(), pa.int8()))), r"field 'x\.value': Arrow type map"),
    "map with struct keys": (pa.array([[({"a": 1}, 1)], None, []], pa.map_(pa.struct([("a", pa.int8())]), pa.int8())), r"field 'x\.key': Arrow type struct"),
    "list of map": (pa.array([[[("k", 1)]], None, []], pa.list_(pa.map_(pa.string(), pa.int8()))), r"field 'x': Arrow type map"),
    "nothing": (pa.nulls(3), r"field 'x': Arrow type null"),
    "list of nothing": (pa.array([[None], None, []], pa.list_(pa.null())), r"field 'x': Arrow type null"),
}  # fmt: skip


@pytest.mark.parametrize("name", NESTED)
def test_fields_that_no_tensor_can_hold_are_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    column, message = NESTED[name]
    path = tmp_path / "a.parquet"
    try:
        pq.write_table(pa.table({"id": range(3), "x": column}), path)
    except pa.ArrowNotImplementedError as error:
        pytest.skip(f"this pyarrow cannot write the column: {error}")
    with pytest.raises(SchemaError, match=message + r".* cannot become a tensor\. Deselect it with select"):
        _ = reader(path).element
    assert ids(reader(path, "id").where(pc.field("id") > 0)) == [1, 2]


def test_a_pattern_that_only_such_a_field_matches_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [0], "x": pa.nulls(1)}), path)
    with pytest.raises(SchemaError, match="field 'x': Arrow type null cannot become a tensor"):
        _ = reader(path, "id", "x.*").element


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1], [None, 2], []]),
        pa.array([[1, 2], [2, None], [3, 1]], pa.list_(pa.int64(), 2)),
        pa.array([["a"], ["b", None], []]),
        pa.array([[[1]], [[None]], []], pa.list_(pa.list_(pa.int8()))),
        pa.array([[[1]], [None], []], pa.list_(pa.list_(pa.int8()))),
        pa.array([[("k", 1)], [("l", None)], []], pa.map_(pa.string(), pa.int8())),
    ],
    ids=["numbers", "fixed", "text", "lists", "null lists", "map values"],
)
def test_a_null_inside_a_list_is_reported_with_its_row(tmp_path: Path, column: pa.Array) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(3), "x": column}), path)
    with pytest.raises(DecodeError, match=r"field 'x.*a\.parquet, row group 0, row 1: expected a list without nulls"):
        list(reader(path))
    assert len(list(reader(path).where(pc.field("id") != 1))) == 2


def test_fixed_size_lists_of_no_values_are_read_or_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [0, 1], "x": pa.array([[], []], pa.list_(pa.float32(), 0))}), path)
    try:
        held = pq.read_table(path).to_pylist()
    except pa.ArrowInvalid:
        with pytest.raises(DatasetError, match=r"cannot read fixed-size lists of size 0\. Deselect the field"):
            next(iter(reader(path)))
    else:
        assert THREADS.elements(reader(path)) == held
    assert ids(reader(path, "id")) == [0, 1]


def test_logical_types_of_text_and_bytes_are_their_storage(tmp_path: Path) -> None:
    if not hasattr(pa, "json_"):
        pytest.skip("this pyarrow has no JSON type")
    texts = ['{"a":1}', '{"a":1,"b":null}', "[1,null,3]", None]
    table = pa.table(
        {
            "json": pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts)),
            "uuid": pa.ExtensionArray.from_storage(
                pa.uuid(), pa.array([b"%016d" % k for k in range(4)], pa.binary(16))
            ),
            "bool8": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 1, None, -1], pa.int8())),
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    assert [row["json"] for row in THREADS.elements(reader(path))] == texts
    assert [row["uuid"] for row in THREADS.elements(reader(path))] == [b"%016d" % k for k in range(4)]
    assert [row["bool8"] for row in THREADS.elements(reader(path))] == [0, 1, None, -1]


def test_text_that_is_not_utf8_is_reported_and_bytes_are_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    raw = pa.array([b"fine", b"\xff\xfe", b"fine"])
    column = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    pq.write_table(pa.table({"id": range(3), "x": column}), path, store_schema=True)
    message = (
        r"a\.parquet, row group 0: field 'x', row 1: expected text in UTF-8, got b'\\xff\\xfe'\. "
        r"Read it as bytes: name UnischemaField\('x', 'bytes'\) in fields=\."
    )
    for rows in (reader(path), reader(path).where(pc.field("id") > 0)):
        with pytest.raises(DecodeError, match=message):
            list(rows)
    read = Pipeline(path, fields=[UnischemaField("x", "bytes")])
    assert [row["x"] for row in read] == raw.to_pylist()
    assert ids(reader(path, "id")) == [0, 1, 2]
    assert [row["x"] for row in reader(path).where(pc.field("id") != 1)] == ["fine", "fine"]


# --- sizes ---


def test_files_without_row_groups_and_row_groups_without_rows(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64())])
    pq.ParquetWriter(tmp_path / "a.parquet", schema).close()
    with pytest.raises(EmptySelectionError, match="got none from 1 file with 0 row groups and 0 rows"):
        next(iter(reader(tmp_path)))
    with pq.ParquetWriter(tmp_path / "b.parquet", schema) as writer:
        writer.write_table(pa.table({"id": pa.array([], pa.int64())}))
    with pytest.raises(EmptySelectionError, match="got none from 2 files with 1 row group and 0 rows"):
        next(iter(reader(tmp_path)))
    write_table(tmp_path, pa.table({"id": [7]}), "c.parquet")
    assert ids(reader(tmp_path).shard(1, 0).shuffle(9, seed=1)) == [7]


def test_a_file_of_rows_without_columns_has_nothing_to_give(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1, 2]}).select([]), tmp_path / "a.parquet")
    with pytest.raises((EmptySelectionError, SchemaError)):
        next(iter(reader(tmp_path)))


# --- damage ---


def _damaged(make: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        path.write_bytes(make(path.read_bytes()))

    return apply


DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "no bytes": (_damaged(lambda raw: b""), "got 0 bytes that cannot be read as one"),
    "only the magic": (_damaged(lambda raw: raw[:4]), "got 4 bytes that cannot be read as one"),
    "magic twice": (_damaged(lambda raw: b"PAR1PAR1"), "smaller than the size reported by footer"),
    "another magic": (_damaged(lambda raw: raw[:-4] + b"XXXX"), "magic bytes not found"),
    "cut off": (_damaged(lambda raw: raw[:-20]), "magic bytes not found"),
    "no footer": (_damaged(lambda raw: raw[:200]), "magic bytes not found"),
    "a footer longer than the file": (_damaged(lambda raw: raw[:-8] + b"\xff\xff\xff\x7fPAR1"), "smaller than the size"),
    "a footer of no bytes": (_damaged(lambda raw: raw[:-8] + b"\0\0\0\0PAR1"), "Couldn't deserialize thrift"),
    "a footer of noise": (_damaged(lambda raw: raw[:-300] + b"\xee" * 292 + raw[-8:]), "Couldn't deserialize thrift"),
    "a text file": (_damaged(lambda raw: b"id,x\n1,2\n" * 30), "magic bytes not found"),
}  # fmt: skip


def test_a_file_of_another_format_says_to_write_it_as_parquet(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DatasetError, match=r"It has the name of a CSV file: write it as Parquet first"):
        _ = Pipeline(tmp_path / "rows.csv").schema


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path, name: str) -> None:
    pq.write_table(pa.table({"id": range(3)}), tmp_path / "a.parquet")
    pq.write_table(WIDE, tmp_path / "b.parquet")
    damage, message = DAMAGE[name]
    damage(tmp_path / "b.parquet")
    with pytest.raises(
        DatasetError, match=rf"file .*b\.parquet: expected a readable Parquet file, .*{message}"
    ) as info:
        len(reader(tmp_path))
    assert "Remove it, or write it again." in str(info.value)
    assert "\n" not in str(info.value)


def test_integers_that_arrow_has_no_type_for_are_not_called_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(3)}), path)
    stored = pq.read_metadata(path).metadata[b"ARROW:schema"]
    described = bytearray(base64.b64decode(stored))
    described[described.index(b"\x40\0\0\0")] = 128  # the width of the integers, as polars writes it
    path.write_bytes(path.read_bytes().replace(stored, base64.b64encode(described)))
    with pytest.raises(DatasetError, match=r"a\.parquet: expected columns that pyarrow .* has types for, got") as info:
        _ = Pipeline(path).schema
    assert "as decimals or as integers of at most 64 bits" in str(info.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(b"\x25\x00\x18\x03key", b"\x25\x02\x18\x03key", id="optional keys"),
        pytest.param(b"\x15\x02L,\0\0\0", b"\x5c\xbc\x15\0\0\0\0", id="a group of type Null"),
    ],
)
def test_annotations_that_arrow_refuses_are_not_called_damage(tmp_path: Path, before: bytes, after: bytes) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))}), path, store_schema=False)
    patched(path, before, after)
    with pytest.raises(DatasetError, match=r"a\.parquet: expected a schema that pyarrow .* accepts, got: ") as info:
        _ = Pipeline(path).schema
    assert f"COPY (FROM '{path}') TO 'new.parquet'" in str(info.value)
    assert "emove" not in str(info.value)


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_a_damaged_page_is_named_with_its_row_group(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(100), "x": range(100)}), path, row_group_size=50, compression=compression)
    chunk = pq.read_metadata(path).row_group(1).column(1)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    raw = bytearray(path.read_bytes())
    raw[begin : begin + 40] = b"\xff" * 40
    path.write_bytes(raw)
    with pytest.raises(DatasetError, match=r"a\.parquet, row group 1: expected readable columns .* is damaged or was"):
        list(reader(path))
    assert ids(reader(path, "id")) == list(range(100))


def test_encodings_that_arrow_cannot_decode_are_not_called_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"id": range(3), "text": pa.array(["a", "b", "a"]).dictionary_encode()})
    pq.write_table(table, path, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})  # as arrow-rs does
    with pytest.raises(DatasetError, match=r"a\.parquet, row group 0: expected readable columns \['text'\]") as info:
        list(reader(path))
    assert "pyarrow" in str(info.value)
    assert "cannot decode column 'text' (encoding DELTA_BYTE_ARRAY; compression SNAPPY). Write it with" in str(
        info.value
    )
    assert "damaged" not in str(info.value)
    assert ids(reader(path, "id")) == [0, 1, 2]


def test_damage_in_a_rare_encoding_may_be_a_limit_of_arrow(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    rows = pa.table({"id": range(100)})
    pq.write_table(rows, path, use_dictionary=False, compression="none", column_encoding={"id": "DELTA_BINARY_PACKED"})
    chunk = pq.read_metadata(path).row_group(0).column(0)
    raw = bytearray(path.read_bytes())
    place = raw.index(b"\x80\x02\x04\x64", chunk.data_page_offset)  # blocks of 256 values in 4 parts; 100 values
    raw[place + 2] = 3
    path.write_bytes(raw)
    advice = (
        r"is damaged or was .*If it is whole: pyarrow .* cannot decode column 'id' \(encoding DELTA_BINARY_PACKED\)"
    )
    with pytest.raises(DatasetError, match=advice):
        list(reader(path))


def test_encrypted_files_say_that_they_are(tmp_path: Path) -> None:
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
            return base64.b64encode(key_bytes)

        def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
            return base64.b64decode(wrapped_key)

    factory = encryption.CryptoFactory(lambda config: Keys())
    for name, plaintext in (("a", False), ("b", True)):
        settings = encryption.EncryptionConfiguration(
            footer_key="kf", column_keys={"kc": ["x"]}, plaintext_footer=plaintext, data_key_length_bits=128
        )
        properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), settings)
        table = pa.table({"id": range(3), "x": range(3)})
        with pq.ParquetWriter(tmp_path / f"{name}.parquet", table.schema, encryption_properties=properties) as writer:
            writer.write_table(table)
    for name in ("a", "b"):
        with pytest.raises(DatasetError, match=rf"{name}\.parquet: .*It is encrypted, and parquetry has no keys. Decr"):
            list(reader(tmp_path / f"{name}.parquet", "id"))
