"""`compute_selection`: computes a pipeline's filters and windows with Spark, and stores the result.

Pipelines find the stored result. Filters work on one row group at a time, so each task evaluates
them on some of the files. Windows depend on earlier rows: the executors read the time stamps and
group keys, and the driver forms the windows. The result is the same as `Pipeline` computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ..engine.read.fetch import Fetcher, fetch_threads
from ..engine.run.selecting import stored_slices, test_rows, tested_rows
from ..errors import PipelineError
from ..memory.arrow_views import from_stream, to_stream
from ..pipeline.pipeline import Pipeline
from ..plan.plan import Plan
from ..process.dataclass import dataclass
from ..schema.field import UnischemaField
from ..selection.rows import RowSet, concat_row_sets
from ..selection.select import ReadStored, evaluate, every_row
from ..selection.selection import Report, Selection
from ..selection.store import load_selection, save_selection, selection_key
from ..stages.base import Stage, stage_from_json
from ..stages.measure import Measure
from ..stages.ngram import Ngram
from ..stages.nulls import Nulls
from ..stages.where import Where, WhereColumn, WhereFunction
from .parts import DatasetPart, whole_files
from .session import context_of, run_tasks

_ROW_STAGES = (Where, WhereColumn, WhereFunction, Nulls)
_TASKS_PER_CORE = 4
_ROOM_BYTES = 256 << 20  # for the columns of a row group


def compute_selection(spark: object, pipeline: Pipeline) -> int:
    """Computes which rows or windows a pipeline selects. Stores them and returns their number.

    The result goes to ``$PARQUETRY_CACHE_DIR/selections`` (or the user's cache directory) on this
    machine. Every pipeline with the same dataset and stages looks for it there, so put that
    directory where all ranks can read it. If a Python function selects rows, the result is not
    stored on disk. Only this pipeline object has it.

    If your dataset has many files, call `write_index` first, because the plan needs the row groups.

    Raises:
        EmptySelectionError: no rows or windows are left.
        TransformError: a predicate function failed. The message names the row.
        DatasetError, PipelineError: the same errors as when you read the pipeline.
    """
    context_of(spark, "compute_selection")
    if not isinstance(pipeline, Pipeline):
        pipeline = getattr(pipeline, "pipeline", pipeline)
    if not isinstance(pipeline, Pipeline):
        raise PipelineError(f"compute_selection: expected a pipeline, got {pipeline!r}.")
    total = 0
    for source in pipeline.leaves:
        total += select(spark, source)
        source.plan().check_not_empty()
    return total


def select(spark: object, pipeline: Pipeline) -> int:
    """Runs `compute_selection` for a pipeline over one dataset. The result may be empty."""
    plan = pipeline.plan()
    assert isinstance(plan, Plan)
    key = selection_key(plan.dataset, plan.selecting)
    selection = load_selection(key, plan.dataset.row_groups.rows) if key is not None else None
    if selection is None:
        cores = context_of(spark, "compute_selection").defaultParallelism
        selection = _compute(spark, plan, _TASKS_PER_CORE * cores)
        if key is not None:
            save_selection(key, selection)
    plan.adopt(selection)
    return selection.num_items


def _compute(spark: object, plan: Plan, tasks: int) -> Selection:
    steps = plan.selecting
    alone = next((number for number, step in enumerate(steps) if not isinstance(step, _ROW_STAGES)), len(steps))
    selection = every_row(plan.dataset)
    parts = whole_files(plan.dataset, tasks)
    if alone and parts:
        selection = _filtered(spark, plan, steps[:alone], selection.rows, parts)
    stored = _StoredColumns(spark, plan, tasks)
    return evaluate(
        plan.dataset,
        steps[alone:],
        read=stored.reader(steps[alone:], selection.rows),
        test=partial(tested_rows, plan.dataset, plan.resolve, room_bytes=_ROOM_BYTES),
        threads=fetch_threads(plan.remote, 32),
        begin=selection,
    )


def _filtered(
    spark: object, plan: Plan, steps: Sequence[Stage], rows: RowSet, parts: Sequence[np.ndarray]
) -> Selection:
    items = [
        _FilterPart(part=DatasetPart(plan.dataset, row_groups), rows=rows.row_groups(row_groups))
        for row_groups in parts
    ]
    found = list(run_tasks(spark, "compute_selection", _Filter([step.to_json() for step in steps]), items))
    chosen = concat_row_sets([selection.rows for selection in found])
    reports = tuple(_sum_of(same) for same in zip(*(selection.reports for selection in found), strict=True))
    return Selection(rows=chosen, starts=None, steps=found[0].steps, reports=reports, matched=chosen.total)


def _sum_of(reports: Sequence[Report]) -> Report:
    numbers = ("row_groups", "pruned", "proven", "read", "read_bytes", "rows_before", "rows_after")
    return replace(reports[0], **{name: sum(getattr(report, name) for report in reports) for name in numbers})


@dataclass(frozen=True, slots=True, kw_only=True)
class _FilterPart:
    part: DatasetPart
    rows: RowSet


class _Filter:
    """Evaluates filters on a part of the dataset, in an executor."""

    def __init__(self, steps: Sequence[dict[str, Any]]) -> None:
        self._steps = steps

    def __call__(self, item: _FilterPart) -> Selection:
        part = item.part

        def test(step: WhereFunction, row_group: int, rows: np.ndarray) -> np.ndarray:
            fields = [part.schema[name] for name in part.match(step.fields)]
            return test_rows(Fetcher(part, fields), fields, step, row_group, rows, room_bytes=_ROOM_BYTES)

        begin = replace(every_row(part), rows=item.rows, matched=item.rows.total)
        steps = [stage_from_json(step) for step in self._steps]
        read = partial(stored_slices, part, room_bytes=_ROOM_BYTES)
        return evaluate(part, steps, read=read, test=test, threads=1, begin=begin)


class _StoredColumns:
    """Columns that the executors read and the driver evaluates."""

    def __init__(self, spark: object, plan: Plan, tasks: int) -> None:
        self._spark = spark
        self._plan = plan
        self._tasks = tasks

    def reader(self, steps: Sequence[Stage], rows: RowSet) -> ReadStored:
        """Returns a function that reads the columns of a row group.

        If the executors have read those columns, to form windows or to measure rows, the function
        returns them. Otherwise it reads from storage.
        """
        step = next((step for step in steps if isinstance(step, Ngram | Measure)), None)
        names = [] if step is None else list(step.reads)
        tables = self._read(names, np.flatnonzero(rows.counts > 0)) if names else {}

        def read(row_group: int, fields: Sequence[UnischemaField]) -> Iterable[pa.Table]:
            if row_group in tables and [field.name for field in fields] == names:
                return [tables[row_group]]
            return stored_slices(self._plan.dataset, row_group, fields, room_bytes=_ROOM_BYTES)

        return read

    def _read(self, names: list[str], row_groups: np.ndarray) -> dict[int, pa.Table]:
        dataset = self._plan.dataset
        parts = [part for part in np.array_split(row_groups, min(self._tasks, max(len(row_groups), 1))) if len(part)]
        items = [DatasetPart(dataset, part) for part in parts]
        result: dict[int, pa.Table] = {}
        for part, tables in zip(
            parts, run_tasks(self._spark, "reading selection columns", _ReadColumns(names), items), strict=True
        ):
            result.update(zip(part.tolist(), map(from_stream, tables), strict=True))
        return result


class _ReadColumns:
    """Reads columns from every row group of a part, in an executor."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def __call__(self, part: DatasetPart) -> list[bytes]:
        fetcher = Fetcher(part, [part.schema[name] for name in self._names])
        return [bytes(to_stream(fetcher.stored(row_group))) for row_group in range(len(part.row_groups))]
