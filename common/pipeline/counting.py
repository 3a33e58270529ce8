"""`count_lengths`: counts the lengths of fields that functions make, in one pass over the selected rows.

The pass is an iteration of a pipeline in storage order, so the functions run where they would run in an epoch: in
threads, or in worker processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ..base.errors import ELEMENT_ERRORS, DatasetError, ParquetryError, PipelineError
from ..base.progress import progress
from ..dataset.dataset import StoredDataset
from ..engine.columns.arrow_columns import to_arrow
from ..engine.columns.batch import Column, by_output
from ..engine.run.step_source import split_columns
from ..plan.plan import BasePlan
from ..plan.selection.refused import RefusedRows, refused_by
from ..plan.selection.select import without_refused
from ..plan.selection.selection import Report, Selection
from ..schema.element import Element
from ..stages.measure import MadeLengths
from ..stages.select import Select
from .step_iterator import Iterated, StepIterator


def count_lengths(
    like: Iterated, dataset: StoredDataset, selection: Selection, measure: MadeLengths
) -> tuple[Selection, bool]:
    """Returns the selection with the lengths of its rows, without the rows that cannot be measured if they may be left
    out. Then whether they last as long as the dataset's version; it says nothing about videos.

    Args:
        like: a pipeline over the dataset, on which errors raise.

    Raises:
        PipelineError: the lengths depend on random numbers.
        ParquetryError: a function failed, or a length is not allowed; names the row.
    """
    names = measure.reads
    pipeline: Iterated = like.with_stages((*measure.stages, Select.of(names)))
    plan = pipeline.plan()
    if plan.program.draws_numbers:
        raise PipelineError(
            f"{measure.called}: expected lengths of {names} that are the same in every pass, got ones that may depend "
            "on random numbers. Call the verbs that draw them after those that need the lengths."
        )
    total = selection.num_items
    if plan.length != total:
        raise DatasetError(
            f"{measure.called}: expected to count {total:,} rows, got {plan.length}. A function in where() must keep "
            "the same rows each time."
        )
    steps = StepIterator(pipeline, 0, strict_nulls=False, converter=split_columns)
    counter = _Counter(dataset, selection, measure, plan)
    if total:
        with closing(steps):
            jobs = -(-total // plan.chunk_rows)
            for step in progress(_steps(steps), f"counting lengths of {', '.join(names)}", jobs, unit="job"):
                counter.add(pipeline.element, step)
    return counter.selection(), all(field.storage.in_column for field in plan.program.fields)


def _steps(steps: StepIterator[Any]) -> Iterator[list[Column] | ParquetryError]:
    """Yields the columns of each step, and the error of each row that fails in its place."""
    while True:
        try:
            _, columns = next(steps)
        except ELEMENT_ERRORS as error:
            yield error
        except StopIteration:
            return
        else:
            yield columns


class _Counter:
    """The lengths of the first rows of a selection, and those of them that are refused."""

    def __init__(self, dataset: StoredDataset, selection: Selection, measure: MadeLengths, plan: BasePlan) -> None:
        self._dataset = dataset
        self._plan = plan
        self._selection = selection
        self._measure = measure
        self._parts: list[Any] = []
        self._refused: list[RefusedRows] = []
        self._rows = 0

    def add(self, element: Element, step: list[Column] | ParquetryError) -> None:
        """Adds the next rows, or the error of the next row."""
        if isinstance(step, ParquetryError):
            if self._measure.leaves_out is None:
                raise step
            self._refused.append(refused_by(self._place(0), step))
            self._parts.append(np.zeros(1, np.int64))
            self._rows += 1
            return
        arrays = {output.name: to_arrow(output, column) for output, column in by_output(element, step)}
        table = pa.table({name: arrays[name] for name in self._measure.reads})
        self._parts.append(self._measure.numbers(table, self._describe))
        refusals = self._measure.refusals(table) if self._measure.leaves_out is not None else []
        first = {int(row): refusal for refusal in reversed(refusals) for row in refusal.rows}
        for row, refusal in sorted(first.items()):
            error = refusal.error(refusal.told(row, self._describe))
            self._refused.append(refused_by(self._place(row), error))
        self._rows += table.num_rows

    def selection(self) -> Selection:
        selection, measure = self._selection, self._measure
        lengths = measure.combine(self._parts)
        row_groups = np.flatnonzero(selection.rows.counts > 0).tolist()
        (plan,) = self._plan.parts
        report = Report(
            step=f"{measure.called}, whose lengths were counted",
            row_groups=len(row_groups),
            read=len(row_groups),
            read_bytes=sum(map(plan.read_bytes, row_groups)),
            rows_before=len(lengths),
            rows_after=len(lengths),
        )
        selection = replace(selection, measured=lengths, reports=(*selection.reports, report))
        return without_refused(selection, self._refused)

    def _place(self, row: int) -> tuple[int, int]:
        return self._selection.rows.place(self._rows + row)

    def _describe(self, row: int) -> str:
        return self._dataset.describe_row(*self._place(row))
