"""The schema of a dataset is the union of its files, whoever wrote them and whatever its metadata declares."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders import write_table

from parquetry.common import NdarrayCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.apps.reports import inspect, lint
from parquetry.common.apps.reports.page import html_report
from parquetry.common.apps.tools import generate_metadata
from parquetry.common.base.errors import ParquetryError
from parquetry.common.compat.petastorm import make_batch_reader, make_reader
from parquetry.common.dataset import dataset as dataset_module
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.dataset.index import write_index

pytestmark = pytest.mark.versions
PETASTORM = Path(__file__).parents[2] / "data" / "petastorm" / "0.12.1"
BOX = UnischemaField("box", np.float32, (2,), NdarrayCodec())
SHAPE = UnischemaField("shape", np.int16, (None,), NdarrayCodec())
SCORE = UnischemaField("score", np.float64)
FIRST = Unischema("first", [UnischemaField("x", np.int64), BOX])
THEN = Unischema("then", [UnischemaField("x", np.int64), BOX, SHAPE, SCORE])


def row(number: int, *, later: bool) -> dict[str, Any]:
    more = {"shape": np.full(number, 1, np.int16), "score": number / 2} if later else {}
    return {"x": number, "box": np.full(2, number, np.float32), **more}


def write(folder: Path, numbers: list[int], *, later: bool) -> Path:
    """Writes a file of this library, without ``_common_metadata``."""
    write_dataset(str(folder), THEN if later else FIRST, [row(number, later=later) for number in numbers])
    (folder / "_common_metadata").rename(folder.parent / f"{folder.name}_metadata")
    return next(folder.glob("*.parquet"))


def rows(pipeline: Pipeline) -> list[tuple[object, ...]]:
    names = ("x", "box", "score", "day")
    return [tuple(None if row[name] is None else row[name].tolist() for name in names) for row in pipeline]


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("with_metadata", [False, True])
@pytest.mark.parametrize("new", [3, 7])  # it sorts first, or last
def test_a_newer_partition_adds_its_columns(tmp_path: Path, new: int, with_metadata: bool, indexed: bool) -> None:
    root = tmp_path / "root"
    old = write(root / "day=5", [0, 1], later=False)
    (root / "day=5_metadata").rename(root / "_common_metadata" if with_metadata else tmp_path / "unused")
    columns = {"x": [8, 9], "box": pq.read_table(old, partitioning=None).column("box"), "score": [4.0, None]}
    write_table(root / f"day={new}", pa.table(columns))
    if indexed:
        write_index(str(root))
    pipeline = Pipeline(root)
    later = [(8, [0, 0], 4.0, new), (9, [1, 1], None, new)]
    older = [(0, [0, 0], None, 5), (1, [1, 1], None, 5)]
    assert (pipeline.dataset.index is not None) is indexed
    assert rows(pipeline) == (later + older if new == 3 else older + later)
    assert rows(pipeline.where(pc.field("score") > 1)) == later[:1]
    assert [field.name for field in pipeline.schema] == ["x", "box", "score", "day"]
    assert pipeline.schema.score.nullable
    assert not pipeline.schema.box.nullable
    count = "some files (such as" if indexed else "1 file ("
    assert f"columns: 'score' is not in {count}" in pipeline.explain()
    assert str(inspect(str(root)).field("score").missing).endswith("/day=5/part-00000.parquet)")
    assert inspect(str(root)).field("x").missing is None
    assert "score: not in" in html_report(str(root))


@pytest.mark.parametrize("columns", [None, ["x", "s.*"]])
def test_an_index_describes_the_columns_of_newer_files(tmp_path: Path, columns: list[str] | None) -> None:
    write_table(tmp_path / "a", pa.table({"x": range(4), "score": pa.nulls(4)}), row_group_size=2)
    write_table(tmp_path / "b", pa.table({"x": [5], "score": [1.5], "size": [[1]]}))
    write_table(tmp_path / "c", pa.table({"x": [6], "score": [3.5], "k": ["b"]}))
    write_index(str(tmp_path), columns=columns)
    pipeline = Pipeline(tmp_path).where(pc.field("score") > 2).select("x")
    assert [int(row["x"]) for row in pipeline] == [6]
    index = pipeline.dataset.index
    assert index is not None
    assert not pipeline.dataset.has_footers
    assert index.statistics("size") is not None
    assert (index.statistics("k") is None) is (columns is not None)


@pytest.mark.parametrize("first", ["a", "z"])
def test_a_file_declares_its_own_columns(tmp_path: Path, first: str) -> None:
    write(tmp_path / first, [0], later=False)
    write(tmp_path / "m", [3], later=True)
    pipeline = Pipeline(tmp_path)
    assert {field.name: field.codec for field in pipeline.schema if field.shape} == {
        "box": NdarrayCodec(),
        "shape": NdarrayCodec(),
    }
    values = {int(row["x"]): (row["shape"], row["score"]) for row in pipeline}
    assert values[0] == (None, None)
    assert (values[3][0].tolist(), values[3][1]) == ([1, 1, 1], 1.5)
    assert pipeline.schema.shape.nullable
    assert pipeline.schema.score.nullable


@pytest.mark.parametrize("own", ["a", "c"])
def test_a_declared_column_that_a_newer_file_lacks_is_null_there(tmp_path: Path, own: str) -> None:
    write(tmp_path / own, [4], later=True)
    write_table(tmp_path / "b", pa.table({"x": [5]}))
    values = {int(row["x"]): (row["box"], row["score"]) for row in Pipeline(tmp_path)}
    assert values[5] == (None, None)
    assert values[4][1] == 2.0
    assert inspect(str(tmp_path)).described == "parquetry"


def test_columns_of_all_files_that_the_metadata_leaves_out_stay_out_and_are_said(tmp_path: Path) -> None:
    for name in "ab":
        write_table(tmp_path / name, pa.table({"x": [1], "y": [2], "z": [3]}))
    generate_metadata(tmp_path, Unischema("S", [UnischemaField("x", np.int64)]))
    assert [field.name for field in Pipeline(tmp_path).schema] == ["x"]
    assert "columns: the schema in the metadata leaves out y, z" in Pipeline(tmp_path).explain()
    assert inspect(str(tmp_path)).undeclared == ("y", "z")
    write_table(tmp_path / "c", pa.table({"x": [1], "y": [2], "z": [3], "new": [4]}))
    assert [field.name for field in Pipeline(tmp_path).schema] == ["x", "new"]


def test_a_new_column_that_cannot_be_read_hides_no_declared_one(tmp_path: Path) -> None:
    write(tmp_path / "a", [1], later=False)
    write_table(tmp_path / "b", pa.table({"x": [2], "odd": pa.array([[{"a": 1}]])}))
    pipeline = Pipeline(tmp_path)
    assert [int(row["x"]) for row in pipeline] == [1, 2]
    assert [field.name for field in pipeline.schema] == ["x", "box"]


def test_newer_columns_that_have_no_common_type_are_left_out_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One rule for `Pipeline` and Petastorm's reader: what the metadata declares can be read."""
    root = tmp_path / "set"
    shutil.copytree(PETASTORM, root)
    rows = pq.read_table(sorted(root.rglob("*.parquet"))[0], partitioning=None).slice(0, 1)
    for name, values in (("d8", pa.array([1])), ("d9", pa.array(["a"]))):
        write_table(root / f"drive={name}", rows.append_column("new", values))
    assert "new" not in Pipeline(root).schema
    assert len(list(Pipeline(root))) == len(Pipeline(PETASTORM)) + 2
    with make_reader(f"file://{root}", num_epochs=1) as reader:
        assert sum(1 for _ in reader) == len(Pipeline(root))
    (record,) = caplog.records
    assert "column 'new', which the schema in the metadata does not declare, is left out" in record.getMessage()
    assert "columns: 'new' is left out: field 'new': expected one type in all files" in Pipeline(root).explain()
    (finding,) = (each for each in lint(str(root)) if each.code == "refused-column")
    assert finding.cost == "It is left out, because the schema in the metadata does not declare it."
    with pytest.raises(ParquetryError, match=r"schema_fields=\[UnischemaField\('new', 'str'\), '\.\*'\]"):
        make_reader(f"file://{root}", schema_fields=["id", "new"])
    read = [row["new"] for row in Pipeline(root, fields=[UnischemaField("new", "str"), ".*"])]
    assert read[-2:] == ["1", "a"]


@pytest.mark.filterwarnings("ignore:make_batch_reader returns")
def test_petastorms_datasets_have_the_columns_of_all_files(tmp_path: Path) -> None:
    root = tmp_path / "set"
    shutil.copytree(PETASTORM, root)
    old = sorted(root.rglob("*.parquet"))[0]
    table = pq.read_table(old, partitioning=None)
    write_table(root / "drive=d9", table.append_column("score", pa.array([0.5] * len(table))))
    count, before = len(Pipeline(root)), len(Pipeline(PETASTORM))
    assert count == before + len(table)
    scores = [row["score"] for row in Pipeline(root).select("score")]
    assert scores == [None] * before + [0.5] * len(table)
    with make_reader(f"file://{root}", schema_fields=["score"], num_epochs=1, shuffle_row_groups=False) as reader:
        assert [None if row.score is None else float(row.score) for row in reader] == scores
    with make_batch_reader(
        f"file://{root}", schema_fields=["score"], num_epochs=1, shuffle_row_groups=False
    ) as batches:
        values = np.concatenate([np.asarray(batch.score, np.float64) for batch in batches])
    assert np.isnan(values[:before]).all()
    assert values[before:].tolist() == [0.5] * len(table)


def test_the_columns_of_many_files_are_kept_for_the_next_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dataset_module, "_MANY_FILES", 3)
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "root"
    write(root / "a", [1], later=False)
    write(root / "b", [2], later=True)
    write_table(root / "c", pa.table({"x": [3], "more": [1]}))
    first = StoredDataset([str(root)])
    assert first.schema
    assert first.has_footers
    then = StoredDataset([str(root)])
    assert then.schema == first.schema
    assert {name: str(files) for name, files in then.missing.items()} == {
        name: str(files) for name, files in first.missing.items()
    }
    assert then.row_groups.rows.tolist() == first.row_groups.rows.tolist() == [1, 1, 1]
    assert then.row_groups.file.tolist() == first.row_groups.file.tolist()
    assert not then.has_footers
    (kept,) = (tmp_path / "cache" / "footers").glob("*.arrow")
    kept.write_bytes(b"damaged")
    assert StoredDataset([str(root)]).schema == first.schema
    write_table(root / "d", pa.table({"x": [4], "last": [1]}))
    assert "last" in StoredDataset([str(root)]).schema
    caplog.clear()  # it says that the damaged file is made again
