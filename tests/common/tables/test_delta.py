"""`Pipeline.from_delta`, compared with deltalake itself."""

from __future__ import annotations

import datetime
import decimal
import json
import os
import pickle
from pathlib import Path
from typing import Any

import delta_tables as hand
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from memory_store import Store
from table_rows import numbers, plain, rows_in, rows_of

from parquetry.common import CompressedImageCodec, Pipeline, Unischema, UnischemaField, mix, write_dataset
from parquetry.common.base.errors import DatasetError, PipelineError, SchemaError, StateError
from parquetry.common.tables import delta_log
from parquetry.common.tables.delta_log import live_files, parse_lines

deltalake = pytest.importorskip("deltalake")
UUID = bytes(range(16))


def query_rows(path: Path, *names: str) -> list[tuple[Any, ...]]:
    """Returns the result of deltalake's own query engine, which supports deletion vectors and column mapping."""
    found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(str(path))).execute("select * from t")
    return rows_in(pa.table(found.read_all()), *names)


def test_every_version_has_its_own_rows(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    deltalake.write_deltalake(path, numbers(0, 10))
    deltalake.write_deltalake(path, numbers(10, 15), mode="append")
    deltalake.DeltaTable(path).delete("id % 3 = 0")
    deltalake.write_deltalake(path, numbers(100, 102), mode="overwrite")
    for version in range(4):
        expected = deltalake.DeltaTable(path, version=version).to_pyarrow_table()
        assert rows_of(Pipeline.from_delta(path, version), "id", "name") == rows_in(expected, "id", "name")
    assert rows_of(Pipeline.from_delta(Path(path)), "id") == [(100,), (101,)]
    assert rows_of(Pipeline.from_delta(f"file://{path}", 0), "id") == [(i,) for i in range(10)]


def test_partition_values_come_from_the_log(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    table = pa.table(
        {
            "id": pa.array(range(6), pa.int64()),
            "text": ["a b", "x=y/z", None, "ü%20", "a b", "7"],
            "day": pa.array([datetime.date(2024, 1, 1)] * 3 + [None] * 3),
            "time": pa.array([datetime.datetime(2024, 1, 1, 5, 6, 7, 89)] * 6, pa.timestamp("us", "UTC")),
            "flag": [True, False, None, True, False, None],
            "price": pa.array([decimal.Decimal("1.50")] * 6, pa.decimal128(5, 2)),
            "whole": pa.array([1, 2, 3, None, 5, 6], pa.int16()),
        }
    )
    columns = ["text", "day", "time", "flag", "price", "whole"]
    deltalake.write_deltalake(path, table, partition_by=columns)
    pipeline = Pipeline.from_delta(path)
    assert list(pipeline.dataset.partitions) == columns
    names = ["id", "text", "flag", "price", "whole"]
    expected = [tuple(str(v) if isinstance(v, decimal.Decimal) else v for v in row) for row in rows_in(table, *names)]
    assert [
        (*row[:3], str(decimal.Decimal(row[3]).quantize(decimal.Decimal("0.01"))), row[4])
        for row in rows_of(pipeline, *names)
    ] == expected
    days = dict(rows_of(pipeline, "id", "day"))
    assert {number for number, day in days.items() if day is None} == {3, 4, 5}
    moments = {value for _, value in rows_of(pipeline, "id", "time")}
    assert moments == {int(table["time"].cast(pa.int64())[0].as_py())}
    assert rows_of(pipeline.where([("text", "=", "x=y/z")]), "id") == [(1,)]
    assert rows_of(pipeline.where(pc.field("flag")), "id") == [(0,), (3,)]


def test_added_columns_are_null_in_older_files(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    deltalake.write_deltalake(path, numbers(0, 3))
    later = numbers(3, 5).append_column("extra", pa.array([1.5, 2.5]))
    deltalake.write_deltalake(path, later, mode="append", schema_mode="merge")
    names = ("id", "name", "extra")
    pipeline = Pipeline.from_delta(path)
    assert rows_of(pipeline, *names) == rows_in(deltalake.DeltaTable(path).to_pyarrow_table(), *names)
    assert rows_of(pipeline.where([("extra", ">", 2.0)]), "id") == [(4,)]
    assert "extra" not in Pipeline.from_delta(path, 0).schema


def test_nested_columns_and_lists_read_as_they_do_elsewhere(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    table = pa.table(
        {
            "s": [{"a": 1, "b": {"c": "x"}}, None, {"a": None, "b": None}],
            "l": [[1, 2], [], None],
            "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    deltalake.write_deltalake(path, table)
    rows = [{name: plain(value) for name, value in row.items()} for row in Pipeline.from_delta(path)]
    assert [row["s.a"] for row in rows] == [1, None, None]
    assert [row["s.b.c"] for row in rows] == ["x", None, None]
    assert [row["l"] for row in rows] == [[1, 2], [], None]
    assert [row["m.key"] for row in rows] == [["k"], [], None]
    assert [row["m.value"] for row in rows] == [[1], [], None]


def test_the_newest_version_is_found_once_and_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    deltalake.write_deltalake(path, numbers(0, 3))
    pipeline = Pipeline.from_delta(path).shuffle(10, seed=3)
    text = json.dumps(pipeline.to_json())
    deltalake.write_deltalake(path, numbers(50, 60), mode="overwrite")
    again = Pipeline.from_json(json.loads(text))
    assert again == pipeline
    assert hash(again) == hash(pipeline)
    assert rows_of(again, "id") == [(0,), (1,), (2,)]
    assert rows_of(again.with_options(executor="sidecar"), "id") == [(0,), (1,), (2,)]
    assert "delta, version 0" in str(again)
    assert len(Pipeline.from_delta(path)) == 10


def test_a_state_belongs_to_one_version(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    for version in range(2):
        deltalake.write_deltalake(path, numbers(version * 5, version * 5 + 5), mode="append")
    iterator = iter(Pipeline.from_delta(path, 1).shuffle(4, seed=1))
    first = [next(iterator)["id"] for _ in range(3)]
    state = iterator.state_dict()
    again = iter(Pipeline.from_delta(path).shuffle(4, seed=1))
    again.load_state_dict(state)
    assert sorted([*first, *(row["id"] for row in again)]) == list(range(10))
    deltalake.DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "true"})  # the same files, a new version
    with pytest.raises(StateError, match="saved for a different dataset"):
        iter(Pipeline.from_delta(path).shuffle(4, seed=1)).load_state_dict(state)


def test_a_table_that_moves_keeps_its_fingerprint(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "t"), numbers(0, 3))
    before = Pipeline.from_delta(tmp_path / "t").dataset.fingerprint
    (tmp_path / "t").rename(tmp_path / "moved")
    assert Pipeline.from_delta(tmp_path / "moved").dataset.fingerprint == before


def test_tables_mix_with_other_datasets(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "t"), numbers(0, 3))
    pq.write_table(numbers(10, 12), tmp_path / "plain.parquet")
    mixed = mix([Pipeline.from_delta(tmp_path / "t"), Pipeline(tmp_path / "plain.parquet")], seed=1, stop="all")
    assert sorted(row["id"] for row in Pipeline.from_json(mixed.to_json())) == [0, 1, 2, 10, 11]


def commit_file(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020d}.json"


def timed_table(path: Path, *, in_commit: bool) -> None:
    """Writes versions 0 to 5, one minute apart from 2023-11-14T22:13:20Z on, of one more row each."""
    for version in range(6):
        made = hand.add(path, f"{version}.parquet", numbers(version, version + 1)) if path.exists() else None
        if made is None:
            path.mkdir()
            made = hand.add(path, "0.parquet", numbers(0, 1))
        time = 1_700_000_000 + 60 * version
        about = {"commitInfo": {"inCommitTimestamp": time * 1000} if in_commit else {"timestamp": 5}}
        flags = {"delta__enableInCommitTimestamps": "true"} if in_commit else {}
        fields = [hand.field("id", "long"), hand.field("name", "string")]
        first = [hand.protocol([]), hand.metadata(fields, **flags)] if version == 0 else []
        hand.commit(path, version, about, *first, made)
        moved = 0 if not in_commit else 86_400  # the files of a copy are newer
        os.utime(commit_file(path, version), (time + moved, time + moved))


@pytest.mark.parametrize("in_commit", [False, True])
@pytest.mark.parametrize(
    ("time", "rows"),
    [
        ("2023-11-14T22:14:20Z", 2),
        ("2023-11-14T22:14:19.999Z", 1),
        ("2023-11-14 23:16:00+01:00", 3),
        ("2023-11-14T22:14:50", 2),
        (datetime.datetime(2023, 11, 14, 22, 15, 50), 3),  # without a zone, it is UTC
        (datetime.datetime(2023, 11, 14, 22, 17, 20, tzinfo=datetime.UTC), 5),
        ("2023-11-15", 6),
        (datetime.date(2024, 1, 1), 6),  # after the last commit, the last version counts
    ],
)
def test_a_version_may_be_given_as_a_time(tmp_path: Path, in_commit: bool, time: Any, rows: int) -> None:
    timed_table(tmp_path / "t", in_commit=in_commit)
    assert len(Pipeline.from_delta(tmp_path / "t", time)) == rows


@pytest.mark.parametrize("in_commit", [False, True])
def test_a_time_before_the_oldest_version_is_an_error(tmp_path: Path, in_commit: bool) -> None:
    path = tmp_path / "t"
    timed_table(path, in_commit=in_commit)
    expected = "expected a time from 2023-11-1[45]T22:13:20.000Z on, when version 0 .the first. was written, got 20"
    with pytest.raises(DatasetError, match=expected):
        Pipeline.from_delta(path, "2023-11-14T22:13:00Z")
    deltalake.DeltaTable(str(path), version=3).create_checkpoint()
    for version in range(3):
        commit_file(path, version).unlink()
    assert len(Pipeline.from_delta(path, "2023-11-16T22:16:20Z")) == 6
    expected = (
        "22:16:20.000Z on, when version 3 .the oldest that the log still describes. was written, got 2023-11-14T22"
    )
    for time in ("2023-11-14T22:15:50Z", "2000-01-01"):
        with pytest.raises(DatasetError, match=expected if time[3] == "3" else "version 3 .* got 2000-01-01"):
            Pipeline.from_delta(path, time)


def test_a_store_without_times_needs_version_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed_table(tmp_path / "t", in_commit=False)
    store = Store()
    for file in (tmp_path / "t").rglob("*.*"):
        store.put_file_bytes(f"t/{file.relative_to(tmp_path / 't')}", file.read_bytes())
    storage = pafs.PyFileSystem(pafs.FSSpecHandler(store))
    monkeypatch.setattr("parquetry.common.tables.delta._storage", lambda *_: (storage, "t"))
    with pytest.raises(DatasetError, match=r"the store reports none\. Give a version number instead"):
        Pipeline.from_delta(tmp_path / "t", "2023-11-15")
    assert len(Pipeline.from_delta(tmp_path / "t", 2)) == 3
    store.says = "time"  # seconds, from 10^9 on
    assert len(Pipeline.from_delta(tmp_path / "t", "2023-11-15")) == 6
    with pytest.raises(DatasetError, match=r"expected a time from 2001-09-09T01:46:41\.000Z on"):
        Pipeline.from_delta(tmp_path / "t", "2001-09-09")


def test_the_log_is_read_from_a_checkpoint_on(tmp_path: Path) -> None:
    path = tmp_path / "t"
    for version in range(3):
        deltalake.write_deltalake(str(path), numbers(version, version + 1), mode="append")
    table = deltalake.DeltaTable(str(path))
    table.delete("id = 1")
    table = deltalake.DeltaTable(str(path))
    table.create_checkpoint()
    deltalake.write_deltalake(str(path), numbers(7, 9), mode="append")
    for version in range(3):
        (path / "_delta_log" / f"{version:020d}.json").unlink()
    expected = deltalake.DeltaTable(str(path)).to_pyarrow_table()
    assert rows_of(Pipeline.from_delta(path), "id") == rows_in(expected, "id")
    assert rows_of(Pipeline.from_delta(path), "id") == [(0,), (2,), (7,), (8,)]


@pytest.mark.parametrize("parts", ["", ".0000000001.0000000002"])
def test_an_empty_checkpoint_is_skipped(tmp_path: Path, parts: str) -> None:
    for version in range(3):
        deltalake.write_deltalake(str(tmp_path), numbers(version, version + 1), mode="append")
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    log = tmp_path / "_delta_log"
    whole = (log / f"{2:020d}.checkpoint.parquet").read_bytes()
    (log / f"{2:020d}.checkpoint.parquet").unlink()
    if parts:
        (log / f"{2:020d}.checkpoint.{2:010d}.{2:010d}.parquet").write_bytes(whole)
    (log / f"{2:020d}.checkpoint{parts}.parquet").touch()
    (log / "_last_checkpoint").unlink()
    deltalake.write_deltalake(str(tmp_path), numbers(3, 4), mode="append")
    assert rows_of(Pipeline.from_delta(tmp_path), "id") == [(i,) for i in range(4)] == query_rows(tmp_path, "id")
    (log / f"{0:020d}.json").unlink()
    with pytest.raises(DatasetError, match=r"expected 00000000000000000000\.json, which version 3 requires"):
        live_files(pafs.LocalFileSystem(), str(tmp_path), 3)


def test_a_checkpoint_may_have_sidecars(tmp_path: Path) -> None:
    features = ["v2Checkpoint"]
    action = hand_table(tmp_path, features, numbers(0, 6))
    second = hand.add(tmp_path, "b.parquet", numbers(6, 8))
    hand.commit(tmp_path, 1, second, hand.remove(action))
    log = tmp_path / "_delta_log"
    (log / "_sidecars").mkdir()
    column = pa.array([{key: second["add"][key] for key in ("path", "size", "modificationTime", "dataChange")}])
    pq.write_table(pa.table({"add": column}), log / "_sidecars" / "s.parquet")
    top = [
        {"checkpointMetadata": {"version": 1}},
        hand.protocol(features),
        hand.metadata([hand.field("id", "long"), hand.field("name", "string")]),
        {"sidecar": {"path": "s.parquet", "sizeInBytes": 1, "modificationTime": 1}},
    ]
    (log / f"{1:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json").write_text("\n".join(map(json.dumps, top)))
    for version in range(2):
        (log / f"{version:020d}.json").unlink()
    assert [item["path"] for item in live_files(pafs.LocalFileSystem(), str(tmp_path), 1)] == ["b.parquet"]


def hand_table(path: Path, features: list[str], data: pa.Table, **more: Any) -> dict[str, Any]:
    """Writes a table of one file with the columns id and name; returns the action that added it."""
    path.mkdir(exist_ok=True)
    action = hand.add(path, "a.parquet", data, **more)
    fields = [hand.field("id", "long"), hand.field("name", "string")]
    hand.commit(path, 0, hand.protocol(features), hand.metadata(fields), action)
    return action


def test_a_gap_in_the_log_is_an_error(tmp_path: Path) -> None:
    hand_table(tmp_path, [], numbers(0, 2))
    with pytest.raises(DatasetError, match=r"expected 00000000000000000001\.json, which version 1 requires"):
        live_files(pafs.LocalFileSystem(), str(tmp_path), 1)


@pytest.mark.parametrize("storage", ["inline", "file", "runs", "absolute"])
def test_rows_of_deletion_vectors_are_gone(tmp_path: Path, storage: str) -> None:
    gone = [0, 3, 4, 5, 9]
    data = numbers(0, 11)
    hand_table(tmp_path, ["deletionVectors"], data)
    if storage == "inline":
        vector = hand.inline_vector(gone)
    else:
        vector = hand.file_vector(tmp_path, gone, UUID, runs=storage == "runs")
    if storage == "absolute":
        name = next(tmp_path.glob("deletion_vector_*"))
        vector = {**vector, "storageType": "p", "pathOrInlineDv": name.as_uri()}
    action = hand.add(tmp_path, "a.parquet", data, deletionVector=vector)
    hand.commit(
        tmp_path,
        1,
        hand.remove(hand.add(tmp_path, "a.parquet", None)),
        action,
        hand.add(tmp_path, "b.parquet", numbers(11, 13)),
    )
    kept = [i for i in range(13) if i not in gone]
    pipeline = Pipeline.from_delta(tmp_path)
    assert rows_of(pipeline, "id") == [(i,) for i in kept]
    assert rows_of(pipeline, "id") == query_rows(tmp_path, "id")
    assert len(pipeline) == len(kept)
    assert "5 of them deleted" in pipeline.explain()
    assert len(Pipeline.from_delta(tmp_path, 0)) == 11
    assert rows_of(pipeline.where([("id", ">", 3)]), "id") == [(i,) for i in kept if i > 3]
    windows = list(pipeline.ngram(["id"], length=2))
    assert [window["id"].tolist() for window in windows] == [[1, 2], [2, 6], [6, 7], [7, 8], [8, 10], [11, 12]]
    shards = [rows_of(pipeline.shuffle(3, seed=1).shard(2, index, even="none"), "id") for index in range(2)]
    assert sorted(shards[0] + shards[1]) == [(i,) for i in kept]
    assert pipeline.dataset.fingerprint != Pipeline.from_delta(tmp_path, 0).dataset.fingerprint


def test_a_second_deletion_vector_takes_the_place_of_the_first(tmp_path: Path) -> None:
    first = hand_table(tmp_path, ["deletionVectors"], numbers(0, 5), deletionVector=hand.inline_vector([1]))
    second = hand.add(tmp_path, "a.parquet", None, deletionVector=hand.inline_vector([1, 4]))
    hand.commit(tmp_path, 1, second, hand.remove(first))
    assert rows_of(Pipeline.from_delta(tmp_path), "id") == [(0,), (2,), (3,)] == query_rows(tmp_path, "id")
    assert rows_of(Pipeline.from_delta(tmp_path, 0), "id") == [(0,), (2,), (3,), (4,)]


def test_a_damaged_deletion_vector_is_an_error_and_brings_no_rows_back(tmp_path: Path) -> None:
    vector = hand.file_vector(tmp_path, [1], UUID)
    hand_table(tmp_path, ["deletionVectors"], numbers(0, 5), deletionVector=vector)
    file = next(tmp_path.glob("deletion_vector_*"))
    raw = file.read_bytes()
    for damaged, reason in ((raw[:-1] + b"x", "checksum"), (raw[:-5], "bytes, not"), (None, "expected a readable one")):
        file.unlink() if damaged is None else file.write_bytes(damaged)
        with pytest.raises(DatasetError, match=reason):
            len(Pipeline.from_delta(tmp_path))


def test_a_deletion_vector_of_another_file_is_an_error(tmp_path: Path) -> None:
    hand_table(tmp_path, ["deletionVectors"], numbers(0, 5), deletionVector=hand.inline_vector([77]))
    with pytest.raises(DatasetError, match="expected deleted rows among its 5 rows, got row 77"):
        len(Pipeline.from_delta(tmp_path))


@pytest.mark.parametrize("mode", ["name", "id"])
def test_renamed_columns_are_found_by_column_mapping(tmp_path: Path, mode: str) -> None:
    stored = pa.schema(
        [
            pa.field("col-1", pa.int32(), metadata={"PARQUET:field_id": "1"}),
            pa.field(
                "col-2",
                pa.struct([pa.field("col-3", pa.string(), metadata={"PARQUET:field_id": "3"})]),
                metadata={"PARQUET:field_id": "2"},
            ),
        ]
    )
    data = pa.table({"col-1": [1, 2, 3], "col-2": [{"col-3": "x"}, None, {"col-3": "z"}]}, stored)
    struct = {"type": "struct", "fields": [hand.mapped("inner", "string", 3, "col-3")]}
    fields = [
        hand.mapped("number", "integer", 1, "col-1"),
        hand.mapped("group", struct, 2, "col-2"),
        hand.mapped("day", "string", 4, "col-4"),
        hand.mapped("col-1", "string", 5, "col-5"),  # a new column with the old one's physical name
    ]
    hand.commit(
        tmp_path,
        0,
        hand.protocol(["columnMapping"]),
        hand.metadata(fields, ["day"], delta__columnMapping__mode=mode),
        hand.add(tmp_path, "a.parquet", data, {"col-4": "monday"}),
    )
    pipeline = Pipeline.from_delta(tmp_path)
    names = ("number", "group.inner", "day", "col-1")
    expected = [(1, "x", "monday", None), (2, None, "monday", None), (3, "z", "monday", None)]
    assert rows_of(pipeline, *names) == expected
    assert rows_of(pipeline.where([("number", ">=", 2)]), "number") == [(2,), (3,)]
    assert rows_of(pipeline.where(pc.field("col-1").is_null()), "number") == [(1,), (2,), (3,)]
    if mode == "name":
        assert query_rows(tmp_path, "number", "day", "col-1") == [(row[0], *row[2:]) for row in expected]


@pytest.mark.parametrize("name", ["a", "s.b", "s.t.c", "u.d"])
def test_columns_whose_stored_names_look_alike_stay_distinct(tmp_path: Path, name: str) -> None:
    """Each of the four columns has the dotted name ``x.y.z`` in the file."""
    count = 40
    held = {"a": range(count), "s.b": range(100, 140), "s.t.c": range(240, 200, -1), "u.d": range(300, 340)}
    data = pa.table(
        {
            "x.y.z": pa.array(held["a"], pa.int64()),
            "x": [{"y.z": b, "y": {"z": c}} for b, c in zip(held["s.b"], held["s.t.c"], strict=True)],
            "x.y": [{"z": d} for d in held["u.d"]],
        }
    )

    def struct_of(*members: Any) -> dict[str, Any]:
        return {"type": "struct", "fields": list(members)}

    inner = hand.mapped("t", struct_of(hand.mapped("c", "long", 5, "z")), 4, "y")
    fields = [
        hand.mapped("a", "long", 1, "x.y.z"),
        hand.mapped("s", struct_of(hand.mapped("b", "long", 3, "y.z"), inner), 2, "x"),
        hand.mapped("u", struct_of(hand.mapped("d", "long", 7, "z")), 6, "x.y"),
    ]
    made = hand.add(tmp_path, "a.parquet", data)
    metadata = hand.metadata(fields, delta__columnMapping__mode="name")
    hand.commit(tmp_path, 0, hand.protocol(["columnMapping"]), metadata, made)
    pipeline = Pipeline.from_delta(tmp_path)
    assert rows_of(pipeline, *held) == sorted(zip(*held.values(), strict=True))
    bound = held[name][10]
    for condition, expected in (
        (pc.field(name) <= bound, [value for value in held[name] if value <= bound]),
        (pc.field(name) > bound, [value for value in held[name] if value > bound]),
        (pc.field(name) == bound, [bound]),
    ):
        assert rows_of(pipeline.where(condition), name) == [(value,) for value in sorted(expected)]


def test_columns_of_one_dotted_name_can_be_deselected(tmp_path: Path) -> None:
    data = pa.table({"id": [1, 2], "x.y": [1, 2], "x": [{"y": 3}, {"y": 4}]})
    deltalake.write_deltalake(str(tmp_path / "t"), data)
    pipeline = Pipeline.from_delta(tmp_path / "t")
    assert rows_of(pipeline.select("id"), "id") == [(1,), (2,)]
    with pytest.raises(SchemaError, match=r"field 'x\.y': expected one column of this name in the table, got 2, so"):
        rows_of(pipeline, "id")


def test_types_that_were_widened_are_read_as_the_table_has_them_now(tmp_path: Path) -> None:
    old = pa.table(
        {
            "whole": pa.array([1, -2], pa.int32()),
            "real": pa.array([1.5, None], pa.float32()),
            "price": pa.array([decimal.Decimal("1.50")] * 2, pa.decimal128(5, 2)),
            "day": pa.array([datetime.date(2024, 1, 2)] * 2),
        }
    )
    fields = [
        hand.field("whole", "long"),
        hand.field("real", "double"),
        hand.field("price", "decimal(10,3)"),
        hand.field("day", "timestamp_ntz"),
    ]
    features = hand.protocol(["typeWidening", "timestampNtz"])
    hand.commit(tmp_path, 0, features, hand.metadata(fields), hand.add(tmp_path, "a.parquet", old))
    pipeline = Pipeline.from_delta(tmp_path)
    midnight = int(datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC).timestamp()) * 1_000_000
    assert rows_of(pipeline, "whole", "real", "price", "day") == [
        (-2, None, "1.5", midnight),
        (1, 1.5, "1.5", midnight),
    ]
    assert str(pipeline.schema["whole"].dtype) == "int64"
    assert len(list(pipeline.where(pc.field("day") > datetime.datetime(2024, 1, 1)))) == 2
    assert len(list(pipeline.where([("whole", ">", 0)]))) == 1


def test_the_local_cache_does_not_mix_columns_of_two_versions(tmp_path: Path) -> None:
    table = tmp_path / "t"
    table.mkdir()
    data = pa.table({"col-1": pa.array([1, 2], pa.int64()), "col-2": pa.array([8, 9], pa.int64())})
    features, mode = hand.protocol(["columnMapping"]), {"delta__columnMapping__mode": "name"}
    for version, (first, second) in enumerate((("a", "b"), ("b", "a"))):
        fields = [hand.mapped(first, "long", 1, "col-1"), hand.mapped(second, "long", 2, "col-2")]
        actions = [features, hand.metadata(fields, **mode)]
        hand.commit(table, version, *actions, *([] if version else [hand.add(table, "x.parquet", data)]))
    found = [rows_of(Pipeline.from_delta(table, v, ["a"]).cache(tmp_path / "cache"), "a") for v in (0, 1)]
    assert found == [[(1,), (2,)], [(8,), (9,)]]


def test_a_table_of_our_own_files_keeps_its_codecs(tmp_path: Path) -> None:
    schema = Unischema("s", [UnischemaField("image", np.uint8, (4, 5, 3), CompressedImageCodec("png"))])
    image = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    write_dataset(str(tmp_path / "t"), schema, [{"image": image}])
    (name,) = [file.name for file in (tmp_path / "t").glob("*.parquet")]
    fields = [hand.field("image", "binary")]
    hand.commit(tmp_path / "t", 0, hand.protocol([]), hand.metadata(fields), hand.add(tmp_path / "t", name, None))
    (row,) = list(Pipeline.from_delta(tmp_path / "t"))
    np.testing.assert_array_equal(row["image"], image)


def test_columns_that_cannot_become_tensors_fail_only_when_selected(tmp_path: Path) -> None:
    data = pa.table({"id": [1], "v": [b"x"], "l": [[{"a": 1}]]})
    nested = {
        "type": "array",
        "containsNull": True,
        "elementType": {"type": "struct", "fields": [hand.field("a", "long")]},
    }
    fields = [hand.field("id", "long"), hand.field("l", nested)]
    hand.commit(tmp_path, 0, hand.protocol([]), hand.metadata(fields), hand.add(tmp_path, "a.parquet", data))
    assert rows_of(Pipeline.from_delta(tmp_path, fields=["id"]), "id") == [(1,)]
    with pytest.raises(SchemaError, match="field 'l'"):
        list(Pipeline.from_delta(tmp_path))


def test_an_unknown_feature_is_an_error(tmp_path: Path) -> None:
    hand_table(tmp_path, ["timeTurner"], numbers(0, 2))
    with pytest.raises(DatasetError, match="timeTurner"):
        Pipeline.from_delta(tmp_path)


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (9, "cannot be opened at version 9"),
        ("soon", "cannot be opened at version soon: expected a version number, a datetime, or ISO text"),
        (1.5, "got 1.5"),
    ],
)
def test_a_version_that_is_not_there_is_an_error(tmp_path: Path, version: Any, reason: str) -> None:
    deltalake.write_deltalake(str(tmp_path / "t"), numbers(0, 3))
    with pytest.raises(DatasetError, match=reason):
        Pipeline.from_delta(tmp_path / "t", version)


def test_a_directory_that_is_not_a_table_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"Delta table '.*': cannot be opened"):
        Pipeline.from_delta(tmp_path)


@pytest.mark.parametrize("planned", [False, True])
def test_a_missing_data_file_is_an_error(tmp_path: Path, planned: bool) -> None:
    deltalake.write_deltalake(str(tmp_path / "t"), numbers(0, 3))
    pipeline = Pipeline.from_delta(tmp_path / "t")
    if planned:
        _ = len(pipeline), pipeline.explain()
    next((tmp_path / "t").glob("*.parquet")).unlink()
    with pytest.raises(DatasetError, match=r"no longer exists\. .* \(vacuum, expired snapshots\)"):
        list(pipeline)


def test_an_empty_table_says_that_nothing_is_there(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "t"), numbers(0, 0))
    pipeline = Pipeline.from_delta(tmp_path / "t")
    assert list(pipeline.schema.fields) == ["id", "name"]
    with pytest.raises(PipelineError, match="got none from 0 files"):
        next(iter(pipeline))


def test_the_storage_of_deltalake_goes_to_other_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from parquetry.common.tables.delta_storage import DeltaStorage  # needs deltalake

    deltalake.write_deltalake(str(tmp_path / "t"), numbers(0, 3))
    storage = pafs.PyFileSystem(DeltaStorage((tmp_path / "t").as_uri(), {}))
    monkeypatch.setattr("parquetry.common.tables.delta._storage", lambda *_: (storage, ""))  # as for a bucket
    pipeline = Pipeline.from_delta(tmp_path / "t")
    assert pickle.loads(pickle.dumps(pipeline)) == pipeline
    assert rows_of(pipeline, "id") == rows_of(pipeline.with_options(executor="sidecar"), "id") == [(0,), (1,), (2,)]


def test_a_pipeline_is_taken_where_a_url_is(tmp_path: Path) -> None:
    deltalake.write_deltalake(str(tmp_path / "t"), numbers(0, 3))
    given = Pipeline.from_delta(tmp_path / "t")
    assert Pipeline(given) == given
    assert [output.name for output in Pipeline(given, ["id"]).element.outputs] == ["id"]
    assert Pipeline(given, workers=3).workers == 3
    with pytest.raises(PipelineError, match="expected no filesystem or storage_options with a pipeline"):
        Pipeline(given, storage_options={"a": 1})


HOSTILE = {
    "brackets": "[" * 100_000 + "]" * 100_000,
    "brackets on lines": "[\n" * 50_000 + "]\n" * 50_000,
    "objects": '{"a":' * 100_000 + "1" + "}" * 100_000,
    "a list": "[1]" + " " * 5_000,
    "not UTF-8": "\udcff" + " " * 5_000,
    "a huge number": f'{{"add": {{"path": "a.parquet", "size": 1{"0" * 6_000}}}}}',
}


@pytest.mark.parametrize("name", ["00000000000000000001.json", "_last_checkpoint"])
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_log_is_an_error_that_names_the_table(tmp_path: Path, name: str, content: str) -> None:
    hand_table(tmp_path, [], numbers(0, 2))
    (tmp_path / "_delta_log" / name).write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(DatasetError, match=rf"^Delta table '{tmp_path}': .*{name}: expected lines of JSON, got"):
        Pipeline.from_delta(tmp_path)


def test_what_deltalake_does_not_read_is_not_checked(tmp_path: Path) -> None:
    hand_table(tmp_path, [], numbers(0, 2))
    for number in range(3):
        deltalake.write_deltalake(str(tmp_path), numbers(number, number + 1), mode="append")
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    (tmp_path / "_delta_log" / "00000000000000000001.json").write_text(HOSTILE["brackets"])
    assert len(Pipeline.from_delta(tmp_path)) == 5
    with pytest.raises(DatasetError, match="nested more than 128 levels deep"):
        Pipeline.from_delta(tmp_path, 2)
    with pytest.raises(DatasetError, match="nested more than 128 levels deep"):
        Pipeline.from_delta(tmp_path, datetime.datetime.fromtimestamp(commit_file(tmp_path, 2).stat().st_mtime))


@pytest.mark.parametrize("indent", [0, 1, "\t"])
def test_a_log_that_is_printed_over_several_lines_is_read(tmp_path: Path, indent: int | str) -> None:
    stats = json.dumps({"numRecords": 3, "minValues": {"name": ']} "{['}})
    first = hand_table(tmp_path, ["deletionVectors"], numbers(0, 3), stats=stats)
    hand.commit(tmp_path, 1, hand.remove(first), hand.add(tmp_path, "b.parquet", numbers(3, 7)))
    marked = hand.add(tmp_path, "c.parquet", numbers(7, 12), deletionVector=hand.inline_vector([1, 2]))
    hand.commit(tmp_path, 2, marked)
    for number in range(3):
        actions = [json.loads(line) for line in commit_file(tmp_path, number).read_text().splitlines()]
        printed = "\n".join(json.dumps(action, indent=indent, ensure_ascii=False) for action in actions)
        commit_file(tmp_path, number).write_text(f"\n{printed}\n" + " \n" * 5_000)  # long enough to be checked first
    assert rows_of(Pipeline.from_delta(tmp_path), "id") == [(3,), (4,), (5,), (6,), (7,), (10,), (11,)]
    assert rows_of(Pipeline.from_delta(tmp_path, 0), "id") == [(0,), (1,), (2,)]


def test_a_log_that_is_nested_too_deeply_over_several_lines_is_refused(tmp_path: Path) -> None:
    hand_table(tmp_path, [], numbers(0, 3))
    commit_file(tmp_path, 1).write_text('{"commitInfo":\n' + "[\n" * 3_000 + "]\n" * 3_000 + "}")
    with pytest.raises(DatasetError, match="line 1, which is nested more than 128 levels deep"):
        Pipeline.from_delta(tmp_path)
    commit_file(tmp_path, 1).write_text('{"add":\n{"path": "a.parquet"' + "\n" * 5_000)
    with pytest.raises(DatasetError, match="line 1, which ends before its brackets are closed"):
        Pipeline.from_delta(tmp_path)


def test_brackets_in_texts_are_not_nested(tmp_path: Path) -> None:
    data = numbers(0, 2)
    hand_table(tmp_path, [], data, stats=json.dumps({"numRecords": 2, "minValues": {"name": '["{\\' * 2_000}}))
    assert len(Pipeline.from_delta(tmp_path)) == 2


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../other.parquet", "expected paths below the table or absolute ones"),
        ("x/%2e%2e/%2E%2E/other.parquet", "expected paths below the table or absolute ones"),
        ("a%00.parquet", "without NUL characters"),
        ("a\0.parquet", "'add' with path"),
    ],
)
def test_a_path_that_no_writer_makes_is_an_error(tmp_path: Path, path: str, reason: str) -> None:
    action = hand_table(tmp_path / "t", [], numbers(0, 2))
    pq.write_table(numbers(0, 9), tmp_path / "other.parquet")
    moved = {"add": {**action["add"], "path": path}}
    hand.commit(tmp_path / "t", 1, hand.remove(action), moved)
    with pytest.raises(DatasetError, match=rf"^Delta table '{tmp_path}/t': .*{reason}"):
        Pipeline.from_delta(tmp_path / "t")


def test_files_of_another_table_are_read_as_a_shallow_clone_names_them(tmp_path: Path) -> None:
    action = hand_table(tmp_path / "t", [], numbers(0, 2))
    hand_table(tmp_path / "origin", [], numbers(5, 9))
    origin = tmp_path / "origin" / "a.parquet"
    far = {"add": {**action["add"], "path": origin.as_uri(), "size": origin.stat().st_size}}
    hand.commit(tmp_path / "t", 1, hand.remove(action), far)
    assert rows_of(Pipeline.from_delta(tmp_path / "t"), "id") == [(5,), (6,), (7,), (8,)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"storageType": "u", "pathOrInlineDv": "x"}, "expected a deletion vector's name or bytes in Z85, got 'x'"),
        ({"storageType": "u", "pathOrInlineDv": '"' * 20}, "expected a deletion vector's name or bytes in Z85"),
        ({"storageType": "i", "pathOrInlineDv": "~~~~~"}, "expected a deletion vector's name or bytes in Z85"),
        ({"storageType": "p", "pathOrInlineDv": "../../x"}, "expected paths below the table or absolute ones"),
        ({"storageType": "q"}, "stored as 'u', 'i' or 'p', got 'q'"),
        ({"sizeInBytes": -1}, "'add' with sizeInBytes '-1'"),
        ({"offset": -1}, "'add' with offset '-1'"),
    ],
)
def test_a_false_deletion_vector_is_an_error_that_names_the_table(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    vector = {**hand.inline_vector([1]), **change}
    hand_table(tmp_path, ["deletionVectors"], numbers(0, 5), deletionVector=vector)
    with pytest.raises(DatasetError, match=rf"^Delta table '{tmp_path}': .*{reason}"):
        Pipeline.from_delta(tmp_path)


def test_a_deletion_vector_larger_than_its_file_takes_no_memory(tmp_path: Path) -> None:
    vector = {**hand.file_vector(tmp_path, [1], UUID), "sizeInBytes": (1 << 31) - 100}
    hand_table(tmp_path, ["deletionVectors"], numbers(0, 5), deletionVector=vector)
    with pytest.raises(DatasetError, match=r"bytes, not 2147483548 at offset"):
        len(Pipeline.from_delta(tmp_path))


def test_a_deletion_vector_of_more_rows_than_its_file_has_is_an_error(tmp_path: Path) -> None:
    hand_table(tmp_path, ["deletionVectors"], numbers(0, 5), deletionVector=hand.inline_vector([*range(9)]))
    with pytest.raises(DatasetError, match="expected at most 5 deleted rows, because it has no more, got 9"):
        len(Pipeline.from_delta(tmp_path))


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ([1], "'add', which is not an object"),
        ({"size": 1}, "'add' with path 'None'"),
        ({"path": "a", "size": True}, "'add' with size 'True'"),
        ({"path": "a", "size": 1, "partitionValues": [1]}, "'add' with partition values"),
        ({"path": "a", "size": 1, "partitionValues": {"p": 1}}, "'add' with partition value of p '1'"),
        ({"path": "a", "size": 1, "deletionVector": "x"}, "a deletion vector, which is not an object"),
    ],
)
def test_an_action_that_is_not_as_the_protocol_says_is_refused(action: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        list(parse_lines(json.dumps({"add": action}).encode()))


def test_a_line_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_log, "_MOST_LINE_BYTES", 50)
    with pytest.raises(ValueError, match="line 2, which has 51 bytes of at most 50"):
        list(parse_lines(b"{}\n" + b" " * 51))
