"""Row-group statistics of one column, from footers and partition directories, as arrays over all row groups."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..layout.dataset import StoredDataset
from ..schema.infer import flatten_fields
from .pruning import ColumnStatistics

_EXACT_KINDS = (bool, int, datetime.date, datetime.datetime, decimal.Decimal)


def column_statistics(dataset: StoredDataset, name: str) -> ColumnStatistics:
    """What is known of a column in each row group without reading it.

    Statistics that are missing, or of a type without an order that Arrow shares, are unknown.
    """
    if name in dataset.partitions:
        return _of_partition(dataset, name)
    minimum: list[Any] = []
    maximum: list[Any] = []
    nulls: list[int] = []
    for footer in dataset.footers:
        column = _leaf_index(footer, name)
        for number in range(footer.num_row_groups):
            low, high, null_count = _chunk_statistics(footer, number, column)
            minimum.append(low)
            maximum.append(high)
            nulls.append(null_count)
    arrow = _stored_type(dataset, name)
    low_array, high_array = _arrow(minimum, arrow), _arrow(maximum, arrow)
    known = low_array is not None and high_array is not None
    sample = next((value for value in minimum if value is not None), None)
    return ColumnStatistics(
        minimum=low_array if known else None,
        maximum=high_array if known else None,
        null_count=np.asarray(nulls, dtype=np.int64),
        num_rows=dataset.row_groups.rows,
        exact=isinstance(sample, _EXACT_KINDS),
    )


def column_bytes(dataset: StoredDataset, unit: int, names: list[str]) -> int:
    """Stored (compressed) bytes of some columns of one row group."""
    groups = dataset.row_groups
    footer = dataset.footers[groups.file[unit]]
    group = footer.row_group(int(groups.group[unit]))
    wanted = tuple(names)
    return sum(
        group.column(number).total_compressed_size
        for number in range(group.num_columns)
        if _belongs(group.column(number).path_in_schema, wanted)
    )


def decoded_bytes(dataset: StoredDataset, unit: int, names: list[str]) -> int:
    """Bytes of some columns of one row group after decompression: about what it occupies in memory, still encoded."""
    groups = dataset.row_groups
    group = dataset.footers[groups.file[unit]].row_group(int(groups.group[unit]))
    wanted = tuple(names)
    return sum(
        group.column(number).total_uncompressed_size
        for number in range(group.num_columns)
        if _belongs(group.column(number).path_in_schema, wanted)
    )


def _belongs(path: str, names: tuple[str, ...]) -> bool:
    for name in names:
        if path == name or path.startswith(name + "."):
            return True
        top, dot, leaf = name.rpartition(".")
        if dot and leaf in ("key", "value") and path == f"{top}.key_value.{leaf}":
            return True
    return False


def _of_partition(dataset: StoredDataset, name: str) -> ColumnStatistics:
    values = dataset.partitions[name].take(pa.array(dataset.row_groups.file))
    rows = dataset.row_groups.rows
    return ColumnStatistics(
        minimum=values,
        maximum=values,
        null_count=np.where(values.is_null().to_numpy(zero_copy_only=False), rows, 0),
        num_rows=rows,
        exact=True,
    )


def _leaf_index(footer: pq.FileMetaData, name: str) -> int | None:
    schema = footer.schema
    for number in range(len(schema)):
        if schema.column(number).path == name:
            return number if schema.column(number).max_repetition_level == 0 else None
    return None


def _chunk_statistics(footer: pq.FileMetaData, group: int, column: int | None) -> tuple[Any, Any, int]:
    if column is None:
        return None, None, -1
    chunk = footer.row_group(group).column(column)
    try:
        statistics = chunk.statistics
        if statistics is None:
            return None, None, -1
        null_count = statistics.null_count if statistics.has_null_count else -1
        if not statistics.has_min_max:
            return None, None, null_count
        return statistics.min, statistics.max, null_count
    except (pa.ArrowException, ValueError, OverflowError, UnicodeDecodeError):
        return None, None, -1  # a type that pyarrow cannot present: unknown, so nothing is pruned by it


def _stored_type(dataset: StoredDataset, name: str) -> pa.DataType | None:
    """The column's type, if every file stores the same one; bounds of another type would compare differently."""
    found: set[pa.DataType] = set()
    for footer in dataset.footers:
        for path, column in flatten_fields(footer.schema.to_arrow_schema()):
            if path == name:
                found.add(column.type.value_type if pa.types.is_dictionary(column.type) else column.type)
    return found.pop() if len(found) == 1 else None


def _arrow(values: list[Any], arrow: pa.DataType | None) -> pa.Array | None:
    if arrow is None or all(value is None for value in values):
        return None
    try:
        return pa.array(values, arrow)
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        return None
