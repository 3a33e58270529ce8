"""Checkpoints at every step, states of other numbers of ranks, and warnings of states that are lost."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
from builders import Built, built_once
from cases import every_case
from processes import run_python
from resume_cases import CASES, RESUME_NAMES

from parquetry.common.apps.testing import assert_resumable
from parquetry.tf_plugin import ParquetDataset
from parquetry.tf_plugin.iterator import EagerIterator

built = built_once([[3, 1, 4], [2], [0], [5, 2]], names=RESUME_NAMES)


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


@pytest.mark.slow
@every_case("name", ["shuffle and batch over two passes", "canonical shards"])
def test_every_step_can_be_restored_from_a_checkpoint(built: Built, name: str, tmp_path: Path) -> None:
    dataset = ParquetDataset.from_pipeline(CASES[name](built.pipeline("id", "drive", "ts", "image", workers=1)))
    assert_resumable(lambda: ByCheckpoint(dataset, tmp_path))


def test_ranks_that_chose_no_canonical_shards_take_over_those_of_the_state(built: Built) -> None:
    def rank(number: int, index: int) -> ParquetDataset:
        return ParquetDataset(built.url, ["id"]).shuffle(5, seed=3).shard(number, index, even="none")

    ranks = [rank(2, index) for index in range(2)]
    taken = [int(row["id"]) for one in ranks for row in itertools.islice(one, 2)]
    others = [rank(3, index).load_state_dict(ranks[0].state_dict(2)) for index in range(3)]
    left = [[int(row["id"]) for row in other] for other in others]
    assert sorted(itertools.chain(taken, *left)) == [row["id"] for row in built.plain]
    assert others[2].state_dict(1)["cuts"] == [[4, 3]]
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
