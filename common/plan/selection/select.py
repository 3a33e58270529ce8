"""Evaluates the selecting steps of a pipeline to the exact rows, or window starts, of every row group.

Adjacent filters are one pass over the data (`conditions`). Windows read the timestamp and the group of the row groups
that remain, in parallel.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import singledispatch
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.errors import DatasetError
from ...base.progress import in_parallel
from ...dataset.dataset import StoredDataset
from ...stages.base import Decision, Stage
from ...stages.measure import Measure
from ...stages.ngram import Ngram
from ...stages.shard import ShardRowGroups
from ...stages.take import Skip, Take
from ...stages.where import WhereFunction
from .conditions import CONDITIONS, conditions_of, matching
from .refused import NOTHING_REFUSED, RefusedRows, all_refused, refused_in
from .rows import RowSet, all_rows
from .selection import ReadStored, Report, RowPredicate, Selection, StoredRows
from .sequences import gap_of, groups_of, scattered_note, sequences_of, stamps_of_rows, with_numbered_groups
from .windows import WindowRule, decreasing_stamp, run_edges, window_starts

_LOGGER = logging.getLogger(__name__)


def evaluate(
    dataset: StoredDataset,
    steps: Iterable[Stage],
    *,
    read: ReadStored,
    test: RowPredicate,
    threads: int,
    begin: Selection | None = None,
) -> Selection:
    """Applies ``where``, ``ngram``, ``shard_row_groups``, ``take`` and ``skip`` stages in order to the dataset's rows.

    A `Measure` stage must come last.

    Args:
        begin: the selection after earlier steps, none of them ``take`` or ``skip``; ``None`` means every row.

    Raises:
        DatasetError: timestamps are null or decrease. The message names the file and the row.
        PipelineError: an expression does not fit the columns.
    """
    selection = begin or every_row(dataset)
    stored = StoredRows(dataset=dataset, read=read, test=test, threads=threads)
    cut = False
    for adjacent in _passes(steps):
        before = selection.num_items
        if isinstance(adjacent[0], CONDITIONS):
            selection = matching(selection, conditions_of(dataset, adjacent), stored)
        else:
            selection = _selected(adjacent[0], stored, selection)
        cut = cut or (adjacent[0].decides is Decision.CUT and selection.num_items < before)
        if not cut:
            selection = replace(selection, matched=selection.num_items)
    return selection


def _passes(steps: Iterable[Stage]) -> Iterator[list[Stage]]:
    """Yields the steps one by one, and adjacent filters that are conditions together."""
    for are_conditions, adjacent in groupby(steps, lambda step: isinstance(step, CONDITIONS)):
        if are_conditions:
            yield [*adjacent]
        else:
            yield from ([step] for step in adjacent)


@singledispatch
def _selected(step: Stage, stored: StoredRows, selection: Selection) -> Selection:
    """Returns the selection after a step. Each kind of step is registered below."""
    raise NotImplementedError(step)


@_selected.register
def _take(step: Take, stored: StoredRows, selection: Selection) -> Selection:
    return selection.slice(0, step.count)


@_selected.register
def _skip(step: Skip, stored: StoredRows, selection: Selection) -> Selection:
    return selection.slice(step.count, None)


def live_rows(dataset: StoredDataset) -> RowSet:
    """Selects every row that is not deleted."""
    rows = all_rows(dataset.row_groups.rows)
    counts = rows.counts
    return rows.replace(
        {row_group: np.delete(np.arange(counts[row_group]), gone) for row_group, gone in dataset.deleted.items()}
    )


def every_row(dataset: StoredDataset) -> Selection:
    """Selects all rows of a dataset."""
    rows = live_rows(dataset)
    return Selection(rows=rows, starts=None, steps=np.zeros(1, np.int64), reports=(), matched=rows.total)


@_selected.register
def _shard_row_groups(step: ShardRowGroups, stored: StoredRows, selection: Selection) -> Selection:
    """Selects the rows of every ``num_shards``-th row group, or the windows that begin there."""
    rows, before = selection.rows, selection.num_items
    is_own = np.arange(len(rows.whole)) % step.num_shards == step.index
    if selection.starts is None:
        selection = replace(selection, rows=rows.keep_row_groups(is_own))
    else:
        row_group, _ = rows.locate(selection.starts)
        selection = replace(selection, starts=selection.starts[is_own[row_group]])
    alive = rows.counts > 0
    report = Report(
        step=str(step),
        row_groups=int(alive.sum()),
        pruned=int((alive & ~is_own).sum()),
        pruned_by="they belong to other shards",
        proven=int((alive & is_own).sum()),
        rows_before=before,
        rows_after=selection.num_items,
    )
    return replace(selection, reports=(*selection.reports, report))


@_selected.register
def _measured(step: Measure, stored: StoredRows, selection: Selection) -> Selection:
    """Measures all selected rows, in storage order."""
    dataset, rows = stored.dataset, selection.rows
    row_groups = np.flatnonzero(rows.counts > 0).tolist()
    if not step.reads:
        live = live_rows(dataset)
        places = [np.searchsorted(live.of(group), rows.of(group)) + live.before[group] for group in row_groups]
        measured = step.at(np.concatenate([np.zeros(0, np.int64), *places]), live.total)
        return replace(selection, measured=measured)
    fields = [dataset.schema[name] for name in step.reads]

    def numbers(row_group: int) -> list[tuple[Any, RefusedRows]]:
        slices = stored.read_rows(row_group, fields, rows)
        return [_numbers_of(step, table, wanted, row_group, dataset) for table, wanted in slices]

    parts = [part for some in in_parallel(numbers, row_groups, "measuring rows", stored.threads) for part in some]
    selection = replace(selection, measured=step.combine([part for part, _ in parts]))
    return without_refused(selection, [refused for _, refused in parts])


def _numbers_of(
    step: Measure, table: pa.Table, wanted: np.ndarray, row_group: int, dataset: StoredDataset
) -> tuple[Any, RefusedRows]:
    """Measures the rows of a table. Returns what `Measure.numbers` does, and the rows that are left out."""

    def describe(row: int) -> str:
        return dataset.describe_row(row_group, int(wanted[row]))

    result = step.numbers(table, describe)
    refusals = step.refusals(table) if step.leaves_out is not None else []
    return result, refused_in(row_group, refusals, wanted, describe) if refusals else NOTHING_REFUSED


def without_refused(selection: Selection, parts: Sequence[RefusedRows]) -> Selection:
    """Leaves the refused rows out of a measured selection."""
    refused = all_refused(parts)
    if not len(refused):
        return selection
    before, measured = selection.rows, selection.measured
    assert measured is not None
    group, row, _ = refused.places.T
    kept, left = np.ones(before.total, dtype=bool), {}
    for number in np.unique(group).tolist():
        numbers = before.of(number)
        stays = ~np.isin(numbers, row[group == number])
        left[number] = numbers[stays]
        kept[before.before[number] : before.before[number + 1]] = stays
    report = Report(
        step="on_error='skip'",
        row_groups=int((before.counts > 0).sum()),
        rows_before=before.total,
        rows_after=before.total - len(refused),
        note=f"Left out: {refused.cause(0)}: {refused.message(0)}",
    )
    return replace(
        selection,
        rows=before.replace(left),
        measured=measured[kept],
        refused=refused,
        reports=(*selection.reports, report),
    )


@_selected.register
def _where_function(step: WhereFunction, stored: StoredRows, selection: Selection) -> Selection:
    before = selection.rows
    row_groups = np.flatnonzero(before.counts > 0)

    def keep(row_group: int) -> np.ndarray:
        rows = before.of(row_group)
        return rows[stored.test(step, row_group, rows)]

    chosen = in_parallel(keep, row_groups.tolist(), f"filtering by {step.function.name}", stored.threads)
    rows = before.replace(dict(zip(row_groups.tolist(), chosen, strict=True)))
    report = Report(
        step=str(step),
        row_groups=len(row_groups),
        read=len(row_groups),
        read_bytes=stored.read_bytes(step.fields, row_groups),
        rows_before=before.total,
        rows_after=rows.total,
    )
    return replace(selection, rows=rows, reports=(*selection.reports, report))


@_selected.register
def _ngram(step: Ngram, stored: StoredRows, selection: Selection) -> Selection:
    dataset, rows = stored.dataset, selection.rows
    row_groups = np.flatnonzero(rows.counts > 0)
    names = list(step.reads)
    fields = [dataset.schema[name] for name in names]

    def columns(row_group: int) -> pa.Table:
        return pa.concat_tables(
            [with_numbered_groups(step, table) for table, _ in stored.read_rows(row_group, fields, rows)]
        )

    tables = in_parallel(columns, row_groups.tolist(), "forming windows", stored.threads) if names else []
    table = pa.concat_tables(tables) if tables else None
    row_group_of_row = np.repeat(row_groups, rows.counts[row_groups])
    groups = groups_of(dataset, step, table)
    sequence = sequences_of(dataset, step, row_group_of_row, groups)
    note = scattered_note(step, groups)
    if note:
        _LOGGER.warning("%s", note)
    stamps = None
    if step.timestamp is not None and table is not None:
        stamps = stamps_of_rows(dataset, step, rows, table.column(step.timestamp))
        wrong = decreasing_stamp(sequence, stamps)
        if wrong is not None:
            raise DatasetError(
                f"ngram: {dataset.describe_row(*rows.place(wrong))}: expected timestamps in "
                f"'{step.timestamp}' that do not decrease, got {stamps.text(wrong)} after {stamps.text(wrong - 1)}. "
                "Name the field that tells recordings apart in group_by=. If times go backward inside a recording, "
                f"sort the data by {[*step.group_by, step.timestamp]}."
            )
    clamp = step.edges == "clamp"
    rule = WindowRule(
        span=step.span,
        first=step.lowest if clamp else 0,
        clamp=clamp,
        max_gap=gap_of(dataset, step),
        stride=step.stride,
        overlap=step.overlap,
    )
    starts = window_starts(sequence, stamps, rule)
    reads = any(name not in dataset.partitions for name in names)
    report = Report(
        step=str(step),
        row_groups=len(row_groups),
        read=len(row_groups) if reads else 0,
        read_bytes=stored.read_bytes(names, row_groups),
        rows_before=rows.total,
        rows_after=len(starts),
        note=note,
    )
    offsets = np.asarray(step.steps, dtype=np.int64)
    return replace(
        selection,
        starts=starts,
        steps=np.clip(offsets, -rows.total, rows.total) if clamp else offsets - offsets[0],
        edges=run_edges(sequence, stamps, rule) if clamp else None,
        reports=(*selection.reports, report),
    )
