"""Rows that are added to a dataset are in it whole or not at all, after those that were there, from many writers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parquetry.common import DatasetWriter, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import DatasetError, EncodeError, PipelineError, SchemaError
from parquetry.common.dataset.dataset import StoredDataset, read_key_values
from parquetry.common.dataset.index import write_index
from parquetry.common.schema.petastorm_metadata import INDEXES_KEY, ROW_GROUP_COUNTS_KEY
from parquetry.common.storage.added_parts import PARTS
from parquetry.common.storage.file_versions import current_version
from parquetry.common.storage.files import list_files
from parquetry.common.write import appending
from parquetry.common.write.metadata_file import read_metadata, write_metadata

X, DAY = UnischemaField("x", np.int64), UnischemaField("day", str)
NEW = {
    "score": UnischemaField("score", np.float32, nullable=True),
    "words": UnischemaField("words", str, (None,), nullable=True),
    "array": UnischemaField("array", np.int16, (2, 2), nullable=True),
}
VALUES = {"score": np.float32(0.5), "words": ["a", ""], "array": np.arange(4, dtype=np.int16).reshape(2, 2)}
LOCAL = pafs.LocalFileSystem()


def schema_of(*names: str) -> Unischema:
    return Unischema("s", [X, DAY, *(NEW[name] for name in names)])


def rows_of(numbers: Iterator[int] | range, day: str = "a", *names: str) -> list[dict[str, Any]]:
    return [{"x": number, "day": day, **{name: VALUES[name] for name in names}} for number in numbers]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, "tolist", lambda value=value: value)() for name, value in row.items()}


def xs(root: object) -> list[int]:
    return [int(row["x"]) for row in Pipeline(str(root), executor="threads")]


@st.composite
def appends(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Several writers, each with fields of its own, some of which are open at the same time."""
    names = st.lists(st.sampled_from(sorted(NEW)), unique=True, max_size=3)
    one = st.fixed_dictionaries(
        {
            "names": names,
            "days": st.lists(st.sampled_from("abc"), max_size=4),
            "files": st.integers(1, 2),
            "closes_late": st.booleans(),
            "aborts": st.sampled_from([False, False, False, True]),
        }
    )
    return draw(st.lists(one, min_size=1, max_size=5))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writers=appends(), partitioned=st.booleans(), indexed=st.booleans())
@pytest.mark.slow
def test_rows_of_many_writers_equal_their_list(
    tmp_path: Path, writers: list[dict[str, Any]], partitioned: bool, indexed: bool
) -> None:
    root, expected, late = tmp_path / uuid.uuid4().hex, list[dict[str, Any]](), list[tuple[Any, list[dict[str, Any]]]]()
    numbers = iter(range(10**6))
    known = dict[str, None]()

    def close(writer: DatasetWriter, rows: list[dict[str, Any]], names: list[str]) -> None:
        writer.close()
        expected.extend(rows)
        if rows or not known:
            known.update(dict.fromkeys(("x", "day", *names)))

    for each in writers:
        names = each["names"]
        writer = DatasetWriter(
            root,
            schema_of(*names),
            mode="append",
            partition_by="day" if partitioned else (),
            row_group_rows=2,
            files=each["files"],
        )
        rows = [row for day in each["days"] for row in rows_of([next(numbers)], day, *names)]  # type: ignore[arg-type]
        writer.write_rows(iter(rows))
        if each["aborts"]:
            writer.abort()
        elif each["closes_late"]:
            late.append((writer, rows, names))  # type: ignore[arg-type]
        else:
            close(writer, rows, names)
            if indexed:
                write_index(root)
    for each_late in late:
        close(*each_late)  # type: ignore[misc]
    if not expected:
        return  # at most an empty file
    if partitioned:
        expected.sort(key=lambda row: row["day"])
    read = [plain(row) for row in Pipeline(root, executor="threads")]
    empty = dict.fromkeys(known)
    in_order = (
        read if partitioned or all(each["files"] == 1 for each in writers) else sorted(read, key=lambda r: r["x"])
    )
    if in_order is not read:
        expected.sort(key=lambda row: row["x"])
    assert in_order == [{**empty, **plain(row)} for row in expected]
    assert (StoredDataset([str(root)]).index is not None) == (root / "_row_groups.parquet").exists()


def test_each_way_to_write_appends(tmp_path: Path) -> None:
    schema = schema_of()
    write_dataset(tmp_path, schema, rows_of(range(2)))
    write_dataset(tmp_path, schema, {"x": [2], "day": ["a"]}, mode="append")
    with DatasetWriter(tmp_path, schema, mode="append", files=2, row_group_rows=1) as writer:
        writer.write({"x": 3, "day": "a"})
        writer.write_stored(pa.table({"x": [4], "day": ["a"]}))
        writer.write_rows(iter(rows_of(range(5, 7))))
        assert xs(tmp_path) == [0, 1, 2]
    assert sorted(xs(tmp_path)) == list(range(7))
    assert [path.name.split("-")[1] for path in sorted(tmp_path.glob("*.parquet"))] == [
        "00000.parquet",
        *["00001", "00002", "00002"],
    ]


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"mode: expected one of error, append, got 'overwrite'\."):
        write_dataset(tmp_path / "d", schema_of(), [], mode="overwrite")  # type: ignore[arg-type]
    assert not (tmp_path / "d").exists()


def test_no_rows_add_nothing_but_make_a_dataset_where_there_is_none(tmp_path: Path) -> None:
    write_dataset(tmp_path, schema_of(), [], mode="append")
    files = sorted(path.name for path in tmp_path.rglob("*"))
    write_dataset(tmp_path, schema_of("score"), [], mode="append")
    assert sorted(path.name for path in tmp_path.rglob("*")) == files
    assert list(Pipeline(tmp_path).dataset.schema.fields) == ["x", "day"]


def test_rows_that_do_not_fit_leave_the_dataset_as_it_is(tmp_path: Path) -> None:
    write_dataset(tmp_path, schema_of(), rows_of(range(3)))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*")}
    other = Unischema("s", [UnischemaField("x", np.int32), DAY])
    with pytest.raises(SchemaError, match=r"field 'x' is stored as int64 .*, and the new rows have int32"):
        write_dataset(tmp_path, other, rows_of(range(3)), mode="append")
    with pytest.raises(SchemaError, match=r"expected partition_by=\(\), as it is stored, got \('day',\)"):
        write_dataset(tmp_path, schema_of(), rows_of(range(3)), mode="append", partition_by="day")
    with pytest.raises(EncodeError, match=r"row 1, field 'x'"):
        write_dataset(tmp_path, schema_of(), [*rows_of(range(1)), {"x": None, "day": "a"}], mode="append")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*")} == before


def test_of_two_writers_that_add_one_name_in_two_types_the_later_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path, schema_of(), rows_of(range(1)))
    first, second = (
        DatasetWriter(tmp_path, Unischema("s", [X, DAY, UnischemaField("y", kind, nullable=True)]), mode="append")
        for kind in (np.int32, str)
    )
    first.write({"x": 1, "day": "a", "y": 5})
    second.write({"x": 2, "day": "a", "y": "five"})
    first.close()
    with pytest.raises(SchemaError, match=r"field 'y' is stored as int32 .*, and the new rows have str"):
        second.close()
    assert [(row["x"], row["y"]) for row in Pipeline(tmp_path)] == [(0, None), (1, 5)]
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".parquetry-") and path.name != PARTS] == []


def test_plain_parquet_grows_without_metadata_of_ours(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [0], "s": [{"a": 1}]}), tmp_path / "z.parquet")
    with pytest.raises(SchemaError, match=r"field 'x' is stored as int64 \(\), column int64, nullable"):
        write_dataset(tmp_path, Unischema("s", [UnischemaField("x", str)]), [{"x": "1"}], mode="append")
    write_dataset(tmp_path, Unischema("s", [X]), [{"x": 1}], mode="append")
    assert sorted((int(row["x"]), row["s.a"]) for row in Pipeline(tmp_path)) == [(0, 1), (1, None)]
    assert not (tmp_path / "_common_metadata").exists()


def test_petastorm_finds_the_files_that_were_added(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    array = UnischemaField("array", np.int16, (2, 2), nullable=True)
    write_dataset(tmp_path, schema_of(), rows_of(range(3)), row_group_rows=2, petastorm_compatible=True)
    metadata = read_metadata(LOCAL, str(tmp_path))
    assert metadata is not None
    values = {**metadata.metadata, INDEXES_KEY: b'{"version": 1, "indexes": []}', b"mine": b"kept"}
    write_metadata(LOCAL, str(tmp_path), metadata, values)
    (tmp_path / "_metadata").write_bytes(b"old")
    write_dataset(tmp_path, schema_of("array"), rows_of(range(3, 4), "a", "array"), mode="append")
    assert "row-group indexes were removed" in caplog.text
    assert "_metadata was removed" in caplog.text
    after = read_metadata(LOCAL, str(tmp_path))
    assert after is not None
    files = sorted(path.name for path in tmp_path.glob("*.parquet"))
    assert json.loads(after.metadata[ROW_GROUP_COUNTS_KEY]) == dict(zip(files, [2, 1], strict=True))
    assert after.metadata[b"mine"] == b"kept"
    assert INDEXES_KEY not in after.metadata
    assert Pipeline(tmp_path).dataset.schema["array"].storage.kind == "ndarray"
    assert array.storage.kind == "tensor"
    write_dataset(tmp_path / "plain", schema_of(), rows_of(range(1)))
    with pytest.raises(DatasetError, match=r"expected one that Petastorm can read, as petastorm_compatible says"):
        write_dataset(tmp_path / "plain", schema_of(), [], mode="append", petastorm_compatible=True)


def test_an_index_that_cannot_be_written_says_that_the_rows_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_dataset(tmp_path, schema_of(), rows_of(range(1)))

    with monkeypatch.context() as patch:
        patch.setattr(appending, "renew_index", Mock(side_effect=DatasetError("the disk is full.")))
        writer = DatasetWriter(tmp_path, schema_of(), mode="append")
        writer.write_rows(rows_of(range(1, 2)))
        with pytest.raises(DatasetError, match=r"the rows were added, but .*the disk is full\. Do not write the rows"):
            writer.close()
        writer.close()
        writer.abort()
    assert xs(tmp_path) == [0, 1]


@pytest.mark.parametrize("memory", [False, True])
def test_two_writers_on_a_store_make_one_dataset(tmp_path: Path, memory: bool) -> None:
    root = f"memory://{uuid.uuid4().hex}/d" if memory else str(tmp_path / "d")
    given_fs = {} if memory else {"filesystem": pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("file")))}
    first, second = (DatasetWriter(root, schema_of(), mode="append", partition_by="day", **given_fs) for _ in range(2))
    first.write_rows(rows_of(range(2)))
    second.write_rows(rows_of(range(2, 4)))
    first.close()
    assert xs(root) == [0, 1]
    second.close()
    assert sorted(xs(root)) == [0, 1, 2, 3]
    write_dataset(
        root, schema_of("score"), rows_of(range(4, 6), "b", "score"), mode="append", partition_by="day", **given_fs
    )
    assert [row["score"] for row in Pipeline(root, executor="threads")] == [None] * 4 + [0.5] * 2


def test_metadata_that_is_replaced_after_the_files_were_listed_is_read_anew(tmp_path: Path) -> None:
    write_dataset(tmp_path, schema_of(), rows_of(range(3)))
    listing = list_files([str(tmp_path)])
    write_dataset(tmp_path, schema_of("score"), rows_of(range(3, 5), "a", "score"), mode="append")
    [metadata] = listing.metadata_files
    assert metadata.became(current_version(listing.filesystem, metadata.path))
    assert b"score" in b"".join(read_key_values(listing.filesystem, metadata).values())
    (tmp_path / "_common_metadata").unlink()
    with pytest.raises(DatasetError, match="_common_metadata: expected Parquet metadata, got"):
        read_key_values(listing.filesystem, metadata)


@pytest.mark.slow
def test_writers_in_several_processes_lose_no_rows(tmp_path: Path) -> None:
    write_dataset(tmp_path, schema_of(), rows_of(range(1)), partition_by="day")
    write_index(tmp_path)
    code = f"""
        import sys
        from parquetry.common import Unischema, UnischemaField, write_dataset
        own = int(sys.argv[1])
        schema = Unischema("s", [UnischemaField("x", "int64"), UnischemaField("day", str),
                                 UnischemaField(f"by{{own}}", "int64", nullable=True)])
        for number in range(own, own + 5):
            rows = [{{"x": number, "day": day, f"by{{own}}": number}} for day in "abc"]
            write_dataset({str(tmp_path)!r}, schema, rows, partition_by="day", mode="append")
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    writers = [subprocess.Popen([*command, str(start)]) for start in (100, 200, 300)]
    whole = set()
    try:
        while any(writer.poll() is None for writer in writers):
            count = dict.fromkeys("abc", 0)
            for row in Pipeline(tmp_path, executor="threads").select("x", "day"):
                count[str(row["day"])] += 1
            whole.add(count["a"] - 1 == count["b"] == count["c"])
    finally:
        statuses = [writer.wait() for writer in writers]
    assert statuses == [0, 0, 0]
    assert whole == {True}
    rows = list(Pipeline(tmp_path, executor="threads"))
    numbers = [number for start in (100, 200, 300) for number in range(start, start + 5)]
    assert sorted((str(row["day"]), int(row["x"])) for row in rows) == sorted(
        [("a", 0), *((day, number) for day in "abc" for number in numbers)]
    )
    assert all(row["by100"] == (row["x"] if 100 <= row["x"] < 105 else None) for row in rows)
    assert StoredDataset([str(tmp_path)]).index is not None


@pytest.mark.slow
def test_a_writer_that_is_killed_at_any_change_adds_all_rows_or_none(tmp_path: Path) -> None:
    """The writer kills itself, with SIGKILL, before each of its changes in turn. The next one clears up."""
    code = """
        import os, signal, sys
        import pyarrow.fs as pafs
        from parquetry.common import Unischema, UnischemaField, write_dataset

        class Local(pafs.LocalFileSystem):
            pass

        left = int(sys.argv[2])
        def counted(name):
            real = getattr(pafs.LocalFileSystem, name)
            def call(self, *arguments, **options):
                global left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1
                return real(self, *arguments, **options)
            return call
        for name in ('move', 'delete_dir', 'delete_file', 'create_dir', 'open_output_stream'):
            setattr(Local, name, counted(name))
        schema = Unischema("s", [UnischemaField("x", "int64"), UnischemaField("day", str),
                                 UnischemaField("y", "int64", nullable=True)])
        rows = [{"x": number, "day": "ab"[number % 2], "y": number} for number in range(10, 14)]
        write_dataset(sys.argv[1], schema, rows, partition_by="day", mode="append", filesystem=Local())
    """
    killed = 0
    for step in range(100):
        root = tmp_path / str(step)
        rows = [*rows_of(range(2)), *rows_of(range(2, 4), "b")]
        write_dataset(root, schema_of(), rows, partition_by="day")
        write_index(root)
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(root), str(step)], check=False)
        assert sorted(xs(root)) in ([0, 1, 2, 3], [0, 1, 2, 3, 10, 11, 12, 13])
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL
        killed += 1
        count = len(xs(root))
        write_dataset(root, schema_of("score"), rows_of(range(20, 21), "b", "score"), partition_by="day", mode="append")
        assert len(xs(root)) == count + 1
        assert StoredDataset([str(root)]).index is not None
        names = [name for _, folders, files in os.walk(root) for name in (*folders, *files)]
        assert not [name for name in names if name.endswith(".adding")]
        assert len([name for name in names if name.startswith("part-")]) == 2 + (2 if count > 4 else 0) + 1
    assert killed > 8
