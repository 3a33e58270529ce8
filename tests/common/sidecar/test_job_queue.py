"""A sidecar's job queue continues after a planning error, if an earlier job is planned again."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import build

from parquetry.common.counting.counters import Counters
from parquetry.common.engine.run.jobs import Job
from parquetry.common.engine.run.skipping import SkippingPlanner
from parquetry.common.errors import PipelineError
from parquetry.common.sidecar.connection import SlotPool
from parquetry.common.sidecar.job_queue import JobQueue, NoMoreJobs, PlanningFailed, RunningJob


class FailingPlanner(SkippingPlanner):
    """Fails to plan until it is rewound, and is over then."""

    def __init__(self) -> None:
        self.is_rewound = False

    def __next__(self) -> Job:
        if self.is_rewound:
            raise StopIteration
        raise PipelineError("nothing to plan")

    def rewind(self, job: Job) -> None:
        self.is_rewound = True


@pytest.mark.timeout(60)
def test_planning_continues_after_an_error_if_an_earlier_job_is_planned_again(tmp_path: Path) -> None:
    plan, planner = build(tmp_path / "rows", [[4]]).pipeline().plan(), FailingPlanner()
    runner: Any = SimpleNamespace(finish=None, discard=None, order_of=None, begin=lambda counters, token: None)
    prepared: Any = SimpleNamespace(runner=runner, fetchers=[], workers=1, memory_limit=1)
    client: Any = None
    queue = JobQueue(
        SlotPool(client),
        prepared,
        plan,
        planner,
        first=0,
        most_slots=2,
        private=False,
        counters=Counters(),
        workers=1,
    )
    queue.start()
    try:
        first = queue.next()
        assert isinstance(first, PlanningFailed)
        assert isinstance(first.error, PipelineError)
        job: Any = None
        slot: Any = None
        queue.plan_again(RunningJob(future=Future(), job=job, handles=[], slot=slot, first=0), planner)
        assert isinstance(queue.next(), NoMoreJobs)
    finally:
        queue.close()
