"""Partition columns: directory names, cast to the fields that a schema declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from builders import write_table

from parquetry.common import Pipeline, Unischema, UnischemaField
from parquetry.common.apps.reports import verify
from parquetry.common.apps.tools import generate_metadata
from parquetry.common.base.errors import DatasetError
from parquetry.common.dataset import dataset as dataset_module
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.dataset.index import write_index

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


@pytest.mark.parametrize(("dtype", "values"), [("int16", ["1", "one"]), ("bool", ["true", "yes"])])
def test_text_that_is_no_value_of_the_declared_type_is_refused(tmp_path: Path, dtype: str, values: list[str]) -> None:
    url = dataset(tmp_path, {f"n={value}": number for number, value in enumerate(values)})
    generate_metadata(url, Unischema("s", [UnischemaField("id", np.int64), UnischemaField("n", dtype)]))
    with pytest.raises(DatasetError, match=f"partition column 'n': expected {dtype} in every directory name"):
        list(Pipeline(url))


@pytest.mark.parametrize("declares", [False, True])
@pytest.mark.parametrize("first_stores", [True, False])
def test_directories_count_for_a_column_that_only_some_files_store(
    tmp_path: Path, first_stores: bool, declares: bool
) -> None:
    for number, stores in ((1, first_stores), (2, not first_stores)):
        write_table(tmp_path / f"k={number}", pa.table({"x": [number], **({"k": [number]} if stores else {})}))
    if declares:
        schema = Unischema("S", [UnischemaField("x", np.int64), UnischemaField("k", np.int64, nullable=True)])
        generate_metadata(tmp_path, schema)
    pipeline = Pipeline(tmp_path)
    assert [(row["x"], row["k"]) for row in pipeline] == [(1, 1), (2, 2)]
    assert [row["x"] for row in pipeline.where([("k", "=", 2)])] == [2]


def test_directories_leave_a_column_whose_values_they_cannot_name_as_it_is(tmp_path: Path) -> None:
    ids = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"a" * 16], pa.binary(16)))
    for name, column in (("uuid", ids), ("lists", pa.array([[1]]))):
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


def differing(root: Path, **tables: dict[str, object]) -> Path:
    """Writes a file to each directory ``k=NAME``."""
    for name, columns in tables.items():
        write_table(root / f"k={name}", pa.table(columns))
    return root


def read(pipeline: Pipeline) -> list[tuple[int, object]]:
    return [(int(row["x"]), None if row["k"] is None else row["k"].item()) for row in pipeline]


@pytest.mark.parametrize("others", [{}, {"3": {"x": [5]}}], ids=["all-store", "one-lacks"])
@pytest.mark.parametrize("declares", [False, True])
def test_directories_win_over_a_stored_column(tmp_path: Path, others: dict[str, Any], declares: bool) -> None:
    root = differing(tmp_path / "d", **{"1": {"x": [1, 2], "k": [1, 1]}, "2": {"x": [3, 4], "k": [7, 8]}}, **others)
    if declares:
        generate_metadata(root, Unischema("S", [UnischemaField("x", np.int64), UnischemaField("k", np.int64)]))
    rows = [(1, 1), (2, 1), (3, 2), (4, 2), *[(5, 3)] * len(others)]
    assert read(Pipeline(root)) == rows
    assert not Pipeline(root).schema.k.nullable
    assert read(Pipeline(root).where(pc.field("k") >= 2)) == rows[2:]
    files = sorted(root.rglob("*.parquet"))
    for urls in (files, f"{root}/k=*/*.parquet", [file.parent for file in files]):  # the name of a file is all the same
        assert read(Pipeline(urls)) == rows
    assert read(Pipeline(root / "k=2")) == rows[2:4]
    write_index(str(root))
    assert Pipeline(root).dataset.index is not None
    assert read(Pipeline(root)) == rows
    assert ds.dataset(root, partitioning="hive", schema=pa.schema({"x": "int64", "k": "int64"})).to_table().to_pydict()[
        "k"
    ] == [k for _, k in rows]


def test_directories_far_above_the_files_leave_a_stored_column_as_it_is(tmp_path: Path) -> None:
    url = write_table(tmp_path / "k=1" / "set", pa.table({"x": [1], "k": [5]}))
    assert read(Pipeline(url)) == [(1, 5)]


def test_text_in_directories_takes_the_place_of_stored_numbers(tmp_path: Path) -> None:
    root = differing(tmp_path, b={"x": [1], "k": [5]}, c={"x": [2]})
    assert [(int(row["x"]), str(row["k"])) for row in Pipeline(root)] == [(1, "b"), (2, "c")]


def test_directories_win_over_stored_bytes(tmp_path: Path) -> None:
    """Older writers store text as bytes."""
    root = differing(tmp_path, b={"x": [1], "k": [b"other"]}, c={"x": [2], "k": [b"c"]})
    assert [(int(row["x"]), row["k"]) for row in Pipeline(root)] == [(1, b"b"), (2, b"c")]
    assert [damage.file for damage in verify(str(root)).damages] == [f"{root}/k=b/part.parquet"]
    write_table(root / "k=d", pa.table({"x": [3]}))
    assert [(int(row["x"]), row["k"]) for row in Pipeline(root)] == [(1, b"b"), (2, b"c"), (3, b"d")]


def test_directories_decide_where_the_stored_columns_have_no_common_type(tmp_path: Path) -> None:
    root = differing(tmp_path, **{"1": {"x": [1], "k": [5]}, "2": {"x": [2], "k": ["b"]}})
    assert read(Pipeline(root)) == [(1, 1), (2, 2)]


@pytest.mark.parametrize("indexed", [False, True])
def test_values_that_differ_are_warned_of_once(tmp_path: Path, indexed: bool, caplog: pytest.LogCaptureFixture) -> None:
    same = differing(tmp_path / "same", **{"1": {"x": [1], "k": [1]}, "__HIVE_DEFAULT_PARTITION__": {"x": [2]}})
    assert read(Pipeline(same)) == [(1, 1), (2, None)]
    assert not caplog.records
    other = differing(tmp_path / "other", **{"1": {"x": [1]}, "2": {"x": [2, 3], "k": [2, 9]}})
    if indexed:
        write_index(str(other))
    for _ in range(2):
        list(Pipeline(other))
    (record,) = caplog.records
    assert "/k=2/part.parquet. The directories count." in record.getMessage()
    assert [(damage.check, damage.file) for damage in verify(str(other)).damages] == [
        ("partition", str(other / "k=2" / "part.parquet"))
    ]
    assert "expected 2 in every row, as the name of the directory says, got 9" in verify(str(other)).damages[0].what
    assert verify(str(same)).damages == ()


@pytest.mark.parametrize("indexed", [False, True])
def test_the_same_value_as_text_and_as_a_number_does_not_differ(
    tmp_path: Path, indexed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    root = differing(tmp_path, **{"1": {"x": [1], "k": ["1"]}, "2": {"x": [2], "k": [2]}})
    if indexed:
        write_index(str(root))
    assert read(Pipeline(root)) == [(1, 1), (2, 2)]
    assert verify(str(root)).damages == ()
    assert not caplog.records
    write_table(root / "k=3", pa.table({"x": [3], "k": ["4"]}))
    write_table(root / "k=1", pa.table({"x": [1], "k": ["7"]}))
    list(Pipeline(root))
    assert "/k=1/part.parquet. The directories count." in caplog.text


def test_stored_nulls_differ_from_no_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nulls = pa.nulls(2, pa.int64())
    root = differing(tmp_path, **{"1": {"x": [1, 2], "k": nulls}, "2": {"x": [3], "k": [2]}})
    assert read(Pipeline(root)) == [(1, 1), (2, 1), (3, 2)]
    assert verify(str(root)).damages == ()
    assert not caplog.records


def test_verify_names_stored_values_that_are_not_utf8(tmp_path: Path) -> None:
    root = differing(tmp_path, a={"x": [1], "k": pa.array([b"\xff"]).view(pa.string())})
    (damage,) = verify(str(root)).damages
    assert "expected 'a' in every row, as the name of the directory says, got text that is not UTF-8" in damage.what


def test_no_footers_are_read_for_a_warning_if_the_columns_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_module, "_MANY_FILES", 2)
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "cache"))
    root = differing(tmp_path / "d", **{"1": {"x": [1], "k": [1]}, "2": {"x": [2], "k": [2]}})
    for known in (False, True):
        dataset = StoredDataset([str(root)])
        assert dataset.partitions["k"].to_pylist() == [1, 2]
        assert dataset.has_footers is not known


def test_no_footers_are_read_for_a_warning_if_there_is_an_index(tmp_path: Path) -> None:
    root = differing(tmp_path, **{"1": {"x": [1]}, "2": {"x": [2], "k": [9]}})
    write_index(str(root))
    dataset = StoredDataset([str(root)])
    assert dataset.partitions["k"].to_pylist() == [1, 2]
    assert dataset.index is not None
    assert not dataset.has_footers


@pytest.mark.parametrize("inside", [{"x": [1], "k": [5]}, {"x": [1]}])
def test_files_outside_the_directories_are_refused_if_the_stored_column_differs_inside(
    tmp_path: Path, inside: dict[str, Any]
) -> None:
    root = differing(tmp_path, **{"1": inside})
    write_table(root, pa.table({"x": [2], "k": [6]}))
    with pytest.raises(
        DatasetError, match=r"/part\.parquet: expected a directory 'k=\.\.\.'.* A stored 'k' counts only if those"
    ):
        list(Pipeline(root))
