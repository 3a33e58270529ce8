"""The source inside tf.data's machinery: functions, rewrites, chains, the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from ids import ids


@pytest.mark.slow
def test_a_dataset_works_in_a_function(fake_dataset: Callable[..., Any]) -> None:
    dataset = fake_dataset(rows=10)

    @tf.function
    def total(data: tf.data.Dataset) -> tf.Tensor:
        result = tf.constant(0, tf.int64)
        for batch in data:
            result += tf.reduce_sum(batch["id"])
        return result

    @tf.function
    def captured_total() -> tf.Tensor:
        return dataset.reduce(tf.constant(0, tf.int64), lambda result, batch: result + tf.reduce_sum(batch["id"]))

    assert total(dataset) == total(dataset) == captured_total() == 45


@pytest.mark.slow
def test_chains_of_stages_keep_order_and_values(fake_dataset: Callable[..., Any], output: Any) -> None:
    dataset = fake_dataset(output("id"), output("x", (None, 2), "float32"), rows=24)
    chain = (
        dataset.map(
            lambda batch: {"id": batch["id"], "sum": tf.reduce_sum(batch["x"], axis=[1, 2])}, num_parallel_calls=2
        )
        .unbatch()
        .batch(5, drop_remainder=True)
        .repeat(2)
        .prefetch(tf.data.AUTOTUNE)
    )
    batches = list(chain)
    assert len(batches) == 8
    assert ids(batches[:4]) == ids(batches[4:]) == list(range(20))
    sums = np.concatenate([batch["sum"].numpy() for batch in batches[:4]])
    np.testing.assert_array_equal(sums, [2 * n * (n % 4) for n in range(20)])


def test_repeat_by_tf_data_counts_the_iterations(fake_dataset: Callable[..., Any]) -> None:
    dataset = fake_dataset(rows=4, epoch_offset=100).map(lambda batch: batch).repeat(3)
    assert ids(dataset) == [0, 1, 2, 3, 100, 101, 102, 103, 200, 201, 202, 203]


@pytest.mark.slow
def test_parallel_interleave_of_several_datasets(fake_dataset: Callable[..., Any]) -> None:
    first, second = fake_dataset(rows=8), fake_dataset(rows=8, name="b")
    choices = tf.data.Dataset.range(2)
    both = choices.interleave(lambda n: first if n == 0 else second, cycle_length=2, num_parallel_calls=2)
    assert sorted(ids(both)) == sorted([*range(8), *range(8)])


def test_a_serialized_graph_gives_the_same_elements(fake_dataset: Callable[..., Any], output: Any) -> None:
    dataset = fake_dataset(output("id"), output("x", (None,), "int32"), rows=10)
    graph = dataset._as_serialized_graph()
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
    copy = tf.data.experimental.from_variant(variant, dataset.element_spec)
    assert ids(copy) == list(range(10))


def test_keras_fits_a_model(fake_dataset: Callable[..., Any], output: Any) -> None:
    keras = tf.keras
    dataset = fake_dataset(output("x", (3,), "float32"), output("y", (), "float32"), rows=8)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile(loss="mse", optimizer="sgd")
    history = model.fit(dataset.map(lambda batch: (batch["x"], batch["y"])), epochs=2, verbose=0, shuffle=False)
    assert len(history.history["loss"]) == 2


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """Starts a tf.data service with two workers in this process."""
    experimental = tf.data.experimental.service
    dispatcher = experimental.DispatchServer()
    address = dispatcher.target.split("://")[1]
    workers = [
        experimental.WorkerServer(experimental.WorkerConfig(dispatcher_address=address, heartbeat_interval_ms=100))
        for _ in range(2)
    ]
    yield dispatcher.target
    for worker in workers:
        worker._stop()
    dispatcher._stop()


def test_workers_of_the_service_run_their_own_sidecars(fake_dataset: Callable[..., Any], service: str) -> None:
    policy = tf.data.experimental.service.ShardingPolicy.OFF
    dataset = fake_dataset(rows=20)
    distributed = dataset.apply(tf.data.experimental.service.distribute(policy, service))
    assert sorted(ids(distributed)) == sorted([*range(20), *range(20)])


@pytest.mark.slow
@pytest.mark.parametrize("batched", [True, False])
def test_dynamic_sharding_deals_each_element_once(
    fake_dataset: Callable[..., Any], service: str, batched: bool
) -> None:
    policy = tf.data.experimental.service.ShardingPolicy.DYNAMIC
    dataset = fake_dataset(rows=500, batched=batched, epoch_offset=1000).map(lambda batch: batch)
    distributed = dataset.apply(tf.data.experimental.service.distribute(policy, service))
    first, second = ids(distributed), ids(distributed)
    assert sorted(first) == list(range(500))
    assert sorted(number % 1000 for number in second) == list(range(500))
    assert len({number // 1000 for number in second}) == 1
