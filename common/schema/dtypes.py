"""The element types of a field: normalizes what users write and names dtypes in JSON.

A field's dtype is a ``numpy.dtype`` or the class ``decimal.Decimal`` (delivered as its exact text). ``"U"`` is text,
``"S"`` is bytes, and ``datetime64[unit]`` is a timestamp, delivered as int64 in that unit.
"""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..base.errors import SchemaError

FieldDtype = np.dtype[Any] | type[decimal.Decimal]

_TEXT = np.dtype("U")
_BYTES = np.dtype("S")
NO_DTYPE = (TypeError, ValueError, SyntaxError, OverflowError, RecursionError, MemoryError)
"""The exceptions that numpy raises for an invalid dtype. It parses strings with commas and brackets."""
_ALIASES: dict[Any, np.dtype] = {
    str: _TEXT,
    bytes: _BYTES,
    "str": _TEXT,
    "string": _TEXT,
    "bytes": _BYTES,
    "binary": _BYTES,
    datetime.datetime: np.dtype("datetime64[us]"),
    datetime.date: np.dtype("datetime64[D]"),
}


def canonical_dtype(dtype: DTypeLike, *, field: str) -> FieldDtype:
    """Returns the canonical form of ``dtype``. Raises `SchemaError` for a dtype that cannot become a tensor."""
    if dtype is decimal.Decimal or (isinstance(dtype, str) and dtype.lower() == "decimal"):
        return decimal.Decimal
    try:
        known = dtype in _ALIASES
    except TypeError:
        known = False
    if known:
        return _ALIASES[dtype]
    try:
        result: np.dtype = np.dtype(dtype)
    except NO_DTYPE as error:
        raise SchemaError(
            f"dtype of field '{field}': expected a numpy dtype, str, bytes or Decimal, got {dtype!r}."
        ) from error
    if result.kind in "US":
        return np.dtype(result.kind)  # a field has no string length, only its values do
    if result.kind == "M" and np.datetime_data(result)[0] == "generic":
        return np.dtype("datetime64[ns]")
    if result.kind in "mM" and np.datetime_data(result)[1] != 1:
        raise SchemaError(f"dtype of field '{field}': expected a unit such as 's' or 'us' for times, got {result}.")
    if result.kind not in "biufMm":
        raise SchemaError(
            f"dtype of field '{field}': expected bool, integer, float, datetime64, timedelta64, str, bytes or Decimal, "
            f"got {result}. Convert objects to bytes yourself."
        )
    return result.newbyteorder("=")


def is_text(dtype: FieldDtype) -> bool:
    """Whether users get strings (text or exact decimals)."""
    return dtype is decimal.Decimal or (isinstance(dtype, np.dtype) and dtype.kind == "U")


def is_bytes(dtype: FieldDtype) -> bool:
    """Whether users get raw bytes."""
    return isinstance(dtype, np.dtype) and dtype.kind == "S"


def is_string_like(dtype: FieldDtype) -> bool:
    """Whether values have no fixed size in memory (text, bytes, decimals)."""
    return is_text(dtype) or is_bytes(dtype)


def delivered_dtype(dtype: FieldDtype) -> np.dtype[Any]:
    """Returns the dtype of delivered arrays: int64 in the field's unit for times, ``object`` for strings."""
    if is_string_like(dtype):
        return np.dtype(object)
    assert isinstance(dtype, np.dtype)
    return np.dtype(np.int64) if dtype.kind in "mM" else dtype


def dtype_to_json(dtype: FieldDtype) -> str:
    """Returns a stable name: ``"uint8"``, ``"str"``, ``"bytes"``, ``"datetime64[us]"``, ``"decimal"``."""
    if not isinstance(dtype, np.dtype):
        return "decimal"
    return {"U": "str", "S": "bytes"}.get(dtype.kind, dtype.name)


def dtype_from_json(name: str, *, field: str) -> FieldDtype:
    """The inverse of `dtype_to_json`."""
    return canonical_dtype(name, field=field)


def numbers_outside(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray | None:
    """Returns a mask of the numbers that the dtype cannot hold, or ``None`` if it certainly holds all of them."""
    if dtype.kind == "f" or np.can_cast(values.dtype, dtype) or not values.size:
        return None
    if dtype.kind == "b":
        return ~np.isfinite(values) if values.dtype.kind == "f" else None
    limits = np.iinfo(dtype)
    if values.dtype.kind == "f":
        whole = np.trunc(values.astype(np.float64))
        return ~((whole >= float(limits.min)) & (whole < float(limits.max + 1)))  # floats hold powers of two exactly
    if values.dtype.kind == "b" or (int(values.min()) >= limits.min and int(values.max()) <= limits.max):
        return None
    own = np.iinfo(values.dtype)
    return (values < max(limits.min, own.min)) | (values > min(limits.max, own.max))


def decimal_text(value: decimal.Decimal) -> str:
    """Returns the exact text of a decimal without trailing zeros or an exponent, whatever the context's precision.

    >>> decimal_text(decimal.Decimal("1.50")), decimal_text(decimal.Decimal("1E+2"))
    ('1.5', '100')
    """
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def float_holds(integers: np.ndarray, floats: np.ndarray) -> np.ndarray:
    """Returns which integers (or bools) equal the floats that they were converted to. Nothing is rounded on the way.

    >>> float_holds(np.array([2**24, 2**24 + 1, 2**24 + 2]), np.array([2**24, 2**24 + 1, 2**24 + 2], np.float32))
    array([ True, False,  True])
    """
    digits = np.finfo(floats.dtype).nmant + 1
    sizes = integers.astype(np.uint64)
    if integers.dtype.kind == "i":
        sizes = np.where(integers < 0, 0 - sizes, sizes)
    lowest_bit = np.maximum(sizes & (0 - sizes), 1)
    holds: np.ndarray = (sizes // lowest_bit < 2**digits) & np.isfinite(floats)
    return holds
