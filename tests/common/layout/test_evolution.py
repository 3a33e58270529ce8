"""Files written over time: which fields widen, which become nullable, and which changes are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline, Unischema, UnischemaField
from parquetry.common.errors import DecodeError, SchemaError
from parquetry.common.layout.evolution import widen
from parquetry.common.tools import generate_metadata


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.uint16(), pa.int8(), pa.int32()),
        (pa.uint64(), pa.int64(), None),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.int64(), pa.float64(), None),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.large_string()),
        (pa.decimal128(9, 2), pa.decimal128(12, 4), pa.decimal128(12, 4)),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), None),
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.large_list(pa.int64())),
        (pa.null(), pa.int8(), pa.int8()),
        (pa.string(), pa.int64(), None),
    ],
)
def test_types_widen_only_where_that_is_exact(first: pa.DataType, second: pa.DataType, expected: pa.DataType) -> None:
    assert widen(first, second) == expected
    assert widen(second, first) == expected


@pytest.fixture
def url(tmp_path: Path) -> str:
    pq.write_table(pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", "y"], "c": [1, 2]}), tmp_path / "a.parquet")
    pq.write_table(
        pa.table({"a": pa.array([2**40, 4], pa.int64()), "c": ["q", "r"], "e": [1.5, 2.5]}), tmp_path / "b.parquet"
    )
    return str(tmp_path)


def test_missing_columns_are_null_and_integers_widen(url: str) -> None:
    rows = list(Pipeline(url, ["a", "b", "e"]))
    assert [int(row["a"]) for row in rows] == [1, 2, 2**40, 4]
    assert [row["b"] for row in rows] == ["x", "y", None, None]
    assert [row["e"] for row in rows] == [None, None, 1.5, 2.5]
    assert [int(row["a"]) for row in Pipeline(url, ["a"]).where([("a", ">", 1)])] == [2, 2**40, 4]
    assert [int(row["a"]) for row in Pipeline(url, ["a"]).where([("b", "=", "y")])] == [2]


def test_types_that_do_not_widen_are_refused_with_both_files_unless_deselected(url: str) -> None:
    with pytest.raises(SchemaError, match=r"field 'c': .*int64 in .*a\.parquet and string in .*b\.parquet"):
        list(Pipeline(url))
    assert len(list(Pipeline(url, ["a"]))) == 4


@pytest.mark.parametrize("other", [[{"x": 1}], [[("k", 1)]]])
def test_a_list_in_one_file_and_a_struct_or_map_in_another_are_refused_unless_deselected(
    tmp_path: Path, other: list[object]
) -> None:
    kind = pa.map_(pa.string(), pa.int64()) if isinstance(other[0], list) else None
    pq.write_table(pa.table({"id": [0], "a": [[1, 2]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1], "a": pa.array(other, kind)}), tmp_path / "b.parquet")
    url = str(tmp_path)
    reason = r"field 'a': .*list<.*> in .*a\.parquet and (struct|map)<.*> in .*b\.parquet"
    for asked in (Pipeline(url), Pipeline(url, ["a"]), Pipeline(url, ["id"]).where(pc.field("a").is_valid())):
        with pytest.raises(SchemaError, match=reason):
            list(asked)
    member = pc.field("a", "x" if kind is None else "key")
    with pytest.raises(SchemaError, match=reason):
        list(Pipeline(url, ["id"]).where(member.is_valid()))
    assert [int(row["id"]) for row in Pipeline(url, ["id"])] == [0, 1]


def test_a_column_of_nothing_in_one_file_is_the_struct_of_another(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [0], "a": pa.nulls(1)}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [1], "a": [{"x": 5}]}), tmp_path / "b.parquet")
    assert [row["a.x"] for row in Pipeline(str(tmp_path))] == [None, 5]
    assert [int(row["id"]) for row in Pipeline(str(tmp_path)).where(pc.field("a", "x") > 0)] == [1]


def test_a_column_that_is_no_list_where_the_schema_declares_one_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [[1, 2]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"a": [{"x": 1}]}), tmp_path / "b.parquet")
    generate_metadata(str(tmp_path), Unischema("s", [UnischemaField("a", np.int64, (None,))]))
    with pytest.raises(DecodeError, match=r"b\.parquet, row group 0: field 'a': expected .*struct<x: int64>"):
        list(Pipeline(str(tmp_path)))
