"""Converts a file's column to its type in the dataset without changing a value.

`conform` takes a column and the type. It checks each value, and names the first one that does not fit. `converts` says
which types it converts, `keeps_order` whether bounds of a column remain bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ..base.memory.arrow_views import as_arrow, as_numpy, is_bytes, is_list, is_text, value_type
from ..base.process.forks import pc
from ..schema.arrow_types import infer_shape_and_dtype
from ..schema.dtypes import dtype_to_json, float_holds
from .nested import plain, widened

UNITS = ("s", "ms", "us", "ns")
"""The units of Arrow's times, from the coarsest to the finest."""
_DIGITS = {32: 24, 64: 53}  # binary digits of a float's significand, by its width
_MOST_SHOWN = 60


class MisfitError(pa.ArrowInvalid):
    """The value at ``place`` of a column does not fit the type of the column in the dataset."""

    def __init__(self, place: int, value: pa.Scalar, cause: Exception) -> None:
        super().__init__(str(cause))
        self.place = place
        self.shown = _shown(value)


def conform(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Casts a file's column to its type in the dataset.

    Raises:
        MisfitError: the type cannot represent a value.
        pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError: it cannot represent values of the file's type.
    """
    if column.type == wanted:
        return column
    if column.num_chunks == 0 or pa.types.is_null(column.type):
        return pa.chunked_array([pa.nulls(len(column), wanted)])
    first, made = 0, []
    for chunk in column.chunks:
        try:
            made.append(cast_exactly(chunk, wanted))
        except pa.ArrowInvalid as error:
            cast_exactly(chunk.slice(0, 0), wanted)  # raises if no value would fit
            place = first_refused(chunk, partial(cast_exactly, wanted=wanted))
            raise MisfitError(first + place, chunk[place], error) from error
        first += len(chunk)
    return pa.chunked_array(made)


def misfit(
    name: str, kind: pa.DataType, wanted: pa.DataType, error: Exception, rows: Sequence[int] | np.ndarray
) -> str:
    """Describes an error of `conform`: the value and its row, and the code that reads the field in another type.

    Args:
        kind, wanted: the column's type in its file and in the dataset.
        rows: the number of each value's row.
    """
    expected = f"expected values of type {wanted}, in which all files are read, got"
    if not isinstance(error, MisfitError):
        return f"field '{name}': {expected} {kind}: {error}. Write the file again, or deselect the field."
    rounded = ""
    if pa.types.is_integer(kind) and pa.types.is_floating(wanted):  # other files may have fractions
        rounded = f", or let cast({str(np.dtype(wanted.to_pandas_dtype()))!r}, {re.escape(name)!r}) round it"
    return (
        f"field '{name}', row {rows[error.place]}: {expected} {error.shown} ({kind}), which does not fit. To read "
        f"the field in another type, declare it: {declaration(name, kind)}{rounded}."
    )


def first_refused(array: pa.Array, use: Callable[[pa.Array], object]) -> int:
    """Returns the place of the first value for which ``use`` raises ``pa.ArrowInvalid``; there is one."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            use(array.slice(low, middle - low))
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def _shown(value: pa.Scalar) -> str:
    """Writes a value for a message. Python has no times of nanoseconds, and none after the year 9999."""
    try:
        text = str(value.cast(pa.string())) if pa.types.is_temporal(value.type) else repr(value.as_py())
    except (pa.ArrowException, ValueError, OverflowError):
        text = f"{value.value} ({value.type})"
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def cast_exactly(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Casts an array as `conform` does, without saying which value does not fit."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = widened(array)
    kind = array.type
    if pa.types.is_integer(kind) and pa.types.is_floating(wanted):
        return _as_floats(array, wanted)
    if pa.types.is_timestamp(kind):
        counts = array.view(pa.timestamp(kind.unit))  # instants are the same in every zone
        if pa.types.is_date(wanted):
            return _there_and_back(counts, wanted)
        if pa.types.is_timestamp(wanted):
            return counts.cast(pa.timestamp(wanted.unit)).view(wanted)
    if pa.types.is_date(kind) and pa.types.is_timestamp(wanted):
        return array.cast(pa.timestamp(wanted.unit)).view(wanted)
    if is_text(kind) and pa.types.is_integer(wanted):
        return _there_and_back(array, wanted)  # '007' is not 7
    if is_list(kind) and (pa.types.is_list(wanted) or pa.types.is_large_list(wanted)):
        return _lists(array.cast(pa.large_list(kind.value_field)), wanted)
    return array.cast(wanted)


def _lists(array: pa.LargeListArray, wanted: pa.DataType) -> pa.Array:
    """Casts the values of lists as `cast_exactly` does."""
    ends = as_numpy(array.offsets)
    values = cast_exactly(array.values.slice(ends[0], ends[-1] - ends[0]), wanted.value_type)
    missing = array.is_null() if array.null_count else None
    kind = pa.large_list(wanted.value_field)
    return pa.LargeListArray.from_arrays(as_arrow(ends - ends[0]), values, type=kind, mask=missing).cast(wanted)


def _as_floats(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Casts integers. Arrow refuses all large ones, also those that a float represents exactly."""
    valid = as_numpy(array.is_valid()) if array.null_count else None
    integers = as_numpy(array.fill_null(0) if array.null_count else array)
    with np.errstate(over="ignore"):  # of half floats
        floats = integers.astype(wanted.to_pandas_dtype())
    fits = float_holds(integers, floats)
    if not fits.all():
        raise pa.ArrowInvalid(f"{integers[int(np.argmin(fits))]} would change as {wanted}")
    return as_arrow(floats, valid)


def _there_and_back(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Casts values that Arrow would change without an error."""
    made = array.cast(wanted)
    same = pc.equal(made.cast(array.type), array)
    if pc.all(same).as_py() is False:
        raise pa.ArrowInvalid(f"a value would change as {wanted}")
    return made


def narrower_floats(kind: pa.DataType, wanted: pa.DataType, dtype: object) -> pa.DataType | None:
    """Returns the type in which to check the integers of a file, or ``None`` if that is ``wanted``.

    A field may be declared as narrower floats than its column's, which are then rounded. Integers are not, and have to
    be checked while they can be told from floats.

    Args:
        kind, wanted: the column's type in its file and in the dataset.
    """
    whole = pa.types.is_integer(value_type(kind)) and pa.types.is_floating(value_type(wanted))
    if not whole or not isinstance(dtype, np.dtype) or dtype.kind != "f":
        return None
    narrow = pa.from_numpy_dtype(dtype)
    return _lists_of(kind, narrow) if narrow.bit_width < value_type(wanted).bit_width else None


def _lists_of(kind: pa.DataType, inner: pa.DataType) -> pa.DataType:
    return pa.large_list(_lists_of(kind.value_type, inner)) if is_list(kind) else inner


def converts(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether `conform` keeps every value of the source type that fits the target, and raises for all others."""
    source, types = plain(source), pa.types
    if source == target or types.is_null(source):
        return True
    if types.is_integer(source) or types.is_boolean(source):
        if is_text(target):
            return bool(types.is_integer(source))
        return bool(types.is_integer(target) or (types.is_floating(target) and target.bit_width in _DIGITS))
    if types.is_floating(source):
        return bool(types.is_integer(target) or (types.is_floating(target) and target.bit_width > source.bit_width))
    if is_text(source) or is_bytes(source):
        return is_text(target) or target == pa.large_binary() or (is_text(source) and types.is_integer(target))
    if types.is_timestamp(source) or types.is_date(source):
        return bool(types.is_timestamp(target) or types.is_date32(target))
    if types.is_duration(source):
        return bool(types.is_duration(target))
    if is_list(source) and is_list(target):
        return converts(source.value_type, target.value_type)
    return False


def always_fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether the target represents every value of the source type, of numbers and times, so that no check can fail."""
    source, types = plain(source), pa.types
    if source == target or types.is_null(source):
        return True
    if types.is_integer(source) and types.is_integer(target):
        signed = types.is_signed_integer(source), types.is_signed_integer(target)
        return bool(source.bit_width < target.bit_width and signed != (True, False))
    if types.is_integer(source) and types.is_floating(target):
        return bool(source.bit_width <= _DIGITS.get(target.bit_width, 8))
    if types.is_floating(source):
        return bool(types.is_floating(target) and source.bit_width <= target.bit_width)
    if types.is_timestamp(source) and types.is_timestamp(target):
        return bool(source.unit == target.unit)
    return not (types.is_integer(source) or types.is_temporal(source) or types.is_boolean(source))


def keeps_order(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a checked cast preserves the order of all values."""
    types = pa.types
    if source == target:
        return True
    if types.is_integer(source):
        return bool(
            types.is_integer(target) or types.is_float32(target) or types.is_float64(target) or types.is_decimal(target)
        )
    if types.is_floating(source):
        return bool(types.is_float32(target) or types.is_float64(target))
    if types.is_decimal(source):
        return bool(types.is_decimal(target) and target.scale >= source.scale)
    if types.is_timestamp(source):
        return bool(types.is_timestamp(target) and (source.tz is None) == (target.tz is None))
    if types.is_date(source):
        return types.is_timestamp(target) and target.tz is None
    for is_kind in (types.is_time, types.is_duration):
        if is_kind(source):
            return bool(is_kind(target))
    return all(is_text(kind) or is_bytes(kind) for kind in (source, target))


def declaration(path: str, kind: pa.DataType) -> str:
    """Returns the code that reads a field in a type, besides all other fields.

    >>> declaration("t", pa.timestamp("us"))
    "fields=[UnischemaField('t', 'datetime64[us]'), '.*']"
    """
    shape, dtype = infer_shape_and_dtype(kind, field=path)
    arguments: list[Any] = [path, dtype_to_json(dtype), *([shape] if shape else [])]
    return f"fields=[UnischemaField({', '.join(map(repr, arguments))}), '.*']"
