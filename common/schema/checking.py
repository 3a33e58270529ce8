"""Checks that a value fits its field. Every value passes this check before a codec sees it.

Takes any Python or numpy value and returns the same value in the field's dtype. A value is accepted only if it reads
back equal. The one exception is a single float (not an array of floats), which is rounded to the field's precision.
Values never wrap around, are never truncated, and never turn into strings.
"""

from __future__ import annotations

import datetime
import decimal
import math
import os
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from ..base.errors import EncodeError
from .codec import fits_shape
from .dtypes import dtype_to_json, is_bytes, is_string_like
from .field import UnischemaField
from .plain import is_null
from .ragged import object_array

Text = TypeVar("Text", str, bytes)


def check_value(field: UnischemaField, value: object) -> Any:
    """Returns the value in the field's type. ``None`` and ``NaT`` become ``None`` if the field is nullable.

    So do the missing values of a pandas data frame, NaN and ``NA``, for texts and bytes.

    Raises:
        EncodeError: a null in a field that is not nullable, a wrong dtype or shape, or a number out of range.
    """
    if value is None or (is_string_like(field.dtype) and is_null(value, text=True)):
        _refuse_null(field, repr(value))
        return None
    if field.shape == ():
        return _check_scalar(field, value)
    if field.storage.takes_encoded and isinstance(value, bytes | bytearray | memoryview):
        return _check_encoded(field, value)
    array = _check_array(field, value)
    _check_shape(field, array.shape)
    return array


def _check_encoded(field: UnischemaField, value: bytes | bytearray | memoryview) -> bytes:
    if isinstance(value, np.bytes_):
        raise EncodeError(
            f"field '{field.name}': expected bytes, got {type(value).__name__}, which drops trailing zero bytes. "
            "Pass the images as a list or as an array of dtype object."
        )
    return bytes(value)


def wrong_type(field: UnischemaField, value: object) -> EncodeError:
    """Returns the error for a value whose type is not the field's."""
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    files = field.storage.takes_encoded and isinstance(value, str | os.PathLike)
    hint = " To store a file, pass its bytes: pathlib.Path(...).read_bytes()." if files else ""
    if isinstance(value, float) and math.isnan(value):
        hint = (
            " A data frame has NaN for a missing value. Write None for it, as with "
            f"frame[{field.name!r}].astype(object).where(frame[{field.name!r}].notna(), None), in a nullable field."
        )
    return EncodeError(
        f"field '{field.name}': expected {dtype_to_json(field.dtype)}, got {type(value).__name__} {shown}.{hint}"
    )


def _refuse_null(field: UnischemaField, shown: str) -> None:
    if not field.nullable:
        raise EncodeError(f"field '{field.name}': expected a value, got {shown}. Declare the field nullable=True.")


def _check_scalar(field: UnischemaField, value: object) -> Any:
    dtype = field.dtype
    if isinstance(value, np.ndarray) and value.shape == ():
        value = value[()]
    if dtype is decimal.Decimal:
        return _check_decimal(field, value)
    if is_bytes(dtype):
        if isinstance(value, bytes | bytearray | memoryview):
            return _stored_whole(field, bytes(value))
        raise wrong_type(field, value)
    if is_string_like(dtype):
        if isinstance(value, str):
            return _stored_whole(field, str(value))
        raise wrong_type(field, value)
    if dtype.kind in "mM":
        moment = _check_time(field, value)
        if np.isnat(moment):
            _refuse_null(field, "NaT")
            return None
        return moment
    return _check_number(field, value)


def _stored_whole(field: UnischemaField, text: Text) -> Text:
    """Returns the text. Raises `EncodeError` if its codec would drop its end."""
    if field.storage.coded and text[-1:] in ("\0", b"\0"):
        raise EncodeError(
            f"field '{field.name}': expected strings without a trailing NUL, which .npy cannot store, got {text!r}. "
            f"Use {'ScalarCodec' if field.shape == () else 'ListCodec'}()."
        )
    return text


def _check_decimal(field: UnischemaField, value: object) -> decimal.Decimal:
    if isinstance(value, bool) or not isinstance(value, decimal.Decimal | str | int):
        raise wrong_type(field, value)
    try:
        result = decimal.Decimal(value)
    except decimal.InvalidOperation:
        raise wrong_type(field, value) from None
    if not result.is_finite():
        raise wrong_type(field, value)
    return result


def _check_number(field: UnischemaField, value: object) -> Any:
    dtype = field.dtype
    if isinstance(value, np.generic):
        if value.dtype == dtype:
            return value
        if value.dtype.kind not in "biuf":
            raise wrong_type(field, value)
        value = value.item()
    allowed = {"b": bool, "i": int, "u": int, "f": int | float}[dtype.kind]
    if not isinstance(value, allowed) or (isinstance(value, bool) and dtype.kind != "b"):
        raise wrong_type(field, value)
    if dtype.kind == "f":
        return _check_float(field, value)
    if dtype.kind != "b":
        _check_range(field, value, value)
    return dtype.type(value)


def _check_float(field: UnischemaField, value: int | float) -> Any:
    try:
        with np.errstate(over="ignore"):
            result = field.dtype.type(value)
    except OverflowError:
        raise _out_of_float_range(field, value) from None
    if np.isinf(result) and not math.isinf(value):
        raise _out_of_float_range(field, value)
    if isinstance(value, int) and int(result) != value:
        raise EncodeError(f"field '{field.name}': expected an integer that {field.dtype} holds exactly, got {value}.")
    return result


def _out_of_float_range(field: UnischemaField, value: int | float) -> EncodeError:
    limit = float(np.finfo(field.dtype).max)
    shown = f"{value:.6g}" if isinstance(value, float) else f"an integer of {value.bit_length()} bits"
    return EncodeError(f"field '{field.name}': expected {-limit:.6g} to {limit:.6g} ({field.dtype}), got {shown}.")


def _check_range(field: UnischemaField, low: int, high: int) -> None:
    limits = np.iinfo(field.dtype)
    if low < limits.min or high > limits.max:
        wrong = low if low < limits.min else high
        raise EncodeError(f"field '{field.name}': expected {limits.min} to {limits.max} ({field.dtype}), got {wrong}.")


def _check_time(field: UnischemaField, value: object) -> Any:
    """Returns the value as ``datetime64`` or ``timedelta64`` in the field's unit. Integers count that unit."""
    moment = _moment(field, value)
    try:
        result = moment.astype(field.dtype)
        exact = np.isnat(moment) or result.astype(moment.dtype) == moment
    except TypeError:
        raise wrong_type(field, value) from None
    except OverflowError:
        exact = False
    if not exact:
        raise EncodeError(f"field '{field.name}': expected a value that {field.dtype} holds exactly, got {value!r}.")
    return result


def _moment(field: UnischemaField, value: object) -> Any:
    kind = field.dtype.kind
    if isinstance(value, np.generic) and value.dtype.kind == kind:
        return value
    if isinstance(value, np.generic) and value.dtype.kind in "iu":
        value = value.item()
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(2**63) <= value < 2**63:
            raise EncodeError(f"field '{field.name}': expected a 64-bit count of {field.dtype}, got {value}.")
        return np.int64(value).astype(field.dtype)
    if kind == "M" and isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)  # numpy's timestamps are UTC
    if kind == "M" and isinstance(value, datetime.date):
        return _numpy_of(value, "to_datetime64", np.datetime64)
    if kind == "m" and isinstance(value, datetime.timedelta):
        return _numpy_of(value, "to_timedelta64", np.timedelta64)
    if type(value).__name__ == "NaTType":  # the missing time of pandas, which counts as a date
        return np.array("NaT", dtype=field.dtype)[()]
    raise wrong_type(field, value)


def _numpy_of(value: object, method: str, plain: Callable[[Any], Any]) -> Any:
    """Returns the numpy scalar of a time. Those of pandas have nanoseconds, which ``plain`` would drop."""
    convert: Callable[[], Any] | None = getattr(value, method, None)
    return plain(value) if convert is None else convert()


def _check_array(field: UnischemaField, value: object) -> np.ndarray:
    if is_string_like(field.dtype):
        return _check_string_array(field, value)
    if not isinstance(value, np.ndarray):
        return _array_from_list(field, value)
    if isinstance(value, np.ma.MaskedArray):
        if np.ma.is_masked(value):
            raise EncodeError(
                f"field '{field.name}': expected an array without masked values, got some. Fill them with .filled(...)."
            )
        value = value.data
    if value.dtype.newbyteorder("=") != field.dtype:
        raise EncodeError(
            f"field '{field.name}': expected dtype {field.dtype}, got {value.dtype}. "
            f"Convert it yourself, e.g. with .astype('{field.dtype}')."
        )
    return value


def _check_string_array(field: UnischemaField, value: object) -> np.ndarray:
    """Returns objects for plain list columns (Arrow keeps every byte) and fixed-width strings for ``.npy`` bytes."""
    kind = "S" if is_bytes(field.dtype) else "U"
    if isinstance(value, np.ndarray) and value.dtype.kind == kind and field.dtype is not decimal.Decimal:
        return value if field.storage.coded else value.astype(object)
    array = _object_array(field, value)
    if field.dtype is decimal.Decimal:
        items: list[Any] = [_check_decimal(field, item) for item in array.flat]
    elif all(isinstance(item, bytes if kind == "S" else str) for item in array.flat):
        items = list(array.flat)
    else:
        raise wrong_type(field, value)
    if not field.storage.coded:
        return object_array(items).reshape(array.shape)
    texts: list[Any] = [_stored_whole(field, str(item) if kind == "U" else item) for item in items]
    return np.array(texts, dtype=kind).reshape(array.shape)


def _may_hold_rounded_integers(field: UnischemaField, found: np.ndarray) -> bool:
    """Whether numpy may have rounded integers among the floats of a list."""
    exact = 2.0 ** (np.finfo(field.dtype).nmant + 1)
    return bool((np.isfinite(found) & (np.abs(found) >= exact)).any())


def _array_from_list(field: UnischemaField, value: object) -> np.ndarray:
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise wrong_type(field, value) from error
    kind = field.dtype.kind
    if array.size == 0:
        return array.astype(field.dtype)
    if kind in "mM":
        items = [_check_time(field, item) for item in _object_array(field, value).flat]
        return np.array(items, dtype=field.dtype).reshape(array.shape)
    if kind in "iu" and array.dtype.kind in "iu":
        _check_range(field, int(array.min()), int(array.max()))
        return array.astype(field.dtype)
    if kind == "f" and array.dtype.kind == "f" and not _may_hold_rounded_integers(field, array):
        return _round_floats(field, array)
    if kind == "b" and array.dtype.kind == "b":
        return array
    if array.dtype.kind not in "biufO" or array.dtype.kind == "b":
        raise wrong_type(field, value)
    # Integers beyond 64 bits and large integers in a float field are rare, so they are checked one by one.
    items = [_check_number(field, item) for item in _object_array(field, value).flat]
    return np.array(items, dtype=field.dtype).reshape(array.shape)


def _round_floats(field: UnischemaField, found: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        result = found.astype(field.dtype)
    too_large = np.isinf(result) & ~np.isinf(found)
    if too_large.any():
        raise _out_of_float_range(field, float(found[too_large][0]))
    return result


def _object_array(field: UnischemaField, value: object) -> np.ndarray:
    try:
        return np.array(value, dtype=object)
    except (TypeError, ValueError) as error:
        raise wrong_type(field, value) from error


def _check_shape(field: UnischemaField, shape: tuple[int, ...]) -> None:
    if not fits_shape(shape, field.shape):
        raise EncodeError(f"field '{field.name}': expected shape {field.shape}, got {shape}.")
