"""Nested lists as ragged tensors, ragged at every level."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import tensorflow as tf
from nested_rows import BOXES, PAIRS, WORDS, write_nested

from parquetry.common import Pipeline
from parquetry.common.server import serve
from parquetry.tf_plugin import ParquetDataset
from parquetry.tf_plugin.arrow_feed import ArrowFeed


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_nested(tmp_path_factory.mktemp("nested"), label=pa.array([0, 1, 2, 3], pa.float32())))


def test_a_batch_is_ragged_at_each_level_and_a_row_at_one_less(url: str) -> None:
    dataset = ParquetDataset(url).nested("boxes", "words", "pairs")
    spec = dataset.element_spec["pairs"]
    assert (spec.shape.as_list(), spec.dtype, spec.ragged_rank) == ([None, None, 2], tf.float32, 1)
    spec = dataset.batch(2, drop_remainder=True).element_spec["pairs"]
    assert (spec.shape.as_list(), spec.ragged_rank) == ([2, None, None, 2], 2)
    windows = dataset.nulls("mask", "boxes", elements=True).ngram(length=2).batch(3).element_spec
    assert windows["boxes"].shape.as_list() == [None, 2, None, None]
    assert windows["boxes__valid"].dtype == tf.bool
    assert windows["boxes__valid"].ragged_rank == windows["boxes"].ragged_rank == 3


@pytest.mark.slow
def test_maps_functions_and_models_take_it(url: str) -> None:
    def total(row: dict[str, tf.RaggedTensor]) -> tf.Tensor:
        return tf.reduce_sum(row["boxes"], axis=[1, 2])

    batches = ParquetDataset(url).nested("boxes").select("boxes", "label").batch(4)
    assert next(iter(batches.map(total))).numpy().tolist() == [6, 0, 15, 7]

    @tf.function
    def summed(dataset: tf.data.Dataset) -> tf.Tensor:
        return dataset.reduce(0, lambda state, row: state + tf.reduce_sum(row["boxes"].flat_values))

    assert int(summed(batches)) == 28
    inputs = tf.keras.Input([], dtype="float32")
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(tf.keras.layers.Reshape([1])(inputs)))
    model.compile("sgd", "mse")
    sums = batches.map(lambda row: (tf.cast(total(row), tf.float32), row["label"]))
    assert np.isfinite(model.fit(sums, epochs=2, verbose=0, shuffle=False).history["loss"]).all()


@pytest.mark.slow
def test_an_arrow_stream_gives_them_too(url: str) -> None:
    with serve(Pipeline(url, executor="threads").nested("boxes", "words", "pairs")) as server:
        remote = Pipeline(address=server.address)
        feeds = [ArrowFeed(chain, "pyarrow") for chain in (remote, remote.batch(2, drop_remainder=True))]
        rows, batches = ([*feed.dataset] for feed in feeds)
        assert [row["boxes"].to_list() for row in rows] == BOXES
        assert [row["words"].to_list() for row in rows] == [
            [[w.encode() for w in part] for part in row] for row in WORDS
        ]
        assert [batch["pairs"].to_list() for batch in batches] == [PAIRS[:2], PAIRS[2:]]
        native = ParquetDataset(url).nested("boxes", "words", "pairs").batch(2, drop_remainder=True)
        assert feeds[1].dataset.element_spec == native.element_spec
