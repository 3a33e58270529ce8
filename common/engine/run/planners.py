"""`planner_of`: the planner of an iteration. `JobPlanner` plans jobs whose failing rows are errors; the planners in
`skipping` and `bucket_skipping` leave such rows out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...base.metrics.counters import Counters
from ...plan.block_reads import BlockRead
from ...plan.bucket_items import BucketItems
from ...plan.order.cursor import Cursor
from ...plan.order.positions import BatchView, consecutive
from ...plan.plan import BasePlan, Plan
from ...plan.program import ElementProgram, MixedProgram
from .bad_rows import bad_rows_of
from .bucket_skipping import BucketSkippingPlanner
from .jobs import Job, JobSizer, Planner
from .skipping import SkippingPlanner


def planner_of(
    plan: BasePlan,
    program: ElementProgram | MixedProgram,
    cursor: Cursor,
    *,
    max_errors: float | None,
    counters: Counters,
    job_sizer: JobSizer,
) -> Planner:
    """Returns the planner of an iteration that runs the program; see `SkippingPlanner`."""
    if not plan.skips:
        return JobPlanner(plan, plan.steps(cursor), cursor.iteration, start=cursor.start, job_sizer=job_sizer)
    fills_batches = isinstance(plan, Plan) and isinstance(plan.items, BucketItems)
    kind = BucketSkippingPlanner if fills_batches else SkippingPlanner
    bad = bad_rows_of(plan, program)
    return kind(plan, cursor, bad=bad, max_errors=max_errors, counters=counters, job_sizer=job_sizer)


class JobPlanner(Planner):
    """The jobs of one iteration, in order.

    Args:
        start: the number of elements before the first job.
        job_sizer: how many steps a job may hold; ``None`` = one. It merges full batches, and those that differ in size.
    """

    def __init__(
        self, plan: BasePlan, steps: BatchView, iteration: int, *, start: int = 0, job_sizer: JobSizer | None = None
    ) -> None:
        self._plan = plan
        self._steps = steps
        self._length = steps.length
        self._iteration = iteration
        self.job_sizer = job_sizer or JobSizer()
        self._next_step = 0
        self._number = 0
        self._first = start

    def __next__(self) -> Job:
        if self._length is not None and self._next_step >= self._length:
            raise StopIteration
        steps = min(self.job_sizer.steps, self._steps.run(self._next_step))
        job = self._of_consecutive_rows(steps) or self._of_any_rows(steps)
        self.job_sizer.planned(steps, len(job.reads))
        self._next_step += steps
        self._number += 1
        self._first += job.elements
        return job

    def finish(self) -> None:
        self._plan.check_unchanged()

    def _of_consecutive_rows(self, steps: int) -> Job | None:
        """Plans the usual job without a number for each row, which would take longer than copying a narrow row."""
        if steps > 1 and self._plan.has_uneven_batches:
            return None
        rows = consecutive(self._steps, self._next_step, self._next_step + steps)
        reads = None if rows is None else self._plan.reads_between(self._iteration, rows)
        if rows is None or reads is None:
            return None
        count = rows.last - rows.first
        return self._job(steps, count, count, reads)

    def _of_any_rows(self, steps: int) -> Job:
        passes, index = self._steps.rows(self._next_step, steps)
        reads = self._plan.reads(self._iteration, passes, index)
        bounds: tuple[int, ...] = ()
        if steps > 1 and self._plan.has_uneven_batches:
            sizes = self._plan.item_rows(self._iteration, passes, index).reshape(steps, -1).sum(axis=1)
            bounds = (0, *np.cumsum(sizes).tolist())
        return self._job(steps, len(index), self._plan.rows_of_reads(reads, len(index)), reads, bounds)

    def _job(self, steps: int, items: int, count: int, reads: Sequence[BlockRead], bounds: tuple[int, ...] = ()) -> Job:
        elements = items if self._plan.batch_view is None else steps
        return Job(
            number=self._number,
            steps=steps,
            count=count,
            elements=elements,
            reads=tuple(reads),
            first=self._first,
            bounds=bounds,
        )
