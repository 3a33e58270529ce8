"""Families of public programs that use Petastorm with Keras: the same calls and arguments, unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

tf = pytest.importorskip("tensorflow")

from petastorm import TransformSpec, make_batch_reader  # noqa: E402
from petastorm.spark import make_spark_converter  # noqa: E402
from petastorm.tf_utils import make_petastorm_dataset  # noqa: E402


@pytest.fixture
def train_dir(tmp_path: Path) -> str:
    table = pa.table({"x": np.arange(32, dtype=np.float32), "label": np.arange(32) % 2, "content": [b"c"] * 32})
    pq.write_table(table, tmp_path / "train_df.parquet", row_group_size=8)
    return str(tmp_path)


def model() -> Any:
    made = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    made.compile("sgd", "mse")
    return made


def pair(row: Any) -> Any:
    return tf.reshape(row.x, [-1, 1]), tf.reshape(row.label, [-1, 1])


@pytest.mark.filterwarnings("ignore:cache_row_size_estimate:UserWarning")
def test_a_cached_shard_of_a_path_with_one_slash(train_dir: str, tmp_path: Path) -> None:
    reader = make_batch_reader(
        "file:" + train_dir,
        num_epochs=None,
        cur_shard=1,
        shard_count=2,
        cache_type="local-disk",
        cache_location=str(tmp_path / "cache"),
        cache_size_limit=20000000000,
        cache_row_size_estimate=1000,
    )
    with reader:
        dataset = (
            make_petastorm_dataset(reader).map(lambda row: (row.x, row.label)).apply(tf.data.experimental.unbatch())
        )
        dataset = dataset.shuffle(400, seed=42).batch(5, drop_remainder=True)
        batches = [x.numpy() for x, _ in dataset.take(4)]
    assert {len(x) for x in batches} == {5}
    assert {int(i) // 8 for x in batches for i in x} == {1, 3}
    assert any((tmp_path / "cache").iterdir())


def test_two_datasets_of_a_converter_in_one_block(train_dir: str) -> None:
    converter = make_spark_converter(f"file://{train_dir}")
    spec = TransformSpec(lambda frame: frame[["content", "label"]], selected_fields=["content", "label"])
    with (
        converter.make_tf_dataset(batch_size=4, num_epochs=1, transform_spec=spec) as train,
        converter.make_tf_dataset(batch_size=8, cur_shard=0, shard_count=2, transform_spec=spec) as held_out,
    ):
        pairs = list(train.unbatch().map(lambda row: (row.content, row.label)))
        assert len(pairs) == len(converter) == 32
        assert pairs[0][0].numpy() == b"c"
        assert next(iter(held_out)).label.shape == (8,)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")  # fit's own default
def test_models_fit_on_endless_readers(train_dir: str) -> None:
    with (
        make_batch_reader(f"{train_dir}/train_df.parquet", schema_fields=["x", "label"], num_epochs=None) as reader,
        make_batch_reader(f"file://{train_dir}", schema_fields=["x", "label"], num_epochs=None) as held_out,
    ):
        history = model().fit(
            make_petastorm_dataset(reader).map(pair),
            steps_per_epoch=10,
            epochs=3,
            validation_data=make_petastorm_dataset(held_out).map(pair),
            validation_steps=2,
            verbose=0,
        )
    assert len(history.history["val_loss"]) == 3


def test_columns_are_taken_by_name(train_dir: str) -> None:
    columns = ["x", "label"]
    with make_batch_reader("%s/train_df.parquet" % train_dir, num_epochs=1, shuffle_row_groups=False) as reader:  # noqa: UP031
        dataset = make_petastorm_dataset(reader).apply(tf.data.experimental.unbatch())
        rows = [[int(v) for v in row] for row in dataset.map(lambda x: tuple(getattr(x, c) for c in columns))]
    assert rows == [[i, i % 2] for i in range(32)]


def test_a_null_integer_partition_is_refused(tmp_path: Path) -> None:
    for year in ("2025", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(pa.table({"id": [1, 2]}), tmp_path / f"year={year}" / "part.parquet")
    with (
        make_batch_reader(f"file://{tmp_path}") as reader,
        pytest.raises(tf.errors.OpError, match="field 'year': expected a value, got null"),
    ):
        list(make_petastorm_dataset(reader))
