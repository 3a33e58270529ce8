"""Evaluates the selecting steps of a pipeline to the exact rows, or window starts, of every row group.

First, partitions and statistics prune row groups. Then the predicate's columns (and, for windows, timestamp and group)
of the remaining row groups are read in parallel. A row group that the statistics prove to match needs no read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import singledispatch
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.errors import DatasetError, PipelineError, SchemaError
from ...base.memory.arrow_views import as_arrow
from ...base.process.dataclass import dataclass
from ...base.process.forks import pc
from ...base.progress import in_parallel
from ...dataset.dataset import StoredDataset
from ...parquet.nested import not_null_mask, take_rows
from ...schema.field import UnischemaField
from ...stages.base import Decision, Stage
from ...stages.measure import Measure
from ...stages.ngram import Ngram
from ...stages.nulls import Nulls
from ...stages.predicates.expression import Call, FieldRef, Node, field_names, parse_expression, walk
from ...stages.predicates.row_mask import row_mask
from ...stages.shard import ShardRowGroups
from ...stages.take import Skip, Take
from ...stages.where import Where, WhereColumn, WhereFunction
from .growing_rows import matching_rows
from .pruning import prune
from .refused import NOTHING_REFUSED, RefusedRows, all_refused, refused_in
from .rows import RowNumbers, RowSet, all_rows, rows_between
from .selection import Report, Selection
from .sequences import gap_of, groups_of, scattered_note, sequences_of, stamps_of_rows, with_numbered_groups
from .statistics import column_bytes, column_statistics
from .windows import WindowRule, decreasing_stamp, window_starts

_LOGGER = logging.getLogger(__name__)
ReadStored = Callable[[int, Sequence[UnischemaField]], Iterable[pa.Table]]
"""Reads columns of a row group in the dataset's types, named by field, including partition columns.

It yields consecutive slices, at least one, so that large row groups take little memory.
"""
RowPredicate = Callable[[WhereFunction, int, np.ndarray], np.ndarray]
"""Evaluates a Python predicate on rows of a row group: (stage, row group, rows) -> bool mask."""


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
    stored = _Stored(dataset=dataset, read=read, test=test, threads=threads)
    cut = False
    for step in steps:
        before = selection.num_items
        selection = _selected(step, stored, selection)
        cut = cut or (step.decides is Decision.CUT and selection.num_items < before)
        if not cut:
            selection = replace(selection, matched=selection.num_items)
    return selection


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stored:
    """Where the steps find the rows; see `evaluate`."""

    dataset: StoredDataset
    read: ReadStored
    test: RowPredicate
    threads: int

    def read_rows(
        self, row_group: int, fields: Sequence[UnischemaField], rows: RowSet
    ) -> Iterator[tuple[pa.Table, np.ndarray]]:
        """Yields columns of the selected rows of a row group in slices, and the numbers of these rows."""
        numbers, first = rows.numbers(row_group), 0
        for table in self.read(row_group, fields):
            chosen = rows_between(numbers, first, first + table.num_rows)
            yield table if len(chosen) == table.num_rows else take_rows(table, as_arrow(chosen)), chosen + first
            first += table.num_rows

    def read_bytes(self, names: Sequence[str], row_groups: np.ndarray) -> int:
        """Returns the stored bytes of columns in row groups."""
        stored = [name for name in names if name not in self.dataset.partitions]
        return sum(column_bytes(self.dataset, int(found), stored) for found in row_groups) if stored else 0


@singledispatch
def _selected(step: Stage, stored: _Stored, selection: Selection) -> Selection:
    """Returns the selection after a step. Each kind of step is registered below."""
    raise NotImplementedError(step)


@_selected.register
def _take(step: Take, stored: _Stored, selection: Selection) -> Selection:
    return selection.slice(0, step.count)


@_selected.register
def _skip(step: Skip, stored: _Stored, selection: Selection) -> Selection:
    return selection.slice(step.count, None)


@_selected.register
def _drop_nulls(step: Nulls, stored: _Stored, selection: Selection) -> Selection:
    dataset = stored.dataset
    for pattern in dataset.match(step.patterns):
        name = dataset.image_bytes.get(pattern, pattern)
        if dataset.schema[name].is_list:  # there are no statistics to prune lists with
            text = f"nulls('drop', {name!r})"
            selection = _by_column(stored, selection, dataset.schema[name], not_null_mask, text)
        else:
            selection = _where(Where.of(pc.is_valid(pc.field(*name.split(".")))), stored, selection)
    return selection


def _with_rows(selection: Selection, rows: RowSet, **about: Any) -> Selection:
    """Returns the selection with fewer rows; ``about`` is for its `Report`."""
    report = Report(rows_before=selection.rows.total, rows_after=rows.total, **about)
    return replace(selection, rows=rows, reports=(*selection.reports, report))


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
def _where(step: Where, stored: _Stored, selection: Selection) -> Selection:
    dataset, rows, expression = stored.dataset, selection.rows, step.expression
    node = parse_expression(expression)
    for ref in walk(node):
        if isinstance(ref, FieldRef) and ref.name in dataset.refused:
            reason = dataset.refused[ref.name].removesuffix(" Deselect it with select(...) or fields=[...].")
            raise SchemaError(
                f"where({step.text}): {reason} Filters read only columns that can become fields. Filter by another "
                "column, or store what you test in a column of its own."
            )
    names = field_names(node, list(dataset.schema.fields))
    fields = [dataset.schema[name] for name in names]
    looked_into = _looked_into(node)
    for field in fields:
        if field.storage.coded and field.name in looked_into:
            raise PipelineError(
                f"where({step.text}): field '{field.name}' is stored encoded ({type(field.storage).__name__}), so an "
                f"expression cannot look into it. Use where(function, fields=['{field.name}'])."
            )
    row_groups = len(dataset.row_groups)
    statistics = {name: column_statistics(dataset, name) for name in names}
    verdict = prune(node, statistics, row_groups)
    alive = rows.counts > 0
    partitions = prune(
        node, {name: known for name, known in statistics.items() if name in dataset.partitions}, row_groups
    )
    undecided = np.flatnonzero(alive & verdict.may_match & ~verdict.all_match)

    def matching(row_group: int) -> np.ndarray:
        tables = stored.read(row_group, fields)
        return matching_rows(tables, lambda table: row_mask(table, expression), rows.numbers(row_group))

    chosen = in_parallel(matching, undecided.tolist(), f"filtering by {step.text}", stored.threads)
    kept = rows.keep_row_groups(verdict.may_match).replace(dict(zip(undecided.tolist(), chosen, strict=True)))
    return _with_rows(
        selection,
        kept,
        step=str(step),
        row_groups=int(alive.sum()),
        pruned=int((alive & ~verdict.may_match).sum()),
        proven=int((alive & verdict.all_match).sum()),
        read=len(undecided),
        read_bytes=stored.read_bytes(names, undecided),
        pruned_by=_pruned_by(alive & ~verdict.may_match, alive & ~partitions.may_match),
    )


def _pruned_by(pruned: np.ndarray, by_partitions: np.ndarray) -> str:
    """Says how many of the pruned row groups were excluded by partitions, and how many only by statistics."""
    counts = {"partitions": int((pruned & by_partitions).sum()), "statistics": int((pruned & ~by_partitions).sum())}
    return ", ".join(f"{count:,} by {what}" for what, count in counts.items() if count)


@_selected.register
def _shard_row_groups(step: ShardRowGroups, stored: _Stored, selection: Selection) -> Selection:
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
def _measured(step: Measure, stored: _Stored, selection: Selection) -> Selection:
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
    refused = all_refused([refused for _, refused in parts])
    selection = replace(selection, measured=step.combine([part for part, _ in parts]))
    return _without(selection, refused, len(row_groups)) if len(refused) else selection


def _numbers_of(
    step: Measure, table: pa.Table, wanted: np.ndarray, row_group: int, dataset: StoredDataset
) -> tuple[Any, RefusedRows]:
    """Measures the rows of a table. Returns what `Measure.numbers` does, and the rows that are left out."""

    def describe(row: int) -> str:
        return dataset.describe_row(row_group, int(wanted[row]))

    result = step.numbers(table, describe)
    refusals = step.refusals(table) if step.leaves_out is not None else []
    return result, refused_in(row_group, refusals, wanted, describe) if refusals else NOTHING_REFUSED


def _without(selection: Selection, refused: RefusedRows, row_groups: int) -> Selection:
    """Leaves the refused rows out of a selection."""
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
        row_groups=row_groups,
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


def _looked_into(node: Node) -> set[str]:
    """Returns the fields whose values an expression reads. A null test alone reads no values."""
    if isinstance(node, FieldRef):
        return {node.name}
    if not isinstance(node, Call):
        return set()
    if node.name in ("is_valid", "is_null") and isinstance(node.args[0], FieldRef):
        return set()
    return set().union(*(_looked_into(argument) for argument in node.args))


@_selected.register
def _where_column(step: WhereColumn, stored: _Stored, selection: Selection) -> Selection:
    dataset, rows, name = stored.dataset, selection.rows, step.predicate.field
    field = dataset.schema[name]
    if field.storage.coded:
        raise PipelineError(
            f"where({step.predicate}): field '{name}' is stored encoded, so its values cannot be compared. "
            f"Use where(function, fields=['{name}'])."
        )
    if name not in dataset.partitions:

        def test(column: pa.ChunkedArray) -> np.ndarray:
            return np.concatenate([np.zeros(0, dtype=bool), *map(step.predicate.mask, column.chunks)])

        return _by_column(stored, selection, field, test, str(step))
    alive = rows.counts > 0
    verdict = step.predicate.mask(dataset.partitions[name])[dataset.row_groups.file]
    pruned = int((alive & ~verdict).sum())
    return _with_rows(
        selection,
        rows.keep_row_groups(verdict),
        step=str(step),
        row_groups=int(alive.sum()),
        pruned=pruned,
        proven=int((alive & verdict).sum()),
        pruned_by=f"{pruned:,} by partitions" if pruned else "",
    )


def _by_column(
    stored: _Stored,
    selection: Selection,
    field: UnischemaField,
    test: Callable[[pa.ChunkedArray], np.ndarray],
    step: str,
) -> Selection:
    """Selects the rows for which ``test`` of a whole stored column is true (bool)."""

    def keep(row_group: int, wanted: RowNumbers) -> np.ndarray:
        return matching_rows(stored.read(row_group, [field]), lambda table: test(table.column(0)), wanted)

    return _reading_all(stored, selection, keep, [field.name], step, step)


@_selected.register
def _where_function(step: WhereFunction, stored: _Stored, selection: Selection) -> Selection:
    def keep(row_group: int, wanted: RowNumbers) -> np.ndarray:
        rows = np.asarray(wanted, np.int64)
        return rows[stored.test(step, row_group, rows)]

    return _reading_all(stored, selection, keep, step.fields, str(step), step.function.name)


def _reading_all(
    stored: _Stored,
    selection: Selection,
    keep: Callable[[int, RowNumbers], np.ndarray],
    names: Sequence[str],
    step: str,
    called: str,
) -> Selection:
    """Selects the rows that ``keep`` returns for each row group and its rows so far."""
    rows = selection.rows
    row_groups = np.flatnonzero(rows.counts > 0)
    chosen = in_parallel(
        lambda row_group: keep(row_group, rows.numbers(row_group)),
        row_groups.tolist(),
        f"filtering by {called}",
        stored.threads,
    )
    return _with_rows(
        selection,
        rows.replace(dict(zip(row_groups.tolist(), chosen, strict=True))),
        step=step,
        row_groups=len(row_groups),
        read=len(row_groups),
        read_bytes=stored.read_bytes(names, row_groups),
    )


@_selected.register
def _ngram(step: Ngram, stored: _Stored, selection: Selection) -> Selection:
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
            row_group, row = rows.locate(np.array([wrong]))
            raise DatasetError(
                f"ngram: {dataset.describe_row(int(row_group[0]), int(row[0]))}: expected timestamps in "
                f"'{step.timestamp}' that do not decrease, got {stamps.text(wrong)} after {stamps.text(wrong - 1)}. "
                "Name the field that tells recordings apart in group_by=. If times go backward inside a recording, "
                f"sort the data by {[*step.group_by, step.timestamp]}."
            )
    rule = WindowRule(span=step.span, max_gap=gap_of(dataset, step), stride=step.stride, overlap=step.overlap)
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
    offsets = np.asarray(step.steps, dtype=np.int64) - step.steps[0]
    return replace(selection, starts=starts, steps=offsets, reports=(*selection.reports, report))
