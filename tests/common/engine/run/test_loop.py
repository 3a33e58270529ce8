"""An error of planning comes at its place, unless an earlier job is planned again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Condition
from types import SimpleNamespace
from typing import Any

import pytest
from builders import build

from parquetry.common.base.errors import DecodeError, PipelineError
from parquetry.common.base.metrics.counters import Counters
from parquetry.common.engine.run.block_store import BlockStore
from parquetry.common.engine.run.jobs import Job, JobSizer
from parquetry.common.engine.run.loop import JobLoop
from parquetry.common.engine.run.planners import JobPlanner


class FailingPlanner(JobPlanner):
    """Plans one job, then fails until it plans again, and is over then."""

    def __init__(self) -> None:
        self.jobs = [Job(number=0, steps=1, count=1, elements=1, reads=())]
        self.job_sizer = JobSizer()
        self.skips = self.is_over = False

    def __next__(self) -> Job:
        if self.is_over:
            raise StopIteration
        if self.jobs:
            return self.jobs.pop()
        raise PipelineError("nothing to plan")

    def plan_again(self, job: Job, find: Callable[[], list[Any]]) -> bool:
        self.is_over = self.skips
        return self.skips

    def finish(self) -> None:
        """Nothing was read."""


class OneJob:
    """A maker whose only job is done, or has failed."""

    def __init__(self, error: Exception | None) -> None:
        self.changed = Condition()
        self._future: Future[Any] = Future()
        if error is None:
            self._future.set_result(SimpleNamespace(num_bytes=1))
        else:
            self._future.set_exception(error)

    def begin(self, *_: Any) -> None:
        """Nothing counts."""

    def has_room(self, *, is_retry: bool = False) -> bool:
        return True

    def submit(self, *_: Any) -> Future[Any]:
        return self._future

    def drop(self, *_: Any) -> None:
        """Nothing is held."""

    def held_bytes(self, *_: Any) -> int:
        return 0

    def close(self) -> None:
        """Nothing runs."""


def loop_of(tmp_path: Path, planner: FailingPlanner, error: Exception | None) -> JobLoop[Any]:
    plan = build(tmp_path / "rows", [[4]]).pipeline().plan()
    store, maker = BlockStore(plan, [], threads=1, memory_limit=1, finish=lambda *_: None), OneJob(error)
    fake: Any = maker
    return JobLoop(planner, store, fake, rebatcher=None, ahead=2, counters=Counters())


@pytest.mark.parametrize("error", [None, DecodeError("a row")])
def test_an_error_of_planning_comes_after_the_jobs_before_it(tmp_path: Path, error: Exception | None) -> None:
    loop = loop_of(tmp_path, FailingPlanner(), error)
    delivery = next(loop)
    assert (delivery.made is None, delivery.error) == (error is not None, error)
    with pytest.raises(PipelineError, match="nothing to plan"):
        next(loop)


def test_planning_continues_after_an_error_if_an_earlier_job_is_planned_again(tmp_path: Path) -> None:
    planner = FailingPlanner()
    planner.skips = True
    loop = loop_of(tmp_path, planner, DecodeError("a row"))
    assert list(loop) == []
