"""Every stage, stopped before every step and resumed: by state, by checkpoint, and in the other faces."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from builders import Built, built_once
from cases import every_case
from processes import run_python
from resume_cases import CASES, RESUME_NAMES

from parquetry.common import Pipeline, mix
from parquetry.common.apps.testing import assert_resumable
from parquetry.tf_plugin import ParquetDataset
from parquetry.tf_plugin.iterator import EagerIterator

built = built_once([[3, 1, 4], [2], [0], [5, 2]], names=RESUME_NAMES)


class ByState:
    """An iterator whose state comes from its dataset; the dataset's next iterator resumes from a state."""

    def __init__(self, dataset: ParquetDataset) -> None:
        self._dataset = dataset
        self._iterator: Iterator[Any] | None = None
        self._taken = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        element = next(self._iterator)
        self._taken += 1
        return element

    def state_dict(self) -> dict[str, Any]:
        return self._dataset.state_dict(self._taken)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._dataset.start_next_at(state)
        self._iterator, self._taken = None, 0


class ByCheckpoint:
    """A dataset iterator that is saved to files and restored from them."""

    def __init__(self, dataset: tf.data.Dataset, directory: Path) -> None:
        self._iterator = iter(dataset)
        self._directory = directory

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._iterator)

    def state_dict(self) -> str:
        path = self._directory / f"state-{sum(1 for _ in self._directory.iterdir())}"
        return tf.train.Checkpoint(iterator=self._iterator).write(str(path))

    def load_state_dict(self, state: str) -> None:
        tf.train.Checkpoint(iterator=self._iterator).read(state).assert_consumed()


def pipeline_of(built: Built, name: str) -> Pipeline:
    base = built.pipeline(workers=1)
    return CASES[name](base if name == "null policies" else base.select("id", "drive", "ts", "image"))


# test_properties.py stops arbitrary chains at arbitrary steps.
KINDS = ["rows", "full batches", "shuffle and batch over two passes", "a shard of its own", "take and skip of batches"]


@every_case("name", KINDS)
def test_every_kind_of_order_resumes_exactly_at_every_step(built: Built, name: str) -> None:
    dataset = ParquetDataset.from_pipeline(pipeline_of(built, name))
    assert_resumable(lambda: ByState(dataset))


@pytest.mark.slow
@every_case("name", ["shuffle and batch over two passes", "canonical shards"])
def test_every_step_can_be_restored_from_a_checkpoint(built: Built, name: str, tmp_path: Path) -> None:
    dataset = ParquetDataset.from_pipeline(pipeline_of(built, name))
    assert_resumable(lambda: ByCheckpoint(dataset, tmp_path))


BEHIND: dict[str, Callable[[tf.data.Dataset], tf.data.Dataset]] = {
    "map and prefetch": lambda d: d.map(lambda row: row["id"]).prefetch(2),
    "another batch": lambda d: d.unbatch().batch(3),
    "another shuffle": lambda d: d.unbatch().shuffle(4, seed=1, reshuffle_each_iteration=False).batch(2),
    "repeat": lambda d: d.map(lambda row: row["id"]).repeat(2),
    "zip": lambda d: tf.data.Dataset.zip((d, tf.data.Dataset.range(100))),
}


@pytest.mark.slow
@every_case("name", BEHIND)
def test_later_tensorflow_stages_are_restored_with_the_source(built: Built, name: str, tmp_path: Path) -> None:
    # Before its first element, TensorFlow's shuffle has no input iterator and therefore cannot save its epoch.
    anew = name != "another shuffle"
    dataset = BEHIND[name](ParquetDataset(built.url, ["id"]).shuffle(5, 3, reshuffle_each_iteration=anew).batch(6))
    assert_resumable(lambda: ByCheckpoint(dataset, tmp_path))


def test_a_mix_resumes_exactly(built: Built) -> None:
    sources = [built.pipeline("id").shuffle(4, seed=1), built.pipeline("id").repeat(2)]
    dataset = ParquetDataset.from_pipeline(mix(sources, weights=[2, 1], seed=5, stop="all").batch(4))
    assert_resumable(lambda: ByState(dataset))


@pytest.mark.slow
def test_an_endless_dataset_resumes_in_any_pass(built: Built) -> None:
    dataset = ParquetDataset(built.url, ["id"]).shuffle(5, seed=3).repeat().batch(4)
    assert_resumable(lambda: ByState(dataset), steps=14)


CROSSING = ["shuffle and batch over two passes", "canonical shards"]


@pytest.mark.slow
@pytest.mark.parametrize("other", ["plain Python", "PyTorch"])
@every_case("name", CROSSING)
def test_a_state_crosses_to_the_other_faces_and_back_at_every_step(built: Built, name: str, other: str) -> None:
    pipeline = pipeline_of(built, name)
    dataset = ParquetDataset.from_pipeline(pipeline)
    numbers = [element["id"].numpy().tolist() for element in dataset]

    def over_there() -> Any:
        if other == "plain Python":
            return iter(pipeline.with_options())
        pytest.importorskip("torch")
        from parquetry.torch_plugin import ParquetPipe

        return iter(ParquetPipe.from_pipeline(pipeline.with_options()))

    beginning = over_there().state_dict()
    assert [element["id"].tolist() for element in over_there()] == numbers
    for step in range(1, len(numbers) + 1):
        here = ByState(dataset)
        here.load_state_dict(beginning)
        assert [element["id"].numpy().tolist() for element in itertools.islice(here, step)] == numbers[:step]
        there = over_there()
        there.load_state_dict(here.state_dict())
        assert [element["id"].tolist() for element in there] == numbers[step:]
        there = over_there()
        for _ in itertools.islice(there, step):
            pass
        here = ByState(dataset)
        here.load_state_dict(there.state_dict())
        assert [element["id"].numpy().tolist() for element in here] == numbers[step:]


def test_ranks_that_chose_no_canonical_shards_take_over_those_of_the_state(built: Built) -> None:
    def rank(number: int, index: int) -> ParquetDataset:
        return ParquetDataset(built.url, ["id"]).shuffle(5, seed=3).shard(number, index, even="none")

    ranks = [rank(4, index) for index in range(4)]
    taken = [int(row["id"]) for one in ranks for row in itertools.islice(one, 2)]
    state = ranks[0].state_dict(2)
    others = [rank(3, index).load_state_dict(state) for index in range(3)]
    left = [[int(row["id"]) for row in other] for other in others]
    assert sorted(itertools.chain(taken, *left)) == [row["id"] for row in built.plain]
    assert others[2].state_dict(1)["cuts"] == [[8, 3]]
    again = rank(3, 2).load_state_dict(others[2].state_dict(1))
    assert [int(row["id"]) for row in again] == left[2][1:]


def test_a_loop_that_counts_its_steps_finishes_a_resumed_epoch_without_reading_ahead(
    built: Built, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = ParquetDataset(built.url, ["id"])
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    rows = dataset.map(lambda row: row["id"]).with_options(options)
    elements = len(list(rows))
    dataset.load_state_dict(dataset.state_dict(2))

    def begin() -> Iterator[Any]:
        return EagerIterator(rows, dataset._watch)

    assert len(list(itertools.islice(begin(), elements - 2))) == elements - 2  # it never asks for the end
    next(begin())
    assert "took a loaded state" not in caplog.text
    dataset.load_state_dict(dataset.state_dict(2))
    list(itertools.islice(begin(), elements - 3))
    next(begin())
    assert "took a loaded state" in caplog.text


_PEEKS = """
import sys
from parquetry.tf_plugin import ParquetDataset
dataset = ParquetDataset(sys.argv[1], ["id"])
rows = dataset.map(lambda row: row["id"])
next(iter(dataset))
state = dataset.state_dict(1)
for look in (False, True):
    dataset.load_state_dict(state)
    if look:
        next(iter(rows))
    list(rows), list(rows)
    print("looked" if look else "did not look", file=sys.stderr, flush=True)
"""


@pytest.mark.slow
def test_a_look_through_a_chain_that_uses_up_a_state_is_in_tensorflows_log(built: Built) -> None:
    done = run_python("-c", _PEEKS, built.url, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1"})
    before, after = done.stderr.split("did not look")
    assert before.count("took a loaded state") == 0
    assert after.count("took a loaded state") == 1
