"""Combined stages in pipes, nodes and loaders: equal steps, elastic order, errors with their location."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from builders import Built, build, built_once
from ids import check_parts
from torch.utils.data import DataLoader

from parquetry.common import UnischemaField
from parquetry.common.base.errors import DatasetError, EmptySelectionError, TransformError
from parquetry.torch_plugin import ParquetNode, ParquetPipe

FACES = [ParquetPipe, ParquetNode]
built = built_once([[4, 1, 5], [3], [0], [2, 6, 2], [], [7]], names=("id", "ts"))


def over(face: Any, built: Built) -> Any:
    return face(built.url, ["id"], executor="threads", workers=2)


def ids(elements: Any) -> list[list[int]]:
    return [np.atleast_1d(element["id"].numpy()).tolist() for element in elements]


def length(carrier: Any) -> int:
    return len(carrier.pipeline)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("left", [1, 2, 9, 30])
@pytest.mark.parametrize("even", ["pad", "drop", "none"])
def test_ranks_take_equal_steps_whatever_a_filter_leaves(built: Built, face: Any, left: int, even: str) -> None:
    ranks = 4
    parts = [
        over(face, built).where(pc.field("id") < left).shuffle(6, seed=2).shard(ranks, rank, even=even).batch(2)
        for rank in range(ranks)
    ]
    if even == "drop" and left < ranks:
        with pytest.raises(EmptySelectionError, match=r"even='drop' leaves nothing, because .* Use even='pad'"):
            list(parts[0])
        return
    check_parts([ids(part) for part in parts], [length(part) for part in parts], left, even)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("shard_first", [True, False])
def test_a_global_batch_is_the_same_on_any_number_of_ranks_and_loader_workers(
    built: Built, workers: int, shard_first: bool
) -> None:
    canonical, rows = 6, 12

    def global_batches(ranks: int, num_workers: int) -> list[Counter[int]]:
        together: list[Counter[int]] = []
        for rank in range(ranks):
            pipe = over(ParquetPipe, built)
            shard = {"even": "pad", "canonical_shards": canonical}
            if shard_first:
                pipe = pipe.shard(ranks, rank, **shard).shuffle(5, seed=3)
            else:
                pipe = pipe.shuffle(5, seed=3).shard(ranks, rank, **shard)
            pipe = pipe.batch(rows // ranks)
            pipe.set_epoch(1)
            for step, batch in enumerate(ids(DataLoader(pipe, batch_size=None, num_workers=num_workers))):
                together += [Counter()] * (step + 1 - len(together))
                together[step] = together[step] + Counter(batch)
        return together

    reference = global_batches(1, 0)
    assert sum(map(len, reference)) == 30
    for ranks in (1, 2, 3, 6):
        assert global_batches(ranks, workers if ranks < 6 else 0) == reference


def failing() -> Any:
    """Returns a function that is pickled by value, so a sidecar does not import this module and torch."""

    def fails_on_seven(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == 7:
            raise KeyError("seven")
        return row

    return fails_on_seven


BROKEN = (
    r"(?s)transform .*fails_on_seven failed for file .*part-000\.parquet, row group 2, row 2: KeyError\('seven'\).*"
    r"Traceback.*line \d+, in fails_on_seven"
)


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
@pytest.mark.parametrize("face", FACES)
def test_a_function_that_fails_is_reported_with_its_row_and_traceback(built: Built, face: Any, executor: str) -> None:
    broken = over(face, built).with_options(executor=executor).transform(failing()).batch(3)
    with pytest.raises(TransformError, match=BROKEN):
        list(broken)


def test_a_function_that_fails_in_a_loader_worker_is_reported_with_its_row_and_traceback(built: Built) -> None:
    broken = over(ParquetPipe, built).transform(failing()).batch(3)
    with pytest.raises(TransformError, match=BROKEN):
        list(DataLoader(broken, batch_size=None, num_workers=2))


@pytest.mark.parametrize("face", FACES)
def test_a_wrong_output_and_a_wrong_time_stamp_are_reported_in_every_face(tmp_path: Path, face: Any) -> None:
    wrong = build(tmp_path, [[3], [2, 4]], names=("id", "ts"), change=lambda row: {**row, "ts": -row["ts"]})
    windows = over(face, wrong).ngram(length=2, timestamp="ts")
    with pytest.raises(DatasetError, match=r"part-000\.parquet, row group 0, row 1: expected timestamps in 'ts' that"):
        list(windows)
    declared = over(face, wrong).transform(
        lambda row: {**row, "x": np.zeros(3)}, [UnischemaField("x", np.float64, (2,))]
    )
    with pytest.raises(TransformError, match=r"field 'x', file .*: expected shape \(2,\), got \(3,\)"):
        list(declared)
