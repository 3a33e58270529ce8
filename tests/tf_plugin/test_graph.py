"""The source inside tf.data's machinery: functions, rewrites, chains, the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tensorflow as tf
from ids import ids


def test_repeat_by_tf_data_counts_the_iterations(fake_dataset: Callable[..., Any]) -> None:
    dataset = fake_dataset(rows=4, epoch_offset=100).map(lambda batch: batch).repeat(3)
    assert ids(dataset) == [0, 1, 2, 3, 100, 101, 102, 103, 200, 201, 202, 203]


def test_a_serialized_graph_gives_the_same_elements(fake_dataset: Callable[..., Any], output: Any) -> None:
    dataset = fake_dataset(output("id"), output("x", (None,), "int32"), rows=10)
    graph = dataset._as_serialized_graph()
    variant = tf.raw_ops.DatasetFromGraph(graph_def=graph)
    copy = tf.data.experimental.from_variant(variant, dataset.element_spec)
    assert ids(copy) == list(range(10))


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
