"""Datasets written from Spark: by Spark itself in `materialize_dataset`, and by the executors' own writers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from spark_rows import SCHEMA, assert_same_rows, by_id, die_once_while_moving, make_row

from parquetry.common import CompressedImageCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import DatasetError, EncodeError, PipelineError, SchemaError
from parquetry.common.compat.spark import (
    dataset_as_dataframe,
    dict_to_spark_row,
    encode_dataframe,
    materialize_dataset,
    write_dataframe,
    write_rows,
)

NUMBERS = Unischema("numbers", [UnischemaField("id", np.int64), UnischemaField("half", np.float32, nullable=True)])


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes thirty rows without Spark."""
    url = str(tmp_path_factory.mktemp("reference"))
    write_dataset(url, SCHEMA, [make_row(i) for i in range(30)], row_group_rows=7, files=2)
    return url


def setting(spark: Any, key: str) -> str | None:
    return spark.conf.get(key, None)


def test_rows_that_spark_writes_read_back_equal(spark: Any, reference: str, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/a b"
    with materialize_dataset(spark, str(tmp_path / "a b"), SCHEMA):
        rows = [dict_to_spark_row(SCHEMA, make_row(i)) for i in range(30)]
        spark.createDataFrame(rows, SCHEMA.as_spark_schema()).write.parquet(url)
    assert_same_rows(by_id(Pipeline(tmp_path / "a b")), Pipeline(reference))
    assert Pipeline(tmp_path / "a b").schema == SCHEMA


def test_a_missing_value_of_a_nullable_field_is_null(spark: Any) -> None:
    assert tuple(dict_to_spark_row(NUMBERS, {"id": 1})) == (1, None)


def test_a_row_that_does_not_fit_names_its_field() -> None:
    with pytest.raises(EncodeError, match=r"field 'id': expected int64, got str"):
        dict_to_spark_row(NUMBERS, {"id": "one"})


def test_time_stamps_with_nanoseconds_are_refused_because_spark_has_none() -> None:
    schema = Unischema("stamps", [UnischemaField("stamp", "datetime64[ns]")])
    with pytest.raises(EncodeError, match=r"field 'stamp': expected values that fit Spark's timestamp\[us\]"):
        dict_to_spark_row(schema, {"stamp": np.datetime64(1, "ns")})


def test_the_row_group_size_holds_inside_the_block_only(spark: Any, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/set"
    keys = ("parquet.block.size", "parquet.block.size.row.check.min", "parquet.summary.metadata.level")
    before = [setting(spark, key) for key in keys]
    schema = Unischema("blobs", [UnischemaField("id", np.int64), UnischemaField("raw", bytes)])
    rows = spark.range(0, 400, 1, 1).selectExpr("id", "cast(repeat(sha2(cast(id as string), 512), 100) as binary) raw")
    with materialize_dataset(spark, url, schema, 1):
        assert setting(spark, "parquet.block.size") == str(1 << 20)
        rows.write.option("compression", "uncompressed").parquet(url)
    assert [setting(spark, key) for key in keys] == before
    groups = [pq.read_metadata(path).num_row_groups for path in (tmp_path / "set").glob("*.parquet")]
    assert sum(groups) >= 4
    assert len(Pipeline(url)) == 400


def test_a_block_that_fails_leaves_no_metadata_and_restores_the_settings(spark: Any, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/set"
    before = setting(spark, "parquet.block.size")

    def fails() -> None:
        with materialize_dataset(spark, url, NUMBERS, 2):
            spark.range(3).selectExpr("id", "cast(id as float) half").write.parquet(url)
            raise KeyError("in the block")

    with pytest.raises(KeyError, match="in the block"):
        fails()
    assert setting(spark, "parquet.block.size") == before
    assert not list((tmp_path / "set").glob("_*metadata"))


def test_files_without_a_field_are_refused_and_get_no_metadata(spark: Any, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/set"

    def writes_too_little() -> None:
        with materialize_dataset(spark, url, NUMBERS):
            spark.range(3).selectExpr("cast(id as float) half").write.parquet(url)

    with pytest.raises(SchemaError, match=r"expected columns for the fields \['id'\]"):
        writes_too_little()
    assert not list((tmp_path / "set").glob("_common_metadata"))


def test_a_block_that_writes_nothing_is_an_error(spark: Any, tmp_path: Path) -> None:
    def writes_nothing() -> None:
        with materialize_dataset(spark, str(tmp_path / "set"), NUMBERS):
            pass

    with pytest.raises(DatasetError, match="found nothing there"):
        writes_nothing()


def test_a_row_group_size_of_nothing_is_refused(spark: Any, tmp_path: Path) -> None:
    with (
        pytest.raises(PipelineError, match=r"row_group_size_mb: expected a number above 0, got 0"),
        materialize_dataset(spark, str(tmp_path), NUMBERS, 0),
    ):
        pytest.fail("the block must not run")


def test_appended_files_keep_the_schema_and_old_indexes_go(spark: Any, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/set"
    for begin in (0, 3):
        with materialize_dataset(spark, url, NUMBERS):
            spark.range(begin, begin + 3).selectExpr("id", "cast(id as float) half").write.mode("append").parquet(url)
        (tmp_path / "set" / "_row_groups.parquet").write_bytes(b"an index of other files")
    with materialize_dataset(spark, url, NUMBERS):
        pass
    assert sorted(row["id"] for row in Pipeline(url)) == list(range(6))
    assert not (tmp_path / "set" / "_row_groups.parquet").exists()


def test_hadoops_summary_does_not_hide_the_schema(spark: Any, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/set"
    with materialize_dataset(spark, url, NUMBERS, use_summary_metadata=True):
        spark.range(3).selectExpr("id", "cast(id as float) half").write.parquet(url)
    assert Pipeline(url).schema == NUMBERS
    assert len(Pipeline(url)) == 3


def test_plain_columns_are_encoded_on_the_executors(spark: Any, reference: str, tmp_path: Path) -> None:
    decoded = dataset_as_dataframe(reference, spark)
    with materialize_dataset(spark, str(tmp_path / "set"), SCHEMA):
        encode_dataframe(decoded, SCHEMA).write.parquet(f"file://{tmp_path}/set")
    assert_same_rows(by_id(Pipeline(tmp_path / "set")), Pipeline(reference))


def test_stored_bytes_go_into_a_coded_field_unchanged(spark: Any, tmp_path: Path) -> None:
    codec = CompressedImageCodec("jpeg", quality=40)
    schema = Unischema("jpegs", [UnischemaField("image", np.uint8, (None, None, 3), codec)])
    image = np.tile(np.arange(40, dtype=np.uint8)[:, None, None], (1, 30, 3))
    stored = codec.encode(schema["image"], image)
    write_dataframe(spark.createDataFrame([(bytearray(stored),)], "image binary"), tmp_path / "set", schema)
    file = next((tmp_path / "set").glob("*.parquet"))
    assert pq.read_table(file, columns=["image"]).column(0).to_pylist() == [stored]


def test_bytes_that_the_codec_does_not_store_are_refused(spark: Any, tmp_path: Path) -> None:
    schema = Unischema("pngs", [UnischemaField("image", np.uint8, (4, 5, 3), CompressedImageCodec("png"))])
    frame = spark.createDataFrame([(bytearray(b"no image"),)], "image binary")
    with pytest.raises(EncodeError, match=r"row 0, field 'image': expected bytes that CompressedImageCodec stores"):
        write_dataframe(frame, tmp_path / "set", schema)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("cast(300 as int)", r"expected 0 to 255 \(uint8\), got 300"),
        ("cast(null as int)", "expected a value, got None"),
    ],
)
def test_a_value_that_does_not_fit_is_reported_with_its_row_and_nothing_is_left(
    spark: Any, tmp_path: Path, value: str, wanted: str
) -> None:
    schema = Unischema("small", [UnischemaField("small", np.uint8)])
    frame = spark.range(0, 3, 1, 1).selectExpr(f"if(id = 2, {value}, 7) small")
    with pytest.raises(EncodeError, match=rf"task 0: row 2, field 'small': {wanted}"):
        write_dataframe(frame, tmp_path / "set", schema)
    assert not (tmp_path / "set").exists()


def test_columns_must_match_the_schema(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"Drop \['other'\], add \['id'\]"):
        write_dataframe(spark.range(3).selectExpr("id other"), tmp_path / "set", NUMBERS)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"files": 0}, PipelineError, "files: expected an integer from 1 to 99999, got 0"),
        ({"partition_by": "half"}, SchemaError, "partition field 'half': expected a scalar of text"),
        ({"compression": "none such"}, PipelineError, "compression: expected one of"),
    ],
)
def test_arguments_are_checked_before_anything_is_made(
    spark: Any, tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write_dataframe(spark.range(3).selectExpr("id"), tmp_path / "set", NUMBERS, **arguments)
    assert not (tmp_path / "set").exists()


def test_only_dataframes_are_written_as_such(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="write_dataframe: expected a SparkSession or a DataFrame of Spark, got 3"):
        write_dataframe(3, tmp_path / "set", NUMBERS)
    with pytest.raises(PipelineError, match="write_rows: expected a SparkSession"):
        write_rows([{"id": 1}], tmp_path / "set", NUMBERS)
    with pytest.raises(PipelineError, match="encode_dataframe: expected a SparkSession or a DataFrame"):
        encode_dataframe("df", NUMBERS)


def test_batches_are_small_while_a_dataset_is_written(spark: Any, tmp_path: Path) -> None:
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    write_dataframe(spark.range(3).selectExpr("id"), tmp_path / "set", NUMBERS)
    assert spark.conf.get(key) == before


def test_executors_write_the_files_in_the_order_of_the_dataframe(spark: Any, reference: str, tmp_path: Path) -> None:
    encoded = dataset_as_dataframe(reference, spark, decode=False, tasks=3)
    assert write_dataframe(encoded, tmp_path / "set", SCHEMA, row_group_rows=4) == 30
    assert_same_rows(Pipeline(tmp_path / "set"), Pipeline(reference))
    dataset = Pipeline(tmp_path / "set").dataset
    assert dataset.schema == SCHEMA
    assert dataset.row_groups.rows.max() == 4
    assert not (tmp_path / "set" / ".parquetry-copy").exists()


def test_an_rdd_of_dicts_is_written_without_a_detour(context: Any, reference: str, tmp_path: Path) -> None:
    rows = context.parallelize(range(30), 4).map(make_row)
    assert write_rows(rows, tmp_path / "set", SCHEMA, partition_by="flag") == 30
    assert_same_rows(by_id(Pipeline(tmp_path / "set")), Pipeline(reference))
    assert sorted(path.name for path in (tmp_path / "set").glob("flag=*")) == ["flag=false", "flag=true"]


def test_empty_partitions_and_empty_dataframes_are_datasets(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(0, 2, 1, 4).selectExpr("id", "cast(null as float) half")
    assert write_dataframe(frame, tmp_path / "two", NUMBERS) == 2
    assert [row["id"] for row in Pipeline(tmp_path / "two")] == [0, 1]
    assert write_dataframe(frame.where("id > 9"), tmp_path / "none", NUMBERS) == 0
    assert Pipeline(tmp_path / "none").schema == NUMBERS
    files = [sorted(path.name for path in (tmp_path / name).glob("*.parquet")) for name in ("two", "none")]
    assert [len(found) for found in files] == [2, 1]  # of four partitions, two have no rows


def test_a_task_that_dies_while_it_moves_its_files_is_tried_again(context: Any, reference: str, tmp_path: Path) -> None:
    token = tmp_path / "token"

    def rows(numbers: Any) -> Any:
        for number in numbers:
            if number == 17:
                die_once_while_moving(token)
            yield make_row(number)

    rdd = context.parallelize(range(30), 3).mapPartitions(rows)
    assert write_rows(rdd, tmp_path / "rows", SCHEMA, row_group_rows=3, files=2) == 30
    assert token.exists()
    assert_same_rows(by_id(Pipeline(tmp_path / "rows")), Pipeline(reference))
    assert [path.name for path in tmp_path.glob("rows/.*")] == []


def test_a_dataset_is_replaced_only_when_asked(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(2).selectExpr("id", "cast(null as float) half")
    write_dataframe(frame, tmp_path / "set", NUMBERS)
    with pytest.raises(DatasetError, match="expected an empty target"):
        write_dataframe(frame, tmp_path / "set", NUMBERS)
    write_dataframe(frame.where("id = 1"), tmp_path / "set", NUMBERS, overwrite=True)
    assert [row["id"] for row in Pipeline(tmp_path / "set")] == [1]


def test_a_failed_replacement_leaves_the_old_dataset(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(2).selectExpr("id", "cast(null as float) half")
    write_dataframe(frame, tmp_path / "set", NUMBERS)
    bad = spark.range(2).selectExpr("cast(null as long) id", "cast(null as float) half")
    with pytest.raises(EncodeError, match="expected a value, got None"):
        write_dataframe(bad, tmp_path / "set", NUMBERS, overwrite=True)
    assert sorted(row["id"] for row in Pipeline(tmp_path / "set")) == [0, 1]


def test_vectors_become_arrays(spark: Any, tmp_path: Path) -> None:
    from pyspark.ml.linalg import Vectors

    schema = Unischema("vectors", [UnischemaField("features", np.float32, (3,))])
    frame = spark.createDataFrame([(Vectors.dense(1, 2, 3),), (Vectors.sparse(3, [1], [5.0]),)], ["features"])
    write_dataframe(frame, tmp_path / "set", schema)
    rows = [row["features"].tolist() for row in Pipeline(tmp_path / "set")]
    assert sorted(rows) == [[0, 5, 0], [1, 2, 3]]


def test_petastorms_keys_are_written_when_asked(spark: Any, tmp_path: Path) -> None:
    frame = spark.range(2).selectExpr("id", "cast(null as float) half")
    write_dataframe(frame, tmp_path / "direct", NUMBERS, petastorm_compatible=True)
    with materialize_dataset(spark, str(tmp_path / "spark"), NUMBERS, petastorm_compatible=True):
        frame.write.parquet(f"file://{tmp_path}/spark")
    for name in ("direct", "spark"):
        metadata = pq.read_schema(tmp_path / name / "_common_metadata").metadata
        counts = json.loads(metadata[b"dataset-toolkit.num_row_groups_per_file.v1"])
        assert sum(counts.values()) == 2
        assert b"dataset-toolkit.unischema.v1" in metadata
