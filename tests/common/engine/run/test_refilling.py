"""Batches of ``bucket`` without failing rows hold what a plain model of queues says, from every state."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common import Pipeline
from parquetry.common.counting.counters import Counters
from parquetry.common.engine.run.bad_rows import bad_rows_of
from parquetry.common.errors import PipelineError
from parquetry.common.order.cursor import Cursor
from parquetry.common.pipeline.iteration import StepIterator
from parquetry.common.plan.bucket_items import BucketItems
from parquetry.common.plan.plan import Plan

Batch = list[int]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "kept"))


@contextmanager
def rows(lengths: list[int], row_group_size: int) -> Iterator[str]:
    """Rows with an id and a length."""
    directory = Path(tempfile.mkdtemp())
    try:
        table = pa.table({"id": pa.array(range(len(lengths)), pa.int64()), "n": pa.array(lengths, pa.int64())})
        pq.write_table(table, directory / "rows.parquet", row_group_size=row_group_size)
        yield str(directory / "rows.parquet")
    finally:
        shutil.rmtree(directory)


def without(pipeline: Pipeline, bad: set[int], iteration: int, worker: int, workers: int) -> list[Batch] | None:
    """Returns the batches of a loader worker without the bad rows; ``None`` if none could ever come."""
    plan = pipeline.plan()
    assert isinstance(plan, Plan)
    lane = plan.lane(Cursor(worker=worker, workers=workers))
    places = _places(plan, iteration, worker, workers)
    batches = [(name, ids) for name, ids in _repeated(places, lane.length if plan.keeps_step else None, bad)]
    wanted = lane.length if plan.keeps_step else None
    if wanted and not any(set(ids) - bad for _, ids in places):
        return None
    return [ids for _, ids in batches][:wanted]


def _repeated(
    places: list[tuple[tuple[int, ...], Batch]], wanted: int | None, bad: set[int]
) -> list[tuple[tuple[int, ...], Batch]]:
    found: list[tuple[tuple[int, ...], Batch]] = []
    while True:
        found += _refilled(places, bad)
        if wanted is None or len(found) >= wanted or not found:
            return found


def _refilled(places: list[tuple[tuple[int, ...], Batch]], bad: set[int]) -> list[tuple[tuple[int, ...], Batch]]:
    """Fills the places in turn from the queue of their bucket and block."""
    queues: dict[tuple[int, ...], Batch] = {}
    for name, ids in places:
        queues.setdefault(name, []).extend(ids)
    size, broken, result = {name: name[-1] for name in queues}, set(), []
    left = Counter(name for name, _ in places)
    for name, ids in places:
        queue, left[name] = queues[name], left[name] - 1
        if name not in broken and not bad & set(ids):
            taken = [queue.pop(0) for _ in ids]
        else:
            broken.add(name)
            taken = []
            while queue and (len(taken) < size[name] or not left[name]):
                row = queue.pop(0)
                taken += [row] if row not in bad else []
        if taken:
            result.append((name, taken))
    return result


def _places(plan: Plan, iteration: int, worker: int, workers: int) -> list[tuple[tuple[int, ...], Batch]]:
    """Returns the ids of each batch of a loader worker, with the name of its queue, which ends with the full size."""
    lane, items = plan.lane(Cursor(worker=worker, workers=workers)), plan.items
    assert isinstance(items, BucketItems)
    passes, index = lane.resolve(np.arange(lane.length or 0))
    found = []
    for number, at in zip(passes.tolist(), index.tolist(), strict=True):
        order = plan.epoch_order(plan.epoch_of(iteration, number))
        stream, turn, block, bucket, _, _ = items.places(order, np.array([at]))[0].tolist()
        (draw,) = plan.draws(iteration, np.array([number]), np.array([at]))
        block_rows = plan.block_rows(draw.key)
        group_rows = np.concatenate(
            [
                np.asarray(inside) + int(plan.dataset.row_groups.rows[:group].sum())
                for group, inside in zip(block_rows.row_groups, block_rows.rows, strict=True)
            ]
        )
        ids = group_rows[block_rows.cells_of(draw.items)[:, 0]].tolist()
        found.append(((number, stream, turn, block, bucket, int(items.sizes[bucket])), ids))
    return found


def taken(steps: StepIterator[Any], most: int | None = None) -> list[Batch]:
    found: list[Batch] = []
    for _, columns in steps:
        names = [output.name for output in steps.element.outputs]
        found.append(np.asarray(columns[names.index("id")].values).tolist())
        if len(found) == most:
            break
    return found


@examples(60)
@given(data=st.data())
def test_batches_are_filled_from_the_queue_of_their_bucket(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=60), "lengths")
    bad = data.draw(st.sets(st.integers(0, len(lengths) - 1), max_size=len(lengths)), "rows that fail")
    known = data.draw(st.sets(st.sampled_from(sorted(bad)) if bad else st.nothing()), "rows known to fail")
    executor = data.draw(st.sampled_from(["threads", "threads", "threads", "sidecar"]), "executor")
    batched, workers = data.draw(st.booleans(), "a function of batches"), data.draw(st.integers(1, 3), "workers")

    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if bad.intersection(np.atleast_1d(batch["id"]).tolist()):
            raise KeyError("a bad row")
        return batch

    with rows(lengths, data.draw(st.integers(1, 20), "row_group_size")) as url:
        base = Pipeline(url, ["id", "n"], executor=executor, workers=2, on_error="skip")
        if data.draw(st.booleans(), "shuffled"):
            base = base.shuffle(data.draw(st.integers(1, 30), "buffer"), seed=data.draw(st.integers(0, 9), "seed"))
        sizes = data.draw(st.sampled_from([{"batch_size": 4}, {"batch_sizes": [5, 2, 1]}, {"max_tokens": 20}]), "sizes")
        base = base.bucket("n", [3, 6], **sizes)
        ranks = data.draw(st.sampled_from([None, (2, "pad"), (2, "drop"), (3, "none")]), "ranks")
        if ranks is not None:
            base = base.shard(ranks[0], data.draw(st.integers(0, 1)), even=ranks[1])
        if data.draw(st.booleans(), "cut"):
            base = base.skip(1).take(7)
        base = base.repeat(data.draw(st.sampled_from([1, 1, 2]), "passes"))
        pipeline = base.transform(fail, batched=batched)
        if pipeline.plan().length == 0:
            return
        if executor == "threads":
            for row in known:  # which of them are known in advance changes nothing
                _know(pipeline.plan(), row, url)
        for iteration in range(2):
            for worker in range(workers):
                expected = without(base, bad, iteration, worker, workers)
                steps: StepIterator[Any] = StepIterator(
                    pipeline, iteration, strict_nulls=False, worker=worker, workers=workers
                )
                if expected is None:
                    with pytest.raises(PipelineError, match="expected a row that does not fail, got none"):
                        taken(steps)
                    continue
                assert taken(steps) == expected
        _check_resumed(data, pipeline, expected or [], iteration, worker, workers)


def _know(plan: Any, row: int, url: str) -> None:
    from parquetry.common.engine.run.bad_rows import Failure, Row

    groups = np.concatenate([[0], np.cumsum(plan.dataset.row_groups.rows)])
    group = int(np.searchsorted(groups, row, side="right")) - 1
    bad = bad_rows_of(plan, strict_nulls=False)
    bad.known = {**bad.known, Row(0, group, row - int(groups[group])): Failure("TransformError", "known")}
    bad._forget_derived()


def _check_resumed(
    data: st.DataObject, pipeline: Pipeline, expected: list[Batch], iteration: int, worker: int, workers: int
) -> None:
    """A fresh pipeline, which knows of no bad row, goes on from a state at the exact element."""
    if not expected:
        return
    steps = data.draw(st.integers(1, len(expected)), "steps")
    first: StepIterator[Any] = StepIterator(
        pipeline, iteration, strict_nulls=False, worker=worker, workers=workers, counters=Counters()
    )
    assert taken(first, steps) == expected[:steps]
    anew = pipeline.with_stages(pipeline.stages)
    resumed: StepIterator[Any] = StepIterator(anew, 0, strict_nulls=False, worker=worker, workers=workers)
    resumed.restore(first.state(first.position))
    assert taken(resumed) == expected[steps:]
