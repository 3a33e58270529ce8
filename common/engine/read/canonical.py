"""Converts a stored Arrow column to the canonical form that its field is gathered from.

Numbers get their field's dtype, and times become int64 in the field's unit. Text becomes ``large_string``. Bytes and
coded values become ``large_binary`` (raw tensors keep their fixed size). Decimals become exact text. Lists become
``large_list`` or fixed-size lists of these.
"""

from __future__ import annotations

import decimal
import math

import numpy as np
import pyarrow as pa

from ...base.errors import DecodeError
from ...base.memory.arrow_views import as_arrow, as_numpy, is_list
from ...base.process.forks import pc
from ...parquet.conforming import cast_exactly, first_refused
from ...parquet.nested import one_array, widened
from ...plan.selection.rows import RowNumbers
from ...schema.arrow_types import has_permuted_axes
from ...schema.codecs import ScaledDecimalCodec, TensorCodec
from ...schema.dtypes import decimal_text, dtype_to_json, is_bytes, is_text
from ...schema.field import UnischemaField

_MOST_SHOWN = 40
_EXACT_DIGITS = 2**53  # float64 holds all integers up to this one,
_EXACT_POWERS = 22  # and all powers of ten up to this exponent
_NARROW = {pa.large_binary(): pa.binary(), pa.large_string(): pa.string()}
"""The type with 32-bit offsets for each type with 64-bit offsets."""


class _NotUtf8Error(pa.ArrowInvalid):
    """Text at ``place`` of an array is not UTF-8."""

    def __init__(self, place: int, value: bytes) -> None:
        super().__init__(f"text that is not UTF-8 at index {place}")
        self.place = place
        self.value = value


def to_canonical(field: UnischemaField, column: pa.Array | pa.ChunkedArray, rows: RowNumbers | None = None) -> pa.Array:
    """Returns the column in canonical form, as one array.

    Args:
        rows: the number of each value's row, for errors; ``None`` if they are unknown.

    Raises:
        DecodeError: values do not fit the field (out of range, or of another type).
    """
    codec = field.storage
    try:
        array = _plain(column)
        if codec.coded:
            canonical = codec.arrow_type(field)
            fixed = isinstance(codec, TensorCodec) and array.type == canonical
            return array if fixed else _to_binary(array)
        return _values(field, array, axes=len(field.shape))
    except _NotUtf8Error as error:
        row = f", row {rows[error.place]}" if rows is not None and field.shape == () else ""
        shown = repr(error.value[:_MOST_SHOWN]) + ("..." if len(error.value) > _MOST_SHOWN else "")
        shape = f", {field.shape}" if field.shape else ""
        raise DecodeError(
            f"field '{field.name}'{row}: expected text in UTF-8, got {shown}. Read it as bytes: name "
            f"UnischemaField({field.name!r}, 'bytes'{shape}) in fields=."
        ) from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise DecodeError(
            f"field '{field.name}': expected a column that holds {dtype_to_json(field.dtype)} {field.shape}, "
            f"found {column.type}: {error}"
        ) from error


def number_type(field: UnischemaField) -> pa.DataType | None:
    """Returns the Arrow type in which a field's stored column is already canonical, or ``None`` for other fields."""
    plain = field.shape == () and not field.storage.coded
    if not plain or not isinstance(field.dtype, np.dtype) or field.dtype.kind not in "iuf":
        return None
    return pa.from_numpy_dtype(field.dtype)


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    array = one_array(column)
    if isinstance(array, pa.ExtensionArray):
        if has_permuted_axes(array.type):
            raise pa.ArrowInvalid("a tensor with permuted axes")
        array = array.storage
    return widened(array) if pa.types.is_dictionary(array.type) else array


def _to_binary(array: pa.Array) -> pa.Array:
    return _cast(array, pa.large_binary())


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Casts an array. The two most frequent casts do without `pyarrow.compute`, which takes a while to load."""
    if array.type == kind:
        return array
    if array.type != _NARROW.get(kind):
        return array.cast(kind)
    valid, narrow, values = array.buffers()
    count = array.offset + len(array)
    offsets = np.frombuffer(narrow, np.int32, count + 1) if count else np.zeros(1, np.int32)
    wide = pa.py_buffer(offsets.astype(np.int64))
    return pa.Array.from_buffers(kind, len(array), [valid, wide, values], array.null_count, array.offset)


def _values(field: UnischemaField, array: pa.Array, *, axes: int) -> pa.Array:
    if axes == 0:
        return _scalars(field, array)
    array = _plain(array)
    if not is_list(array.type):
        raise pa.ArrowInvalid("values that are not lists")
    length = field.shape[len(field.shape) - axes]
    if pa.types.is_fixed_size_list(array.type):
        if axes > 1 and not _holds_lists(array.type):
            array = _unflattened(array, field.shape[len(field.shape) - axes :])
        if length is not None and array.type.list_size != length:
            raise pa.ArrowInvalid(f"lists of length {array.type.list_size}, not {length}")
        if array.null_count == 0 and length is not None:
            return _fixed(field, array.flatten(), len(array), axes, length)
        array = array.cast(pa.large_list(array.type.value_type))
    elif not pa.types.is_large_list(array.type):
        array = array.cast(pa.large_list(array.type.value_type))
    if length is not None and array.null_count == 0 and _all_of_length(array, length):
        return _fixed(field, array.flatten(), len(array), axes, length)
    if length is not None and array.null_count < len(array) and not _all_of_length(array.drop_null(), length):
        raise pa.ArrowInvalid(f"a list whose length is not {length}")
    ends = as_numpy(array.offsets)
    first, last = (int(ends[0]), int(ends[-1])) if len(ends) else (0, 0)
    children = _values(field, array.values.slice(first, last - first), axes=axes - 1)
    # Arrow accepts a mask only with unsliced offsets. Arrow 18 writes wrong lists to a stream if they begin above 0.
    offsets = as_arrow(ends - first)
    return pa.LargeListArray.from_arrays(offsets, children, mask=array.is_null() if array.null_count else None)


def _holds_lists(kind: pa.DataType) -> bool:
    """Whether lists of this type hold lists, or tensors, which are stored as lists."""
    inner = kind.value_type
    return is_list(inner.storage_type if isinstance(inner, pa.BaseExtensionType) else inner)


def _unflattened(array: pa.Array, shape: tuple[int | None, ...]) -> pa.Array:
    """Converts Arrow's fixed-shape tensors, each a flat list, to lists of lists."""
    size = array.type.list_size
    if None in shape or math.prod(shape) != size:  # type: ignore[arg-type]  # None is ruled out first
        raise pa.ArrowInvalid(f"flat lists of {size} values, which do not fit the shape {shape}")
    inner = array.values.slice(array.offset * size, len(array) * size)
    for length in reversed(shape[1:]):
        inner = pa.FixedSizeListArray.from_arrays(inner, length)
    outer = pa.FixedSizeListArray.from_arrays(inner, shape[0])
    return outer if array.null_count == 0 else pc.if_else(array.is_valid(), outer, pa.nulls(1, outer.type)[0])


def _fixed(field: UnischemaField, flat: pa.Array, count: int, axes: int, length: int) -> pa.Array:
    children = _values(field, flat, axes=axes - 1)
    if length == 0:
        return pa.array([[]] * count, pa.list_(children.type, 0))
    return pa.FixedSizeListArray.from_arrays(children, length)


def _all_of_length(array: pa.Array, length: int) -> bool:
    return len(array) == 0 or bool(np.all(np.diff(as_numpy(array.offsets)) == length))


def _scalars(field: UnischemaField, array: pa.Array) -> pa.Array:
    array = _plain(array)
    if field.dtype is decimal.Decimal:
        return decimal_texts(array)
    if is_text(field.dtype):
        text = _cast(array, pa.large_string())
        try:
            text.validate(full=True)  # some writers store text that is not UTF-8, which could not be decoded later
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise
            place = first_refused(text, lambda part: part.validate(full=True))
            raise _NotUtf8Error(place, text[place].as_buffer().to_pybytes()) from error
        return text
    if is_bytes(field.dtype):
        return _to_binary(array)
    dtype = np.dtype(field.dtype)
    if dtype.kind in "mM":
        return _times(array, dtype)
    if pa.types.is_decimal(array.type) and isinstance(field.storage, ScaledDecimalCodec):
        return _unscaled(array)
    if pa.types.is_decimal(array.type) and dtype.kind in "iu":
        return array.cast(pa.from_numpy_dtype(dtype))  # floats would lose digits
    if pa.types.is_decimal(array.type):
        return _decimal_floats(array).cast(pa.from_numpy_dtype(dtype))
    kind = pa.from_numpy_dtype(dtype)
    return array if array.type == kind else cast_exactly(array, kind)


def _decimal_floats(array: pa.Array) -> pa.Array:
    """Returns decimals as float64, each the nearest to its value. Arrow's own cast multiplies by an inexact 0.01."""
    scale = array.type.scale
    if abs(scale) > _EXACT_POWERS or array.type.bit_width > 128:
        return array.cast(pa.large_string()).cast(pa.float64())
    low, high = _words(array)
    floats, power = low.astype(np.float64), float(10 ** abs(scale))
    floats = floats / power if scale > 0 else floats * power  # rounds once, because both numbers are exact
    valid = as_numpy(array.is_valid())
    large = valid & ((high != low >> 63) | (low > _EXACT_DIGITS) | (low < -_EXACT_DIGITS))
    if large.any():
        floats[large] = as_numpy(array.filter(pa.array(large)).cast(pa.large_string()).cast(pa.float64()))
    return as_arrow(floats, valid if array.null_count else None)


def _words(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Returns the unscaled digits of decimals: the low and the high words (int64)."""
    wide = array if array.type.bit_width == 128 else array.cast(pa.decimal128(38, array.type.scale))
    words = np.frombuffer(wide.buffers()[1] or b"", "<i8")[2 * wide.offset :][: 2 * len(wide)].reshape(-1, 2)
    return words[:, 0], words[:, 1]


def _unscaled(array: pa.Array) -> pa.Array:
    """Returns the unscaled digits of decimals as int64."""
    low, high = _words(array)
    valid = as_numpy(array.is_valid())
    too_large = valid & (high != low >> 63)
    if too_large.any():
        raise pa.ArrowInvalid(f"a decimal whose digits need more than 64 bits: {array[int(np.argmax(too_large))]}")
    return as_arrow(low, valid)


def _times(array: pa.Array, dtype: np.dtype) -> pa.Array:
    unit = np.datetime_data(dtype)[0]
    kind = array.type
    if pa.types.is_integer(kind):
        return array.cast(pa.int64())
    if unit == "D":
        return cast_exactly(array, pa.date32()).view(pa.int32()).cast(pa.int64())
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        zone = getattr(kind, "tz", None)
        return array.cast(pa.timestamp(unit, zone)).view(pa.int64())
    if pa.types.is_time32(kind) or pa.types.is_time64(kind):
        wide = array.view(pa.int32()).cast(pa.int64()) if pa.types.is_time32(kind) else array.view(pa.int64())
        return wide.view(pa.duration(kind.unit)).cast(pa.duration(unit)).view(pa.int64())
    return array.cast(pa.duration(unit)).view(pa.int64())


def decimal_texts(array: pa.Array) -> pa.Array:
    """Formats decimals without trailing zeros or exponents: 1.50 -> ``"1.5"``, 100 -> ``"100"``."""
    if not pa.types.is_decimal(array.type):
        array = array.cast(pa.large_string())
        return pa.array(
            [None if v is None else format(decimal.Decimal(v), "f") for v in array.to_pylist()], pa.large_string()
        )
    text = array.cast(pa.large_string())
    with_exponent = pc.and_kleene(pc.match_substring(text, "E"), text.is_valid())  # never null
    if array.type.scale > 0:
        text = pc.if_else(with_exponent, text, pc.utf8_rtrim(pc.utf8_rtrim(text, "0"), "."))
    if pc.any(with_exponent).as_py():
        values = [decimal_text(value) for value in array.filter(with_exponent).to_pylist()]
        text = pc.replace_with_mask(text, with_exponent, pa.array(values, pa.large_string()))
    return text
