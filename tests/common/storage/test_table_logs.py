"""Directories of tables, and directories inside them, are not plain datasets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import fsspec.implementations.local
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError
from parquetry.common.dataset.index_writer import write_index
from parquetry.common.storage import retries
from parquetry.common.storage.files import list_files
from parquetry.common.storage.table_logs import names_in

UUID = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f"
DELTA = r"found a Delta table \('.*'\), which keeps files of deleted rows\. Open it with from_delta\(url\)"
ICEBERG = r"found an Iceberg table .* Open it with from_iceberg\(table\)"
HUDI = r"found a Hudi table .* name the files"
STREAM = (
    r"found the output of a Spark stream .*, which keeps files of failed batches\. .* with Spark, which reads its log"
)
LOGS = {
    "_delta_log/00000000000000000000.json": DELTA,
    "_delta_log/00000000000000000001.00000000000000000002.compacted.json": DELTA,
    "_delta_log/00000000000000000003.checkpoint.parquet": DELTA,
    "part/_delta_log/_last_checkpoint": DELTA,
    f"metadata/00001-{UUID}.metadata.json": ICEBERG,
    f"metadata/123456-{UUID.upper()}.metadata.json": ICEBERG,
    f"metadata/00001-{UUID}.gz.metadata.json": ICEBERG,
    f"metadata/00001-{UUID}.metadata.json.gz": ICEBERG,
    "metadata/v1.metadata.json": ICEBERG,
    ".hoodie/hoodie.properties": HUDI,
    ".hoodie/20240101.commit": HUDI,
    ".hoodie_partition_metadata": HUDI,
    "2024/01/.hoodie_partition_metadata": HUDI,
    "_spark_metadata/0": STREAM,
    "_spark_metadata/19.compact": STREAM,
}


def put(path: Path, name: str = "a.parquet") -> None:
    """Writes a file of one row, or an empty file with another name."""
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".parquet") and "/_" not in f"/{name}":
        pq.write_table(pa.table({"id": [1]}), path / name)
    else:
        (path / name).write_text("{}")


def test_names_beside_a_partition_need_not_be_utf_8(tmp_path: Path) -> None:
    put(tmp_path / "day=1")
    (tmp_path / os.fsdecode(b"note\xff")).touch()
    (tmp_path / os.fsdecode(b"folder\xff")).mkdir()
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / os.fsdecode(b"\xff")).touch()
    assert len(Pipeline(tmp_path / "day=1")) == 1
    put(tmp_path, "_delta_log/00000000000000000000.json")
    with pytest.raises(DatasetError, match=DELTA):
        Pipeline(tmp_path / "day=1").plan()


@pytest.mark.parametrize("name", LOGS)
def test_a_table_is_not_a_plain_dataset(tmp_path: Path, name: str) -> None:
    put(tmp_path)
    assert len(Pipeline(tmp_path)) == 1
    put(tmp_path, name)
    with pytest.raises(DatasetError, match=LOGS[name]):
        Pipeline(tmp_path).dataset  # noqa: B018
    assert len(Pipeline(tmp_path / "a.parquet")) == 1


@pytest.mark.parametrize(
    "name",
    [
        "metadata/coco.metadata.json",
        "metadata/v1.json",
        "_old/_delta_log/00000000000000000000.json",
        ".x/metadata/v1.metadata.json",
        "_spark_metadata/notes.txt",
    ],
)
def test_a_plain_dataset_may_hold_names_like_those_of_tables(tmp_path: Path, name: str) -> None:
    put(tmp_path)
    put(tmp_path, name)
    assert len(Pipeline(tmp_path)) == 1


@pytest.mark.parametrize(
    ("log", "inside"),
    [
        ("_delta_log/00000000000000000000.json", "a=1/b=x"),
        ("_delta_log/00000000000000000001.00000000000000000002.compacted.json", "a=1"),
        ("metadata/v2.metadata.json", "a=1"),
        ("_spark_metadata/0", "a=1/b=x"),
        ("metadata/v2.metadata.json", "data"),
        ("metadata/v2.metadata.json", "data/a=1/b=x"),
        ("metadata/v2.metadata.json", "data/0110/1010"),
        ("2024/01/.hoodie_partition_metadata", "2024/01"),
        ("2024/01/.hoodie_partition_metadata", "2024"),
    ],
)
@pytest.mark.parametrize("pattern", ["", "/*.parquet", "/**/*.parquet"])
def test_a_directory_inside_a_table_is_not_a_plain_dataset_either(
    tmp_path: Path, log: str, inside: str, pattern: str
) -> None:
    put(tmp_path / inside, "01/a.parquet" if inside == "2024" else "a.parquet")
    url = f"{tmp_path}/{inside}{pattern}"
    if inside == "2024" and pattern == "/*.parquet":
        url = f"{tmp_path}/2024/*/*.parquet"
    assert len(Pipeline(url)) == 1
    put(tmp_path, log)
    with pytest.raises(DatasetError, match=r"expected plain Parquet files, found (a|the)"):
        Pipeline(url).dataset  # noqa: B018


class Counting(fsspec.implementations.local.LocalFileSystem):
    """Records the directories that are listed; refuses those named ``metadata``."""

    cachable = False
    error: Exception = PermissionError("AccessDenied")

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []

    def find(self, path: Any, *args: Any, **options: Any) -> Any:
        self.listed.append(str(path))
        return super().find(path, *args, **options)

    def isdir(self, path: Any) -> bool:
        self.listed.append(str(path))
        if str(path).endswith("/metadata"):
            raise self.error
        return bool(super().isdir(path))


def test_a_directory_above_is_listed_once_for_many_partitions_and_need_not_be_readable(tmp_path: Path) -> None:
    names = [f"{tmp_path}/data/day={day}" for day in range(5)]
    for name in names:
        put(Path(name))
    store = Counting()
    assert len(list_files(names, filesystem=store).files) == 5
    above = [path for path in store.listed if "day=" not in path]
    assert sorted(set(above)) == sorted(
        f"{tmp_path}/{name}" for name in ("data/_delta_log", "data/_spark_metadata", "data/metadata", "metadata")
    )
    assert max(map(above.count, above)) <= 5  # threads may ask at the same time


def test_a_store_that_fails_is_not_taken_for_one_without_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.001)
    put(tmp_path / "data")
    store = Counting()
    store.error = ConnectionError("reset")
    with pytest.raises(DatasetError, match=r"cannot be reached: .*reset"):
        list_files([f"{tmp_path}/data"], filesystem=store)
    assert names_in(pafs.LocalFileSystem(), f"{tmp_path}/data/a.parquet") == []  # no directory


@pytest.mark.parametrize("indexed", [False, True])
def test_position_deletes_of_iceberg_are_no_rows(tmp_path: Path, indexed: bool) -> None:
    fields = [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
    pq.write_table(pa.table([["a"], [3]], schema=pa.schema(fields)), tmp_path / "deletes.parquet")
    put(tmp_path)
    if indexed:
        write_index(tmp_path)
    for url in (tmp_path, tmp_path / "deletes.parquet"):
        with pytest.raises(
            DatasetError, match=r"deletes\.parquet: expected rows, found the position deletes of an Ice"
        ):
            Pipeline(url).schema  # noqa: B018
    pq.write_table(pa.table({"file_path": ["a"], "pos": [3]}), tmp_path / "deletes.parquet")
    assert len(Pipeline(tmp_path / "deletes.parquet")) == 1
