"""The element types of a field: normalizes what users write, names dtypes in JSON, and converts counts of time units.

A field's dtype is a ``numpy.dtype`` or the class ``decimal.Decimal`` (delivered as its exact text). ``"U"`` is text,
``"S"`` is bytes, and ``datetime64[unit]`` is a timestamp, delivered as int64 in that unit.

numpy converts times through the calendar, which silently wraps around near the ends of int64. Units of fixed
length need only a multiplication or a division. ``NaT``, the smallest int64, stays ``NaT``.
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
UNITS_NS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3_600 * 10**9,
    "D": 86_400 * 10**9,
    "W": 7 * 86_400 * 10**9,
}
"""Time units of fixed length, in nanoseconds."""
_LIMITS = np.iinfo(np.int64)


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


def has_fixed_unit(kind: str | np.dtype) -> bool:
    """Whether a time type such as ``"datetime64[us]"`` counts one of `UNITS_NS`."""
    unit, count = np.datetime_data(np.dtype(kind))
    return unit in UNITS_NS and count == 1


def convert_counts(counts: np.ndarray, source: str | np.dtype, target: str | np.dtype) -> np.ndarray:
    """Converts counts of the unit of ``source``, a time type, to that of ``target``. A coarser unit rounds down.

    >>> convert_counts(np.array([1_999, -1]), "datetime64[ms]", "datetime64[s]")
    array([ 1, -1])
    """
    finer, coarser = _factors(source, target)
    if finer == coarser:
        return counts
    with np.errstate(over="ignore"):  # counts that are not values, such as NaT, may wrap around
        made = counts * finer if finer > 1 else counts // coarser
    return np.where(counts == _LIMITS.min, _LIMITS.min, made)


def counts_too_far(counts: np.ndarray, source: str | np.dtype, target: str | np.dtype) -> np.ndarray | None:
    """Returns a mask of the counts that the unit of ``target`` cannot hold, or ``None`` if it holds all of them.

    >>> counts_too_far(np.array([1, 10**10]), "datetime64[s]", "datetime64[ns]")
    array([False,  True])
    """
    finer, _ = _factors(source, target)
    most = int(_LIMITS.max) // finer
    if finer == 1 or not counts.size or (int(counts.min()) >= -most and int(counts.max()) <= most):
        return None
    too_far: np.ndarray = ((counts < -most) | (counts > most)) & (counts != _LIMITS.min)
    return too_far


def _factors(source: str | np.dtype, target: str | np.dtype) -> tuple[int, int]:
    """Returns what to multiply counts by, and what to divide them by; one of the two is 1."""
    from_ns, to_ns = (UNITS_NS[np.datetime_data(np.dtype(kind))[0]] for kind in (source, target))
    return max(from_ns // to_ns, 1), max(to_ns // from_ns, 1)
