"""Adjacent filters that are conditions on stored columns, as one pass over the data.

First, partitions and statistics prune row groups, condition by condition. Then the columns of all conditions are read
together, once, in the row groups that remain, in parallel. A row group that the statistics prove to match needs no
read. Conditions are tested in order, each on the rows that those before it left, so each has its own `Report`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field, replace
from functools import cache, partial

import numpy as np
import pyarrow as pa

from ...base.errors import PipelineError, SchemaError
from ...base.process.dataclass import dataclass
from ...base.process.forks import pc
from ...base.progress import in_parallel
from ...dataset.dataset import StoredDataset
from ...parquet.nested import not_null_mask
from ...schema.field import UnischemaField
from ...stages.base import Stage
from ...stages.nulls import Nulls
from ...stages.predicates.expression import Call, FieldRef, Node, field_names, parse_expression, walk
from ...stages.predicates.row_mask import row_mask
from ...stages.where import Where, WhereColumn
from .growing_rows import joined, rows_in, rows_where
from .pruning import ColumnStatistics, prune
from .rows import RowNumbers
from .selection import Report, Selection, StoredRows
from .statistics import column_statistics, decoded_bytes

CONDITIONS = (Where, WhereColumn, Nulls)
_NUMBER_BYTES = 8
StatisticsOf = Callable[[str], ColumnStatistics]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Condition:
    """A condition on the columns of a row, and what is known of it without a read, bool ``(row groups,)``.

    Attributes:
        step, called: the stage in words, in reports and in a progress bar.
        names: the fields that it reads.
        may_match, all_match: see `pruning.Verdict`.
        may_by_partition: ``may_match``, by partitions alone.
        mask: returns a bool for each row of a table of the fields.
        size_bytes: the size of the condition, which says how long it takes to prepare, such as to build its sets.
    """

    step: str
    called: str
    names: Sequence[str]
    may_match: np.ndarray
    all_match: np.ndarray
    may_by_partition: np.ndarray
    mask: Callable[[pa.Table], np.ndarray]
    size_bytes: int = 0


def conditions_of(dataset: StoredDataset, steps: Iterable[Stage]) -> list[Condition]:
    """Returns the conditions of some `CONDITIONS`, in order.

    Raises:
        PipelineError: a condition does not fit its field. `SchemaError`: a field cannot be read.
    """
    statistics = cache(partial(column_statistics, dataset))
    return [condition for step in steps for condition in _conditions(dataset, step, statistics)]


def _conditions(dataset: StoredDataset, step: Stage, statistics: StatisticsOf) -> Iterator[Condition]:
    if isinstance(step, Where):
        yield _of_expression(dataset, step, statistics)
    elif isinstance(step, WhereColumn):
        yield _of_column(dataset, step)
    else:
        assert isinstance(step, Nulls)
        for pattern in dataset.match(step.patterns):
            name = dataset.image_bytes.get(pattern, pattern)
            if dataset.schema[name].is_list:  # there are no statistics to prune lists with
                yield _unproven(dataset, name, not_null_mask, f"nulls('drop', {name!r})")
            else:
                yield _of_expression(dataset, Where.of(pc.is_valid(pc.field(*name.split(".")))), statistics)


def _of_expression(dataset: StoredDataset, step: Where, statistics: StatisticsOf) -> Condition:
    expression = step.expression
    node = parse_expression(expression)
    for ref in walk(node):
        if isinstance(ref, FieldRef) and ref.name in dataset.refused:
            reason = dataset.refused[ref.name].removesuffix(" Deselect it with select(...) or fields=[...].")
            raise SchemaError(
                f"where({step.text}): {reason} Filters read only columns that can become fields. Filter by another "
                "column, or store what you test in a column of its own."
            )
    names = field_names(node, list(dataset.schema.fields))
    looked_into = _looked_into(node)
    for name in names:
        storage = dataset.schema[name].storage
        if storage.coded and name in looked_into:
            raise PipelineError(
                f"where({step.text}): field '{name}' is stored encoded ({type(storage).__name__}), so an "
                f"expression cannot look into it. Use where(function, fields=['{name}'])."
            )
    row_groups = len(dataset.row_groups)
    verdict = prune(node, {name: statistics(name) for name in names}, row_groups)
    partitions = {name: statistics(name) for name in names if name in dataset.partitions}
    return Condition(
        step=str(step),
        called=step.text,
        names=names,
        may_match=verdict.may_match,
        all_match=verdict.all_match,
        may_by_partition=prune(node, partitions, row_groups).may_match,
        mask=partial(row_mask, expression=expression),
        size_bytes=len(step.serialised),
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


def _of_column(dataset: StoredDataset, step: WhereColumn) -> Condition:
    name = step.predicate.field
    if dataset.schema[name].storage.coded:
        raise PipelineError(
            f"where({step.predicate}): field '{name}' is stored encoded, so its values cannot be compared. "
            f"Use where(function, fields=['{name}'])."
        )

    def test(column: pa.ChunkedArray) -> np.ndarray:
        return np.concatenate([np.zeros(0, dtype=bool), *map(step.predicate.mask, column.chunks)])

    condition = _unproven(dataset, name, test, str(step))
    if name not in dataset.partitions:
        return condition
    matches = step.predicate.mask(dataset.partitions[name])[dataset.row_groups.file]
    return replace(condition, may_match=matches, all_match=matches, may_by_partition=matches)


def _unproven(dataset: StoredDataset, name: str, test: Callable[[pa.ChunkedArray], np.ndarray], step: str) -> Condition:
    """Returns a condition on a whole stored column, which statistics say nothing about."""
    anything = np.ones(len(dataset.row_groups), dtype=bool)
    return Condition(
        step=step,
        called=step,
        names=(name,),
        may_match=anything,
        all_match=~anything,
        may_by_partition=anything,
        mask=lambda table: test(table.column(0)),
    )


def matching(selection: Selection, conditions: Sequence[Condition], stored: StoredRows) -> Selection:
    if not conditions:
        return selection
    before = selection.rows
    counts = before.counts
    reached = np.logical_and.accumulate([condition.may_match for condition in conditions])
    tested = reached & ~np.array([condition.all_match for condition in conditions]) & (counts > 0)
    left = np.where(reached, counts, 0)
    row_groups = np.flatnonzero(tested.any(axis=0))
    left[:, row_groups] = 0
    tests = _Tests(stored=stored, selection=selection, conditions=conditions, reached=reached, tested=tested, left=left)
    run_of = {row_group: run for run in tests.runs(row_groups) for row_group in run.row_groups}
    called = " and ".join(condition.called for condition in conditions)
    in_parallel(
        lambda number: tests.read(number, run_of[number]), row_groups.tolist(), f"filtering by {called}", stored.threads
    )
    rows = before.keep_row_groups(reached[-1]).replace(
        {number: tests.chosen[number] for number in row_groups.tolist() if reached[-1, number]}
    )
    return replace(selection, rows=rows, reports=(*selection.reports, *_reports(conditions, tests, counts)))


@dataclass(slots=True, kw_only=True, eq=False)
class _Piece:
    """A slice of a row group's columns, which begins at row ``first``, and the rows in it that match so far."""

    row_group: int
    table: pa.Table
    first: int
    rows: RowNumbers

    @property
    def numbers(self) -> np.ndarray:
        """The rows as int32."""
        return np.asarray(self.rows, np.int32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Run:
    """Row groups that are tested at once, by the thread that reads the last of them."""

    row_groups: Sequence[int]
    pieces: dict[int, list[_Piece]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tests:
    """The tests of one pass, with an entry for each condition and row group.

    Attributes:
        reached: whether the condition and those before it may match, by statistics.
        tested: whether the condition is tested on the row group's columns.
        left: the number of rows that the condition leaves.
        chosen: the rows that all conditions leave, by row group.
    """

    stored: StoredRows
    selection: Selection
    conditions: Sequence[Condition]
    reached: np.ndarray
    tested: np.ndarray
    left: np.ndarray
    chosen: dict[int, np.ndarray] = field(default_factory=dict)

    def runs(self, row_groups: np.ndarray) -> Iterator[_Run]:
        """Yields row groups whose columns take twice the memory of the conditions.

        To prepare a condition takes about as long as to read as many bytes, so a large set costs about half a read.
        """
        least, dataset = 2 * sum(condition.size_bytes for condition in self.conditions), self.stored.dataset
        run, size_bytes = list[int](), 0
        for number in row_groups.tolist():
            names = self._names(number)
            number_bytes = int(dataset.row_groups.rows[number]) * len(names) * _NUMBER_BYTES
            own_bytes = (
                number_bytes if number_bytes >= least else max(number_bytes, decoded_bytes(dataset, number, names))
            )
            if own_bytes >= least:
                yield _Run(row_groups=[number])
                continue
            run.append(number)
            size_bytes += own_bytes
            if size_bytes >= least:
                yield _Run(row_groups=run)
                run, size_bytes = [], 0
        yield _Run(row_groups=run)

    def read(self, row_group: int, run: _Run) -> None:
        """Reads the columns of a row group, and tests its run if it is the last."""
        if len(run.row_groups) == 1:
            self.chosen[row_group] = joined(self._narrowed([piece])[0].numbers for piece in self._pieces(row_group))
            return
        pieces = [*self._pieces(row_group)]
        with run.lock:
            run.pieces[row_group] = pieces
            if len(run.pieces) < len(run.row_groups):
                return
        self._narrowed([piece for number in run.row_groups for piece in run.pieces[number]])
        for number in run.row_groups:
            self.chosen[number] = joined(piece.numbers for piece in run.pieces.pop(number))

    def _names(self, row_group: int) -> list[str]:
        tested = [self.conditions[number] for number in np.flatnonzero(self.tested[:, row_group]).tolist()]
        return list(dict.fromkeys(name for condition in tested for name in condition.names))

    def _pieces(self, row_group: int) -> Iterator[_Piece]:
        schema, rows, first = self.stored.dataset.schema, self.selection.rows.numbers(row_group), 0
        fields: list[UnischemaField] = [schema[name] for name in self._names(row_group)]
        for table in self.stored.read(row_group, fields):
            end = first + table.num_rows
            yield _Piece(row_group=row_group, table=table, first=first, rows=rows_in(rows, first, end))
            first = end

    def _narrowed(self, pieces: Sequence[_Piece]) -> Sequence[_Piece]:
        """Tests the conditions in order, each at once on all pieces that have rows left."""
        for condition, tested, reached, left in zip(self.conditions, self.tested, self.reached, self.left, strict=True):
            chosen = [piece for piece in pieces if tested[piece.row_group] and len(piece.rows)]
            if chosen:
                tables = [piece.table.select(condition.names) for piece in chosen]
                mask = condition.mask(tables[0] if len(tables) == 1 else pa.concat_tables(tables))
                ends = np.cumsum([table.num_rows for table in tables])
                for piece, own in zip(chosen, np.split(mask, ends[:-1]), strict=True):
                    piece.rows = rows_where(own, piece.rows, piece.first)
            for piece in pieces:
                left[piece.row_group] += len(piece.rows) if reached[piece.row_group] else 0
        return pieces


def _reports(conditions: Sequence[Condition], tests: _Tests, counts: np.ndarray) -> Iterator[Report]:
    read: dict[str, np.ndarray] = {}
    for condition, tested, left in zip(conditions, tests.tested, tests.left, strict=True):
        alive = counts > 0
        pruned = alive & ~condition.may_match
        yield Report(
            step=condition.step,
            row_groups=int(alive.sum()),
            pruned=int(pruned.sum()),
            proven=int((alive & condition.all_match).sum()),
            read=int((alive & tested).sum()),
            read_bytes=_bytes_read(tests.stored, condition.names, tested, read),
            rows_before=int(counts.sum()),
            rows_after=int(left.sum()),
            pruned_by=_pruned_by(pruned, alive & ~condition.may_by_partition),
        )
        counts = left


def _bytes_read(stored: StoredRows, names: Sequence[str], tested: np.ndarray, read: dict[str, np.ndarray]) -> int:
    """Returns the stored bytes that a condition reads in addition to those before it, and notes what it ``read``."""
    new = [name for name in names if name not in read]
    total = stored.read_bytes(new, np.flatnonzero(tested))
    for name in read.keys() & {*names}:
        total += stored.read_bytes([name], np.flatnonzero(tested & ~read[name]))
    read.update({name: tested | read.get(name, False) for name in names})
    return total


def _pruned_by(pruned: np.ndarray, by_partitions: np.ndarray) -> str:
    """Says how many of the pruned row groups were excluded by partitions, and how many only by statistics."""
    counts = {"partitions": int((pruned & by_partitions).sum()), "statistics": int((pruned & ~by_partitions).sum())}
    return ", ".join(f"{count:,} by {what}" for what, count in counts.items() if count)
