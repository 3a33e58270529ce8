"""Graphs take the elements of a `ParquetDataset` on the threads of their step, if no function of tf.data makes them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from processes import run_python

from parquetry.tf_plugin import ParquetDataset
from parquetry.tf_plugin.iterator import EagerIterator

BATCH, BATCHES = 10, 4


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("data") / "rows.parquet"
    rows = BATCH * BATCHES
    deep = [[[number] * (1 + number % 3)] * (1 + number % 2) for number in range(rows)]
    lists = [[number] * (number % 3) for number in range(rows)]
    pq.write_table(pa.table({"x": np.arange(rows), "list": lists, "deep": pa.array(deep)}), target)
    return target


def total(iterator: Any, batches: tf.Tensor) -> tf.Tensor:
    sums = tf.constant(0, tf.int64)
    for _ in tf.range(batches):
        sums += tf.reduce_sum(next(iterator)["x"])
    return sums


def ops_of(iterator: Any) -> set[str]:
    """Returns the ops by which a traced function takes elements."""
    graph = tf.function(lambda rows: rows.get_next()["x"]).get_concrete_function(iterator).graph
    return {op.type for op in graph.get_operations() if op.type.startswith("IteratorGetNext")}


@pytest.mark.parametrize(
    ("fields", "chain", "inline"),
    [
        (["x"], lambda rows: rows, True),
        (["x", "list"], lambda rows: rows, True),
        (["x"], lambda rows: rows.prefetch(2), True),
        (["x"], lambda rows: rows.with_options(tf.data.Options()), True),
        (["x", "deep"], lambda rows: rows, False),  # a function of tf.data puts its parts together
        (["x", "deep"], lambda rows: rows.prefetch(2), False),
        (["x"], lambda rows: rows.map(lambda row: row), False),
    ],
    ids=["numbers", "lists", "prefetch", "options", "lists of lists", "prefetch of lists of lists", "map"],
)
def test_a_step_takes_elements_itself_where_no_function_runs(
    path: Path, fields: list[str], chain: Callable[[ParquetDataset], tf.data.Dataset], inline: bool
) -> None:
    rows = chain(ParquetDataset(path, fields, workers=1).batch(BATCH))
    assert ops_of(iter(rows)) == {"IteratorGetNextSync" if inline else "IteratorGetNext"}
    some, iterator = tf.function(total), iter(rows)
    assert int(some(iterator, BATCHES)) == sum(range(BATCH * BATCHES))
    with pytest.raises(tf.errors.OutOfRangeError):
        some(iterator, 1)


def test_python_and_graphs_share_one_iterator(path: Path) -> None:
    some = tf.function(lambda rows: next(rows)["x"])
    iterator = iter(ParquetDataset(path, ["x"], workers=1).batch(BATCH))
    first = [int(value[0]) for value in (some(iterator), next(iterator)["x"], iterator.get_next()["x"], some(iterator))]
    assert first == [0, 10, 20, 30]


def test_elements_have_their_shapes_in_a_graph(path: Path) -> None:
    shapes = []
    rows = ParquetDataset(path, ["x"], workers=1).batch(BATCH, drop_remainder=True)
    tf.function(lambda iterator: shapes.append(next(iterator)["x"].shape))(iter(rows))
    assert shapes == [(BATCH,)]


def test_one_trace_serves_all_iterators_of_a_dataset(path: Path) -> None:
    some = tf.function(lambda rows: next(rows)["x"], reduce_retracing=True)
    rows = ParquetDataset(path, ["x"], workers=1).batch(BATCH)
    for _ in range(3):
        some(iter(rows))
    assert some.experimental_get_tracing_count() == 1


def test_a_signature_takes_this_iterator_and_others(path: Path) -> None:
    rows = ParquetDataset(path, ["x"], workers=1).batch(BATCH)
    some = tf.function(lambda iterator: next(iterator)["x"], input_signature=[tf.data.IteratorSpec(rows.element_spec)])
    assert [int(some(iter(data))[0]) for data in (rows, rows.skip(1).map(lambda row: row))] == [0, 10]


def test_optional_elements_end(path: Path) -> None:
    more = tf.function(lambda iterator: iterator.get_next_as_optional().has_value())
    iterator = iter(ParquetDataset(path, ["x"], workers=1).batch(BATCH))
    assert [bool(more(iterator)) for _ in range(BATCHES + 1)] == [True] * BATCHES + [False]


def test_a_loop_that_would_never_end_is_refused_as_by_tf_data(path: Path) -> None:
    def endless(iterator: Any) -> None:
        for _ in iterator:
            pass

    with pytest.raises(ValueError, match="AutoGraph disabled"):
        tf.function(endless, autograph=False)(iter(ParquetDataset(path, ["x"], workers=1).batch(BATCH)))


ONE_THREAD = """
import sys
import tensorflow as tf

tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.threading.set_intra_op_parallelism_threads(1)
from parquetry.tf_plugin import ParquetDataset


@tf.function
def total(iterators):
    sums = tf.constant(0, tf.int64)
    for _ in tf.range(4):
        for iterator in iterators:
            sums += tf.reduce_sum(next(iterator)["x"])
    return sums


plain, deep = (ParquetDataset(sys.argv[1], fields, workers=1).batch(10) for fields in (["x"], ["x", "deep"]))
print(int(total([iter(plain), iter(deep), iter(plain.prefetch(1)), iter(plain.map(lambda row: row))])))
"""


def test_one_thread_for_all_ops_is_enough(path: Path, tmp_path: Path) -> None:
    program = tmp_path / "one_thread.py"  # AutoGraph wants its source
    program.write_text(ONE_THREAD)
    assert run_python(program, path, check=True).stdout == f"{4 * sum(range(BATCH * BATCHES))}\n"


@pytest.mark.timeout(method="thread")
def test_the_death_of_a_sidecar_ends_a_step_that_waits(fake_dataset: Callable[..., Any], log: Any) -> None:
    iterator = EagerIterator(fake_dataset(log=str(log.path), hang_at=1), inline=True)
    some = tf.function(lambda rows: next(rows)["id"])
    some(iterator)
    killer = threading.Thread(target=lambda: os.kill(log.pids[0], signal.SIGKILL))
    killer.start()
    with pytest.raises(tf.errors.InternalError, match="signal 9"):
        some(iterator)
    killer.join()


def test_calls_of_one_trace_keep_their_order(path: Path) -> None:
    rows = ParquetDataset(path, ["x"], workers=1)
    some = tf.function(lambda iterator: tf.stack([next(iterator)["x"] for _ in range(BATCH * BATCHES)]))
    assert some(iter(rows)).numpy().tolist() == list(range(BATCH * BATCHES))
