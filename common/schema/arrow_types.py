"""Arrow types and fields: the Arrow type that holds a dtype, and the field that an Arrow column becomes.

`infer_field` builds the schema of a dataset that has no parquetry metadata. A column that cannot become a tensor raises
an error at plan time that names the field, unless it is deselected.
"""

from __future__ import annotations

import base64
import decimal
from typing import Any

import numpy as np
import pyarrow as pa

from ..base.errors import SchemaError
from ..base.memory.arrow_views import is_bytes, is_list, is_text
from .dtypes import FieldDtype

_UNITS = {"s": "s", "ms": "ms", "us": "us", "ns": "ns"}


_PERMUTED = (
    "expected a tensor with its axes in the order in which its values are stored, got one with a permutation. pyarrow "
    "stores that for arrays that are views of others, and writers disagree on what it means. Write the column again, "
    "from np.ascontiguousarray(...)"
)
_NUMBERS: dict[str, np.dtype[Any]] = {
    str(pa.from_numpy_dtype(name)): np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}
"""Keyed by Arrow's name of the type, because pyarrow's own conversion needs pandas in older releases."""


def arrow_scalar_type(dtype: FieldDtype, *, field: str) -> pa.DataType:
    """Returns the Arrow type that stores one scalar of ``dtype``."""
    if dtype is decimal.Decimal:
        return pa.decimal128(38, 18)
    assert isinstance(dtype, np.dtype)
    if dtype.kind == "U":
        return pa.string()
    if dtype.kind == "S":
        return pa.binary()
    if dtype.kind in "mM":
        unit = np.datetime_data(dtype)[0]
        if dtype.kind == "M" and unit == "D":
            return pa.date32()
        if unit not in _UNITS:
            raise SchemaError(
                f"dtype of field '{field}': Parquet stores timestamps in s, ms, us or ns (or days), got unit '{unit}'."
            )
        return pa.timestamp(unit) if dtype.kind == "M" else pa.duration(unit)
    return pa.from_numpy_dtype(dtype)


def scalar_dtype(arrow: pa.DataType, *, field: str) -> FieldDtype:
    """Returns the field dtype for one value of an Arrow type.

    Raises:
        SchemaError: the type cannot become a tensor element.
    """
    if pa.types.is_dictionary(arrow):
        return scalar_dtype(arrow.value_type, field=field)
    if pa.types.is_boolean(arrow) or pa.types.is_integer(arrow) or pa.types.is_floating(arrow):
        return _NUMBERS[str(arrow)]
    if is_text(arrow):
        return np.dtype("U")
    if is_bytes(arrow):
        return np.dtype("S")
    if pa.types.is_date(arrow):
        return np.dtype("datetime64[D]") if pa.types.is_date32(arrow) else np.dtype("datetime64[ms]")
    if pa.types.is_timestamp(arrow):
        return np.dtype(f"datetime64[{arrow.unit}]")
    if pa.types.is_time(arrow) or pa.types.is_duration(arrow):
        return np.dtype(f"timedelta64[{arrow.unit}]")
    if pa.types.is_decimal(arrow):
        return decimal.Decimal
    declared = (
        f", or declare its dtype (and shape, if it holds lists): fields=[UnischemaField('{field}', 'float32'), '.*']"
    )
    raise SchemaError(
        f"field '{field}': Arrow type {arrow} cannot become a tensor. Deselect it with select(...) or fields=[...]"
        f"{declared if pa.types.is_null(arrow) else ''}."
    )


def infer_shape_and_dtype(arrow: pa.DataType, *, field: str) -> tuple[tuple[int | None, ...], FieldDtype]:
    """Returns the shape and dtype of a column's values. A list adds an axis; a fixed-size list has a known length."""
    if isinstance(arrow, pa.FixedShapeTensorType):
        if has_permuted_axes(arrow):
            raise SchemaError(f"field '{field}': {_PERMUTED}, or deselect it with select(...) or fields=[...].")
        return tuple(arrow.shape), scalar_dtype(arrow.value_type, field=field)
    if isinstance(arrow, pa.BaseExtensionType):
        return infer_shape_and_dtype(arrow.storage_type, field=field)
    if is_list(arrow):
        shape, dtype = infer_shape_and_dtype(arrow.value_type, field=field)
        return (arrow.list_size if pa.types.is_fixed_size_list(arrow) else None, *shape), dtype
    return (), scalar_dtype(arrow, field=field)


def has_permuted_axes(arrow: pa.DataType) -> bool:
    """Whether the values of a tensor are stored in another order than that of its axes."""
    order = arrow.permutation if isinstance(arrow, pa.FixedShapeTensorType) else None
    return order is not None and list(order) != sorted(order)


def arrow_type_to_json(arrow: pa.DataType) -> str:
    """Serializes an Arrow type as text: the base64 schema message of a single field."""
    return base64.b64encode(pa.schema([pa.field("t", arrow)]).serialize().to_pybytes()).decode("ascii")


def arrow_type_from_json(text: str) -> pa.DataType:
    """The inverse of `arrow_type_to_json`."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))).field(0).type
