"""Splits rows into the sequences that windows may span, by group, row group and file, and reads timestamps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from ...base.errors import DatasetError, PipelineError
from ...base.memory.arrow_views import as_numpy
from ...dataset.dataset import StoredDataset
from ...stages.ngram import Ngram
from ...stages.predicates.python_values import plain_storage
from .rows import RowSet
from .windows import Stamps, stamps_of

_TEXTS = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def groups_of(dataset: StoredDataset, step: Ngram, table: pa.Table | None) -> np.ndarray | None:
    """Returns the numbers of the ``group_by`` values of each selected row, ``[fields, rows]``."""
    if not step.group_by or table is None:
        return None
    for name in step.group_by:
        field = dataset.schema[name]
        if field.shape or field.storage.coded:
            raise PipelineError(
                f"ngram: expected group_by='{name}' to be a field of plain values that can be compared, got shape "
                f"{field.shape}, stored by {type(field.storage).__name__}. Name another field."
            )
    return np.stack([_codes(table.column(name)) for name in step.group_by])


def sequences_of(dataset: StoredDataset, step: Ngram, row_group: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Returns the number of the sequence that each selected row belongs to, ascending."""
    if len(row_group) == 0:
        return np.zeros(0, dtype=np.int64)
    breaks = np.zeros(len(row_group), dtype=bool)
    if not step.span_row_groups:
        breaks[1:] |= row_group[1:] != row_group[:-1]
    if groups is not None:
        breaks[1:] |= _differs(groups)
    else:
        file = dataset.row_groups.file[row_group]
        breaks[1:] |= file[1:] != file[:-1]
    return np.cumsum(breaks)


def _differs(groups: np.ndarray) -> np.ndarray:
    """Whether each row belongs to another group than the row before it, bool ``[rows - 1]``."""
    return np.asarray((groups[:, 1:] != groups[:, :-1]).any(axis=0))


def scattered_note(step: Ngram, groups: np.ndarray | None) -> str:
    """Returns a sentence that says that rows of one group lie apart, so windows are lost; empty if they do not."""
    if groups is None or step.span == 1 or not groups.shape[1]:
        return ""
    first, *others = groups[:, np.flatnonzero(np.append(True, _differs(groups)))].astype(np.int64)
    pairs, group = np.unique(first, return_inverse=True)
    for codes in others:
        pairs, group = np.unique(group * (codes.max() + 2) + codes + 1, return_inverse=True)
    count, pieces = len(pairs), len(first)
    if count == pieces:
        return ""
    by = list(step.group_by)
    return (
        f"ngram: the rows of {count:,} groups by {by} lie in {pieces:,} pieces, and no window spans two pieces. Sort "
        f"the data by {[*by, *([step.timestamp] if step.timestamp else [])]} to get every window."
    )


def with_numbered_groups(step: Ngram, table: pa.Table) -> pa.Table:
    """Returns the table with dictionaries in place of texts and bytes to group by, which take less memory."""
    for number, field in enumerate(table.schema):
        if field.name in step.group_by and field.type in _TEXTS:
            column = table.column(number).dictionary_encode()
            table = table.set_column(number, field.with_type(column.type), column)
    return table


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a number for every value, -1 for null. Equal values have equal numbers across chunks."""
    column = plain_storage(column)
    if pa.types.is_dictionary(column.type):
        kind = pa.dictionary(pa.int64(), column.type.value_type)
        shared = pa.chunked_array(map(_with_wide_indices, column.chunks), kind).unify_dictionaries()
    else:
        shared = column.dictionary_encode()
    return np.concatenate([as_numpy(chunk.indices.cast(pa.int64()).fill_null(-1)) for chunk in shared.chunks])


def _with_wide_indices(chunk: pa.DictionaryArray) -> pa.DictionaryArray:
    """Returns the array with int64 indices. Those of a file may be int8, too narrow for the values of all files."""
    return pa.DictionaryArray.from_arrays(chunk.indices.cast(pa.int64()), chunk.dictionary)


def stamps_of_rows(dataset: StoredDataset, step: Ngram, rows: RowSet, column: pa.ChunkedArray) -> Stamps:
    if column.null_count:
        wrong = int(np.flatnonzero(as_numpy(column.is_null()))[0])
        raise DatasetError(
            f"ngram: {dataset.describe_row(*rows.place(wrong))}: expected a timestamp in "
            f"'{step.timestamp}', got null. Drop such rows first with where(pc.is_valid(pc.field('{step.timestamp}')))."
        )
    return stamps_of(column, step.timestamp or "")


def gap_of(dataset: StoredDataset, step: Ngram) -> Any:
    if not isinstance(step.max_gap, tuple):
        return step.max_gap
    dtype = dataset.schema[step.timestamp].dtype  # type: ignore[index]  # max_gap needs timestamp
    if not isinstance(dtype, np.dtype) or dtype.kind not in "mM":
        raise PipelineError(
            f"ngram: expected max_gap as a number, because '{step.timestamp}' is {dtype} without a unit, "
            f"got a time difference {step.max_gap}."
        )
    count, unit = step.max_gap
    gap_unit, own = (np.array(1).astype(f"timedelta64[{kind}]") for kind in (unit, np.datetime_data(dtype)[0]))
    return count * int(gap_unit // own) if gap_unit >= own else count // int(own // gap_unit)
