"""Several batches in one message: the same elements and states, and no more than one batch held."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from builders import build
from faces import THREADS, TensorFlowFace

from parquetry.common import Pipeline
from parquetry.common.apps.testing import assert_same
from parquetry.tf_plugin import ParquetDataset

ROWS = 103


def fields(output: Any) -> list[Any]:
    return [
        output("id"),
        output("text", kind="text"),
        output("points", (None, 2), "float32"),
        output("words", (None,), kind="text"),
        output("window", (3,), "int32", window=2),
        output("steps", (None,), "int16", window=2),
        output("wide", (32,), "float32"),
    ]


def plain(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()
        for name, value in batch.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("merge", [2, 5, 100])
def test_merged_messages_give_the_same_elements(
    fake_dataset: Callable[..., Any], output: Any, merge: int, apart: bool
) -> None:
    single = fake_dataset(*fields(output), rows=ROWS)
    merged = fake_dataset(*fields(output), rows=ROWS, merge=merge, apart=apart)
    assert merged.element_spec == single.element_spec
    assert [plain(batch) for batch in merged] == [plain(batch) for batch in single]


def test_only_batches_are_asked_for_in_merged_messages(fake_dataset: Callable[..., Any], log: Any) -> None:
    list(fake_dataset(log=str(log.path)))
    list(fake_dataset(log=str(log.path), batched=False))
    assert [start["merge"] for start in log.starts] == [True, False]


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 2, *(pytest.param(taken, marks=pytest.mark.slow) for taken in range(3, 7))])
def test_a_checkpoint_inside_a_message_resumes_with_its_next_batch(
    fake_dataset: Callable[..., Any], tmp_path: Path, taken: int, apart: bool
) -> None:
    dataset = fake_dataset(rows=26, merge=3, apart=apart)
    iterator = iter(dataset)
    for _ in range(taken):
        next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "state"))
    fresh = iter(dataset)
    tf.train.Checkpoint(iterator=fresh).restore(path)
    assert [number for batch in fresh for number in batch["id"].numpy()] == list(range(4 * taken, 26))


@pytest.mark.parametrize(("width", "shared"), [(16, [True] * 4), (33, [True, False, False, False])])
def test_aligned_parts_of_a_message_are_not_copied(
    fake_dataset: Callable[..., Any], output: Any, in_shared_memory: Any, width: int, shared: list[bool]
) -> None:
    iterator = iter(fake_dataset(output("x", (width, 5), "float32"), rows=-1, batch=5, merge=4, slots=8))
    batches = [next(iterator)["x"] for _ in range(4)]
    assert [batch.numpy()[0, 0, 0] for batch in batches] == [0, 5, 10, 15]
    assert [in_shared_memory(batch) for batch in batches] == shared


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_hoarding_merged_batches_neither_stalls_nor_mixes_values(
    fake_dataset: Callable[..., Any], output: Any, slots: int, apart: bool
) -> None:
    dataset = fake_dataset(output("x", (64,), "float32"), rows=240, merge=4, slots=slots, apart=apart)
    batches = [batch["x"] for batch in dataset]
    assert len(batches) == 60
    for number, batch in enumerate(batches):
        np.testing.assert_array_equal(batch.numpy()[:, 0], np.arange(4 * number, 4 * number + 4))


def test_a_slot_comes_back_when_the_last_batch_in_it_is_gone(
    fake_dataset: Callable[..., Any], output: Any, in_shared_memory: Any
) -> None:
    dataset = fake_dataset(output("x", (64,), "float32"), rows=-1, merge=4, slots=4, apart=True)
    iterator = iter(dataset)
    kept = next(iterator)["x"]  # the other three of its message are dropped
    assert in_shared_memory(kept)
    for number in range(1, 60):  # the fake sidecar overwrites slots that come back
        assert next(iterator)["x"].numpy()[0, 0] == 4 * number
    assert kept.numpy()[:, 0].tolist() == [0, 1, 2, 3]
    del iterator  # in the middle of a message


def test_numbers_jump_where_rows_were_left_out(fake_dataset: Callable[..., Any], tmp_path: Path) -> None:
    dataset = fake_dataset(rows=40, unknown=True, leap_at=3, leap=2)
    assert dataset.cardinality() == tf.data.UNKNOWN_CARDINALITY
    iterator = iter(dataset)
    found = [next(iterator)["id"].numpy()[0] for _ in range(4)]
    assert found == [0, 4, 8, 20]
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "state"))
    fresh = iter(dataset)
    tf.train.Checkpoint(iterator=fresh).restore(path)
    assert [batch["id"].numpy()[0] for batch in fresh] == [24, 28, 32, 36]


def test_real_batches_of_any_size_equal_the_pipelines(tmp_path: Path) -> None:
    built = build(tmp_path, [[40] * 5], names=("id", "drive", "vector", "points"))
    pipeline = built.pipeline(executor="sidecar").shuffle(50, seed=3).batch(3)
    assert pipeline.plan().merged_steps(1 << 30) > 1
    assert TensorFlowFace().elements(pipeline) == THREADS.elements(pipeline)


@pytest.mark.slow
@pytest.mark.parametrize("held", [False, True])
def test_batches_of_different_sizes_equal_the_pipelines(tmp_path: Path, held: bool) -> None:
    lengths = np.random.default_rng(3).integers(0, 40, 900)
    tokens = pa.array([np.arange(length) for length in lengths], pa.list_(pa.int64()))
    pq.write_table(pa.table({"id": range(900), "tokens": tokens}), tmp_path / "rows.parquet", row_group_size=100)
    rows = Pipeline(tmp_path).shuffle(200, seed=3, reshuffle_each_iteration=False)
    for pipeline in (rows.bucket("tokens", boundaries=[10, 20], max_tokens=160), rows.batch(7).pad("tokens")):
        dataset = ParquetDataset.from_pipeline(pipeline.repeat(3))
        taken = iter(dataset)
        found = list(taken) if held else [plain(batch) for batch in taken]
        expected = list(pipeline.repeat(3))
        assert len(found) == len(expected)
        for batch, same in zip(found, expected, strict=True):
            assert_same(plain(batch) if held else batch, {name: value.tolist() for name, value in same.items()})
        assert dataset.stats().rows == 3 * 900
