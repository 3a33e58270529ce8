"""Columns of several chunks, as from a row group with more than 2 GiB of text, at a size for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders import write_table

from parquetry.common import Pipeline, contains, hash_split
from parquetry.common.engine.read import kept_tables
from parquetry.common.engine.read.column_reader import NOTHING
from parquetry.common.engine.read.native_reader import NativeColumnReader
from parquetry.common.parquet.nested import (
    as_stored,
    extension_paths,
    one_array,
    stored_schema,
    take_rows,
    wide,
    widened,
    with_whole_extensions,
)

pytestmark = pytest.mark.versions

LARGE_LISTS = pa.large_list(pa.large_list(pa.large_string()))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.string(), pa.large_string()),
        (pa.binary(), pa.large_binary()),
        (pa.dictionary(pa.int8(), pa.string()), pa.large_string()),
        (pa.list_(pa.list_(pa.string())), LARGE_LISTS),
        (LARGE_LISTS, LARGE_LISTS),
        (pa.int32(), pa.int32()),
        (pa.binary(3), pa.binary(3)),
    ],
)
def test_the_wide_type_has_64_bit_offsets(kind: pa.DataType, expected: pa.DataType) -> None:
    assert wide(kind) == expected


def test_chunks_are_put_together_in_the_wide_type_and_one_chunk_stays_unchanged() -> None:
    codes = [pa.array(["a", None]).dictionary_encode(), pa.array(["b", "a"]).dictionary_encode()]
    assert one_array(pa.chunked_array(codes)).equals(pa.array(["a", None, "b", "a"], pa.large_string()))
    assert one_array(pa.chunked_array([["a"], ["b"]])).equals(pa.array(["a", "b"], pa.large_string()))
    assert one_array(pa.chunked_array([["a", "b"]])).type == pa.string()
    assert one_array(pa.chunked_array([], pa.string())).to_pylist() == []
    assert widened(codes[1].slice(1)).to_pylist() == ["a"]


def test_rows_of_several_chunks_are_taken_in_any_order() -> None:
    table = pa.table({"text": pa.chunked_array([["a", "b"], ["c"]]), "number": pa.chunked_array([[1], [2, 3]])})
    taken = take_rows(table, pa.array([2, 0, 1]))
    assert taken.to_pylist() == [{"text": "c", "number": 3}, {"text": "a", "number": 1}, {"text": "b", "number": 2}]
    assert taken.column("text").type == pa.large_string()
    ascending = take_rows(table, pa.array([0, 2]))
    assert ascending.to_pylist() == [{"text": "a", "number": 1}, {"text": "c", "number": 3}]
    assert ascending.column("text").type == pa.string()
    assert take_rows(table, pa.array([], pa.int64())).num_rows == 0


@pytest.fixture
def in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads every column in chunks of two rows and, like Arrow, refuses to join chunks with 32-bit offsets."""
    read = kept_tables.read_row_group
    concat = pa.concat_arrays

    def chunked(dataset: Any, row_group: int, fields: Any, room_bytes: int | None = None) -> pa.Table:
        table = read(dataset, row_group, fields, room_bytes)
        columns = [
            pa.chunked_array([column.slice(first, 2).combine_chunks() for first in range(0, len(column), 2)])
            for column in table.columns
        ]
        return pa.table(columns, names=table.column_names)

    def checked(arrays: Any, *rest: Any) -> pa.Array:
        arrays = list(arrays)
        if len(arrays) > 1 and arrays[0].type != wide(arrays[0].type):
            raise pa.ArrowInvalid("offset overflow while concatenating arrays")
        return concat(arrays, *rest)

    monkeypatch.setattr(NativeColumnReader, "read", lambda *_, **__: NOTHING)
    monkeypatch.setattr(kept_tables, "read_row_group", chunked)
    monkeypatch.setattr(pa, "concat_arrays", checked)


@pytest.mark.usefixtures("in_chunks")
def test_columns_in_chunks_are_read_filtered_split_and_windowed(tmp_path: Path) -> None:
    words = [f"w{number % 3}" for number in range(7)]
    table = pa.table(
        {
            "id": range(7),
            "text": words,
            "raw": [word.encode() for word in words],
            "codes": pa.array(words).dictionary_encode(),
            "tags": [[word] for word in words],
            "group": ["a"] * 4 + ["b"] * 3,
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    pipeline = Pipeline(str(tmp_path), executor="threads")
    rows = list(pipeline)
    assert [row["text"] for row in rows] == [row["codes"] for row in rows] == words
    assert [row["raw"] for row in rows] == table.column("raw").to_pylist()
    assert [row["tags"].tolist() for row in rows] == table.column("tags").to_pylist()
    expected = [number for number in range(7) if words[number] == "w1"]
    for filtered in (
        pipeline.where(pc.field("text") == "w1"),
        pipeline.where([("codes", "in", ["w1"])]),
        pipeline.where(contains("tags", "w1")),
        pipeline.where(lambda row: row["text"] == "w1", fields=["text"]),
    ):
        assert [(int(row["id"]), row["text"]) for row in filtered] == [(number, "w1") for number in expected]
    parts = [[int(row["id"]) for row in pipeline.where(hash_split("text", [0.5, 0.5], k))] for k in (0, 1)]
    assert sorted(parts[0] + parts[1]) == list(range(7))
    grouped = pipeline.ngram({0: ["id"], 1: ["id"]}, timestamp="id", group_by="group")
    assert [int(row[0]["id"]) for row in grouped] == [0, 1, 2, 4, 5]
    shuffled = pipeline.shuffle(7, seed=1).batch(3)
    assert sorted(np.concatenate([batch["text"] for batch in shuffled]).tolist()) == sorted(words)


@pytest.mark.parametrize("name", ["", ".", ".a", "a.", "a..b"])
def test_structs_and_maps_with_dots_around_their_names_are_read(name: str, tmp_path: Path) -> None:
    struct = pa.array([{"x": 1}, {"x": 2}])
    pairs = pa.array([[("k", 1)], [("j", 2)]], pa.map_(pa.string(), pa.int64()))
    pipeline = Pipeline(write_table(tmp_path / "struct", pa.table({name: struct})))
    assert [row[f"{name}.x"] for row in pipeline] == [1, 2]
    assert [row[f"{name}.x"] for row in pipeline.where(pc.field(f"{name}.x") == 2)] == [2]
    rows = list(Pipeline(write_table(tmp_path / "map", pa.table({name: pairs}))))
    assert [row[f"{name}.value"].tolist() for row in rows] == [[1], [2]]


class _Extended(pa.ExtensionType):
    """A struct with a list view."""

    def __init__(self) -> None:
        super().__init__(pa.struct([("v", pa.list_view(pa.int16())), ("n", pa.int8())]), "tests.extended")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> _Extended:
        return cls()


def test_columns_become_what_files_store_at_any_depth() -> None:
    kind = _Extended()
    structs = [{"v": [1, 2], "n": 1}, None, {"v": None, "n": None}, {"v": [], "n": 4}, {"v": [5], "n": 5}, None]
    values = pa.ExtensionArray.from_storage(kind, pa.array(structs, kind.storage_type))
    offsets = pa.array([0, 2, None, 3, 6], pa.int32())
    columns = {
        "plain": pa.array([1, 2, 3, 4]),
        "extended": values[:4],
        "sliced": values[2:],
        "lists": pa.ListArray.from_arrays(offsets, values),
        "large": pa.LargeListArray.from_arrays(offsets.cast(pa.int64()), values),
        "fixed": pa.FixedSizeListArray.from_arrays(pa.concat_arrays([values, values[:2]]), 2),
        "maps": pa.MapArray.from_arrays(offsets, pa.array(list("abcdef")), values),
        "views": pa.array([[[1], None], None, [], [[2, 3]]], pa.large_list_view(pa.list_view(pa.int64()))),
        "inside": pa.StructArray.from_arrays([values[1:5]], ["s"], mask=pa.array([False, True, False, False])),
    }
    table = pa.table(columns)
    for part in (table, table.slice(1, 2), table.slice(3), table.slice(0, 0)):
        stored = as_stored(part)
        stored.validate(full=True)
        assert stored.schema == stored_schema(part.schema)
        assert "extension" not in str(stored.schema)
        assert "list_view" not in str(stored.schema)
        assert stored.to_pylist() == part.to_pylist()
    assert with_whole_extensions(["plain", "extended.n", "inside.s.v", "lists"], extension_paths(table.schema)) == [
        "plain",
        "extended",
        "inside.s",
        "lists",
    ]
