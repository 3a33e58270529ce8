"""Decides which row groups, rows and windows a reader reads, and in which order.

Takes the dataset and the reader's arguments; returns the wanted rows (or windows) of every row group and, for each
epoch, the sequence of jobs. Row group i of the whole dataset always belongs to shard ``i % shard_count``, whatever the
filters. Every wanted row is in exactly one job of an epoch. The order depends only on the seed and the epoch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...base.errors import PipelineError
from ...base.process.dataclass import dataclass
from ...base.process.forks import cached_property
from ...engine.read.column_reader import ReadContext
from ...engine.run.selecting import stored_slices
from ...plan.order.permutations import permutation
from ...plan.selection.select import evaluate
from ...plan.selection.selection import Selection
from ...stages.base import Stage
from ...stages.predicates.filter_tuples import as_expression
from ...stages.shard import ShardRowGroups
from ...stages.where import Where, WhereFunction
from .dataset import PetastormDataset
from .errors import NoDataAvailableError
from .etl.rowgroup_indexing import get_row_group_indexes
from .loading import LoadJob
from .predicates import PredicateBase
from .selectors import RowGroupSelectorBase
from .values import row_tuples

_GROUP_ORDER = 0
_THREADS = 8
_CONTEXT = ReadContext(room_bytes=128 << 20)  # for the columns of a filter, in each thread


@dataclass(frozen=True, kw_only=True)
class ReaderRows:
    """The rows and row groups to read.

    Attributes:
        of_all_shards: the rows that pass the filters, the selector, and a predicate on partitions.
        selected: bool ``[row groups]``, those that the selector chose (all if there is no selector).
        shard: the stage that takes the rows of this shard, or the windows that start in them; none for all.
    """

    dataset: PetastormDataset
    of_all_shards: Selection
    selected: np.ndarray
    shard: tuple[Stage, ...]

    def of_shard(self, windows: Selection | None = None) -> Selection:
        """Returns this shard's part of the rows, or of windows over them."""
        return _evaluate(self.dataset, self.shard, begin=windows or self.of_all_shards)


def choose_rows(
    dataset: PetastormDataset,
    *,
    filters: object,
    predicate: PredicateBase | None,
    selector: RowGroupSelectorBase | None,
    cur_shard: object,
    shard_count: object,
) -> tuple[ReaderRows, PredicateBase | None]:
    """Returns the rows to read, and the predicate if it still has to be applied to rows.

    Raises:
        PipelineError: a selector, predicate or shard has the wrong type, or a shard is out of range.
        NoDataAvailableError: there are more shards than row groups.
    """
    steps = [Where.of(as_expression(_in_partition_types(dataset, filters)))] if _has_conditions(filters) else []
    selection = _evaluate(dataset, steps)
    count = len(dataset.row_groups)
    selected = np.ones(count, dtype=bool) if selector is None else _selected(dataset, selector, count)
    rows = selection.rows.keep_row_groups(selected)
    if predicate is not None:
        if not isinstance(predicate, PredicateBase):
            raise PipelineError(f"predicate: expected one derived from PredicateBase, got {predicate!r}.")
        names = set(predicate.get_fields())
        if names and names <= set(dataset.partitions):
            rows = rows.keep_row_groups(_partitions_kept(dataset, predicate, sorted(names)))
            predicate = None
    shard: tuple[Stage, ...] = ()
    if cur_shard is not None or shard_count is not None:
        shard = (_checked_shard(cur_shard, shard_count, count),)
    chosen = ReaderRows(dataset=dataset, of_all_shards=replace(selection, rows=rows), selected=selected, shard=shard)
    return chosen, predicate


def _evaluate(dataset: PetastormDataset, steps: Sequence[Stage], begin: Selection | None = None) -> Selection:
    read = partial(stored_slices, dataset, _CONTEXT)
    return evaluate(dataset, steps, read=read, test=_no_function, threads=_THREADS, begin=begin)


def _no_function(step: WhereFunction, row_group: int, rows: np.ndarray) -> np.ndarray:
    raise AssertionError("filters hold no functions")


def _has_conditions(filters: Any) -> bool:
    return filters is not None and (isinstance(filters, pc.Expression) or len(filters) > 0)


def _in_partition_types(dataset: PetastormDataset, filters: object) -> Any:
    """Converts text in DNF tuples to integers for integer partitions; Petastorm compares partitions as text."""
    if isinstance(filters, pc.Expression):
        return filters
    if isinstance(filters, tuple) and len(filters) == 3 and isinstance(filters[0], str):
        name, operator, value = filters
        kind = getattr(dataset.schema[name].dtype, "kind", "") if name in dataset.partitions else ""
        return name, operator, _as_integers(name, value) if kind and kind in "iu" else value
    if isinstance(filters, list | tuple):
        return type(filters)(_in_partition_types(dataset, part) for part in filters)
    return filters


def _as_integers(name: str, value: object) -> Any:
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(_as_integers(name, item) for item in value)
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        raise PipelineError(f"filters: expected an integer for the partition '{name}', got {value!r}.") from None


def _checked_shard(cur_shard: Any, shard_count: Any, row_groups: int) -> ShardRowGroups:
    for name, value in (("cur_shard", cur_shard), ("shard_count", shard_count)):
        if not isinstance(value, int) or isinstance(value, bool):
            raise PipelineError(f"sharding: expected cur_shard and shard_count to be integers, got {name}={value!r}.")
    if shard_count < 1 or not 0 <= cur_shard < shard_count:
        raise PipelineError(
            f"sharding: expected 0 <= cur_shard < shard_count, got cur_shard={cur_shard}, shard_count={shard_count}."
        )
    if row_groups < shard_count:
        raise NoDataAvailableError(
            f"sharding: Number of row-groups in the dataset ({row_groups}) must be at least shard_count={shard_count}, "
            "because some shards would be empty. Use fewer shards, or smaller row groups."
        )
    return ShardRowGroups(shard_count, cur_shard)


def _selected(dataset: PetastormDataset, selector: RowGroupSelectorBase, count: int) -> np.ndarray:
    if not isinstance(selector, RowGroupSelectorBase):
        raise PipelineError(f"rowgroup_selector: expected one derived from RowGroupSelectorBase, got {selector!r}.")
    indexes = get_row_group_indexes(dataset)
    missing = sorted(set(selector.get_index_names()) - set(indexes))
    if missing:
        raise PipelineError(
            f"rowgroup_selector: expected indexes of the dataset, got {missing}. Indexes are: {sorted(indexes)}."
        )
    chosen = np.zeros(count, dtype=bool)
    ordinals = [ordinal for ordinal in selector.select_row_groups(indexes) if 0 <= ordinal < count]
    chosen[ordinals] = True
    return chosen


def _partitions_kept(dataset: PetastormDataset, predicate: PredicateBase, names: Sequence[str]) -> np.ndarray:
    """Returns the row groups whose partition values a predicate keeps; calls it once per distinct combination."""

    @cache
    def keeps(*values: object) -> bool:
        return bool(predicate.do_include(dict(zip(names, values, strict=True))))

    partitions = pa.table({name: dataset.partitions[name] for name in names})
    of_file = [keeps(*values) for values in row_tuples([dataset.schema[name] for name in names], partitions)]
    result: np.ndarray = np.array(of_file, dtype=bool)[dataset.row_groups.file]
    return result


@dataclass(frozen=True, kw_only=True)
class JobOrder:
    """Makes the jobs of each epoch.

    Attributes:
        selection: the rows or windows of this shard.
        parts: number of parts into which the rows (or windows) of each row group are divided.
        seed: seed of the order of row groups; ``None`` for stored order.
    """

    selection: Selection
    parts: int
    seed: int | None

    @cached_property
    def items(self) -> np.ndarray:
        """``(row group, part)`` of every nonempty job of an epoch, in stored order; int64 ``[jobs, 2]``."""
        parts = np.minimum(np.diff(self._before), self.parts)
        row_group = np.repeat(np.arange(len(parts)), parts)
        begins = np.cumsum(parts) - parts
        return np.stack([row_group, np.arange(len(row_group)) - begins[row_group]], axis=1)

    def jobs(self, first: int, end: int | None) -> Iterator[LoadJob]:
        """Yields the jobs from number ``first`` to ``end``, counted over all epochs; ``None`` = endlessly."""
        count = len(self.items)
        order = np.arange(count)
        for number in itertools.count(first) if end is None else range(first, end):
            epoch, place = divmod(number, count)
            if self.seed is not None and (number == first or place == 0):
                order = permutation(count, self.seed, epoch, _GROUP_ORDER)
            yield self._job(number, epoch, *self.items[order[place]].tolist())

    @cached_property
    def _before(self) -> np.ndarray:
        return self.selection.items_before

    def _job(self, number: int, epoch: int, row_group: int, part: int) -> LoadJob:
        begin, end = self._before[row_group : row_group + 2].tolist()
        items = np.array_split(np.arange(begin, end), min(self.parts, end - begin))[part]
        item_rows = self.selection.item_rows(items)
        places = np.stack(self.selection.rows.locate(item_rows.reshape(-1)), axis=1)
        has_windows = self.selection.starts is not None
        return LoadJob(
            number=number,
            first=number,
            count=len(items),
            epoch=epoch,
            row_group=row_group,
            part_number=part,
            rows=None if has_windows else places[:, 1],
            windows=places.reshape(*item_rows.shape, 2) if has_windows else None,
        )
