"""Encoding checked values to the Arrow arrays that the columns store.

In come rows (dicts) or columns (sequences, or arrays with a leading row axis), out comes one Arrow array for each
field. Rows and columns obey one rule, `checking.check_value`; the fast paths give the same arrays and only skip work.
The arrays own their memory: a caller may reuse its buffers at once.
"""

from __future__ import annotations

import decimal
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import EncodeError
from .arrow_types import arrow_scalar_type
from .checking import check_value
from .dtypes import is_string_like
from .field import Unischema, UnischemaField

__all__ = ["check_value", "encode_columns", "encode_rows"]

_CANNOT_CONVERT = (ValueError, TypeError, OverflowError, OSError, pa.ArrowException)


def encode_rows(schema: Unischema, rows: Sequence[Mapping[str, Any]], *, first_row: int = 0) -> dict[str, pa.Array]:
    """The rows as one Arrow array for each field.

    Args:
        first_row: the number of the first row, for error messages.

    Raises:
        EncodeError: a missing or unknown field, or a value that does not fit; says which field of which row.
    """
    known = schema.fields.keys()
    for number, row in enumerate(rows, first_row):
        if not isinstance(row, Mapping):
            raise EncodeError(f"row {number}: expected a mapping of field names to values, got {type(row).__name__}.")
        if row.keys() - known:
            raise EncodeError(
                f"row {number}: expected only the fields {sorted(known)}, got also {sorted(row.keys() - known)}. "
                "Add them to the schema or drop them from the row."
            )
    return {field.name: _encode_values(field, [row.get(field.name) for row in rows], first_row) for field in schema}


def encode_columns(schema: Unischema, columns: Mapping[str, Any], *, first_row: int = 0) -> dict[str, pa.Array]:
    """Columns (sequences or arrays with a leading row axis) as one Arrow array for each field.

    Raises:
        EncodeError: unknown or missing columns, columns of different lengths, or a value that does not fit.
    """
    count = column_length(schema, columns)
    return {field.name: _encode_values(field, columns.get(field.name, [None] * count), first_row) for field in schema}


def column_length(schema: Unischema, columns: Mapping[str, Any]) -> int:
    """The number of rows in the columns; raises `EncodeError` for unknown columns and for different lengths."""
    unknown = columns.keys() - schema.fields.keys()
    if unknown:
        raise EncodeError(
            f"columns: expected only the fields {sorted(schema.fields)}, got also {sorted(unknown)}. "
            "Add them to the schema or drop them."
        )
    for name, column in columns.items():
        if not hasattr(column, "__len__") or isinstance(column, str | bytes | Mapping):
            raise EncodeError(f"column '{name}': expected a sequence or an array, got {type(column).__name__}.")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise EncodeError(f"columns: expected one length for all, got {lengths}.")
    return next(iter(lengths.values()), 0)


def _encode_values(field: UnischemaField, values: Collection[Any] | pa.Array, first_row: int) -> pa.Array:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        values = values.to_pylist()
    arrow_type = field.storage.arrow_type(field)
    try:
        if isinstance(values, np.ndarray):
            fast = _encode_array_column(field, values, arrow_type)
        else:
            fast = _encode_plain_scalars(field, values, arrow_type)
    except _CANNOT_CONVERT:
        fast = None  # the path below finds the row that is to blame
    return fast if fast is not None else _encode_one_by_one(field, values, arrow_type, first_row)


def _encode_one_by_one(
    field: UnischemaField, values: Iterable[Any], arrow_type: pa.DataType, first_row: int
) -> pa.Array:
    codec = field.storage
    encoded = []
    for number, value in enumerate(values, first_row):
        try:
            checked = check_value(field, value)
            encoded.append(None if checked is None else codec.encode(field, checked))
        except EncodeError as error:
            raise EncodeError(f"row {number}, {error}") from None
        except (*_CANNOT_CONVERT, RuntimeError) as error:  # RuntimeError: imagecodecs
            raise EncodeError(f"row {number}, field '{field.name}': {type(codec).__name__} failed: {error}") from error
    try:
        return _to_arrow(field, encoded, arrow_type)
    except _CANNOT_CONVERT:
        _blame_row(field, encoded, arrow_type, first_row)
        raise


def _blame_row(field: UnischemaField, encoded: list[Any], arrow_type: pa.DataType, first_row: int) -> None:
    for number, value in enumerate(encoded, first_row):
        try:
            _to_arrow(field, [value], arrow_type)
        except _CANNOT_CONVERT as error:
            raise EncodeError(
                f"row {number}, field '{field.name}': expected a value that {arrow_type} can store: {error}"
            ) from error


def _to_arrow(field: UnischemaField, encoded: list[Any], arrow_type: pa.DataType) -> pa.Array:
    if field.shape != () or field.storage.coded:
        return pa.array(encoded, arrow_type)
    if isinstance(field.dtype, np.dtype) and field.dtype.kind in "mM":
        missing = np.array("NaT", dtype=field.dtype)[()]  # Arrow turns NaT into null
        moments = np.array([missing if item is None else item for item in encoded], dtype=field.dtype)
        return pa.array(moments).cast(arrow_type)
    if field.dtype is decimal.Decimal:
        return pa.array(encoded, arrow_type)
    # By way of the dtype's own type: a safe cast refuses what a direct conversion would truncate.
    return pa.array(encoded, arrow_scalar_type(field.dtype, field=field.name)).cast(arrow_type)


def _encode_plain_scalars(field: UnischemaField, values: Collection[Any], arrow_type: pa.DataType) -> pa.Array | None:
    """A list of scalars whose types need no check of our own; ``None`` where the slow path is needed."""
    if field.storage.kind != "scalar":
        return None
    types = set(map(type, values))
    if field.nullable:
        types.discard(type(None))
    return _to_arrow(field, list(values), arrow_type) if types <= _plain_types(field) else None


def _plain_types(field: UnischemaField) -> set[type]:
    """The types that Arrow itself converts to the field's dtype exactly, or refuses."""
    if field.dtype is decimal.Decimal:
        return set()
    if is_string_like(field.dtype):
        return {str} if field.dtype.kind == "U" else {bytes}
    if field.dtype.kind in "mM":
        return set()
    python = {"b": bool, "i": int, "u": int, "f": float}[field.dtype.kind]
    return {field.dtype.type} if field.dtype.kind == "f" and field.dtype.itemsize < 8 else {field.dtype.type, python}


def _encode_array_column(field: UnischemaField, values: np.ndarray, arrow_type: pa.DataType) -> pa.Array | None:
    """A whole array of the right dtype and shape in one step; ``None`` where the slow path is needed."""
    if is_string_like(field.dtype) or values.dtype != field.dtype or not values.size:
        return None
    if values.ndim != 1 + len(field.shape) or not all(
        want is None or want == got for want, got in zip(field.shape, values.shape[1:], strict=True)
    ):
        return None
    if field.storage.kind == "tensor":
        raw = np.array(values, dtype=values.dtype.newbyteorder("<"), order="C")
        return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(raw.view(np.uint8))])
    if field.dtype.kind in "mM" and np.isnat(values).any():
        return None
    if field.storage.kind == "scalar":
        return pa.array(values.copy()).cast(arrow_type)
    if field.storage.kind == "list":
        return _nested_lists(field, values).cast(arrow_type)
    return None


def _nested_lists(field: UnischemaField, values: np.ndarray) -> pa.Array:
    """``(N, *shape)`` as ``N`` nested lists, from the innermost axis outwards."""
    result = pa.array(values.flatten())
    for wanted, length in zip(reversed(field.shape), reversed(values.shape[1:]), strict=True):
        if wanted:
            result = pa.FixedSizeListArray.from_arrays(result, length)
        else:
            offsets = np.arange(0, len(result) + 1, length, dtype=np.int32)
            result = pa.ListArray.from_arrays(pa.array(offsets), result)
    return result
