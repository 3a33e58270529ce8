"""Batches of ``bucket`` without failing rows equal those of a plain model of queues, from every state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import directory
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples
from refills import Batch, left_out, without

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError, StateError
from parquetry.common.base.metrics.counters import Counters
from parquetry.common.engine.run.bad_rows import Failure, Row, bad_rows_of
from parquetry.common.pipeline.step_iterator import StepIterator


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "kept"))


@contextmanager
def rows(lengths: list[int], row_group_size: int) -> Iterator[str]:
    """Rows with an id and a length."""
    with directory() as root:
        table = pa.table({"id": pa.array(range(len(lengths)), pa.int64()), "n": pa.array(lengths, pa.int64())})
        pq.write_table(table, root / "rows.parquet", row_group_size=row_group_size)
        yield str(root / "rows.parquet")


def taken(steps: StepIterator[Any], most: int | None = None) -> list[Batch]:
    found: list[Batch] = []
    for _, columns in steps:
        names = [output.name for output in steps.element.outputs]
        found.append(np.asarray(columns[names.index("id")].values).tolist())
        if len(found) == most:
            break
    return found


many = st.lists(st.integers(1, 9), min_size=40, max_size=60)


@pytest.mark.slow
@examples(40)
@given(data=st.data())
def test_batches_are_filled_from_the_queue_of_their_bucket(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=60) | many, "lengths")
    share = data.draw(st.sampled_from([0.0, 0.05, 0.2, 0.5, 1.0]), "share of rows that fail")
    chance = np.random.default_rng(data.draw(st.integers(0, 99), "which")).random(len(lengths))
    bad = set(np.flatnonzero(chance < share).tolist())
    known = data.draw(st.sets(st.sampled_from(sorted(bad)) if bad else st.nothing()), "rows known to fail")
    batched, workers = data.draw(st.booleans(), "a function of batches"), data.draw(st.integers(1, 3), "workers")

    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if bad.intersection(np.atleast_1d(batch["id"]).tolist()):
            raise KeyError("a bad row")
        return batch

    with rows(lengths, data.draw(st.integers(1, 12), "row_group_size")) as url:
        base = Pipeline(url, ["id", "n"], executor="threads", workers=2, on_error="skip")
        if data.draw(st.booleans(), "shuffled"):
            base = base.shuffle(data.draw(st.integers(1, 25), "buffer"), seed=data.draw(st.integers(0, 9), "seed"))
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
        for row in known:  # which of them are known in advance changes nothing
            _know(pipeline.plan(), row)
        for iteration in range(2):
            for worker in range(workers):
                expected = without(base, bad, iteration, worker, workers)
                steps: StepIterator[Any] = StepIterator(
                    pipeline, iteration, strict_nulls=False, worker=worker, workers=workers
                )
                if expected is None:
                    with pytest.raises(PipelineError, match=r"all of \d+ consecutive batches failed"):
                        taken(steps)
                    continue
                assert taken(steps) == expected
                if not pipeline.plan().keeps_step:
                    assert steps.stats().skipped_rows == left_out(base, bad, iteration, worker, workers)
        _check_resumed(pipeline, expected or [], iteration, worker, workers)


def _know(plan: Any, row: int) -> None:
    """Notes that a row fails. Without a shuffle and a measure, row n is item n of the block of its row group."""
    groups = np.concatenate([[0], np.cumsum(plan.dataset.row_groups.rows)])
    group = int(np.searchsorted(groups, row, side="right")) - 1
    bad = bad_rows_of(plan, plan.program)
    bad._learn({Row(0, group, row - int(groups[group])): Failure("TransformError", "known")})


def _check_resumed(pipeline: Pipeline, expected: list[Batch], iteration: int, worker: int, workers: int) -> None:
    """A fresh pipeline, which knows of no bad row, resumes from any state at the exact element."""
    first: StepIterator[Any] = StepIterator(
        pipeline, iteration, strict_nulls=False, worker=worker, workers=workers, counters=Counters()
    )
    for steps in range(1, len(expected) + 1):
        assert taken(first, 1) == expected[steps - 1 : steps]
        if steps % 3 and steps < len(expected):
            continue
        anew = pipeline.with_stages(pipeline.stages)
        resumed: StepIterator[Any] = StepIterator(anew, 0, strict_nulls=False, worker=worker, workers=workers)
        resumed.restore(first.state(first.position))
        assert taken(resumed) == expected[steps:]


@pytest.mark.parametrize("executor", ["threads", pytest.param("sidecar", marks=pytest.mark.slow)])
def test_a_bucket_has_a_length_once_it_is_known_that_no_row_fails(executor: str) -> None:
    with rows([1, 7, 2, 5, 9, 4, 4], 3) as url:
        pipeline = Pipeline(url, ["id", "n"], executor=executor, on_error="skip").bucket("n", [4], batch_size=2)
        with pytest.raises(TypeError, match=r"Batches of bucket\(\) are known only if no row fails"):
            len(pipeline)
        found = list(pipeline)
        assert len(pipeline) == len(found) == 4
        assert len(pipeline.shard(2, 0)) == 2


def test_a_batch_that_a_rank_gives_again_is_not_filled_with_its_own_rows() -> None:
    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if 9 in batch["id"]:
            raise ValueError("no")
        return batch

    with rows([4] * 12, 20) as url:  # three batches for two ranks, so the second gives its only one twice
        base = Pipeline(url, ["id", "n"], executor="threads", on_error="skip").bucket("n", [4], batch_size=4)
        found = [batch["id"].tolist() for batch in base.shard(2, 1, even="pad").transform(fail)]
    assert found == [[8, 10, 11], [8, 10, 11]]


def test_a_state_of_a_refilled_bucket_is_small_and_names_what_is_ahead() -> None:
    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if (batch["id"] % 3 == 1).any():
            raise ValueError("no")
        return batch

    with rows([4] * 40 + [9] * 2, 20) as url:
        pipeline = Pipeline(url, ["id", "n"], executor="threads", on_error="skip")
        iterator = iter(pipeline.bucket("n", [4], batch_size=5).transform(fail))
        assert next(iterator)["id"].tolist() == [0, 2, 3, 5, 6]
        state = iterator.state_dict()
        assert (state["consumed"], state["skipped"], state["ahead"]) == (1, 2, [[0, 0, 0, 0, 0, 0, 2]])
        assert next(iterator)["id"].tolist() == [8, 9, 11, 12, 14]
        assert [batch["id"].tolist() for batch in iterator][-2:] == [[38, 39], [41]]
        state = iterator.state_dict()
        assert (state["skipped"], state["batches"], "ahead" in state) == (14, 2, False)
        for wrong in ([[1, 2]], [[0, 0, 0, 0, 0, 0, -1]], [3], "x"):
            with pytest.raises(StateError, match="state: expected"):
                iter(pipeline.bucket("n", [4], batch_size=5).transform(fail)).load_state_dict({**state, "ahead": wrong})


@pytest.mark.parametrize("members", [{"batches": 3}, {"ahead": [[0, 0, 0, 0, 0, 0, 2]]}])
def test_a_state_of_another_chain_leaves_out_no_batches(members: dict[str, Any]) -> None:
    with rows([4] * 20, 20) as url:
        pipeline = Pipeline(url, ["id"], executor="threads", on_error="skip").batch(5)
        state = iter(pipeline).state_dict()
        iter(pipeline).load_state_dict(state)
        with pytest.raises(StateError, match=r"expected a pipeline with bucket\(\)"):
            iter(pipeline).load_state_dict({**state, **members})


def test_a_bucket_counts_each_bad_row_once_and_stops_at_max_errors() -> None:
    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if np.isin(batch["id"], (2, 3, 11, 19)).any():
            raise ValueError("no")
        return batch

    with rows([4] * 20, 20) as url:
        base = Pipeline(url, ["id", "n"], executor="threads", on_error="skip").bucket("n", [4], batch_size=4)
        for most in (None, 4, 0.2):
            iterator = iter(base.with_options(max_errors=most).transform(fail))
            assert sum(len(batch["id"]) for batch in iterator) == 16
            assert (iterator.stats().skipped_transform, iterator.stats().skipped_rows) == (4, 4)
        with pytest.raises(PipelineError, match=r"max_errors=0\.15: expected at most 3 rows of an epoch to fail"):
            list(base.with_options(max_errors=0.15).transform(fail))
