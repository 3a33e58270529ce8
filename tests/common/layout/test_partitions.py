"""Partition columns: directory names, cast to the fields that a schema declares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import write_table

from parquetry.common import Pipeline, Unischema, UnischemaField
from parquetry.common.errors import DatasetError
from parquetry.common.tools import generate_metadata

pytestmark = pytest.mark.versions


def dataset(root: Path, directories: dict[str, int]) -> str:
    """Writes a file with one ``id`` to each directory."""
    for directory, number in directories.items():
        (root / directory).mkdir(parents=True)
        pq.write_table(pa.table({"id": [number]}), root / directory / "part.parquet")
    return str(root)


def test_a_null_of_a_declared_boolean_stays_null(tmp_path: Path) -> None:
    url = dataset(tmp_path, {"flag=true": 0, "flag=False": 1, "flag=__HIVE_DEFAULT_PARTITION__": 2})
    schema = Unischema("s", [UnischemaField("id", np.int64), UnischemaField("flag", bool, nullable=True)])
    generate_metadata(url, schema)
    assert {int(row["id"]): row["flag"] for row in Pipeline(url)} == {0: True, 1: False, 2: None}
    assert [int(row["id"]) for row in Pipeline(url).where([("flag", "=", False)])] == [1]


def test_escaped_names_and_values_are_read(tmp_path: Path) -> None:
    url = dataset(tmp_path, {"a key=x%2Fy%3Dz": 0, "a key=%25": 1})
    assert {int(row["id"]): row["a key"] for row in Pipeline(url)} == {0: "x/y=z", 1: "%"}


def test_names_and_values_are_decoded_once(tmp_path: Path) -> None:
    url = dataset(tmp_path, {"my%20key=a%2520b": 0, "my%20key=a%20b": 1})
    assert {int(row["id"]): row["my key"] for row in Pipeline(url)} == {0: "a%20b", 1: "a b"}
    assert [int(row["id"]) for row in Pipeline(url).where([("my key", "==", "a b")])] == [1]
    twice = dataset(tmp_path / "twice", {"a%253Db=1": 0})
    assert [row["a%3Db"] for row in Pipeline(twice)] == [1]


@pytest.mark.parametrize("name", ["a=%FE", "a%C3=1"])
def test_escaped_bytes_that_are_not_utf8_are_refused(tmp_path: Path, name: str) -> None:
    url = dataset(tmp_path, {name: 0, "a=%C3%A9": 1})
    with pytest.raises(DatasetError, match=f"directory '{name}': expected percent-encoded UTF-8"):
        list(Pipeline(url))


def test_a_file_name_is_not_a_directory(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "x=1.parquet")
    assert [field.name for field in Pipeline(str(tmp_path)).schema] == ["id"]


def test_text_that_is_not_a_number_is_refused_for_a_declared_number(tmp_path: Path) -> None:
    url = dataset(tmp_path, {"n=1": 0, "n=one": 1})
    schema = Unischema("s", [UnischemaField("id", np.int64), UnischemaField("n", np.int16)])
    generate_metadata(url, schema)
    with pytest.raises(DatasetError, match=r"partition column 'n': expected int16 in every directory name"):
        list(Pipeline(url))


@pytest.mark.parametrize("first_stores", [True, False])
def test_directories_count_for_a_column_that_only_some_files_store(tmp_path: Path, first_stores: bool) -> None:
    for number, stores in ((1, first_stores), (2, not first_stores)):
        write_table(tmp_path / f"k={number}", pa.table({"x": [number], **({"k": [number]} if stores else {})}))
    pipeline = Pipeline(tmp_path)
    assert [(row["x"], row["k"]) for row in pipeline] == [(1, 1), (2, 2)]
    assert [row["x"] for row in pipeline.where([("k", "=", 2)])] == [2]


def test_directories_that_are_not_of_a_stored_columns_type_leave_it_as_it_is(tmp_path: Path) -> None:
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16], pa.binary(16)))
    for name, column in (("text", pa.array([5])), ("uuid", ids), ("lists", pa.array([[1]]))):
        write_table(tmp_path / name / "k=b", pa.table({"x": [1], "k": column}))
        write_table(tmp_path / name / "k=c", pa.table({"x": [2]}))
        rows = list(Pipeline(tmp_path / name))
        assert [row["x"] for row in rows] == [1, 2]
        assert rows[0]["k"] is not None
        assert rows[1]["k"] is None


def test_a_file_outside_the_directories_of_a_stored_column_is_read(tmp_path: Path) -> None:
    write_table(tmp_path / "k=1", pa.table({"x": [1], "k": [1]}))
    write_table(tmp_path, pa.table({"x": [2]}))
    assert sorted((int(row["x"]), row["k"]) for row in Pipeline(tmp_path)) == [(1, 1), (2, None)]


@pytest.mark.parametrize("first_stores", [True, False])
def test_a_declared_schema_changes_nothing_of_that(tmp_path: Path, first_stores: bool) -> None:
    for number, stores in ((1, first_stores), (2, not first_stores)):
        write_table(tmp_path / f"k={number}", pa.table({"x": [number], **({"k": [number]} if stores else {})}))
    schema = Unischema("S", [UnischemaField("x", np.int64), UnischemaField("k", np.int64, nullable=True)])
    generate_metadata(tmp_path, schema)
    assert [(row["x"], row["k"]) for row in Pipeline(tmp_path)] == [(1, 1), (2, 2)]
