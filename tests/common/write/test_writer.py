"""`DatasetWriter` and `write_dataset`: what is on disk afterward, and what is not."""

from __future__ import annotations

import datetime
import fcntl
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from cases import every_case
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import PATIENCE_S

from parquetry.common.base.errors import (
    DatasetError,
    EncodeError,
    FieldNotFoundError,
    ParquetryError,
    PipelineError,
    SchemaError,
)
from parquetry.common.base.process import locks
from parquetry.common.schema import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    NdarrayCodec,
    TensorCodec,
    Unischema,
    UnischemaField,
)
from parquetry.common.schema.field import schema_from_metadata
from parquetry.common.write import DatasetWriter, staging, write_dataset, writer
from parquetry.common.write.row_groups import RowGroupBuffer, RowGroupLimit, value_bytes

pytestmark = pytest.mark.versions

F = UnischemaField
NUMBERS = Unischema("numbers", [F("i", np.int64), F("text", str, nullable=True)])


def rows_of(count: int) -> Iterator[dict[str, Any]]:
    return ({"i": number, "text": f"row {number}"} for number in range(count))


def data_files(root: Path) -> list[str]:
    """Returns the paths a reader would see, in its order."""
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    return [path for path in found if not any(part.startswith(("_", ".")) for part in path.split("/"))]


def group_rows(path: Path) -> list[int]:
    footer = pq.ParquetFile(path).metadata
    return [footer.row_group(number).num_rows for number in range(footer.num_row_groups)]


def values(root: Path, column: str = "i") -> list[Any]:
    """Returns the column across all files in path order."""
    files = [pq.ParquetFile(root / path) for path in data_files(root)]
    return [
        value
        for file in files
        for group in range(file.num_row_groups)  # pyarrow 18 cannot read a whole file that has no row groups
        for value in file.read_row_group(group, [column])[column].to_pylist()
    ]


def everything(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


# ---- content


def test_every_file_describes_itself(tmp_path: Path) -> None:
    schema = Unischema("s", [F("i", np.int64), F("drive", str)])
    write_dataset(tmp_path, schema, {"i": [1, 2], "drive": ["a", "b"]}, partition_by="drive")
    for path in ("_common_metadata", "drive=a/part-00000.parquet", "drive=b/part-00000.parquet"):
        stored = pq.read_schema(tmp_path / path)
        assert stored.names == ["i"]
        assert schema_from_metadata(stored.metadata, where=path) == schema


def test_columns_and_rows_give_the_same_files(tmp_path: Path) -> None:
    rows = list(rows_of(3000))
    columns = {"i": np.arange(3000), "text": [row["text"] for row in rows]}
    write_dataset(tmp_path / "rows", NUMBERS, rows, row_group_rows=700)
    write_dataset(tmp_path / "columns", NUMBERS, columns, row_group_rows=700)
    for name in ("part-00000.parquet", "_common_metadata"):
        assert (tmp_path / "rows" / name).read_bytes() == (tmp_path / "columns" / name).read_bytes()


@every_case("dtype", [np.float32, np.float64, np.int64, np.int16, np.bool_])
@every_case("nullable", [False, True])
def test_a_series_gives_what_a_list_of_its_values_gives(tmp_path: Path, dtype: Any, nullable: bool) -> None:
    pandas = pytest.importorskip("pandas")
    schema = Unischema("s", [UnischemaField("x", dtype, nullable=nullable)])
    for number, series in enumerate(
        [
            pandas.Series([1, 2, 3], index=[7, 8, 9]),
            pandas.Series([1.5, np.nan, 2.0]),
            pandas.Series([True, False, True]),
            pandas.Series([1, None, 3], dtype="Int64"),
            pandas.Series([1, 2, 300], dtype="int16"),
        ]
    ):
        results = []
        for values in (series, list(series)):
            url = tmp_path / f"{number} {len(results)} {np.dtype(dtype)} {nullable}"
            try:
                with DatasetWriter(url, schema) as writer:
                    writer.write_columns({"x": values})
                results.append(repr(pq.read_table(url)["x"].to_pylist()))
            except ParquetryError as error:
                results.append(str(error).partition(":")[0])
        assert results[0] == results[1]


def test_rows_and_columns_may_alternate(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path, NUMBERS, row_group_rows=4) as out:
        out.write({"i": 0, "text": "a"})
        out.write_columns({"i": pa.array([1, 2]), "text": np.array(["b", "c"])})
        out.write_rows([{"i": 3}, {"i": 4, "text": None}])
    assert values(tmp_path) == [0, 1, 2, 3, 4]
    assert values(tmp_path, "text") == ["a", "b", "c", None, None]


@pytest.mark.parametrize("given", [list, iter], ids=["list", "iterator"])
def test_rows_may_leave_out_nullable_fields(tmp_path: Path, given: Any) -> None:
    schema = Unischema("s", [F("a", np.int64, nullable=True), F("b", str, nullable=True)])
    rows = [{"a": 1, "b": "x"}, {"b": "y"}, {}, {"b": "z", "a": 2}, {"a": 3}]
    write_dataset(tmp_path, schema, given(rows))
    assert values(tmp_path, "a") == [1, None, None, 2, 3]
    assert values(tmp_path, "b") == ["x", "y", None, "z", None]
    write_dataset(tmp_path / "empty", schema, given([{}, {}]))
    assert values(tmp_path / "empty", "a") == [None, None]


@pytest.mark.parametrize("given", [list, iter], ids=["list", "iterator"])
@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"i": "a"}, "row 2500, field 'i': expected int64, got str 'a'"),
        ({}, "row 2500, field 'i': expected a value, got None"),
        ({"i": 1, "z": 2}, r"row 2500: expected only the fields \['i', 'text'\], got also \['z'\]"),
        ([1], "row 2500: expected a mapping of field names to values, got list"),
    ],
)
def test_an_error_names_the_row_among_many(tmp_path: Path, given: Any, row: Any, text: str) -> None:
    rows = [*rows_of(2500), row, *rows_of(2000)]
    with pytest.raises(EncodeError, match=text):
        write_dataset(tmp_path / "d", NUMBERS, given(rows))
    assert not (tmp_path / "d").exists()


def test_an_iterator_is_streamed(tmp_path: Path) -> None:
    alive = 0
    most = 0

    class Row(dict[str, Any]):
        def __init__(self, **values: Any) -> None:
            nonlocal alive, most
            super().__init__(**values)
            alive += 1
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    write_dataset(tmp_path, NUMBERS, (Row(i=number) for number in range(5000)), row_group_rows=100)
    assert values(tmp_path) == list(range(5000))
    assert most <= 3


def test_the_caller_may_reuse_its_buffers_between_rows(tmp_path: Path) -> None:
    schema = Unischema("s", [F("x", np.int64, (2,)), F("y", bytes), F("z", np.int8, (None,))])
    array, blob, items = np.zeros(2, np.int64), bytearray(1), [0]
    with DatasetWriter(tmp_path, schema) as out:
        for number in range(3):
            array[:] = blob[0] = items[0] = number
            out.write({"x": array, "y": memoryview(blob), "z": items})
    assert values(tmp_path, "x") == [[0, 0], [1, 1], [2, 2]]
    assert values(tmp_path, "y") == [b"\0", b"\1", b"\2"]
    assert values(tmp_path, "z") == [[0], [1], [2]]


@pytest.mark.parametrize(
    "rows", [[], iter([]), {}, {"i": [], "text": []}], ids=["list", "iterator", "no columns", "columns"]
)
@pytest.mark.parametrize("files", [1, 3])
def test_no_rows_give_one_empty_file_with_the_schema(tmp_path: Path, rows: Any, files: int) -> None:
    write_dataset(tmp_path, NUMBERS, rows, files=files)
    assert everything(tmp_path) == ["_common_metadata", "part-00000.parquet"]
    stored = pq.read_table(tmp_path / "part-00000.parquet")
    assert stored.num_rows == 0
    assert schema_from_metadata(stored.schema.metadata, where="") == NUMBERS


# ---- row groups


def test_row_groups_have_exactly_the_rows_asked_for(tmp_path: Path) -> None:
    write_dataset(tmp_path, NUMBERS, rows_of(2500), row_group_rows=1000)
    assert group_rows(tmp_path / "part-00000.parquet") == [1000, 1000, 500]
    assert values(tmp_path) == list(range(2500))


def test_a_row_group_ends_with_the_row_that_fills_its_bytes(tmp_path: Path) -> None:
    schema = Unischema("s", [F("x", bytes)])
    sizes = [40, 40, 40, 200, 10, 10, 80, 1]
    write_dataset(tmp_path, schema, ({"x": bytes(size)} for size in sizes), row_group_bytes=100)
    assert group_rows(tmp_path / "part-00000.parquet") == [3, 1, 3, 1]


def test_both_limits_hold_whichever_comes_first(tmp_path: Path) -> None:
    schema = Unischema("s", [F("x", bytes)])
    rows = [{"x": bytes(60)}] * 4 + [{"x": b""}] * 7
    write_dataset(tmp_path, schema, rows, row_group_bytes=100, row_group_rows=3)
    assert group_rows(tmp_path / "part-00000.parquet") == [2, 2, 3, 3, 1]


def test_without_limits_row_groups_stay_moderate(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows", Unischema("s", [F("x", np.int8)]), {"x": np.zeros(70_000, np.int8)})
    assert group_rows(tmp_path / "rows" / "part-00000.parquet") == [65_536, 4_464]
    big = {"x": np.zeros((40, 1 << 20), np.int8)}
    write_dataset(tmp_path / "bytes", Unischema("s", [F("x", np.int8, (1 << 20,), NdarrayCodec())]), big)
    assert group_rows(tmp_path / "bytes" / "part-00000.parquet") == [32, 8]


@settings(deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=6),
    rows=st.none() | st.integers(1, 4),
    size_bytes=st.none() | st.integers(1, 12),
)
def test_cuts_do_not_depend_on_how_rows_are_batched(
    sizes: list[list[int]], rows: int | None, size_bytes: int | None
) -> None:
    limit = RowGroupLimit(rows=rows, size_bytes=size_bytes)
    buffer = RowGroupBuffer(limit)
    groups: list[list[int]] = []
    for batch in sizes:
        blobs = pa.record_batch({"x": pa.array([bytes(size) for size in batch], pa.binary())})
        groups += [[len(blob) for blob in table["x"].to_pylist()] for table in buffer.add(blobs)]
    if buffer.rows:
        groups.append([len(blob) for blob in buffer.take()["x"].to_pylist()])
    expected: list[list[int]] = [[]]
    for size in (size for batch in sizes for size in batch):
        expected[-1].append(size)
        if len(expected[-1]) == rows or (size_bytes is not None and sum(expected[-1]) >= size_bytes):
            expected.append([])
    assert groups == [group for group in expected if group]


@pytest.mark.parametrize(
    ("array", "sizes"),
    [
        (pa.array([1, None], pa.int32()), [4, 4]),
        (pa.array([True]), [1]),
        (pa.array(["é", None, ""]), [2, 0, 0]),
        (pa.array([b"abc"], pa.large_binary()), [3]),
        (pa.array([b"abc", b"d"], pa.binary_view()), [3, 1]),
        (pa.array([b"ab"], pa.binary(2)), [2]),
        (pa.array([[1], None, [], [1, 2]], pa.list_(pa.int16())), [2, 0, 0, 4]),
        (pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int16(), 2)), [4, 0, 4]),
        (pa.array([[["a"], []], [["bc", "d"]]]), [1, 3]),
        (pa.array(["ab", "ab", "c"]).dictionary_encode(), [2, 2, 1]),
        (pa.array([[9], [1, 2], [3]], pa.list_(pa.int8())).slice(1), [2, 1]),
    ],
    ids=lambda value: str(getattr(value, "type", "")),
)
def test_the_encoded_size_of_each_value_is_known(array: pa.Array, sizes: list[int]) -> None:
    assert value_bytes(array).tolist() == sizes


# ---- files


@pytest.mark.parametrize("kind", ["list", "columns"])
@pytest.mark.parametrize(("count", "files"), [(10, 3), (2, 5), (3000, 4), (7, 7), (1, 1)])
def test_known_rows_are_split_into_contiguous_files(tmp_path: Path, kind: str, count: int, files: int) -> None:
    rows: Any = list(rows_of(count)) if kind == "list" else {"i": np.arange(count)}
    write_dataset(tmp_path, NUMBERS, rows, files=files, row_group_rows=3)
    names = data_files(tmp_path)
    assert names == [f"part-{number:05d}.parquet" for number in range(min(files, count))]
    sizes = [sum(group_rows(tmp_path / name)) for name in names]
    assert max(sizes) - min(sizes) <= 1
    assert values(tmp_path) == list(range(count))
    assert all(set(group_rows(tmp_path / name)[:-1]) <= {3} for name in names)


def test_rows_of_unknown_number_are_dealt_by_row_group(tmp_path: Path) -> None:
    write_dataset(tmp_path, NUMBERS, rows_of(22), files=3, row_group_rows=4)
    assert data_files(tmp_path) == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    assert [group_rows(tmp_path / name) for name in data_files(tmp_path)] == [[4, 4], [4, 4], [4, 2]]
    assert values(tmp_path) == [*range(4), *range(12, 16), *range(4, 8), *range(16, 20), *range(8, 12), 20, 21]


def test_no_file_is_made_for_no_rows(tmp_path: Path) -> None:
    write_dataset(tmp_path, NUMBERS, rows_of(5), files=10, row_group_rows=4)
    assert [group_rows(tmp_path / name) for name in data_files(tmp_path)] == [[4], [1]]


def test_expected_rows_give_a_writer_contiguous_files(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path, NUMBERS, files=2) as out:
        out.expect_rows(4)
        out.write_rows(rows_of(7))
        with pytest.raises(PipelineError, match=r"expect_rows\(\) must come before the first row"):
            out.expect_rows(7)
    assert [group_rows(tmp_path / name) for name in data_files(tmp_path)] == [[2], [5]]
    assert values(tmp_path) == list(range(7))


# ---- partitions

DRIVES = Unischema(
    "drives", [F("i", np.int64), F("drive", str, nullable=True), F("day", datetime.date), F("n", np.int8)]
)


def drive_rows(count: int) -> list[dict[str, Any]]:
    names = ["a b/c", None, "é%41"]
    days = [datetime.date(2024, 2, 29), datetime.date(1969, 12, 31)]
    return [{"i": i, "drive": names[i % 3], "day": days[i % 2], "n": i % 2 - 1} for i in range(count)]


def test_partition_values_are_directories_that_pyarrow_reads_back(tmp_path: Path) -> None:
    rows = drive_rows(30)
    write_dataset(tmp_path, DRIVES, rows, partition_by=("drive", "day"), row_group_rows=2)
    directories = {os.path.dirname(path) for path in data_files(tmp_path)}
    assert directories == {
        f"drive={drive}/day={day}"
        for drive in ("a%20b%2Fc", "__HIVE_DEFAULT_PARTITION__", "%C3%A9%2541")
        for day in ("2024-02-29", "1969-12-31")
    }
    keys = pads.partitioning(pa.schema([("drive", pa.string()), ("day", pa.date32())]), flavor="hive")
    table = pads.dataset(tmp_path, partitioning=keys).to_table()
    assert sorted(table.select(["i", "drive", "day", "n"]).to_pylist(), key=lambda row: row["i"]) == rows
    for path in data_files(tmp_path):
        stored = pq.ParquetFile(tmp_path / path)
        assert stored.schema_arrow.names == ["i", "n"]
        numbers = stored.read()["i"].to_pylist()
        assert numbers == sorted(numbers)
        assert group_rows(tmp_path / path) == [2, 2, 1]


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        (bool, True, "true"),
        (np.int8, -5, "-5"),
        (np.uint64, 2**64 - 1, str(2**64 - 1)),
        (str, "", ""),
        (str, "..", ".."),
    ],
)
def test_a_partition_value_is_written_as_text(tmp_path: Path, dtype: Any, value: Any, text: str) -> None:
    schema = Unischema("s", [F("i", np.int64), F("key", dtype)])
    write_dataset(tmp_path, schema, [{"i": 1, "key": value}], partition_by="key")
    assert data_files(tmp_path) == [f"key={text}/part-00000.parquet"]


def test_no_rows_of_a_partitioned_dataset_keep_the_schema_readable(tmp_path: Path) -> None:
    write_dataset(tmp_path, DRIVES, [], partition_by=("drive", "n"))
    path = "drive=__HIVE_DEFAULT_PARTITION__/n=__HIVE_DEFAULT_PARTITION__/part-00000.parquet"
    assert data_files(tmp_path) == [path]
    assert pq.ParquetFile(tmp_path / path).schema_arrow.names == ["i", "day"]


def test_few_files_are_open_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_OPEN_FILES", 2)
    schema = Unischema("s", [F("i", np.int64), F("key", np.int64)])
    with DatasetWriter(tmp_path / "d", schema, partition_by="key", row_group_rows=2) as out:
        for turn, key in enumerate([0, 1, 2, 0, 0, 1]):
            out.write_columns({"i": [2 * turn, 2 * turn + 1], "key": [key, key]})
    # The third key closes key 0 and the first return to key 0 closes key 1, so both continue in a new file.
    assert [(path, group_rows(tmp_path / "d" / path)) for path in data_files(tmp_path / "d")] == [
        ("key=0/part-00000.parquet", [2]),
        ("key=0/part-00001.parquet", [2, 2]),
        ("key=1/part-00000.parquet", [2]),
        ("key=1/part-00001.parquet", [2]),
        ("key=2/part-00000.parquet", [2]),
    ]
    assert values(tmp_path / "d") == [0, 1, 6, 7, 8, 9, 2, 3, 10, 11, 4, 5]


def test_many_partitions_share_one_memory_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "MAX_WAITING_BYTES", 40_000)
    schema = Unischema("s", [F("i", np.int64), F("key", np.int64), F("blob", bytes)])
    count = 300
    most = 0
    with DatasetWriter(tmp_path, schema, partition_by="key", row_group_rows=1000) as out:
        for number in range(count):
            out.write_columns({"i": [number], "key": [number % 7], "blob": [bytes(1000)]})
            most = max(most, sum(partition.waiting_bytes for partition in out._partitions.values()))
    assert most <= 40_000
    assert values(tmp_path) == [number for key in range(7) for number in range(key, count, 7)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(
    keys=st.lists(st.sampled_from(["a", "b", None]), max_size=30),
    group=st.integers(1, 5),
    files=st.integers(1, 3),
    known=st.booleans(),
    partitioned=st.booleans(),
)
def test_every_row_is_written_once_whatever_the_arguments(
    tmp_path: Path, keys: list[str | None], group: int, files: int, known: bool, partitioned: bool
) -> None:
    schema = Unischema("s", [F("i", np.int64), F("key", str, nullable=True)])
    rows = [{"i": number, "key": key} for number, key in enumerate(keys)]
    root = tmp_path / uuid.uuid4().hex
    arguments: dict[str, Any] = {
        "partition_by": ("key",) if partitioned else (),
        "row_group_rows": group,
        "files": files,
    }
    write_dataset(root, schema, rows if known else iter(rows), **arguments)
    assert sorted(values(root)) == list(range(len(rows)))
    assert sum(not group_rows(root / path) for path in data_files(root)) == (0 if rows else 1)
    if known or files == 1:
        place = {None: 0, "a": 1, "b": 2}  # directory order
        ordered = sorted(rows, key=lambda row: place[row["key"]]) if partitioned else rows
        assert values(root) == [row["i"] for row in ordered]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (F("key", np.float32), r"expected a scalar of text, integer, bool or datetime64\[D\], got float32 \(\)"),
        (F("key", bytes), r"got bytes \(\)"),
        (F("key", "datetime64[us]"), r"got datetime64\[us\] \(\)"),
        (F("key", np.int32, (2,)), r"got int32 \(2,\)"),
        (F("key", np.int32, (), NdarrayCodec()), r"got int32 \(\)"),
        (F("_key", str), r"expected a name without .* that does not begin with '_'"),
        (F("a=b", str), r"expected a name without '='"),
    ],
)
def test_a_field_that_cannot_be_a_directory_is_refused(tmp_path: Path, field: UnischemaField, text: str) -> None:
    with pytest.raises(SchemaError, match=rf"partition field '{field.name}': {text}|partition field .*{text}"):
        DatasetWriter(tmp_path / "d", Unischema("s", [F("i", np.int64), field]), partition_by=field.name)
    assert not (tmp_path / "d").exists()


def test_invalid_partition_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FieldNotFoundError, match=r"field 'nosuch': expected the name of a field"):
        DatasetWriter(tmp_path, NUMBERS, partition_by="nosuch")
    with pytest.raises(SchemaError, match=r"partition_by: expected names in the order of the directories, got {'i'}"):
        DatasetWriter(tmp_path, NUMBERS, partition_by={"i"})  # type: ignore[arg-type]
    with pytest.raises(SchemaError, match=r"partition_by: expected each field once, got \('i', 'i'\)"):
        DatasetWriter(tmp_path, NUMBERS, partition_by=("i", "i"))
    with pytest.raises(SchemaError, match=r"expected at least one field of schema 'numbers' left for the files"):
        DatasetWriter(tmp_path, NUMBERS, partition_by=("i", "text"))


def test_text_that_means_null_to_hive_is_refused(tmp_path: Path) -> None:
    rows = [{"i": 1, "text": "a"}, {"i": 2, "text": "__HIVE_DEFAULT_PARTITION__"}]
    with pytest.raises(EncodeError, match=r"row 1, field 'text': expected any text but '__HIVE_DEFAULT_PARTITION__'"):
        write_dataset(tmp_path, NUMBERS, rows, partition_by="text")
    assert everything(tmp_path) == []


# ---- column storage


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"i": [1]}), r"expected one column for each of the fields \['i', 'text'\], got \['i'\]"),
        (pa.table({"i": [1], "text": ["a"], "x": [1]}), r"got \['i', 'text', 'x'\]"),
        (pa.Table.from_arrays([pa.array([1])] * 2, ["i", "i"]), r"got \['i', 'i'\]"),
        (pa.table({"i": pa.array([None], pa.int64()), "text": ["a"]}), "field 'i': expected no nulls, got 1"),
        (pa.table({"i": ["one"], "text": ["a"]}), "field 'i': expected a column of int64, got string"),
        (pa.table({"i": [1.5], "text": ["a"]}), "field 'i': expected a column of int64, got double"),
        (pa.table({"i": [1], "text": [["a"]]}), "field 'text': expected a column of .*string, got list"),
        ({"i": [1], "text": ["a"]}, "expected a pyarrow.Table, got dict"),
    ],
)
def test_stored_columns_that_do_not_fit_are_refused(tmp_path: Path, table: Any, message: str) -> None:
    with pytest.raises(EncodeError, match=message), DatasetWriter(tmp_path / "d", NUMBERS) as out:
        out.write_stored(table)
    assert not (tmp_path / "d").exists()


def test_stored_columns_of_a_wider_or_encoded_type_are_converted(tmp_path: Path) -> None:
    table = pa.table({"i": pa.array([2, 1, 2], pa.int8()).dictionary_encode(), "text": ["a", None, "c"]})
    with DatasetWriter(tmp_path, NUMBERS) as out:
        out.write_stored(table)
        out.write_stored(pa.table({"i": [7], "text": pa.nulls(1)}))
        out.write_stored(table.slice(0, 0))
    assert values(tmp_path) == [2, 1, 2, 7]
    assert values(tmp_path, "text") == ["a", None, "c", None]


@pytest.mark.parametrize("rows", [None, 3])
def test_rows_that_cannot_be_iterated_are_refused_and_nothing_is_written(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(PipelineError, match=f"expected rows as dicts or a mapping of columns, got {rows}"):
        write_dataset(tmp_path / "d", NUMBERS, rows)
    assert not (tmp_path / "d").exists()


def test_a_table_is_columns_and_data_frames_are_refused_with_what_to_write(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "d", NUMBERS) as out:
        out.write_columns(pa.table({"i": [1, 2], "text": ["a", None]}))
    assert values(tmp_path / "d", "text") == ["a", None]
    twice = pa.Table.from_arrays([pa.array([1])] * 2, ["i", "i"])
    with pytest.raises(EncodeError, match="each name once"), DatasetWriter(tmp_path / "twice", NUMBERS) as out:
        out.write_columns(twice)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"i": [1], "text": ["a"]})
    for method in ("write_columns", "write_rows"):
        with (
            pytest.raises(PipelineError, match=f"{method}: expected .*, got a pandas DataFrame. Pass"),
            DatasetWriter(tmp_path / method, NUMBERS) as out,
        ):
            getattr(out, method)(frame)
        assert not (tmp_path / method).exists()


def test_columns_are_stored_as_their_codec_wants(tmp_path: Path) -> None:
    schema = Unischema(
        "s",
        [
            F("plain", np.int64),
            F("words", str, (None,)),
            F("tensor", np.float32, (2, 2)),
            F("zip", np.float32, (None, 2), CompressedNdarrayCodec()),
            F("image", np.uint8, (2, 2), CompressedImageCodec("png")),
        ],
    )
    row = {
        "plain": 1,
        "words": ["a"],
        "tensor": np.zeros((2, 2), np.float32),
        "zip": np.zeros((1, 2), np.float32),
        "image": np.zeros((2, 2), np.uint8),
    }
    write_dataset(tmp_path, schema, [row] * 4)
    group = pq.ParquetFile(tmp_path / "part-00000.parquet").metadata.row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    assert [
        (chunk.path_in_schema, chunk.compression, chunk.has_dictionary_page, chunk.is_stats_set) for chunk in chunks
    ] == [
        ("plain", "ZSTD", True, True),
        ("words.list.element", "ZSTD", True, True),
        ("tensor", "ZSTD", False, False),
        ("zip", "UNCOMPRESSED", False, False),
        ("image", "UNCOMPRESSED", False, False),
    ]
    assert (chunks[0].statistics.min, chunks[0].statistics.max) == (1, 1)
    assert chunks[0].has_column_index


@pytest.mark.parametrize(("compression", "stored"), [("snappy", "SNAPPY"), ("GZIP", "GZIP"), (None, "UNCOMPRESSED")])
def test_the_compression_can_be_chosen(tmp_path: Path, compression: str | None, stored: str) -> None:
    write_dataset(tmp_path, NUMBERS, rows_of(3), compression=compression)
    group = pq.ParquetFile(tmp_path / "part-00000.parquet").metadata.row_group(0)
    assert group.column(0).compression == stored


@pytest.mark.parametrize("codec", [NdarrayCodec(), TensorCodec()], ids=["ndarray", "tensor"])
@pytest.mark.parametrize(
    ("noisy", "compression", "stored"),
    [
        (True, "auto", "UNCOMPRESSED"),
        (False, "auto", "ZSTD"),
        (True, "zstd", "ZSTD"),
        (False, None, "UNCOMPRESSED"),
    ],
)
def test_raw_arrays_are_compressed_by_default_only_if_they_shrink(
    tmp_path: Path, codec: Any, noisy: bool, compression: str | None, stored: str
) -> None:
    schema = Unischema("s", [F("x", np.float32, (50, 100), codec, nullable=True), F("i", np.int64)])
    values = np.random.default_rng(0).standard_normal((8, 50, 100)).astype(np.float32)
    values = values if noisy else np.round(values)
    rows = [{"x": None, "i": 0}, *({"x": value, "i": 1} for value in values)]
    arguments = {} if compression == "auto" else {"compression": compression}
    write_dataset(tmp_path, schema, rows, **arguments)
    group = pq.ParquetFile(tmp_path / "part-00000.parquet").metadata.row_group(0)
    assert [group.column(number).compression for number in range(2)] == [
        stored,
        "UNCOMPRESSED" if compression is None else "ZSTD",
    ]


def test_big_values_get_pages_of_their_own(tmp_path: Path) -> None:
    schema = Unischema("s", [F("x", np.uint8, (1 << 20,), NdarrayCodec())])
    write_dataset(tmp_path, schema, {"x": np.zeros((4, 1 << 20), np.uint8)}, compression=None)
    group = pq.ParquetFile(tmp_path / "part-00000.parquet").metadata.row_group(0)
    # A page header takes 20 to 40 bytes; one page for all four values would take less.
    assert group.column(0).total_uncompressed_size - 4 * ((1 << 20) + 128 + 4) >= 4 * 15


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"row_group_rows": 0}, r"row_group_rows: expected an integer >= 1 or None, got 0"),
        ({"row_group_bytes": -1}, r"row_group_bytes: expected an integer >= 1 or None, got -1"),
        ({"row_group_rows": 1.5}, r"row_group_rows: expected an integer >= 1 or None, got 1\.5"),
        ({"files": 0}, r"files: expected an integer from 1 to 99999, got 0"),
        ({"compression": "rar"}, r"compression: expected one of none, snappy, .*, got 'rar'"),
    ],
)
def test_arguments_out_of_range_are_refused(tmp_path: Path, arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(PipelineError, match=text):
        DatasetWriter(tmp_path / "d", NUMBERS, **arguments)
    assert not (tmp_path / "d").exists()


def test_objects_that_are_not_schemas_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"schema: expected a Unischema with at least one field"):
        DatasetWriter(tmp_path, Unischema("empty", []))


# ---- all or nothing


@pytest.mark.parametrize("existing", [True, False], ids=["into an empty directory", "into a new directory"])
def test_a_reader_sees_no_file_or_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, existing: bool) -> None:
    root = tmp_path / "d"
    if existing:
        root.mkdir(mode=0o750)
    seen = []
    rename = os.rename

    def watched(*arguments: Any) -> None:
        seen.append(len(data_files(root)))
        rename(*arguments)
        seen.append(len(data_files(root)))

    monkeypatch.setattr(os, "rename", watched)
    write_dataset(root, NUMBERS, list(rows_of(6)), files=3)
    assert seen == [0, 0, 0, 3]  # the last rename makes them all visible
    if existing:
        assert root.stat().st_mode & 0o777 == 0o750


def test_a_target_with_other_hidden_files_keeps_them(tmp_path: Path) -> None:
    (tmp_path / ".keep").write_text("mine")
    (tmp_path / "_logs").mkdir()
    write_dataset(tmp_path, DRIVES, drive_rows(6), partition_by="n")
    assert everything(tmp_path) == [
        ".keep",
        "_common_metadata",
        "_logs",
        "n=-1",
        "n=-1/part-00000.parquet",
        "n=0",
        "n=0/part-00000.parquet",
    ]


def test_a_target_may_be_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_dataset(tmp_path / "link", NUMBERS, rows_of(3))
    assert everything(tmp_path / "real") == ["_common_metadata", "part-00000.parquet"]
    assert (tmp_path / "link").is_symlink()


class _StopError(Exception):
    pass


def test_an_exception_in_the_middle_leaves_no_trace(tmp_path: Path) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield from rows_of(5000)
        raise _StopError

    with pytest.raises(_StopError):
        write_dataset(tmp_path / "deep" / "er" / "d", NUMBERS, rows(), row_group_rows=10, files=3)
    assert everything(tmp_path) == []


def test_an_exception_leaves_an_empty_directory_that_was_there(tmp_path: Path) -> None:
    def stop_in_the_middle() -> None:
        with DatasetWriter(tmp_path, NUMBERS) as out:
            out.write_rows(rows_of(5000))
            raise _StopError

    with pytest.raises(_StopError):
        stop_in_the_middle()
    assert tmp_path.exists()
    assert everything(tmp_path) == []


def test_a_swallowed_error_cannot_pass_for_a_finished_dataset(tmp_path: Path) -> None:
    out = DatasetWriter(tmp_path / "d", NUMBERS)
    out.write_rows(rows_of(3))
    with pytest.raises(EncodeError, match=r"row 3, field 'i'"):
        out.write_columns({"i": ["x"]})
    with pytest.raises(DatasetError, match=r"expected an open writer, got one that was closed, aborted, or failed"):
        out.write({"i": 1})
    with pytest.raises(
        DatasetError, match=r"nothing was written, because an earlier write failed \(EncodeError: row 3"
    ):
        out.close()
    out.close()
    assert everything(tmp_path) == []


def test_of_close_and_abort_the_first_decides_and_both_can_be_repeated(tmp_path: Path) -> None:
    out = DatasetWriter(tmp_path / "d", NUMBERS, row_group_rows=2)
    out.write_rows(rows_of(3000))
    out.abort()
    out.abort()
    out.close()
    assert everything(tmp_path) == []
    out = DatasetWriter(tmp_path, NUMBERS)
    out.write_rows(rows_of(3))
    out.close()
    out.close()
    out.abort()
    assert values(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize(
    "use",
    [
        lambda out: out.write({"i": 1}),
        lambda out: out.write_rows([{"i": 1}]),
        lambda out: out.write_columns({"i": [1]}),
        lambda out: out.expect_rows(1),
    ],
    ids=["write", "write_rows", "write_columns", "expect_rows"],
)
def test_a_closed_writer_refuses_to_write(tmp_path: Path, use: Any) -> None:
    out = DatasetWriter(tmp_path, NUMBERS)
    out.close()
    with pytest.raises(DatasetError, match=r"expected an open writer, got one that was closed.*Create a new writer"):
        use(out)


@pytest.mark.parametrize("name", ["part-00000.parquet", "drive=a", "_drive=a", "_common_metadata", "notes.txt"])
def test_a_directory_that_holds_something_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"precious")
    with pytest.raises(DatasetError, match=rf"got 1 entries such as '{name}'\. Choose an empty directory or delete it"):
        write_dataset(tmp_path, NUMBERS, rows_of(3))
    assert everything(tmp_path) == [name]
    assert (tmp_path / name).read_bytes() == b"precious"


def test_a_file_is_not_a_target(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("")
    with pytest.raises(DatasetError, match=r"expected a directory or nothing, got a file\. Choose another path"):
        DatasetWriter(tmp_path / "d", NUMBERS)


def test_of_two_writers_to_one_directory_the_first_to_close_wins(tmp_path: Path) -> None:
    first, second = DatasetWriter(tmp_path, NUMBERS), DatasetWriter(tmp_path, NUMBERS)
    first.write_rows(rows_of(3))
    second.write_rows(rows_of(5))
    first.close()
    with pytest.raises(DatasetError, match=r"expected an empty directory"):
        second.close()
    assert everything(tmp_path) == ["_common_metadata", "part-00000.parquet"]
    assert values(tmp_path) == [0, 1, 2]


@pytest.mark.slow
def test_a_process_that_dies_leaves_only_hidden_names(tmp_path: Path) -> None:
    code = f"""
        import os
        import numpy as np
        from parquetry.common.schema import Unischema, UnischemaField
        from parquetry.common.write import DatasetWriter
        out = DatasetWriter({str(tmp_path / "d")!r}, Unischema("s", [UnischemaField("i", np.int64)]), row_group_rows=10)
        out.write_columns({{"i": np.arange(100)}})
        os._exit(3)
    """
    assert subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False).returncode == 3
    (left,) = os.listdir(tmp_path / "d")
    assert left.startswith(".parquetry-")
    write_dataset(tmp_path / "d", NUMBERS, rows_of(3))
    assert values(tmp_path / "d") == [0, 1, 2]
    assert left not in os.listdir(tmp_path / "d")


def test_a_move_that_fails_takes_back_the_moves_before_it(tmp_path: Path) -> None:
    class Handler(pafs.FSSpecHandler):
        moves = 0

        def move(self, src: str, dest: str) -> None:
            self.moves += 1
            if self.moves == 3:
                raise OSError("disk on fire")
            super().move(src, dest)

    filesystem = pafs.PyFileSystem(Handler(fsspec.filesystem("file")))
    with pytest.raises(DatasetError, match=r"finishing '.*/d': the file system refused: .*disk on fire.*Check"):
        write_dataset(tmp_path / "d", NUMBERS, list(rows_of(9)), files=3, filesystem=filesystem)
    assert data_files(tmp_path) == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_file_system_that_refuses_says_which_path(tmp_path: Path) -> None:
    class Handler(pafs.FSSpecHandler):
        def open_output_stream(self, path: str, metadata: Any) -> Any:
            raise OSError("quota exceeded")

    filesystem = pafs.PyFileSystem(Handler(fsspec.filesystem("file")))
    out = DatasetWriter(tmp_path / "d", NUMBERS, filesystem=filesystem)
    out.write_rows(rows_of(3))
    with pytest.raises(DatasetError, match=r"writing '.*/d/part-00000\.parquet': .* refused: quota exceeded"):
        out.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


# ---- other file systems


def test_a_dataset_goes_to_an_fsspec_url(tmp_path: Path) -> None:
    root = f"memory://{uuid.uuid4().hex}/d"
    write_dataset(root, DRIVES, drive_rows(6), partition_by="n", files=2)
    memory = fsspec.filesystem("memory")
    found = sorted(path.removeprefix(root.removeprefix("memory:/")) for path in memory.find(root))
    assert found == [
        "/_common_metadata",
        "/n=-1/part-00000.parquet",
        "/n=-1/part-00001.parquet",
        "/n=0/part-00000.parquet",
        "/n=0/part-00001.parquet",
    ]
    memory.get(root, str(tmp_path / "copy"), recursive=True)
    assert values(tmp_path / "copy") == [0, 2, 4, 1, 3, 5]
    with pytest.raises(DatasetError, match=r"expected an empty directory"):
        write_dataset(root, DRIVES, drive_rows(6))


def test_a_failed_dataset_leaves_nothing_on_an_fsspec_file_system() -> None:
    root = f"memory://{uuid.uuid4().hex}/d"
    with pytest.raises(EncodeError, match=r"row 1, field 'i'"):
        write_dataset(root, NUMBERS, [{"i": 1}, {"i": None}])
    assert fsspec.filesystem("memory").find(root) == []


def test_a_dataset_goes_to_a_given_file_system(tmp_path: Path) -> None:
    given_filesystem = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    write_dataset("inner/d", NUMBERS, rows_of(3), filesystem=given_filesystem)
    assert values(tmp_path / "inner" / "d") == [0, 1, 2]
    assert everything(tmp_path / "inner" / "d") == ["_common_metadata", "part-00000.parquet"]


def test_a_relative_path_is_written_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with DatasetWriter("d", NUMBERS) as out:
        out.write_rows(rows_of(3))
        os.chdir("other")
    assert values(tmp_path / "d") == [0, 1, 2]
    shutil.rmtree(tmp_path / "d")


def test_one_of_two_writers_that_end_at_once_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both reach the end together, unless the first excludes the second."""
    both = threading.Barrier(2)
    take_place = staging._take_place

    def late(hidden: str, root: str) -> bool:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        return take_place(hidden, root)

    monkeypatch.setattr(staging, "_take_place", late)
    schema = Unischema("s", [UnischemaField("id", np.int64)])
    writers = [DatasetWriter(tmp_path / "target", schema) for _ in range(2)]
    ended: list[int] = []

    def end(number: int) -> None:
        for _ in range(4):
            writers[number].write({"id": number})
        with suppress(DatasetError):
            writers[number].close()
            ended.append(number)

    threads = [threading.Thread(target=end, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    (winner,) = ended
    assert pq.read_table(tmp_path / "target").column("id").to_pylist() == [winner] * 4


def test_a_stopped_writer_does_not_hold_up_another_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE_S", 0.05)
    target = tmp_path / "target"
    out = DatasetWriter(target, NUMBERS)
    out.write_rows(rows_of(3))
    stopped = os.open(target, os.O_RDONLY)
    fcntl.flock(stopped, fcntl.LOCK_EX)
    with pytest.raises(DatasetError, match=r"locked by .*process.* for 0 s.*End that process"):
        out.close()
    os.close(stopped)
    assert not target.exists()
    write_dataset(target, NUMBERS, rows_of(3))
    assert values(target) == [0, 1, 2]


@pytest.mark.parametrize("day", ["10000-01-01", "-0001-01-01"])
def test_a_date_that_no_reader_parses_is_not_a_partition(tmp_path: Path, day: str) -> None:
    schema = Unischema("s", [UnischemaField("day", "datetime64[D]"), UnischemaField("id", np.int64)])
    rows = [{"day": np.datetime64(text, "D"), "id": 0} for text in ("2024-02-29", day)]
    with pytest.raises(EncodeError, match=r"row 1, field 'day': expected a date of the years 0000 to 9999"):
        write_dataset(tmp_path / "target", schema, rows, partition_by="day")
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("error", [RuntimeError("Can't call numpy()"), TypeError("unsupported ScalarType BFloat16")])
def test_a_tensor_that_numpy_cannot_convert_is_an_error_with_its_row(tmp_path: Path, error: Exception) -> None:
    class Tensor:
        def __array__(self, *_: object, **__: object) -> np.ndarray:
            raise error

    schema = Unischema("rows", [UnischemaField("x", np.float32, (1,))])
    with pytest.raises(EncodeError, match=r"row 1, field 'x': "):
        write_dataset(tmp_path / "d", schema, [{"x": np.zeros(1, np.float32)}, {"x": Tensor()}])
