"""Spark as the engine of large jobs: reads, the row-group index, selections, and copies equal one machine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from spark_rows import SCHEMA, assert_same_rows, die_once_while_moving, make_row

from parquetry.common import Pipeline, mix, write_dataset
from parquetry.common.errors import DatasetError, EmptySelectionError, FieldNotFoundError, PipelineError, TransformError
from parquetry.common.layout.index import write_index as write_index_alone
from parquetry.common.layout.kept_directories import cache_root
from parquetry.common.spark import compute_selection, copy, copying, dataset_as_dataframe, dataset_as_rdd, write_index
from parquetry.common.tools import copy as copy_alone


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes forty rows in two partitions of three files each."""
    url = str(tmp_path_factory.mktemp("dataset"))
    write_dataset(url, SCHEMA, [make_row(i) for i in range(40)], row_group_rows=4, files=3, partition_by="flag")
    return url


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns an empty directory for selections."""
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "cache"))
    return cache_root() / "selections"


def test_an_rdd_holds_the_rows_of_the_dataset_in_order(spark: Any, dataset: str) -> None:
    assert_same_rows(dataset_as_rdd(dataset, spark, tasks=3).collect(), Pipeline(dataset))


def test_an_rdd_has_the_wanted_fields_only(spark: Any, dataset: str) -> None:
    rows = dataset_as_rdd(dataset, spark, ["id", "im.*"]).take(2)
    assert_same_rows(rows, Pipeline(dataset, ["id", "im.*"]).take(2))
    with pytest.raises(FieldNotFoundError, match="nothing_like_it"):
        dataset_as_rdd(dataset, spark, "nothing_like_it")


def test_a_dataframe_has_the_values_of_the_dataset(spark: Any, dataset: str) -> None:
    frame = dataset_as_dataframe(dataset, spark, tasks=2)
    fields = {field.name: field.dataType.simpleString() for field in frame.schema}
    assert fields["image"] == "array<array<array<smallint>>>"
    assert (fields["stamp"], fields["flag"], fields["huge"]) == ("timestamp_ntz", "boolean", "decimal(20,0)")
    for got, wanted in zip(frame.collect(), Pipeline(dataset), strict=True):
        for name in ("id", "small", "half", "ratio", "flag", "text", "raw", "vector", "points", "mask", "image"):
            if wanted[name] is None:
                assert got[name] is None
            elif name == "raw":
                assert bytes(got[name]) == wanted[name]
            else:
                np.testing.assert_array_equal(np.asarray(got[name]).ravel(), np.asarray(wanted[name]).ravel())
        assert got["price"] == make_row(got["id"])["price"]
        assert np.datetime64(got["stamp"], "ns") == make_row(got["id"])["stamp"]


def test_a_dataframe_may_keep_stored_bytes(spark: Any, dataset: str) -> None:
    frame = dataset_as_dataframe(dataset, spark, ["id", "image", "grid"], decode="grid")
    assert frame.dtypes == [("id", "bigint"), ("grid", "array<array<float>>"), ("image", "binary")]
    files = sorted(Path(dataset).rglob("*.parquet"))
    stored = [value for file in files for value in pq.ParquetFile(file).read(columns=["image"]).column(0).to_pylist()]
    assert [bytes(row.image) for row in frame.collect()] == stored


def test_the_session_must_be_one(dataset: str) -> None:
    with pytest.raises(PipelineError, match="dataset_as_rdd: expected a SparkSession with a SparkContext"):
        dataset_as_rdd(dataset, "no session")


@pytest.mark.parametrize("columns", [None, ["id", "text"]])
def test_the_index_is_the_one_that_one_machine_writes(
    spark: Any, dataset: str, tmp_path: Path, columns: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parquetry.common.spark.indexing._FILES_AT_A_TIME", 2)
    copy_alone(dataset, tmp_path / "set", partition_by="flag", row_group_rows=3, files=3, progress=False)
    empty = pa.table({"id": pa.array([], pa.int64()), "only_here": pa.array([], pa.string())})
    pq.write_table(empty, tmp_path / "set" / "flag=true" / "zero.parquet")
    alone = Path(write_index_alone(tmp_path / "set", columns=columns))
    wanted, metadata = pq.read_table(alone), pq.read_metadata(alone).metadata
    alone.unlink()
    made = Path(write_index(spark, tmp_path / "set", columns=columns))
    assert pq.read_table(made).equals(wanted)
    assert pq.read_metadata(made).metadata == metadata
    assert Pipeline(tmp_path / "set").dataset.index is not None


def test_a_damaged_file_ends_the_index_with_its_name(spark: Any, dataset: str, tmp_path: Path) -> None:
    copy_alone(dataset, tmp_path / "set", files=1, progress=False)
    (tmp_path / "set" / "zz.parquet").write_bytes(b"PAR1 no footer")
    with pytest.raises(DatasetError, match=r"zz\.parquet: expected a readable Parquet file"):
        write_index(spark, tmp_path / "set")
    assert not list((tmp_path / "set").glob("*_row_groups*"))


CHAINS = {
    "expression": lambda p: p.where((pc.field("id") > 33) | (pc.field("id") < 5)),
    "two filters": lambda p: p.where([("id", ">", 8)]).nulls("drop", "text").where([("flag", "=", True)]),
    "hash split": lambda p: p.hash_split("id", [0.5, 0.5], 1),
    "windows": lambda p: p.where([("id", ">", 8)]).ngram(length=3, timestamp="stamp", group_by="flag"),
    "windows without columns": lambda p: p.ngram(length=4, timestamp=None),
    "cut": lambda p: p.where([("id", ">", 8)]).take(9).skip(2),
    "fixed part": lambda p: p.where([("id", ">", 8)]).shard(2, 1).take(5).shuffle(4, seed=3),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
def test_spark_selects_the_rows_of_the_pipeline(
    spark: Any, dataset: str, tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch, chain: Any
) -> None:
    own = chain(Pipeline(dataset, ["id", "text", "stamp"]))
    computed = compute_selection(spark, own)
    kept = list(own_cache.glob("*.npz")) if own_cache.exists() else []
    got = list(chain(Pipeline(dataset, ["id", "text", "stamp"])))
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "other"))
    alone = chain(Pipeline(dataset, ["id", "text", "stamp"]))
    assert_same_rows(got, alone)
    assert len(kept) == 1
    assert computed == alone.plan().whole_selection.num_items
    reports = [own.plan().whole_selection.reports, alone.plan().whole_selection.reports]
    assert [[(r.step, r.rows_before, r.rows_after, r.read) for r in found] for found in reports[:1]] == [
        [(r.step, r.rows_before, r.rows_after, r.read) for r in reports[1]]
    ]


def test_a_kept_selection_is_not_computed_again(
    spark: Any, dataset: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_selection(spark, Pipeline(dataset).where([("id", ">", 8)]))
    monkeypatch.setattr("parquetry.common.engine.run.selecting.evaluate", None)  # any evaluation fails
    monkeypatch.setattr("parquetry.common.spark.selecting.evaluate", None)
    assert len(Pipeline(dataset).where([("id", ">", 8)])) == 31
    assert compute_selection(spark, Pipeline(dataset).where([("id", ">", 8)])) == 31


def test_a_selection_by_a_function_stays_with_its_pipeline(spark: Any, dataset: str, own_cache: Path) -> None:
    pipeline = Pipeline(dataset, ["id"], executor="threads").where(lambda row: row["id"] % 7 == 2, fields=["id"])
    assert compute_selection(spark, pipeline) == 6
    assert sorted(row["id"] for row in pipeline) == [2, 9, 16, 23, 30, 37]
    assert not own_cache.exists()


def test_a_predicate_that_fails_is_reported_with_its_row(spark: Any, dataset: str, own_cache: Path) -> None:
    pipeline = Pipeline(dataset).where(lambda row: 1 / (int(row["id"]) - 5) > 0, fields=["id"])
    with pytest.raises(TransformError, match=r"failed for file .*flag=false.*row group"):
        compute_selection(spark, pipeline)


def test_a_selection_of_nothing_is_an_error(spark: Any, dataset: str, own_cache: Path) -> None:
    with pytest.raises(EmptySelectionError, match="left 0"):
        compute_selection(spark, Pipeline(dataset).where([("id", ">", 999)]))


def test_the_sources_of_a_mix_are_selected_each(spark: Any, dataset: str, own_cache: Path) -> None:
    parts = [Pipeline(dataset, ["id"]).where([("flag", "=", flag), ("id", ">", 3)]) for flag in (True, False)]
    assert compute_selection(spark, mix(parts, seed=1)) == 36
    assert len(list(own_cache.glob("*.npz"))) == 2


def test_only_pipelines_have_selections(spark: Any) -> None:
    with pytest.raises(PipelineError, match="compute_selection: expected a pipeline, got 3"):
        compute_selection(spark, 3)


def test_a_copy_by_spark_has_the_files_of_a_copy_by_one_machine(
    spark: Any, dataset: str, tmp_path: Path, own_cache: Path
) -> None:
    arguments: dict[str, Any] = {
        "field_regex": ["id", "image", "mask"],
        "not_null_fields": "mask",
        "where": pc.field("id") > 4,
        "row_group_rows": 2,
        "stripe_bytes": 1500,
    }
    made = copy(spark, dataset, tmp_path / "spark", **arguments)
    alone = copy_alone(dataset, tmp_path / "alone", progress=False, **arguments)
    assert (made.rows, made.files, made.schema) == (alone.rows, alone.files, alone.schema)
    assert made.files > 2
    names = [sorted(p.name for p in (tmp_path / name).rglob("*") if p.is_file()) for name in ("spark", "alone")]
    assert names[0] == names[1]
    assert_same_rows(Pipeline(tmp_path / "spark"), Pipeline(tmp_path / "alone"))


def test_a_copy_of_nothing_is_an_empty_dataset(spark: Any, dataset: str, tmp_path: Path, own_cache: Path) -> None:
    report = copy(spark, dataset, tmp_path / "set", ["id", "image"], where=pc.field("id") > 999)
    assert (report.rows, report.files) == (0, 1)
    assert Pipeline(tmp_path / "set").schema["image"] == SCHEMA["image"]


def test_a_copy_resumes_where_another_stopped(
    spark: Any, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from parquetry.common.tools import copying

    whole, written = copying.write_stripe, []

    def stops(stripe: Any, filesystem: Any, place: str) -> Any:
        if len(written) == 2:
            raise KeyboardInterrupt
        written.append(place)
        return whole(stripe, filesystem, place)

    monkeypatch.setattr(copying, "write_stripe", stops)
    with pytest.raises(KeyboardInterrupt):
        copy_alone(dataset, tmp_path / "set", ["id"], stripe_bytes=100, progress=False)
    report = copy(spark, dataset, tmp_path / "set", ["id"], stripe_bytes=100)
    assert report.resumed_stripes == 2
    assert_same_rows(Pipeline(tmp_path / "set"), Pipeline(dataset, ["id"]))


def test_a_task_that_dies_while_it_moves_its_files_is_tried_again(
    spark: Any, dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"

    class DiesOnce(copying._WriteStripe):
        def __call__(self, item: tuple[int, Any]) -> None:
            if item[0] == 1:
                die_once_while_moving(token)
            super().__call__(item)

    monkeypatch.setattr(copying, "_WriteStripe", DiesOnce)
    report = copy(spark, dataset, tmp_path / "set", ["id"], stripe_bytes=100, files=2)
    assert token.exists()
    assert report.rows == 40
    assert_same_rows(Pipeline(tmp_path / "set"), Pipeline(dataset, ["id"]))
    assert [path.name for path in tmp_path.glob("set/.*")] == []


def test_a_copy_over_a_dataset_is_refused(spark: Any, dataset: str, tmp_path: Path) -> None:
    copy(spark, dataset, tmp_path / "set", ["id"])
    with pytest.raises(DatasetError, match="expected an empty target"):
        copy(spark, dataset, tmp_path / "set", ["id"])
