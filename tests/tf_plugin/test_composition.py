"""Combined stages in `ParquetDataset`: equal steps, elastic order, errors with their location."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import tensorflow as tf
from builders import Built, build, built_once
from ids import check_parts

from parquetry.common import UnischemaField
from parquetry.tf_plugin import ParquetDataset

built = built_once([[4, 1, 5], [3], [0], [2, 6, 2], [], [7]], names=("id", "ts"))


def over(built: Built) -> ParquetDataset:
    return ParquetDataset(built.url, ["id"], workers=1)


def ids(dataset: Any) -> list[list[int]]:
    return [np.atleast_1d(element["id"]).tolist() for element in dataset.as_numpy_iterator()]


@pytest.mark.parametrize(
    ("left", "even"),
    [(1, "pad"), (9, "drop"), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, "drop"), (9, "none")])],
)
def test_ranks_take_equal_steps_whatever_a_filter_leaves(built: Built, left: int, even: str) -> None:
    ranks = 3
    parts = [
        over(built).filter(pc.field("id") < left).shuffle(6, seed=2).shard(ranks, rank, even=even).batch(2)
        for rank in range(ranks)
    ]
    if even == "drop" and left < ranks:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"even='drop' leaves nothing, because .* Use even='pad'"
        ):
            ids(parts[0])
        return
    check_parts([ids(part) for part in parts], [int(part.cardinality()) for part in parts], left, even)


@pytest.mark.slow
def test_a_global_batch_is_the_same_on_any_number_of_ranks(built: Built) -> None:
    canonical, rows = 6, 12

    def global_batches(ranks: int) -> list[Counter[int]]:
        together: list[Counter[int]] = []
        for rank in range(ranks):
            part = over(built).shuffle(5, seed=3).shard(ranks, rank, even="pad", canonical_shards=canonical)
            for step, batch in enumerate(ids(part.batch(rows // ranks))):
                together += [Counter()] * (step + 1 - len(together))
                together[step] = together[step] + Counter(batch)
        return together

    reference = global_batches(1)
    assert sum(map(len, reference)) == 30
    for ranks in (2, 3):
        assert global_batches(ranks) == reference


def failing(numbers: set[int]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Returns a function that is pickled by value, so the sidecar does not import this module and TensorFlow."""

    def fails_on_seven(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] in numbers:
            raise KeyError("seven")
        return row

    return fails_on_seven


def test_a_function_that_fails_is_reported_with_its_row_and_traceback(built: Built) -> None:
    message = (
        r"(?s)transform .*fails_on_seven failed for file .*part-000\.parquet, row group 2, row 2: KeyError\('seven'\).*"
        r"Traceback.*line \d+, in fails_on_seven"
    )
    with pytest.raises(tf.errors.InternalError, match=message):
        ids(over(built).transform(failing({7})).batch(3))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 4])
def test_a_row_that_fails_is_left_out_where_errors_are_ignored(built: Built, batch: int | None) -> None:
    rows = over(built).where([("id", "<", 20)]).transform(failing({7}))
    dataset = rows if batch is None else rows.batch(batch)
    lost = {7} if batch is None else {4, 5, 6, 7}
    kept = [number for number in range(20) if number not in lost]
    assert [number for element in ids(dataset.ignore_errors()) for number in element] == kept
    assert dataset.state_dict(len(kept) if batch is None else 4)["consumed"] == int(dataset.cardinality())


@pytest.mark.slow
def test_a_wrong_output_and_a_wrong_time_stamp_are_reported(tmp_path: Path) -> None:
    wrong = build(tmp_path, [[3], [2, 4]], names=("id", "ts"), change=lambda row: {**row, "ts": -row["ts"]})
    place = r"part-000\.parquet, row group 0, row 1: expected timestamps in 'ts' that do not decrease"
    with pytest.raises(tf.errors.OpError, match=place):
        ids(over(wrong).ngram(length=2, timestamp="ts"))
    declared = over(wrong).transform(lambda row: {**row, "x": np.zeros(3)}, [UnischemaField("x", np.float64, (2,))])
    with pytest.raises(tf.errors.OpError, match=r"field 'x', file .*: expected shape \(2,\), got \(3,\)"):
        ids(declared)


@pytest.mark.slow
def test_a_consumer_that_keeps_everything_does_not_stall_on_elements_that_fail(tmp_path: Path) -> None:
    many = build(tmp_path, [[300]], names=("id",))
    fails = failing(set(range(0, 300, 3)))

    def wide(row: dict[str, Any]) -> dict[str, Any]:
        return {**fails(row), "x": np.zeros(300)}

    dataset = ParquetDataset(many.url, workers=1).transform(wide, [UnischemaField("x", np.float64, (300,))])
    kept = list(dataset.ignore_errors())
    assert [int(row["id"]) for row in kept] == [number for number in range(300) if number % 3]
    batches = list(dataset.batch(2).ignore_errors())
    assert [batch["id"].numpy().tolist() for batch in batches] == [[n, n + 1] for n in range(4, 300, 6)]
