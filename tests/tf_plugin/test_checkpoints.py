"""Saving and restoring iterators, and passing on their state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from parquetry.tf_plugin.build import load_ops


def firsts(iterator: Any, count: int) -> list[int]:
    return [int(tf.reshape(next(iterator)["id"], [-1])[0]) for _ in range(count)]


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("taken", [0, 3, *(pytest.param(taken, marks=pytest.mark.slow) for taken in (1, 5))])
def test_an_iterator_resumes_where_it_was_saved(
    fake_dataset: Callable[..., Any], tmp_path: Path, batched: bool, taken: int
) -> None:
    dataset = fake_dataset(rows=24, batched=batched)
    iterator = iter(dataset)
    firsts(iterator, taken)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "state"))
    expected = [int(tf.reshape(element["id"], [-1])[0]) for element in iterator]

    fresh = iter(fake_dataset(rows=24, batched=batched))
    firsts(fresh, 2)
    tf.train.Checkpoint(iterator=fresh).restore(path)
    assert [int(tf.reshape(element["id"], [-1])[0]) for element in fresh] == expected
    assert len(expected) == (6 if batched else 24) - taken


def test_an_iterator_saved_at_its_end_stays_there(fake_dataset: Callable[..., Any], tmp_path: Path) -> None:
    dataset = fake_dataset()
    iterator = iter(dataset)
    assert len(list(iterator)) == 3
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "state"))
    fresh = iter(dataset)
    tf.train.Checkpoint(iterator=fresh).restore(path)
    assert list(fresh) == []


STAGES: dict[str, Callable[[Any], Any]] = {
    "map": lambda data: data.map(lambda batch: batch, num_parallel_calls=2),
    "batch": lambda data: data.unbatch().batch(3),
    "prefetch": lambda data: data.prefetch(4),
    "shuffle": lambda data: data.unbatch().shuffle(7, seed=3),
    "repeat": lambda data: data.map(lambda batch: batch).repeat(2),
    "zip": lambda data: tf.data.Dataset.zip((data, tf.data.Dataset.range(100))).map(lambda batch, _: batch),
}


@pytest.mark.parametrize("symbolic", [True, False])
@pytest.mark.parametrize("stage", STAGES.values(), ids=STAGES.keys())
def test_a_manager_keeps_an_iterator_below_each_stage(
    fake_dataset: Callable[..., Any], tmp_path: Path, stage: Callable[[Any], Any], symbolic: bool
) -> None:
    options = tf.data.Options()
    options.experimental_symbolic_checkpoint = symbolic
    dataset = stage(fake_dataset(rows=24, merge=3)).with_options(options)
    iterator = iter(dataset)
    firsts(iterator, 4)
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(it=iterator), str(tmp_path), max_to_keep=1)
    manager.save()
    expected = [int(tf.reshape(element["id"], [-1])[0]) for element in iterator]
    fresh = iter(dataset)
    tf.train.Checkpoint(it=fresh).restore(manager.latest_checkpoint)
    assert [int(tf.reshape(element["id"], [-1])[0]) for element in fresh] == expected
    assert expected


def test_a_state_of_something_else_is_refused_when_it_is_restored(
    fake_dataset: Callable[..., Any], tmp_path: Path
) -> None:
    iterator = iter(fake_dataset(name="a"))
    next(iterator)
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "state"))
    other = iter(fake_dataset(name="b"))
    with pytest.raises(tf.errors.InvalidArgumentError, match='expected one of this "dataset", got another'):
        tf.train.Checkpoint(iterator=other).restore(path)


def test_the_epoch_after_a_restored_one_is_the_next(fake_dataset: Callable[..., Any], tmp_path: Path) -> None:
    dataset = fake_dataset(epoch_offset=100)
    for _ in range(3):
        list(dataset)
    iterator = iter(dataset)  # epoch 3
    assert firsts(iterator, 1) == [300]
    path = tf.train.Checkpoint(iterator=iterator).save(str(tmp_path / "state"))

    later = fake_dataset(epoch_offset=100)  # like a new process
    iterator = iter(later)
    tf.train.Checkpoint(iterator=iterator).restore(path)
    assert firsts(iterator, 2) == [304, 308]
    assert firsts(iter(later), 1) == [400]


def test_a_dataset_begins_at_a_given_state(fake_dataset: Callable[..., Any]) -> None:
    state = json.dumps({"iteration": 5, "consumed": 2})
    dataset = fake_dataset(epoch_offset=100, state=state)
    assert firsts(iter(dataset), 1) == [508]
    assert firsts(iter(dataset), 1) == [600]
    assert firsts(iter(dataset), 1) == [700]


def test_the_state_of_the_latest_iterator_can_be_asked_for() -> None:
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected an iterator that has begun, got none"):
        load_ops().parquetry_parquet_dataset_state(dataset_key="no such key", elements=3)
