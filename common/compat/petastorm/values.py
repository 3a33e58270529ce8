"""Converts stored Arrow columns to the Python values that Petastorm's readers return.

`row_tuples` makes one value per row and field (numpy scalars and arrays, ``Decimal``, ``numpy.str_``, ``None`` for
null), and `column_array` makes one array per column of a row group. Every array owns its memory and is writable.
"""

from __future__ import annotations

import decimal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.errors import DecodeError
from ...base.memory.arrow_views import as_numpy, is_list
from ...dataset.dataset import StoredDataset
from ...engine.read.canonical import to_canonical
from ...engine.read.column_reader import ReadContext
from ...engine.read.disk_cache import DiskCache
from ...engine.read.fetch import Fetcher
from ...parquet.nested import one_array, take_rows, widened
from ...schema.arrow_types import scalar_dtype
from ...schema.dtypes import is_bytes, is_text
from ...schema.field import UnischemaField
from ...schema.ragged import object_array
from .codecs import Value, decode_array
from .unischema import Unischema

_NANOSECONDS = np.iinfo(np.int64).max // 10**9


def stored_rows(
    dataset: StoredDataset,
    fields: Sequence[UnischemaField],
    row_group: int,
    rows: np.ndarray | None = None,
    cache: DiskCache | None = None,
) -> pa.Table:
    """Reads the stored columns of some rows of a row group, in their order; ``None`` for all rows."""
    table = Fetcher(dataset, fields, ReadContext(cache=cache)).stored(row_group)
    whole = rows is None or np.array_equal(rows, np.arange(table.num_rows))
    return table if whole else take_rows(table, pa.array(rows))


def row_tuples(fields: Iterable[UnischemaField], table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yields the values of each row, in the order of the fields. Raises `DecodeError` like `row_values`."""
    return zip(*[row_values(field, table.column(field.name)) for field in fields], strict=True)


def row_values(field: UnischemaField, column: pa.ChunkedArray) -> list[Any]:
    """Returns the values of a stored column, one for each row.

    Raises:
        DecodeError: a value cannot be decoded, or does not fit the field.
    """
    if field.storage.coded:
        return [
            decode_array(field, value.as_buffer()) if value.is_valid else None for value in to_canonical(field, column)
        ]
    if field.dtype is decimal.Decimal:
        return [_decimals(value, field) for value in column.to_pylist()]
    array = to_canonical(field, column)
    return _scalars(field, array) if not field.shape else [_list_value(field, value) for value in array]


def _decimals(value: Value, field: UnischemaField) -> Value:
    if value is None or not field.shape:
        return None if value is None else decimal.Decimal(value)
    return object_array([_decimals(item, field.replace(shape=field.shape[1:], codec=None)) for item in value])


def _scalars(field: UnischemaField, array: pa.Array) -> list[Any]:
    if is_text(field.dtype):
        return [None if value is None else np.str_(value) for value in array.to_pylist()]
    if is_bytes(field.dtype):
        return [None if value is None else np.bytes_(value) for value in array.to_pylist()]
    values = list(_numbers(field, array))
    if not array.null_count:
        return values
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]


def _numbers(field: UnischemaField, array: pa.Array) -> np.ndarray:
    """Converts a canonical array of numbers or times to numpy, with zero for null."""
    filled = array.fill_null(False if pa.types.is_boolean(array.type) else 0) if array.null_count else array
    numbers = as_numpy(filled)
    dtype = np.dtype(field.dtype)
    result: np.ndarray = numbers.astype(np.int64).view(dtype) if dtype.kind in "mM" else numbers
    return result


def _list_value(field: UnischemaField, value: pa.Scalar) -> Any:
    if not value.is_valid:
        return None
    if len(field.shape) > 1:
        return _nested(field, value.as_py())
    items = value.values
    if is_text(field.dtype) or is_bytes(field.dtype):
        return object_array(items.to_pylist())
    if items.null_count:
        if np.dtype(field.dtype).kind != "f":
            raise DecodeError(f"field '{field.name}': expected lists without nulls inside, got {items.to_pylist()}.")
        return np.array([np.nan if value is None else value for value in items.to_pylist()], field.dtype)
    return np.array(_numbers(field, items), copy=True)


def _nested(field: UnischemaField, value: list[Any]) -> np.ndarray:
    dtype = np.dtype(field.dtype)
    shape = tuple(axis if axis is not None else -1 for axis in field.shape)
    if dtype.kind in "US":
        return np.array(value, dtype=object)
    made = np.array(value, dtype=np.int64 if dtype.kind in "mM" else dtype)
    made = made if made.size or -1 in shape else made.reshape(shape)
    return made.view(dtype) if dtype.kind in "mM" else made


def column_array(column: pa.ChunkedArray) -> np.ndarray:
    """Converts a stored column to one array, as returned by `make_batch_reader`.

    Text is ``<U``, or objects if a value is null or ends in NUL, which ``<U`` cannot represent. Bytes, decimals and
    dates are objects. Timestamps are ``datetime64[ns]``, or keep the stored unit if they do not fit. Lists of equal
    length are a matrix, others an object array of arrays. Nulls are NaN in floats, NaT in timestamps, ``None`` in
    objects, and masked in integers and bools.
    """
    array = _one(column)
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _text(array.to_pylist())
    if is_list(kind):
        return _lists(array)
    if pa.types.is_timestamp(kind):
        return _time_stamps(array)
    if pa.types.is_duration(kind):
        return np.array(as_numpy(array))
    if pa.types.is_floating(kind):
        return np.array(as_numpy(array), dtype=scalar_dtype(kind, field="column"))
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        if not array.null_count:
            return np.array(as_numpy(array))
        filled = array.fill_null(False if pa.types.is_boolean(kind) else 0)
        mask = as_numpy(array.is_null())
        return np.ma.MaskedArray(as_numpy(filled), mask)
    return object_array(array.to_pylist())


def null_partitions(schema: Unischema, columns: Mapping[str, Any]) -> Iterator[str]:
    """Yields the integer fields of a row group whose partition is null, so that a batched reader gives them as NaN."""
    for name, field in schema.fields.items():
        column = columns.get(name)
        is_whole = field.numpy_dtype is not decimal.Decimal and np.dtype(field.numpy_dtype).kind in "iu"
        if is_whole and isinstance(column, np.ndarray) and column.dtype == np.float64 and np.isnan(column).any():
            yield name


def _one(column: pa.ChunkedArray) -> pa.Array:
    array = one_array(column)
    return widened(array) if pa.types.is_dictionary(array.type) else array


def _text(values: list[str | None]) -> np.ndarray:
    if all(value is not None and value[-1:] != "\0" for value in values):
        return np.array(values, dtype=np.str_)
    return object_array(values)


def _time_stamps(array: pa.Array) -> np.ndarray:
    counts = as_numpy(array.cast(pa.timestamp(array.type.unit)))
    seconds = counts.astype("datetime64[s]").astype(np.int64)
    known = seconds[~np.isnat(counts)]
    fits = not len(known) or bool((np.abs(known) < _NANOSECONDS).all())
    return np.array(counts, dtype="datetime64[ns]" if fits else counts.dtype)


def _lists(array: pa.Array) -> np.ndarray:
    rows = [None if not value.is_valid else column_array(value.values) for value in array]
    if not rows or any(row is None for row in rows) or len({row.shape for row in rows if row is not None}) > 1:
        return object_array(rows)
    return np.stack([row for row in rows if row is not None])
