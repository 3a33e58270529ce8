"""`spark_converter`: one set of files per logical plan, readable in every face and on executors, deleted afterward."""

from __future__ import annotations

import logging
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow.fs as pafs
import pytest

pytest.importorskip("pyspark")

from processes import PATIENCE_S

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError, PipelineError
from parquetry.common.compat.spark import SparkConverter, spark_converter
from parquetry.common.compat.spark.converter_cache import wait_for_files


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Returns the directory for converters."""
    return tmp_path / "converters"


def numbers(spark: Any, rows: int = 10) -> Any:
    """Returns a DataFrame with ``id``, a double and an array of doubles."""
    return spark.range(0, rows, 1, 2).selectExpr("id", "id / 3 ratio", "array(id / 7, 0.5D) pair")


def test_rows_and_doubles_are_kept(spark: Any, cache: Path) -> None:
    converter = spark_converter(numbers(spark), cache)
    rows = sorted(converter.pipeline(), key=lambda row: row["id"])
    assert len(converter) == len(rows) == 10
    assert [row["ratio"] for row in rows] == [i / 3 for i in range(10)]
    assert rows[1]["pair"].tolist() == [1 / 7, 0.5]
    assert {row["ratio"].dtype for row in rows} == {np.dtype(np.float64)}
    assert len(converter.file_urls) == 2


@pytest.mark.parametrize(("dtype", "wanted"), [("float32", np.float32), ("float64", np.float64)])
def test_floats_become_what_is_asked_for(spark: Any, cache: Path, dtype: str, wanted: type) -> None:
    frame = spark.range(3).selectExpr("cast(id as float) single", "id / 3 double", "array(array(id / 3)) nested")
    schema = spark_converter(frame, cache, dtype=dtype).pipeline().schema
    assert {field.dtype for field in schema} == {np.dtype(wanted)}


def test_vectors_become_arrays_of_doubles_unless_asked(spark: Any, cache: Path) -> None:
    from pyspark.ml.linalg import Vectors

    frame = spark.createDataFrame([(0, Vectors.dense(0.1, 2)), (1, Vectors.sparse(2, [1], [5.0]))], ["id", "features"])
    rows = {row["id"]: row["features"] for row in spark_converter(frame, cache).pipeline()}
    assert [rows[0].tolist(), rows[1].tolist()] == [[0.1, 2.0], [0.0, 5.0]]
    assert spark_converter(frame, cache, dtype="float32").pipeline().schema["features"].dtype == np.float32


def test_equal_plans_share_their_files(spark: Any, cache: Path) -> None:
    first = spark_converter(numbers(spark), cache)
    assert spark_converter(numbers(spark), cache) is first
    others = [
        spark_converter(numbers(spark).where("id > 1"), cache),
        spark_converter(numbers(spark), cache, dtype="float32"),
        spark_converter(numbers(spark), cache, row_group_size_mb=1),
        spark_converter(numbers(spark), cache, compression="gzip"),
        spark_converter(numbers(spark), cache / "other"),
        spark_converter(numbers(spark), cache, reuse=False),
    ]
    assert len({first.url, *(other.url for other in others)}) == 7


def test_the_session_may_name_the_directory(spark: Any, cache: Path) -> None:
    with pytest.raises(PipelineError, match=r"Pass parent_cache_dir=\.\.\., or call spark\.conf\.set"):
        spark_converter(numbers(spark))
    spark.conf.set("parquetry.spark.converter.parentCacheDirUrl", f"file://{cache}")
    try:
        assert spark_converter(numbers(spark)).url.startswith(f"file://{cache}/")
    finally:
        spark.conf.unset("parquetry.spark.converter.parentCacheDirUrl")


def test_a_deleted_conversion_is_written_again(spark: Any, cache: Path) -> None:
    first = spark_converter(numbers(spark), cache)
    first.delete()
    first.delete()
    assert list(cache.iterdir()) == []
    removed_by_hand = spark_converter(numbers(spark), cache)
    shutil.rmtree(removed_by_hand.url)
    second = spark_converter(numbers(spark), cache)
    assert second.url != first.url
    assert len(list(second.pipeline())) == 10


def test_a_failed_write_leaves_nothing(spark: Any, cache: Path) -> None:
    with pytest.raises(Exception, match="never"):
        spark_converter(spark.range(3).selectExpr("cast(raise_error('never') as string) oops"), cache)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "float16"}, r"expected dtype to be one of \('float32', 'float64'\) or None, got 'float16'"),
        ({"row_group_size_mb": 0}, "expected row_group_size_mb above 0, got 0"),
    ],
)
def test_arguments_out_of_range_are_refused(spark: Any, cache: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        spark_converter(numbers(spark), cache, **arguments)


def test_small_files_and_too_few_row_groups_are_reported(
    spark: Any, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        converter = spark_converter(numbers(spark), cache)
        assert "2 files with a median size of 0.0 MB; expected 50 MB or more" in caplog.text
        converter.pipeline(num_shards=2, index=0)
        assert "for 2 ranks" not in caplog.text
        converter.pipeline(num_shards=3, index=0)
        assert "2 row groups for 3 ranks" in caplog.text
    assert [len(converter.pipeline(num_shards=3, index=rank)) for rank in range(3)] == [4, 4, 4]


def test_a_pickled_converter_reads_without_spark(spark: Any, cache: Path) -> None:
    converter = spark_converter(numbers(spark), cache)
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert pickle.loads(dumps(converter)) == converter
    code = f"""
import pickle, sys
converter = pickle.loads({pickle.dumps(converter)!r})
assert sorted(int(row["id"]) for row in converter.pipeline(["id"])) == list(range(10))
assert "pyspark" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


def test_every_task_of_a_barrier_job_reads_its_part(spark: Any, context: Any, cache: Path) -> None:
    converter = spark_converter(numbers(spark), cache)

    def train(_: Any) -> Any:
        from pyspark import BarrierTaskContext

        task = BarrierTaskContext.get()
        task.barrier()
        pipeline = converter.pipeline(["id"], num_shards=len(task.getTaskInfos()), index=task.partitionId())
        yield task.partitionId(), [int(row["id"]) for row in pipeline.shuffle(4, seed=0)]

    parts = dict(context.parallelize(range(2), 2).barrier().mapPartitions(train).collect())
    assert [len(parts[0]), len(parts[1])] == [5, 5]
    assert sorted(parts[0] + parts[1]) == list(range(10))


def test_tensorflow_reads_it(spark: Any, cache: Path) -> None:
    pytest.importorskip("tensorflow")
    dataset = spark_converter(numbers(spark), cache).tf_dataset(["id"], num_shards=2, index=1).batch(5)
    assert [sorted(batch["id"].numpy().tolist()) for batch in dataset] == [[5, 6, 7, 8, 9]]


def test_torch_reads_it(spark: Any, cache: Path) -> None:
    pytest.importorskip("torch")
    from torch.utils.data import DataLoader

    pipe = spark_converter(numbers(spark), cache).torch_pipe(["id"], num_shards=2, index=0).batch(5)
    assert [sorted(batch["id"].tolist()) for batch in DataLoader(pipe, batch_size=None)] == [[0, 1, 2, 3, 4]]


def test_the_files_go_when_the_driver_ends(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from types import SimpleNamespace
from parquetry.common.compat.spark.converter import SparkConverter
from parquetry.common.compat.spark.converter_cache import CACHE, CacheKey
directory = Path({str(tmp_path)!r}) / "made"
directory.mkdir()
converter = SparkConverter(url=str(directory), file_urls=(), rows=0, row_groups=0)
key = CacheKey(parent="p", dtype=None, row_group_bytes=1, compression="zstd", storage_options=())
CACHE.keep(SimpleNamespace(semanticHash=lambda: 7), key, converter, remove=converter.delete)
assert directory.exists()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
    assert list(tmp_path.iterdir()) == []


def test_files_that_appear_late_are_waited_for(tmp_path: Path) -> None:
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        (tmp_path / f"f{len(slept)}").write_bytes(b"x" * len(slept))

    infos = wait_for_files(
        pafs.LocalFileSystem(), [f"{tmp_path}/f1", f"{tmp_path}/f2"], timeout_s=9, clock=lambda: 0, sleep=sleep
    )
    assert [info.size for info in infos] == [1, 2]
    assert len(slept) == 2


def test_files_that_never_appear_are_an_error(tmp_path: Path) -> None:
    times = iter([0.0, 1.0, 31.0])
    with pytest.raises(DatasetError, match=r"expected 1 files within 30\.0 s, got 1 that cannot be seen, such as"):
        wait_for_files(
            pafs.LocalFileSystem(), [f"{tmp_path}/f"], timeout_s=30.0, clock=lambda: next(times), sleep=lambda _: None
        )


def test_a_converter_is_a_plain_value() -> None:
    converter = SparkConverter(url="u", file_urls=("u/f",), rows=3, row_groups=1)
    assert len(converter) == 3
    assert hash(converter) == hash(pickle.loads(pickle.dumps(converter)))
    assert isinstance(converter.pipeline(), Pipeline)
