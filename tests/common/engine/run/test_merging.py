"""Small steps are made together, but the first one does not wait for others."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from spies import spied

from parquetry.common import Pipeline
from parquetry.common.engine.read.fetch import Fetcher
from parquetry.common.engine.run.jobs import JobSizer
from parquetry.common.engine.run.threads import ThreadedEngine
from parquetry.common.pipeline.step_iterator import StepIterator

BATCH, BLOCKS = 8, 200
MANY = 128


@pytest.fixture
def blocks(tmp_path: Path) -> str:
    """Writes row groups of one batch each."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"x": range(BLOCKS * BATCH)}), path, row_group_size=BATCH)
    return str(path)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row groups that are read."""
    return spied(monkeypatch, Fetcher, "fetch", lambda fetcher, row_group, *_: row_group)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_the_first_batch_waits_for_few_blocks(blocks: str, read: list[int], on_error: str) -> None:
    iterator = iter(Pipeline(blocks, executor="threads", workers=1, on_error=on_error).batch(BATCH))
    first = next(iterator)
    before = len(read)
    rest = list(iterator)
    assert before < MANY // 4
    assert len(read) >= BLOCKS
    numbers = [number for batch in [first, *rest] for number in batch["x"].tolist()]
    assert numbers == list(range(BLOCKS * BATCH))


def steps_of(merging: JobSizer, jobs: int, *, step_bytes: int = 1, blocks_per_step: float = 0) -> list[int]:
    """Returns the number of steps of each job; a job is planned once the one before it is made."""
    found = []
    for _ in range(jobs):
        steps = merging.steps
        merging.planned(steps, int(steps * blocks_per_step))
        merging.made(steps, steps * step_bytes)
        found.append(steps)
    return found


def test_jobs_grow_from_one_step_to_the_most_that_bytes_and_blocks_allow() -> None:
    assert steps_of(JobSizer(), 3) == [1, 1, 1]
    assert steps_of(JobSizer(20, 1 << 20), 7) == [1, 2, 4, 8, 16, 20, 20]
    assert steps_of(JobSizer(MANY, 100), 6, step_bytes=10) == [1, 2, 4, 8, 10, 10]
    assert steps_of(JobSizer(MANY, 100), 3, step_bytes=1000) == [1, 1, 1]
    assert steps_of(JobSizer(MANY, 1 << 20), 6, blocks_per_step=1) == [1, 2, 4, 8, 8, 8]
    assert steps_of(JobSizer(MANY, 1 << 20), 3, blocks_per_step=16) == [1, 1, 1]


def test_jobs_grow_once_for_those_that_were_planned_before() -> None:
    merging = JobSizer(MANY, 1 << 20)
    for _ in range(5):
        merging.made(1, 1)
    assert merging.steps == 2


@pytest.mark.parametrize(("fields", "ahead"), [(4, 5), (40, 2)])
def test_fewer_jobs_are_ready_if_they_are_large(tmp_path: Path, fields: int, ahead: int) -> None:
    table = pa.table({f"x{number}": np.zeros(20_000, np.float32) for number in range(fields)})
    pq.write_table(table, tmp_path / "x.parquet")
    pipeline = Pipeline(tmp_path / "x.parquet", workers=2, memory_limit=1 << 30).batch(1024).repeat()
    engine = ThreadedEngine(StepIterator(pipeline, 0, strict_nulls=False)._request())
    next(engine)
    assert len(engine._loop._jobs) + 1 == ahead
    engine.close()


def test_jobs_that_are_ready_and_the_current_one_take_half_of_the_memory(tmp_path: Path) -> None:
    table = pa.table({f"x{number}": np.zeros(20_000, np.float32) for number in range(40)})
    pq.write_table(table, tmp_path / "x.parquet")
    limit = 4 << 20
    pipeline = Pipeline(tmp_path / "x.parquet", workers=2, memory_limit=limit).batch(256).repeat()
    with closing(ThreadedEngine(StepIterator(pipeline, 0, strict_nulls=False)._request())) as engine:
        taken = []
        for _ in range(300):  # jobs grow to the largest size, and are smaller where a pass ends
            next(engine)
            taken.append(engine._loop._maker.held_bytes(len(engine._loop._jobs) + 1))
    assert limit // 5 < max(taken) <= limit // 2
