"""Encodes values as the Arrow arrays that the columns store.

Takes rows (dicts) or columns (sequences, or arrays with a leading row axis) and returns one Arrow array per field. Rows
and columns pass the same check, `checking.check_value`. The fast paths return equal arrays and only save work. The
arrays own their memory, so callers can reuse their buffers immediately.
"""

from __future__ import annotations

import contextlib
import decimal
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from ..base.errors import EncodeError
from ..base.memory.arrow_views import as_numpy, is_bytes, is_list, is_text
from ..base.process.forks import pc
from .arrow_types import arrow_scalar_type
from .checking import check_value
from .codec import fits_shape
from .dtypes import is_string_like
from .field import Unischema, UnischemaField
from .ragged import ends_of

__all__ = ["check_value", "columns_of_rows", "encode_columns", "encode_rows"]

_CANNOT_CONVERT = (ValueError, TypeError, OverflowError, OSError, pa.ArrowException)


def encode_rows(schema: Unischema, rows: Sequence[Mapping[str, Any]], *, first_row: int = 0) -> dict[str, pa.Array]:
    """Encodes rows as one Arrow array per field.

    Args:
        first_row: the number of the first row, for error messages.

    Raises:
        EncodeError: a field is missing or unknown, or a value does not fit. The message names the row and the field.
    """
    return _encode(schema, columns_of_rows(schema, rows, first_row=first_row), len(rows), first_row)


def columns_of_rows(
    schema: Unischema, rows: Sequence[Mapping[str, Any]], *, first_row: int = 0
) -> dict[str, Sequence[Any]]:
    """Returns the values of each field, with ``None`` for missing ones.

    Raises:
        EncodeError: a row is no mapping, or has an unknown field.
    """
    known = schema.fields.keys()
    if set(map(type, rows)) == {dict} and rows[0] and rows[0].keys() <= known and set(map(len, rows)) == {len(rows[0])}:
        with contextlib.suppress(KeyError):  # a row has other fields
            return {name: [row[name] for row in rows] for name in rows[0]}
    for number, row in enumerate(rows, first_row):
        if not isinstance(row, Mapping):
            raise EncodeError(f"row {number}: expected a mapping of field names to values, got {type(row).__name__}.")
        if row.keys() - known:
            raise EncodeError(
                f"row {number}: expected only the fields {sorted(known)}, got also {sorted(row.keys() - known)}. "
                "Add them to the schema or drop them from the row."
            )
    return {name: [row.get(name) for row in rows] for name in known}


def encode_columns(schema: Unischema, columns: Mapping[str, Any], *, first_row: int = 0) -> dict[str, pa.Array]:
    """Encodes columns (sequences, or arrays with a leading row axis) as one Arrow array per field.

    Raises:
        EncodeError: columns are unknown, missing, or differ in length, or a value does not fit.
    """
    return _encode(schema, columns, column_length(schema, columns), first_row)


def _encode(schema: Unischema, columns: Mapping[str, Any], count: int, first_row: int) -> dict[str, pa.Array]:
    nulls = [None] * count
    return {field.name: _encode_values(field, columns.get(field.name, nulls), first_row) for field in schema}


def column_length(schema: Unischema, columns: Mapping[str, Any]) -> int:
    """Returns the number of rows. Raises `EncodeError` if columns are unknown or differ in length."""
    unknown = columns.keys() - schema.fields.keys()
    if unknown:
        raise EncodeError(
            f"columns: expected only the fields {sorted(schema.fields)}, got also {sorted(unknown)}. "
            "Add them to the schema or drop them."
        )
    for name, column in columns.items():
        one = isinstance(column, str | bytes | Mapping | Set) or getattr(column, "shape", None) == ()
        if one or not hasattr(column, "__len__"):
            what = "an array of one value without an axis" if hasattr(column, "shape") else type(column).__name__
            raise EncodeError(f"column '{name}': expected a sequence or an array, got {what}.")
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise EncodeError(f"columns: expected one length for all, got {lengths}.")
    return next(iter(lengths.values()), 0)


def _encode_values(field: UnischemaField, values: Collection[Any] | pa.Array, first_row: int) -> pa.Array:
    arrow_type = field.storage.arrow_type(field)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        with contextlib.suppress(*_CANNOT_CONVERT):  # the slow path finds the offending row
            fast = _encode_arrow_column(field, values, arrow_type)
            if fast is not None:
                return fast
        # Python's own times have no nanoseconds.
        times = pa.types.is_timestamp(values.type) or pa.types.is_duration(values.type)
        values = as_numpy(values) if times else values.to_pylist()
    if isinstance(values, np.ma.MaskedArray):
        masked = np.ma.is_masked(values)
        values = (values.tolist() if values.ndim == 1 else list(values)) if masked else values.data
    try:
        if isinstance(values, np.ndarray) and (values.ndim != 1 or values.dtype.kind not in "OSU"):
            fast = _encode_array_column(field, values, arrow_type)
        else:
            fast = _encode_sequence(field, values.tolist() if isinstance(values, np.ndarray) else values, arrow_type)
    except _CANNOT_CONVERT:
        fast = None  # the slow path finds the offending row
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
        except (*_CANNOT_CONVERT, RuntimeError) as error:  # imagecodecs raises RuntimeError
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
        return _times(moments, arrow_type)
    if field.dtype is decimal.Decimal:
        return pa.array(encoded, arrow_type)
    # Go through the dtype's own Arrow type: a safe cast refuses values that a direct conversion would truncate.
    as_null = is_string_like(field.dtype)  # NaN and NA mean null there
    return _cast(pa.array(encoded, arrow_scalar_type(field.dtype, field=field.name), from_pandas=as_null), arrow_type)


def _times(moments: np.ndarray, arrow_type: pa.DataType) -> pa.Array:
    _check_days(moments)
    return _cast(pa.array(moments.copy()), arrow_type)


def _check_days(moments: np.ndarray) -> None:
    """Raises `pa.ArrowInvalid` for days that do not fit into Arrow's 32 bits, to which it would cut them."""
    if moments.dtype != np.dtype("datetime64[D]"):
        return
    days = moments[~np.isnat(moments)].astype(np.int64)
    if len(days) and (days.min() < -(1 << 31) or days.max() >= 1 << 31):
        raise pa.ArrowInvalid("a day that needs more than 32 bits")


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Casts an array. Raises `pa.ArrowInvalid` for values that become others, even where Arrow's checked cast does not.

    Floats may be rounded, but do not overflow.
    """
    if array.type == kind:
        return array
    result = array.cast(kind)
    if pa.types.is_floating(array.type) and pa.types.is_floating(kind):
        changed = pc.and_(pc.is_finite(array), pc.is_inf(result.cast(array.type)))
    elif pa.types.is_decimal(kind) or pa.types.is_nested(kind):
        return result
    else:
        changed = pc.not_equal(result.cast(array.type), array)
    if pc.any(changed).as_py():
        first = pc.index(changed, True).as_py()
        raise pa.ArrowInvalid(f"{array[first]} becomes {result[first]}")
    return result


def _encode_sequence(field: UnischemaField, values: Collection[Any], arrow_type: pa.DataType) -> pa.Array | None:
    """Encodes Python values that are checked all at once, or returns ``None`` if the slow path is needed."""
    types = set(map(type, values))
    if field.storage.kind == "scalar":
        missing = _missing_types(field, types) if field.nullable else set()
        return _encode_scalars(field, values, types - missing, arrow_type)
    if type(None) in types and field.nullable:
        return _encode_with_nulls(field, values, arrow_type)
    if types == {np.ndarray}:
        return _encode_arrays(field, values, arrow_type)
    if field.storage.kind == "list" and len(field.shape) == 1 and types <= {list, tuple}:
        return _encode_lists(field, values, arrow_type)
    return None


def _missing_types(field: UnischemaField, types: set[type]) -> set[type]:
    """Returns the types whose values Arrow makes null, or refuses, in a nullable field of single values."""
    if not is_string_like(field.dtype):
        return {type(None)}
    return {kind for kind in types if issubclass(kind, float) or kind.__name__ in ("NoneType", "NAType")}


def _encode_with_nulls(field: UnischemaField, values: Collection[Any], arrow_type: pa.DataType) -> pa.Array | None:
    present = [value for value in values if value is not None]
    encoded = _encode_sequence(field, present, arrow_type)
    if encoded is None:
        return None
    missing = np.fromiter((value is None for value in values), dtype=bool, count=len(values))
    return encoded.take(pa.array(np.cumsum(~missing) - 1, mask=missing))


def _encode_scalars(
    field: UnischemaField, values: Collection[Any], types: set[type], arrow_type: pa.DataType
) -> pa.Array | None:
    if types <= _exact_types(field):
        return _to_arrow(field, values if isinstance(values, list) else list(values), arrow_type)
    if field.dtype == np.float32 and types == {float}:
        return _cast(_cast(pa.array(values, pa.float64()), pa.float32()), arrow_type)
    return None


def _encode_lists(field: UnischemaField, values: Collection[Any], arrow_type: pa.DataType) -> pa.Array | None:
    """Encodes lists with one axis."""
    length = field.shape[0]
    lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    if length is not None and (lengths != length).any():
        return None
    items = list(itertools.chain.from_iterable(values))
    inner = _encode_scalars(field, items, set(map(type, items)), arrow_scalar_type(field.dtype, field=field.name))
    return None if inner is None else _lists_of(inner, lengths, arrow_type)


def _lists_of(inner: pa.Array, lengths: np.ndarray, arrow_type: pa.DataType) -> pa.Array:
    """Returns lists of these lengths, which lie end to end in ``inner``."""
    if pa.types.is_fixed_size_list(arrow_type):
        return pa.FixedSizeListArray.from_arrays(inner, arrow_type.list_size).cast(arrow_type)
    return pa.ListArray.from_arrays(pa.array(ends_of(lengths), pa.int32()), inner).cast(arrow_type)


def _encode_arrays(field: UnischemaField, values: Collection[Any], arrow_type: pa.DataType) -> pa.Array | None:
    """Encodes arrays as one, if their codec stores their elements and they are of the field's dtype."""
    if field.storage.kind not in ("list", "tensor") or set(map(attrgetter("dtype"), values)) != {field.dtype}:
        return None
    shapes = set(map(attrgetter("shape"), values))
    if len(shapes) == 1:
        column = np.concatenate(list(values)).reshape(len(values), *shapes.pop())
        return _encode_array_column(field, column, arrow_type)
    if field.shape != (None,) or field.dtype.kind in "mM":
        return None
    lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    return _lists_of(pa.array(np.concatenate(list(values))), lengths, arrow_type)


def _exact_types(field: UnischemaField) -> set[type]:
    """Returns the Python types that Arrow either converts to the field's dtype exactly, or refuses."""
    if not isinstance(field.dtype, np.dtype) or field.dtype.kind in "mM":
        return set()
    if is_string_like(field.dtype):
        return {str} if field.dtype.kind == "U" else {bytes}
    python: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {float, int}}
    exact = python[field.dtype.kind] if field.dtype.kind != "f" or field.dtype.itemsize == 8 else set()
    return {field.dtype.type, *exact}


def _encode_arrow_column(
    field: UnischemaField, values: pa.Array | pa.ChunkedArray, arrow_type: pa.DataType
) -> pa.Array | None:
    """Encodes a whole column of numbers, text, bytes or lists of them, or returns ``None`` if the slow path is needed.

    Times are left to the slow path, because numpy has no value for the smallest one.
    """
    if not isinstance(field.dtype, np.dtype) or field.dtype.kind in "mM":
        return None
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count and not field.nullable:
        return None
    values.validate(full=True)  # texts may not be UTF-8
    own = arrow_scalar_type(field.dtype, field=field.name)
    if field.storage.kind == "scalar" and any(check(values.type) and check(own) for check in _EXACT_FAMILIES):
        result = _cast(_cast(values, own), arrow_type)
    elif field.storage.kind == "list" and _has_lists(field, values, own):
        result = values.cast(arrow_type)
    else:
        return None
    return pa.concat_arrays([result, result.slice(0, 0)])  # copies


def _has_lists(field: UnischemaField, values: pa.Array, own: pa.DataType) -> bool:
    """Whether the values are lists with one axis, of the field's length and type, without nulls inside."""
    arrow, length = values.type, field.shape[0]
    if not is_list(arrow) or len(field.shape) > 1 or arrow.value_type != own or values.flatten().null_count:
        return False
    return length is None or bool(pc.all(pc.equal(pc.list_value_length(values), length)).as_py())


_EXACT_FAMILIES = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, is_text, is_bytes)
"""Arrow types whose values `_cast` converts among each other as the check of single values does, or refuses."""


def _encode_array_column(field: UnischemaField, values: np.ndarray, arrow_type: pa.DataType) -> pa.Array | None:
    """Encodes a whole array of the right dtype and shape at once, or returns ``None`` if the slow path is needed.

    Scalars may be of another dtype of numbers, as single values may.
    """
    if field.storage.kind == "scalar" and values.ndim == 1 and values.dtype.kind in "biuf":
        return _encode_arrow_column(field, pa.array(values), arrow_type)
    if is_string_like(field.dtype) or values.dtype != field.dtype or not values.size:
        return None
    if not values.ndim or not fits_shape(values.shape[1:], field.shape):
        return None
    if field.storage.kind == "tensor":
        raw = np.array(values, dtype=values.dtype.newbyteorder("<"), order="C")
        return pa.Array.from_buffers(arrow_type, len(values), [None, pa.py_buffer(raw.view(np.uint8))])
    if field.dtype.kind in "mM" and np.isnat(values).any():
        return None
    if field.storage.kind == "scalar":
        return _times(values, arrow_type)
    if field.storage.kind == "list":
        return _nested_lists(field, values).cast(arrow_type)
    return None


def _nested_lists(field: UnischemaField, values: np.ndarray) -> pa.Array:
    """Converts an array of shape ``(N, *shape)`` to ``N`` nested lists, starting from the innermost axis."""
    flat = values.flatten()
    _check_days(flat)
    result = pa.array(flat)
    for wanted, length in zip(reversed(field.shape), reversed(values.shape[1:]), strict=True):
        if wanted:
            result = pa.FixedSizeListArray.from_arrays(result, length)
        else:
            offsets = np.arange(0, len(result) + 1, length, dtype=np.int32)
            result = pa.ListArray.from_arrays(pa.array(offsets), result)
    return result
