"""Files written over time: what widens, what becomes nullable, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline
from parquetry.common.errors import SchemaError
from parquetry.common.layout.evolution import widen


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
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string()),
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
