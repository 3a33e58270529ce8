"""Code that uses Petastorm's names with Spark runs here with only the import changed."""

from __future__ import annotations

import pickle
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import IntegerType, StringType

from parquetry.common import Pipeline
from parquetry.common.compat.petastorm import make_reader
from parquetry.common.compat.petastorm.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec
from parquetry.common.compat.petastorm.etl.dataset_metadata import materialize_dataset
from parquetry.common.compat.petastorm.spark import SparkDatasetConverter, make_spark_converter
from parquetry.common.compat.petastorm.spark_utils import dataset_as_rdd
from parquetry.common.compat.petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row

HelloWorldSchema = Unischema(
    "HelloWorldSchema",
    [
        UnischemaField("id", np.int32, (), ScalarCodec(IntegerType()), False),
        UnischemaField("image1", np.uint8, (8, 16, 3), CompressedImageCodec("png"), False),
        UnischemaField("array_4d", np.uint8, (None, 4, 3, None), NdarrayCodec(), False),
        UnischemaField("word", np.str_, (), ScalarCodec(StringType()), True),
    ],
)


def row_generator(x: int) -> dict[str, Any]:
    return {
        "id": x,
        "image1": np.random.default_rng(x).integers(0, 255, (8, 16, 3), np.uint8),
        "array_4d": np.full((x % 3, 4, 3, 2), x, np.uint8),
        "word": None if x % 2 else f"w{x}",
    }


@pytest.fixture(scope="module")
def hello_world(spark: Any, context: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Writes the dataset of Petastorm's first example, ten rows."""
    url = f"file://{tmp_path_factory.mktemp('hello')}/world"
    with materialize_dataset(spark, url, HelloWorldSchema, 256):
        rows = context.parallelize(range(10)).map(row_generator).map(lambda x: dict_to_spark_row(HelloWorldSchema, x))
        frame = spark.createDataFrame(rows, HelloWorldSchema.as_spark_schema())
        frame.coalesce(3).write.mode("overwrite").parquet(url)
    return url


def test_the_hello_world_example_writes_what_its_reader_reads(hello_world: str) -> None:
    with make_reader(hello_world, shuffle_row_groups=False) as reader:
        rows = sorted(reader, key=lambda row: int(row.id))
    assert [int(row.id) for row in rows] == list(range(10))
    for number, row in enumerate(rows):
        wanted = row_generator(number)
        np.testing.assert_array_equal(row.image1, wanted["image1"])
        np.testing.assert_array_equal(row.array_4d, wanted["array_4d"])
        assert row.word == wanted["word"]
    assert Pipeline(hello_world).schema["array_4d"].shape == (None, 4, 3, None)


@pytest.mark.parametrize("pool", ["thread", "process"])
def test_a_task_reads_by_petastorms_own_name(context: Any, hello_world: str, pool: str) -> None:
    """As the trainers of Horovod and SynapseML: a function that arrives by value makes a reader inside a task."""

    def read(_: object) -> list[int]:
        import parquetry.petastorm

        parquetry.petastorm.install()
        import petastorm

        with petastorm.make_reader(hello_world, reader_pool_type=pool, workers_count=1, num_epochs=1) as reader:
            return sorted(int(row.id) for row in reader)

    assert context.parallelize([None], 1).mapPartitions(read).collect() == list(range(10))


def test_an_rdd_has_named_tuples_of_the_wanted_fields(spark: Any, hello_world: str) -> None:
    rows = dataset_as_rdd(hello_world, spark, [HelloWorldSchema.id, "im.*"]).collect()
    assert {row._fields for row in rows} == {("id", "image1")}
    assert sorted(int(row.id) for row in rows) == list(range(10))
    np.testing.assert_array_equal(rows[0].image1, row_generator(int(rows[0].id))["image1"])
    assert pickle.loads(pickle.dumps(rows[0])).id == rows[0].id


@pytest.fixture
def converter(spark: Any, tmp_path: Path) -> Any:
    """Returns ten rows, with a double that becomes a float, as in Petastorm."""
    spark.conf.set(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF, f"file://{tmp_path}")
    try:
        yield make_spark_converter(spark.range(10).selectExpr("id", "id / 4 ratio"))
    finally:
        spark.conf.unset(SparkDatasetConverter.PARENT_CACHE_DIR_URL_CONF)


def test_a_converter_has_petastorms_attributes(converter: Any, tmp_path: Path) -> None:
    assert converter.cache_dir_url.startswith(f"file://{tmp_path}/")
    assert len(converter) == converter.dataset_size == 10
    assert len(converter.file_urls) == 2
    assert Pipeline(converter.cache_dir_url).schema["ratio"].dtype == np.float32
    assert len(pickle.loads(pickle.dumps(converter))) == 10
    by_url = make_spark_converter(converter.cache_dir_url)
    assert len(by_url) == 10
    by_url.delete()
    assert Path(tmp_path).exists()
    converter.delete()
    assert list(tmp_path.iterdir()) == []


def test_tensorflow_gets_batches(converter: Any) -> None:
    pytest.importorskip("tensorflow")
    with converter.make_tf_dataset(batch_size=5, num_epochs=1) as dataset:
        batches = [batch.id.numpy().tolist() for batch in dataset]
    assert [len(batch) for batch in batches] == [5, 5]
    assert sorted(chain.from_iterable(batches)) == list(range(10))


def test_torch_gets_batches(converter: Any) -> None:
    pytest.importorskip("torch")
    with converter.make_torch_dataloader(batch_size=5, num_epochs=1) as loader:
        batches = [batch["id"].tolist() for batch in loader]
    assert sorted(chain.from_iterable(batches)) == list(range(10))
