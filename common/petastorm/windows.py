"""The windows of an `NGram` over a dataset's wanted rows.

A window's rows are consecutive wanted rows of one file. It may run over row groups, but not over one that the selector
left out, and not where time stamps go back from one row group to the next. Inside a row group they must not decrease.
"""

from __future__ import annotations

import decimal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from ..engine.fetch import Fetcher
from ..errors import DatasetError, PipelineError
from ..selection.rows import RowSet
from ..selection.select import Selection
from ..selection.windows import WindowRule, decreasing_stamp, window_starts
from .loading import RowGroupLoader
from .ngram import NGram
from .planning import Wanted
from .predicates import PredicateBase

_THREADS = 8


def form_windows(loader: RowGroupLoader, wanted: Wanted, predicate: PredicateBase | None, ngram: NGram) -> Selection:
    """Every window of the rows that filters, selector and predicate leave, of all shards.

    Raises:
        DatasetError: a time stamp that is null, or lies before the one above it in its row group.
    """
    rows = wanted.rows
    units = np.flatnonzero(rows.counts > 0)
    field = loader.dataset.schema[ngram._timestamp_field.name]

    def read(unit: int) -> tuple[np.ndarray, pa.Array]:
        kept = rows.of(unit)
        if predicate is not None:
            kept = kept[loader.mask(predicate, unit, kept)]
        column = Fetcher(loader.dataset, [field]).stored(unit).column(0).combine_chunks()
        return kept, column.take(pa.array(kept))

    with ThreadPoolExecutor(max_workers=_THREADS, thread_name_prefix="parquetry-select") as pool:
        found = list(pool.map(read, units.tolist()))
    rows = rows.replace({int(unit): kept for unit, (kept, _) in zip(units, found, strict=True)})
    stamps, unit_size = _stamps(field.name, [column for _, column in found])
    unit_of_row = np.repeat(units, [len(kept) for kept, _ in found])
    sequence = _sequences(loader, wanted, unit_of_row, stamps)
    _check_order(loader, rows, sequence, stamps, field.name)
    rule = WindowRule(
        span=ngram.length, max_gap=_gap(ngram.delta_threshold, unit_size), overlap=ngram.timestamp_overlap
    )
    starts = window_starts(sequence, stamps, rule)
    steps = np.arange(ngram.length, dtype=np.int64)
    return Selection(rows=rows, starts=starts, steps=steps, reports=(), matched=len(starts))


def _sequences(loader: RowGroupLoader, wanted: Wanted, unit: np.ndarray, stamps: np.ndarray) -> np.ndarray:
    """Which stretch of rows each wanted row belongs to; numbers ascend."""
    breaks = np.zeros(len(unit), dtype=bool)
    if len(unit):
        file = loader.dataset.row_groups.file[unit]
        left_out = np.cumsum(~wanted.selected)[unit]
        back = (unit[1:] != unit[:-1]) & (stamps[1:] < stamps[:-1])
        breaks[1:] = (file[1:] != file[:-1]) | (left_out[1:] != left_out[:-1]) | back
    return np.cumsum(breaks)


def _check_order(loader: RowGroupLoader, rows: RowSet, sequence: np.ndarray, stamps: np.ndarray, name: str) -> None:
    wrong = decreasing_stamp(sequence, stamps)
    if wrong is None:
        return
    unit, row = rows.locate(np.array([wrong]))
    raise DatasetError(
        f"NGram: {loader.dataset.describe_row(int(unit[0]), int(row[0]))}: expected time stamps in '{name}' that do "
        f"not decrease, got {stamps[wrong]} after {stamps[wrong - 1]}. Write the data sorted by '{name}'."
    )


def _stamps(name: str, columns: list[pa.Array]) -> tuple[np.ndarray, int]:
    """The time stamps as numbers, and how many of them are 1 in the field's own unit (of decimals, ``10 ** scale``)."""
    if not columns:
        return np.zeros(0, dtype=np.int64), 1
    if any(column.null_count for column in columns):
        raise DatasetError(f"NGram: expected time stamps in '{name}', got null. Leave such rows out with a predicate.")
    kind = columns[0].type
    if pa.types.is_decimal(kind):
        size = 10**kind.scale
        values = [int(value.scaleb(kind.scale)) for column in columns for value in column.to_pylist()]
        return np.array(values, dtype=np.int64), size
    if pa.types.is_temporal(kind):
        bits = pa.int32() if kind.bit_width == 32 else pa.int64()
        columns = [column.view(bits).cast(pa.int64()) for column in columns]
    elif not pa.types.is_integer(kind) and not pa.types.is_floating(kind):
        raise PipelineError(f"NGram: expected timestamp_field '{name}' to be a number or a time, got {kind}.")
    return np.concatenate([column.to_numpy(zero_copy_only=False) for column in columns]), 1


def _gap(threshold: Any, unit_size: int) -> Any:
    if unit_size == 1:
        return threshold if isinstance(threshold, int | float) else float(threshold)
    return int(decimal.Decimal(str(threshold)) * unit_size)
