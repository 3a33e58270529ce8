"""`copy`: copies a dataset like ``parquetry.common.tools.copy``, with one Spark task per stripe.

The resulting files are the same.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..pipeline.pipeline import Pipeline
from ..tools.copy_job import CopyJob
from ..tools.copying import STRIPE_BYTES, CopyReport, Stripe, plan_copy, write_stripe
from .parts import DatasetPart
from .selecting import select
from .session import context_of, run_tasks


def copy(
    spark: object,
    source: str | os.PathLike[str] | Pipeline,
    target: str | os.PathLike[str],
    field_regex: str | Sequence[str] | None = None,
    not_null_fields: str | Sequence[str] = (),
    where: object = None,
    partition_by: str | Sequence[str] | None = None,
    row_group_rows: int | None = None,
    *,
    row_group_bytes: int | None = None,
    files: int = 1,
    overwrite: bool = False,
    petastorm_compatible: bool = False,
    source_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    stripe_bytes: int = STRIPE_BYTES,
) -> CopyReport:
    """Copies a dataset, or part of it, on the executors. They also select the rows.

    The arguments, errors and result are the same as for ``parquetry.common.tools.copy``. If a copy
    is interrupted, call this again to write only what is missing. This also finishes a copy that
    ``parquetry.common.tools.copy`` began.
    """
    context_of(spark, "copy")
    plan = plan_copy(
        source,
        field_regex,
        not_null_fields,
        where,
        partition_by,
        row_group_rows,
        row_group_bytes=row_group_bytes,
        files=files,
        petastorm_compatible=petastorm_compatible,
        source_options=source_options,
        stripe_bytes=stripe_bytes,
        prepare=lambda pipeline: select(spark, pipeline) if pipeline.stages else None,
    )
    job = plan.job(target, target_options, overwrite=overwrite)
    missing = [number for number in range(len(plan.stripes)) if not job.has(number)]
    items = []
    for number in missing:
        row_groups = plan.stripes[number]
        part = DatasetPart(plan.dataset, row_groups)
        items.append((number, plan.stripe(np.arange(len(row_groups)), part, plan.rows.row_groups(row_groups))))
    with job.alone():
        for _ in run_tasks(spark, "copy", _WriteStripe(job), items):
            pass
        return plan.complete(job, len(plan.stripes) - len(missing))


class _WriteStripe:
    """Writes one stripe, in an executor. Other attempts may write it too, or were killed while they did."""

    def __init__(self, job: CopyJob) -> None:
        self._job = job

    def __call__(self, item: tuple[int, Stripe]) -> None:
        number, stripe = item
        if self._job.has(number):  # another attempt finished
            return
        attempt = self._job.attempt(number)
        for _ in write_stripe(stripe, self._job.filesystem, attempt):
            pass
        self._job.accept(number, attempt)
