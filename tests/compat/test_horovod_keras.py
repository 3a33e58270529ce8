"""The Keras estimator of Horovod: its calls to Petastorm and tf.data, three passes, without Horovod."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

tf = pytest.importorskip("tensorflow")

from petastorm import TransformSpec, make_batch_reader, make_reader  # noqa: E402
from petastorm.tf_utils import make_petastorm_dataset  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:hdfs_driver:UserWarning", "ignore:pyarrow_serialize:UserWarning"),
    pytest.mark.filterwarnings("ignore:Running multiple iterations over make_petastorm_dataset:UserWarning"),
]

ROWS = 24


@pytest.fixture
def train_dir(tmp_path: Path) -> str:
    ids = np.arange(ROWS)
    table = pa.table({"x": ids.astype(np.float32), "y": ids.astype(np.float32) * 2, "id": ids})
    pq.write_table(table, tmp_path / "part-0.parquet", row_group_size=3)
    return f"file://{tmp_path}"


def estimator_dataset(reader: Any, batch_size: int, is_batch_reader: bool, shuffle: bool, cache: bool) -> Any:
    """Makes the dataset of an estimator, with the verbs in its order."""
    dataset = make_petastorm_dataset(reader)
    if is_batch_reader:
        dataset = dataset.apply(tf.data.experimental.unbatch())
    if cache and not shuffle:
        dataset = dataset.cache()
    dataset = dataset.repeat(1000000000)
    dataset = dataset.batch(batch_size).map(
        lambda row: (tf.reshape(row.x, [-1, 1]), tf.reshape(row.y, [-1, 1]), row.id)
    )
    return dataset.prefetch(tf.data.AUTOTUNE)


@pytest.mark.parametrize("transform", [None, lambda row: row], ids=["batch reader", "row reader"])
@pytest.mark.parametrize("cache", [False, True])
def test_three_passes_have_every_row(train_dir: str, transform: Any, cache: bool) -> None:
    spec = TransformSpec(transform) if transform else None
    factory, more = (make_reader, {"pyarrow_serialize": True}) if spec else (make_batch_reader, {})
    with factory(
        train_dir,
        num_epochs=1,
        cur_shard=0,
        reader_pool_type="thread",
        workers_count=2,
        shard_count=1,
        hdfs_driver="libhdfs",
        schema_fields=["x", "y", "id"],
        transform_spec=spec,
        storage_options=None,
        shuffle_rows=not cache,
        shuffle_row_groups=not cache,
        seed=0,
        **more,
    ) as reader:
        batches = iter(estimator_dataset(reader, 4, spec is None, shuffle=not cache, cache=cache))
        passes = [[int(i) for _ in range(ROWS // 4) for i in next(batches)[2]] for _ in range(3)]
    assert [sorted(ids) for ids in passes] == [list(range(ROWS))] * 3
    assert (len({tuple(ids) for ids in passes}) == 1) == cache


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`shuffle=True` was passed:UserWarning")  # fit's own default
def test_a_model_fits_over_three_epochs_and_validates(train_dir: str) -> None:
    options = {"num_epochs": 1, "schema_fields": ["x", "y", "id"], "workers_count": 2, "hdfs_driver": "libhdfs"}
    with make_batch_reader(train_dir, **options) as reader, make_batch_reader(train_dir, **options) as held_out:
        train = estimator_dataset(reader, 4, True, shuffle=True, cache=False).map(lambda x, y, _: (x, y))
        validation = estimator_dataset(held_out, 4, True, shuffle=False, cache=True).map(lambda x, y, _: (x, y))
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        history = model.fit(
            train, epochs=3, steps_per_epoch=6, validation_data=validation, validation_steps=6, verbose=0
        ).history
    assert len(history["val_loss"]) == 3
