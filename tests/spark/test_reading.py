"""What Spark reads of a dataset equals what a pipeline reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from spark_rows import SCHEMA, assert_same_rows, make_row

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import FieldNotFoundError, PipelineError
from parquetry.common.compat.spark import dataset_as_dataframe, dataset_as_rdd, write_rows


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes forty rows in two partitions of three files each."""
    url = str(tmp_path_factory.mktemp("dataset"))
    write_dataset(url, SCHEMA, [make_row(i) for i in range(40)], row_group_rows=4, files=3, partition_by="flag")
    return url


def test_an_rdd_holds_the_rows_of_the_dataset_in_order(context: Any, dataset: str) -> None:
    assert_same_rows(dataset_as_rdd(dataset, context, tasks=3).collect(), Pipeline(dataset))


def test_an_rdd_has_the_wanted_fields_only(spark: Any, context: Any, dataset: str) -> None:
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
    with pytest.raises(PipelineError, match="dataset_as_rdd: expected a SparkSession or a SparkContext"):
        dataset_as_rdd(dataset, "no session")


def test_a_session_of_spark_connect_has_no_rdds(spark: Any, dataset: str, tmp_path: Path) -> None:
    if hasattr(spark, "sparkContext"):
        pytest.skip("a classic session has RDDs")
    with pytest.raises(PipelineError, match="dataset_as_rdd: expected a classic Spark session"):
        dataset_as_rdd(dataset, spark)
    with pytest.raises(PipelineError, match="write_rows: expected a classic Spark session"):
        write_rows(spark.range(3), tmp_path / "set", Unischema("s", [UnischemaField("id", np.int64)]))
