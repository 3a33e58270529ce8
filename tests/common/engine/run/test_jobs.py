"""A job of consecutive rows is planned without a number for each of them, and is the same job."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from chains import KEPT, chains, dataset, layouts
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common import Pipeline
from parquetry.common.engine.run.jobs import Job, JobSizer
from parquetry.common.engine.run.planners import JobPlanner
from parquetry.common.plan.order.cursor import Cursor

VIEWS = ("where", "shuffle", "batch", "take", "skip", "repeat", "shard", "weigh", "bucket")
MOST_JOBS = 40


def planned(pipeline: Pipeline, workers: int, most: int, *, with_numbers: bool) -> Sequence[Job]:
    """Plans the jobs of the first worker, of up to ``most`` steps each."""
    plan, cursor = pipeline.plan(), Cursor(iteration=1, worker=0, workers=workers)
    job_sizer = JobSizer(most, 1 << 20)
    planner = JobPlanner(plan, plan.steps(cursor), 1, job_sizer=job_sizer)
    if with_numbers:
        planner._of_consecutive_rows = lambda steps: None  # type: ignore[method-assign]
    found = []
    for job in planner:
        job_sizer.made(job.steps, 0)
        found.append(job)
        if len(found) == MOST_JOBS:
            break
    return found


def compared(job: Job) -> object:
    """Returns all that matters of a job; ``None`` for places is all places in order."""
    reads = []
    for read in job.reads:
        items, places = read.items, np.arange(len(read.items)) if read.places is None else read.places
        if read.is_consecutive:
            assert (np.diff(items) == 1).all()
            assert (np.diff(places) == 1).all()
        reads.append((read.key, items.tolist(), places.tolist(), read.pass_number, read.spans))
    return job.number, job.steps, job.count, job.elements, job.bounds, reads


@pytest.mark.slow
@given(st.data())
def test_jobs_are_the_same_with_and_without_a_number_for_each_row(data: st.DataObject) -> None:
    with dataset(data.draw(layouts, "files")) as built:
        pipeline = Pipeline(built.url)
        for call in data.draw(chains(KEPT, "x", VIEWS), "calls"):
            pipeline = call.on(pipeline)
        workers, most = data.draw(st.integers(1, 3), "workers"), data.draw(st.integers(1, 9), "most")
        fast = planned(pipeline, workers, most, with_numbers=False)
        assert [*map(compared, fast)] == [*map(compared, planned(pipeline, workers, most, with_numbers=True))]


def test_most_jobs_of_a_shuffled_epoch_are_of_consecutive_rows() -> None:
    with dataset([[10, 10, 10], [10, 10]]) as built:
        pipeline = Pipeline(built.url).shuffle(20, seed=1).take(44).repeat(2).batch(6)
        jobs = planned(pipeline, 1, 3, with_numbers=False)
    assert sum(job.steps for job in jobs) == 15
    assert max(job.steps for job in jobs) == 3
    assert [all(read.is_consecutive for read in job.reads) for job in jobs].count(False) == 1, "that of both passes"
