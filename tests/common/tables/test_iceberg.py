"""`Pipeline.from_iceberg` against pyiceberg itself; equality deletes, which it does not support, against lists."""

from __future__ import annotations

import datetime
import decimal
import json
import shutil
import tempfile
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_rows import numbers, plain, rows_in, rows_of, sorted_rows

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError, SchemaError, StateError
from parquetry.common.dataset.table import Table, TableColumn
from parquetry.common.dataset.table_read import parse_value
from parquetry.common.tables import iceberg, iceberg_columns
from parquetry.common.tables.iceberg_columns import value_text

pytest.importorskip("pyiceberg")
pytest.importorskip("sqlalchemy")

import iceberg_tables as hand  # needs pyiceberg
from memory_store import Store
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)


def scanned(table: Any, *names: str, **options: Any) -> list[tuple[Any, ...]]:
    return rows_in(table.scan(**options).to_arrow(), *names)


@pytest.fixture
def table(tmp_path: Path) -> Any:
    """Creates a table of two files: ids 0 to 9, and 10 to 14."""
    made = hand.catalog_in(tmp_path).create_table(
        "n.t", numbers(0, 0).schema, properties={"format-version": "2", "write.parquet.row-group-limit": "4"}
    )
    made.append(numbers(0, 10))
    made.append(numbers(10, 15))
    return made


def test_every_snapshot_has_its_own_rows(table: Any) -> None:
    table.delete("id >= 3 and id < 6")
    table.overwrite(numbers(100, 103))
    for snapshot in table.snapshots():
        expected = scanned(table, "id", "name", snapshot_id=snapshot.snapshot_id)
        pipeline = Pipeline.from_iceberg(table, snapshot.snapshot_id)
        assert len(pipeline) == len(expected)
        assert not expected or rows_of(pipeline, "id", "name") == expected
    assert rows_of(Pipeline.from_iceberg(table), "id") == [(100,), (101,), (102,)]


def test_a_table_may_be_named(table: Any, tmp_path: Path) -> None:
    named = Pipeline.from_iceberg("local.n.t", catalog_options=hand.options_of(tmp_path))
    assert named == Pipeline.from_iceberg(table)
    assert len(named) == 15
    with pytest.raises(DatasetError, match="cannot be loaded: NoSuchTableError"):
        Pipeline.from_iceberg("local.n.nothing", catalog_options=hand.options_of(tmp_path))
    with pytest.raises(DatasetError, match="expected a pyiceberg Table, or a name"):
        Pipeline.from_iceberg("nothing")


def test_the_current_snapshot_is_found_once_and_kept(table: Any) -> None:
    pipeline = Pipeline.from_iceberg(table).shuffle(5, seed=1)
    text = json.dumps(pipeline.to_json())
    iterator = iter(pipeline)
    next(iterator)
    state = iterator.state_dict()
    table.overwrite(numbers(50, 52))
    again = Pipeline.from_json(json.loads(text))
    assert again == pipeline
    assert rows_of(again, "id") == rows_of(again.with_options(executor="sidecar"), "id") == [(i,) for i in range(15)]
    resumed = iter(again)
    resumed.load_state_dict(state)
    assert len(list(resumed)) == 14
    with pytest.raises(StateError, match="saved for a different dataset"):
        iter(Pipeline.from_iceberg(table).shuffle(5, seed=1)).load_state_dict(state)


def test_a_snapshot_that_is_not_there_is_an_error(table: Any) -> None:
    with pytest.raises(DatasetError, match=r"expected snapshot_id to be one of \[\d+, \d+\], got 7"):
        Pipeline.from_iceberg(table, 7)


def test_columns_are_found_by_their_ids(tmp_path: Path) -> None:
    first = pa.table(
        {
            "a": pa.array([1, 2], pa.int32()),
            "b": ["x", "y"],
            "s": [{"u": 1.5, "v": "p"}, None],
            "real": pa.array([0.5, None], pa.float32()),
        }
    )
    table = hand.catalog_in(tmp_path).create_table("n.t", first.schema)
    table.append(first)
    with table.update_schema() as change:
        change.update_column("a", LongType())
        change.rename_column("a", "number")
        change.rename_column("s.u", "w")
        change.delete_column("b")
    with table.update_schema() as change:
        change.add_column("b", LongType())  # another column with the name of a deleted one
        change.add_column(("s", "x"), StringType())
        change.rename_column("real", "a")
    second = pa.table(
        {
            "number": pa.array([3], pa.int64()),
            "s": [{"w": 2.5, "v": "q", "x": "new"}],
            "a": pa.array([7.0], pa.float32()),
            "b": pa.array([30], pa.int64()),
        }
    )
    table.append(second)
    pipeline = Pipeline.from_iceberg(table)
    rows = {row["number"]: {name: plain(value) for name, value in row.items()} for row in pipeline}
    expected = {row["number"]: row for row in table.scan().to_arrow().to_pylist()}
    for number, row in expected.items():
        inner = row["s"] or {}
        assert rows[number] == {"number": number, "a": row["a"], "b": row["b"]} | {
            f"s.{k}": inner.get(k) for k in "wvx"
        }
    assert rows_of(pipeline.where([("number", ">", 1)]), "number") == [(2,), (3,)]
    assert rows_of(pipeline.where(pc.field("b").is_null()), "number") == [(1,), (2,)]
    assert rows_of(pipeline.where([("a", ">", 0.25)]), "number") == [(1,), (3,)]
    old = Pipeline.from_iceberg(table, table.snapshots()[0].snapshot_id)
    assert rows_of(old, "a", "b", "s.u") == [(1, "x", 1.5), (2, "y", None)]


def test_the_default_of_a_member_counts_only_where_its_struct_has_a_value(tmp_path: Path) -> None:
    inner = pa.struct([("a", pa.int64()), ("t", pa.struct([("u", pa.string())]))])
    structs = [None, {"a": 1, "t": None}, {"a": None, "t": {"u": "x"}}, None]
    first = pa.table({"id": pa.array(range(4), pa.int64()), "s": pa.array(structs, inner)})
    table = hand.catalog_in(tmp_path).create_table("n.t", first.schema, properties={"format-version": "2"})
    table.append(first)
    with table.update_schema() as change:
        change.add_column(("s", "b"), LongType(), default_value=7)
        change.add_column(("s", "t", "c"), LongType(), default_value=8)
        change.add_column("top", LongType(), default_value=9)
        member = NestedField(90, "p", LongType(), required=False)
        change.add_column("late", StructType(member))
        change.add_column(("s", "later"), StructType(member))
        change.add_column("deep", StructType(NestedField(91, "t", StructType(member), required=True)))
    with table.update_schema() as change:  # pyiceberg drops the defaults of members that come with their struct
        for path in (("late", "d"), ("s", "later", "d"), ("deep", "t", "d")):
            change.add_column(path, LongType(), default_value=5)
    names = ["id", "s.a", "s.b", "s.t.u", "s.t.c", "s.later.d", "top", "late.d", "deep.t.d"]
    rows = [{name: plain(row[name]) for name in names} for row in Pipeline.from_iceberg(table)]
    assert rows == [_flat(row, names) for row in table.scan().to_arrow().to_pylist()]
    assert [row["s.b"] for row in rows] == [None, 7, 7, None]
    assert [row["s.t.c"] for row in rows] == [None, None, 8, None]
    assert [row["top"] for row in rows] == [9] * 4
    pipeline = Pipeline.from_iceberg(table)
    assert rows_of(pipeline.select("s.t.c"), "s.t.c") == [(None,), (None,), (None,), (8,)]
    assert rows_of(pipeline.where(pc.field("s.b").is_null()), "id") == [(0,), (3,)]
    assert rows_of(pipeline.where(pc.field("s.b") == 7), "id") == [(1,), (2,)]
    assert rows_of(pipeline.where(pc.field("deep.t.d").is_null()), "id") == [(0,), (1,), (2,), (3,)]
    assert rows_of(pipeline.nulls("drop", "s.t.c"), "id") == [(2,)]
    assert Table.from_json(json.loads(json.dumps(iceberg.open_iceberg(table, None).table.to_json()))) == (
        iceberg.open_iceberg(table, None).table
    )


def _flat(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    def value(path: str) -> Any:
        found: Any = row
        for part in path.split("."):
            found = None if found is None else found[part]
        return found

    return {name: value(name) for name in names}


def test_structs_without_members_are_left_out(tmp_path: Path) -> None:
    first = pa.table({"id": pa.array([1], pa.int64()), "s": [{"a": 1}]})
    table = hand.catalog_in(tmp_path).create_table("n.t", first.schema)
    table.append(first)
    with table.update_schema() as change:
        change.delete_column(("s", "a"))
    assert list(Pipeline.from_iceberg(table).schema.fields) == ["id"]


@pytest.mark.parametrize("form", ["positions", "vectors"])
def test_rows_that_position_deletes_name_are_gone(table: Any, form: str) -> None:
    first, second = hand.data_files(table)
    gone = {first: [0, 4, 5, 9], second: [2]}
    if form == "positions":
        files = [
            hand.position_deletes(table, "p.parquet", [(name, row) for name, rows in gone.items() for row in rows])
        ]
    else:
        files = hand.deletion_vectors(table, "p.puffin", gone)
    hand.commit_deletes(table, *files)
    table.append(numbers(20, 22))
    kept = [1, 2, 3, 6, 7, 8, 10, 11, 13, 14, 20, 21]
    pipeline = Pipeline.from_iceberg(table)
    assert rows_of(pipeline, "id") == [(i,) for i in kept]
    if form == "positions":
        assert rows_of(pipeline, "id", "name") == scanned(table, "id", "name")
    assert len(pipeline) == len(kept)
    assert len(Pipeline.from_iceberg(table, table.snapshots()[1].snapshot_id)) == 15
    assert rows_of(pipeline.where([("id", ">", 3)]).shuffle(4, seed=2), "id") == [(i,) for i in kept if i > 3]


def test_position_deletes_without_a_path_or_position_delete_nothing(
    table: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = hand.data_files(table)
    odd = [(first, None), (None, 3), (None, None)]
    hand.commit_deletes(table, hand.position_deletes(table, "p.parquet", [(first, 4), (second, 2)], odd=odd))
    pipeline = Pipeline.from_iceberg(table)
    assert rows_of(pipeline, "id") == [(i,) for i in range(15) if i not in (4, 12)] == scanned(table, "id")
    assert "p.parquet: 3 of 5 entries have a null path or position. They name no row" in caplog.text


def test_files_with_a_key_are_read_unless_they_are_encrypted(table: Any, tmp_path: Path) -> None:
    first, second = hand.data_files(table)
    path = shutil.copy(second.removeprefix("file://"), tmp_path / "plain.parquet")
    with table.transaction() as change, change.update_snapshot().fast_append() as added:
        added.append_data_file(with_key(_described(f"file://{path}", 5)))
    hand.commit_deletes(table, with_key(hand.position_deletes(table, "p.parquet", [(second, 0)])))
    ids = [*range(10), 10, *(i for i in range(11, 15) for _ in range(2))]
    assert rows_of(Pipeline.from_iceberg(table), "id") == [(i,) for i in ids] == scanned(table, "id")
    (vector,) = hand.deletion_vectors(table, "p.puffin", {first: [1]})
    place = Path(vector.file_path.removeprefix("file://"))
    place.write_bytes(b"AGS1" + b"\xee" * (place.stat().st_size + 24))
    hand.commit_deletes(table, with_key(vector))
    with pytest.raises(
        DatasetError, match=r"p\.puffin: .* got: an encrypted file\. It is encrypted, and parquetry has"
    ):
        len(Pipeline.from_iceberg(table))
    path.write_bytes(path.read_bytes()[:-4] + b"PARE")
    with pytest.raises(DatasetError, match=r"plain\.parquet: .*It is encrypted, and parquetry has no keys"):
        len(Pipeline.from_iceberg(table, table.snapshots()[-2].snapshot_id))


def with_key(file: DataFile) -> DataFile:
    """Adds key metadata, as some writers do for files that they do not encrypt."""
    file[[field.name for field in DATA_FILE_TYPE[3].fields].index("key_metadata")] = b"key"
    return file


def test_each_entry_of_a_manifest_is_one_deletion_vector(table: Any) -> None:
    first, second = hand.data_files(table)
    kept, dropped = hand.deletion_vectors(table, "p.puffin", {first: [1, 2], second: [0]})
    hand.commit_deletes(table, kept)  # the vector for the second file is in the Puffin file, but not in the table
    assert rows_of(Pipeline.from_iceberg(table), "id") == [(i,) for i in range(15) if i not in (1, 2)]
    hand.commit_deletes(table, dropped)
    assert rows_of(Pipeline.from_iceberg(table), "id") == [(i,) for i in range(15) if i not in (1, 2, 10)]


@pytest.mark.slow
def test_the_vectors_of_a_puffin_file_cost_one_delete_each(table: Any) -> None:
    for first in range(20, 60, 2):
        table.append(numbers(first, first + 2))
    hand.commit_deletes(
        table, *hand.deletion_vectors(table, "p.puffin", {name: [0] for name in hand.data_files(table)})
    )
    found = iceberg.open_iceberg(table, None).table
    assert len(found.deletes) == len(found.files) == 22
    assert sorted(file.deletes for file in found.files) == [(number,) for number in range(22)]
    expected = [*range(1, 10), *range(11, 15), *range(21, 60, 2)]
    assert rows_of(Pipeline.from_iceberg(table), "id") == [(i,) for i in expected]


def test_a_deletion_vector_stands_for_all_position_deletes_of_its_file(table: Any) -> None:
    first, second = hand.data_files(table)
    both = hand.position_deletes(table, "both.parquet", [(first, 0), (second, 0)])
    hand.commit_deletes(table, both, hand.position_deletes(table, "first.parquet", [(first, 3)]))
    hand.commit_deletes(table, *hand.deletion_vectors(table, "p.puffin", {first: [5]}))
    assert rows_of(Pipeline.from_iceberg(table), "id") == [(i,) for i in range(15) if i not in (5, 10)]


def test_a_deletion_vector_does_not_concern_a_newer_file(table: Any) -> None:
    first, _ = hand.data_files(table)
    vectors = hand.deletion_vectors(table, "p.puffin", {first: [1, 2]})
    hand.commit_deletes(table, *vectors)
    table.delete("id < 10")
    with table.transaction() as change, change.update_snapshot().fast_append() as added:
        added.append_data_file(_described(first, 10))
    hand.commit_deletes(table, hand.position_deletes(table, "p.parquet", [(first, 7)]))
    assert rows_of(Pipeline.from_iceberg(table), "id") == [(i,) for i in range(15) if i != 7]


def _described(location: str, count: int, *values: Any) -> DataFile:
    """Describes a data file for a manifest, with its partition values."""
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        record_count=count,
        file_size_in_bytes=Path(location.removeprefix("file://")).stat().st_size,
    )


def test_a_data_file_has_one_deletion_vector_at_most(table: Any) -> None:
    first, _ = hand.data_files(table)
    hand.commit_deletes(table, *hand.deletion_vectors(table, "p.puffin", {first: [1]}))
    hand.commit_deletes(table, *hand.deletion_vectors(table, "q.puffin", {first: [1, 2]}))
    with pytest.raises(DatasetError, match=r"at most one deletion vector for .*\.parquet, got 2\. Rewrite"):
        Pipeline.from_iceberg(table)


@pytest.mark.parametrize("member", ["referenced_data_file", "content_offset", "content_size_in_bytes"])
def test_a_deletion_vector_without_a_place_is_refused(table: Any, member: str) -> None:
    (vector,) = hand.deletion_vectors(table, "p.puffin", {hand.data_files(table)[0]: [1]})
    vector[[field.name for field in DATA_FILE_TYPE[3].fields].index(member)] = None
    hand.commit_deletes(table, vector)
    with pytest.raises(
        DatasetError, match=r"expected the data file, offset and size of each deletion vector in .*None"
    ):
        Pipeline.from_iceberg(table)


@pytest.mark.parametrize(
    ("member", "value", "message"),
    [
        ("content_offset", 5, "bytes, not 36, at offset 5"),
        ("content_offset", -1, "at offset -1"),
        ("content_size_in_bytes", 3, "not -5 at offset 4"),
        ("content_size_in_bytes", 1 << 40, "bytes, not 1099511627768 at offset 4"),
        ("record_count", 3, "2 rows, not 3"),
        ("record_count", 1, "more rows than it should hold"),
        ("record_count", 11, "expected at most 10 deleted rows"),
        ("record_count", -1, "got -1"),
    ],
)
def test_a_false_deletion_vector_is_refused(table: Any, member: str, value: int, message: str) -> None:
    (vector,) = hand.deletion_vectors(table, "p.puffin", {hand.data_files(table)[0]: [1, 2]})
    vector[[field.name for field in DATA_FILE_TYPE[3].fields].index(member)] = value
    hand.commit_deletes(table, vector)
    with pytest.raises(DatasetError, match=message):
        len(Pipeline.from_iceberg(table))


def test_rows_that_equality_deletes_name_are_gone_from_older_files_only(table: Any) -> None:
    by_id = hand.equality_deletes(
        table, "e.parquet", pa.table({"id": pa.array([3, 11, 20, 99], pa.int64())}), {"id": 1}
    )
    both = pa.table({"id": pa.array([5, 6], pa.int64()), "name": ["n5", "other"]})
    by_both = hand.equality_deletes(table, "f.parquet", both, {"id": 1, "name": 2})
    hand.commit_deletes(table, by_id, by_both)
    table.append(numbers(20, 22))  # newer than the deletes
    pipeline = Pipeline.from_iceberg(table)
    assert rows_of(pipeline, "id") == [(i,) for i in [*range(15), 20, 21] if i not in (3, 5, 11)]
    assert rows_of(pipeline.select("name"), "name") == sorted_rows(
        (f"n{i}",) for i in [*range(15), 20, 21] if i not in (3, 5, 11)
    )
    with_sidecar = Pipeline.from_json(pipeline.to_json()).with_options(executor="sidecar")
    assert rows_of(with_sidecar, "id") == rows_of(pipeline, "id")


def test_equality_deletes_of_nulls_and_of_columns_that_are_gone(tmp_path: Path) -> None:
    data = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "key": ["a", None, "c"]})
    table = hand.catalog_in(tmp_path).create_table("n.t", data.schema)
    table.append(data)
    hand.commit_deletes(
        table, hand.equality_deletes(table, "e.parquet", pa.table({"key": pa.array([None], pa.string())}), {"key": 2})
    )
    with table.update_schema() as change:
        change.delete_column("key")
    assert rows_of(Pipeline.from_iceberg(table), "id") == [(1,), (3,)]


def test_deletes_of_a_partition_concern_that_partition(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    table = hand.catalog_in(tmp_path).create_table("n.t", schema, partition_spec=spec)
    table.append(pa.table({"id": pa.array([1, 2, 1, 2], pa.int64()), "part": ["x", "x", "y", "y"]}))
    values = pa.table({"id": pa.array([1], pa.int64())})
    hand.commit_deletes(table, hand.equality_deletes(table, "e.parquet", values, {"id": 1}, partition=Record("x")))
    pipeline = Pipeline.from_iceberg(table)
    assert rows_of(pipeline, "id", "part") == [(1, "y"), (2, "x"), (2, "y")]
    assert rows_of(pipeline.where([("part", "=", "x")]), "id") == [(2,)]


def test_the_schema_is_resolved_once_for_all_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = Schema(*(NestedField(number, f"c{number}", LongType()) for number in range(1, 8)))
    spec = PartitionSpec(*(PartitionField(n, 1000 + n, IdentityTransform(), f"c{n}") for n in (1, 2)))
    table = hand.catalog_in(tmp_path).create_table("n.t", schema, partition_spec=spec)
    pq.write_table(pa.table({"c3": [0]}), tmp_path / "x.parquet")
    with table.transaction() as change, change.update_snapshot().fast_append() as added:
        for number in range(20):
            added.append_data_file(_described(f"file://{tmp_path}/x.parquet", 1, number, -number))
    resolved: list[Any] = []
    known = iceberg_columns._arrow_type
    monkeypatch.setattr(iceberg_columns, "_arrow_type", lambda kind: resolved.append(kind) or known(kind))
    found = iceberg.open_iceberg(table, None).table
    assert sorted(file.values for file in found.files) == sorted((("c1", str(n)), ("c2", str(-n))) for n in range(20))
    assert len(resolved) == 7


def test_paths_are_no_urls(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "part", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    table = hand.catalog_in(tmp_path).create_table("n.t", schema, partition_spec=spec)
    parts = ["x/y", "a%20b", "a b", "ü", None, "k=v"]
    table.append(pa.table({"id": pa.array(range(6), pa.int64()), "part": parts}))
    pipeline = Pipeline.from_iceberg(table)
    assert rows_of(pipeline, "id", "part") == scanned(table, "id", "part") == list(enumerate(parts))
    assert rows_of(pipeline.where([("part", "=", "a%20b")]), "id") == [(1,)]


def test_files_in_a_bucket_are_reached_through_the_catalogs_own_settings() -> None:
    properties = {
        "s3.endpoint": "http://localhost:1",
        "s3.region": "here",
        "s3.access-key-id": "a",
        "s3.secret-access-key": "b",
    }
    table = SimpleNamespace(io=PyArrowFileIO(properties), location=lambda: "s3://bucket/t")
    storage = iceberg._Storage("table", table, None)
    assert storage.path("s3://bucket/t/data/part=a%2Fb/x.parquet") == "bucket/t/data/part=a%2Fb/x.parquet"
    assert storage.filesystem.type_name == "s3"
    pipeline = Pipeline("s3://bucket/t", filesystem=storage.filesystem)
    assert Pipeline.from_json(json.loads(json.dumps(pipeline.to_json()))) == pipeline
    with pytest.raises(DatasetError, match=r"expected all files on one file system \(s3\), got 'gs://other/x'"):
        storage.path("gs://other/x")


class _S3Store(Store):
    """A store of fsspec that knows only some of the schemes."""

    protocol = ("s3", "s3a")


@pytest.mark.parametrize(
    "filesystem", [_S3Store(), pafs.SubTreeFileSystem("/", pafs.LocalFileSystem())], ids=["fsspec", "arrow"]
)
@pytest.mark.parametrize(("own", "other"), [("s3", "s3a"), ("s3", "s3n"), ("s3a", "s3"), ("s3a", "s3n")])
def test_schemes_that_name_one_store_may_be_mixed(own: str, other: str, filesystem: Any) -> None:
    storage = iceberg._Storage("table", SimpleNamespace(io=None, location=lambda: f"{own}://bucket/t"), filesystem)
    paths = {storage.path(f"{scheme}://bucket/t/p=a%2Fb c.parquet") for scheme in (own, other, other.upper())}
    assert paths == {"bucket/t/p=a%2Fb c.parquet"}
    for scheme in ("gs", "file", "hdfs"):
        with pytest.raises(
            DatasetError, match=rf"expected all files on one file system \({own}\), got '{scheme}://bucket"
        ):
            storage.path(f"{scheme}://bucket/t/x.parquet")


def test_tables_of_the_first_format_are_read(tmp_path: Path) -> None:
    properties = {"format-version": "1"}
    table = hand.catalog_in(tmp_path).create_table("n.t", numbers(0, 0).schema, properties=properties)
    table.append(numbers(0, 4))
    table.delete("id = 2")
    assert rows_of(Pipeline.from_iceberg(table), "id", "name") == scanned(table, "id", "name")


def test_every_type_reads_as_it_does_elsewhere(tmp_path: Path) -> None:
    data = pa.table(
        {
            "flag": [True, None],
            "real": pa.array([1.5, float("nan")], pa.float64()),
            "price": pa.array([decimal.Decimal("1.25"), None], pa.decimal128(9, 2)),
            "day": pa.array([datetime.date(2024, 2, 29), None]),
            "time": pa.array([datetime.time(1, 2, 3, 4), None], pa.time64("us")),
            "at": pa.array([datetime.datetime(2024, 1, 2, 3), None], pa.timestamp("us")),
            "zoned": pa.array([datetime.datetime(2024, 1, 2, 3), None], pa.timestamp("us", "UTC")),
            "raw": [b"\x00\xff", None],
            "fixed": pa.array([b"abcd", None], pa.binary(4)),
            "list": [[1, 2], None],
        }
    )
    table = hand.catalog_in(tmp_path).create_table("n.t", data.schema)
    table.append(data)
    first, second = ({name: plain(value) for name, value in row.items()} for row in Pipeline.from_iceberg(table))
    moment = int(datetime.datetime(2024, 1, 2, 3, tzinfo=datetime.UTC).timestamp()) * 1_000_000
    assert first == {
        "flag": True,
        "real": 1.5,
        "price": "1.25",
        "day": (datetime.date(2024, 2, 29) - datetime.date(1970, 1, 1)).days,
        "time": ((1 * 60 + 2) * 60 + 3) * 1_000_000 + 4,
        "at": moment,
        "zoned": moment,
        "raw": b"\x00\xff",
        "fixed": b"abcd",
        "list": [1, 2],
    }
    assert str(second.pop("real")) == "nan"
    assert set(second.values()) == {None}


def test_hidden_partitions_change_nothing(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "at", TimestampType()))
    spec = PartitionSpec(
        PartitionField(1, 1000, BucketTransform(3), "bucket"), PartitionField(2, 1001, DayTransform(), "day")
    )
    table = hand.catalog_in(tmp_path).create_table("n.t", schema, partition_spec=spec)
    moments = [datetime.datetime(2024, 1, 1 + n % 3) for n in range(9)]
    table.append(pa.table({"id": pa.array(range(9), pa.int64()), "at": pa.array(moments, pa.timestamp("us"))}))
    pipeline = Pipeline.from_iceberg(table)
    assert rows_of(pipeline, "id") == scanned(table, "id")
    late = pipeline.where(pc.field("at") >= datetime.datetime(2024, 1, 3))
    assert rows_of(late, "id") == [(2,), (5,), (8,)]


def test_files_that_others_wrote_are_read_by_the_name_mapping(tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "id", LongType()), NestedField(2, "part", StringType()), NestedField(3, "day", LongType())
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    mapping = create_mapping_from_schema(schema).model_dump_json()
    properties = {"schema.name-mapping.default": mapping}
    table = hand.catalog_in(tmp_path).create_table("n.t", schema, partition_spec=spec, properties=properties)
    path = tmp_path / "part=x" / "other.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"id": [1, 2], "part": ["x", "x"]}), path)
    table.add_files([f"file://{path}"])
    pipeline = Pipeline.from_iceberg(table)
    assert (
        rows_of(pipeline, "id", "part", "day")
        == scanned(table, "id", "part", "day")
        == [(1, "x", None), (2, "x", None)]
    )
    pq.write_table(pa.table({"id": [1, 2]}), path)  # as written by Hive, without the column
    values = [(row["id"], row["part"]) for row in Pipeline.from_iceberg(_with_size(table, path))]
    assert values == [(1, "x"), (2, "x")]


def _mapped(folder: Path, names: dict[str, str]) -> Any:
    """Makes a table of a file without field ids, and a name mapping for some of its columns."""
    inner = StructType(NestedField(3, "a", LongType()), NestedField(4, "b", StringType()))
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "s", inner), NestedField(5, "text", StringType()))
    table = hand.catalog_in(folder).create_table("n.t", schema, properties={"format-version": "2"})
    with table.update_schema() as change:
        change.add_column("year", LongType(), default_value=2024)

    def entries(above: str) -> list[dict[str, Any]]:
        here = [name for name in names if name.rpartition(".")[0] == above]
        ids = {name: table.schema().find_field(name).field_id for name in here}
        return [{"field-id": ids[name], "names": [names[name]], "fields": entries(name)} for name in here]

    with table.transaction() as change:
        change.set_properties({"schema.name-mapping.default": json.dumps(entries(""))})
    path = folder / "other.parquet"
    pq.write_table(
        pa.table({"number": [1, 2], "s": [{"a": 3, "b": "x"}, None], "text": ["p", "q"], "year": [7, 8]}), path
    )
    with table.transaction() as change, change.update_snapshot().fast_append() as added:
        added.append_data_file(_described(f"file://{path}", 2))
    return table


def test_a_column_that_the_name_mapping_lacks_is_null_or_its_default(tmp_path: Path) -> None:
    pipeline = Pipeline.from_iceberg(_mapped(tmp_path, {"id": "number", "s": "s", "s.a": "a"}))
    expected = [(1, 3, None, None, 2024), (2, None, None, None, 2024)]
    assert rows_of(pipeline, "id", "s.a", "s.b", "text", "year") == expected
    assert rows_of(pipeline.where([("year", "=", 2024)]), "id") == [(1,), (2,)]
    again = Pipeline.from_json(json.loads(json.dumps(pipeline.to_json())))
    assert rows_of(again, "id", "s.a", "s.b", "text", "year") == expected


def test_members_of_a_struct_that_the_name_mapping_lacks_are_null(tmp_path: Path) -> None:
    table = _mapped(tmp_path, {"id": "number", "text": "text", "year": "year"})
    rows = [(1, None, None, "p", 7), (2, None, None, "q", 8)]
    assert rows_of(Pipeline.from_iceberg(table), "id", "s.a", "s.b", "text", "year") == rows


def _with_size(table: Any, path: Path) -> Any:
    """Forgets cached footers, which go by size: the manifest still reports the old file's size."""
    from parquetry.common.parquet import group_footers

    group_footers._stored.clear()
    group_footers._cuts.clear()
    return table


def test_a_file_without_ids_and_a_table_without_mapping_is_an_error(table: Any) -> None:
    for location in hand.data_files(table):
        pq.write_table(numbers(0, 10), location.removeprefix("file://"))
    with pytest.raises(DatasetError, match="expected a Parquet file with field ids"):
        list(_with_size(Pipeline.from_iceberg(table), Path()))


def test_a_missing_delete_file_is_an_error_and_brings_no_rows_back(table: Any) -> None:
    file = hand.equality_deletes(table, "e.parquet", pa.table({"id": pa.array([3], pa.int64())}), {"id": 1})
    hand.commit_deletes(table, file)
    pipeline = Pipeline.from_iceberg(table)
    Path(file.file_path.removeprefix("file://")).unlink()
    with pytest.raises(DatasetError, match=r"equality of deleted rows .*e\.parquet: expected a readable one"):
        len(pipeline)


def test_columns_that_cannot_become_tensors_fail_only_when_selected(tmp_path: Path) -> None:
    data = pa.table({"id": [1], "l": [[{"a": 1}]]})
    table = hand.catalog_in(tmp_path).create_table("n.t", data.schema)
    table.append(data)
    assert len(list(Pipeline.from_iceberg(table, fields=["id"]))) == 1
    with pytest.raises(SchemaError, match="field 'l'"):
        list(Pipeline.from_iceberg(table))


def test_an_empty_table_has_a_schema(tmp_path: Path) -> None:
    table = hand.catalog_in(tmp_path).create_table("n.t", numbers(0, 0).schema)
    pipeline = Pipeline.from_iceberg(table)
    assert list(pipeline.schema.fields) == ["id", "name"]
    assert "version empty" in str(pipeline)


_VALUES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "flag": (BooleanType(), st.booleans()),
    "int": (IntegerType(), st.integers(-(1 << 31), (1 << 31) - 1)),
    "long": (LongType(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "float": (FloatType(), st.floats(width=32)),
    "double": (DoubleType(), st.floats()),
    "price": (DecimalType(9, 2), st.decimals(-9999999, 9999999, places=2)),
    "long_price": (DecimalType(38, 20), st.decimals(-(10**17), 10**17, places=20)),
    "day": (DateType(), st.dates()),
    "time": (TimeType(), st.times()),
    "at": (TimestampType(), st.datetimes()),
    "zoned": (TimestamptzType(), st.datetimes(timezones=st.just(datetime.UTC))),
    "text": (StringType(), st.text(st.characters(codec="utf-8"))),
    "uuid": (UUIDType(), st.uuids()),
    "fixed": (FixedType(3), st.binary(min_size=3, max_size=3)),
    "raw": (BinaryType(), st.binary()),
}
_ROWS = st.fixed_dictionaries({name: values for name, (_, values) in _VALUES.items()})


def _in_arrow(values: dict[str, Any], schema: pa.Schema) -> pa.Table:
    """Makes a table of one row, with the field ids that pyiceberg's schema has."""
    plain = {name: value.bytes if isinstance(value, uuid.UUID) else value for name, value in values.items()}
    return pa.Table.from_pylist([plain], schema=schema)


def _counted(value: Any, arrow: pa.DataType) -> Any:
    """Returns a value as manifests have it: moments are counts."""
    if not pa.types.is_temporal(arrow):
        return value
    return pa.scalar(value, arrow).cast(pa.int32() if arrow.bit_width == 32 else pa.int64()).as_py()


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries({name: st.none() | values for name, (_, values) in _VALUES.items()}),
        min_size=1,
        max_size=3,
    )
)
def test_the_value_of_a_partition_reads_as_if_the_file_held_it(rows: list[dict[str, Any]]) -> None:
    fields = [NestedField(number, name, kind) for number, (name, (kind, _)) in enumerate(_VALUES.items(), 2)]
    schema = Schema(NestedField(1, "id", LongType()), *fields)
    spec = PartitionSpec(
        *(PartitionField(field.field_id, 1000 + field.field_id, IdentityTransform(), field.name) for field in fields)
    )
    with tempfile.TemporaryDirectory() as folder:
        table = hand.catalog_in(Path(folder)).create_table("n.t", schema, partition_spec=spec)
        arrow = table.schema().as_arrow()
        with table.transaction() as change, change.update_snapshot().fast_append() as added:
            for number, row in enumerate(rows):
                values = [_counted(row[field.name], arrow.field(field.name).type) for field in fields]
                whole = _in_arrow({"id": number, **row}, arrow)
                for part, data in (("bare", whole.select(["id"])), ("whole", whole)):
                    path = f"{folder}/{part}-{number}.parquet"
                    pq.write_table(data, path)
                    added.append_data_file(_described(f"file://{path}", 1, *values))
        found = [{name: repr(plain(value)) for name, value in row.items()} for row in Pipeline.from_iceberg(table)]
    assert found[: len(rows)] == found[len(rows) :]


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(_ROWS)
def test_an_initial_default_reads_as_if_the_file_held_it(row: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = hand.catalog_in(Path(folder)).create_table("n.t", Schema(NestedField(1, "id", LongType())))
        table.append(pa.table({"id": pa.array([0], pa.int64())}))
        with table.update_schema() as change:
            for name, (kind, _) in _VALUES.items():
                change.add_column(name, kind, default_value=row[name])
        table.append(_in_arrow({"id": 1, **row}, table.schema().as_arrow()))
        first, second = (
            {name: repr(plain(value)) for name, value in row.items() if name != "id"}
            for row in sorted(Pipeline.from_iceberg(table), key=lambda row: int(row["id"]))
        )
    assert first == second


@given(st.integers(-9_223_372_036 * 10**9, (1 << 63) - 1), st.sampled_from(["UTC", None]))
def test_partition_values_keep_their_nanoseconds(count: int, zone: str | None) -> None:
    column = TableColumn(name="at", arrow=pa.timestamp("ns", zone))
    assert parse_value(value_text(column, count), column).cast(pa.int64()).as_py() == count


@pytest.mark.parametrize("count", [2932897, -719529, (1 << 31) - 1])
def test_days_outside_the_years_that_arrow_parses_are_an_error(count: int) -> None:
    column = TableColumn(name="day", arrow=pa.date32())
    with pytest.raises(DatasetError, match="column 'day': expected values of type date32"):
        parse_value(value_text(column, count), column)
