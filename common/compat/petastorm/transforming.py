"""Runs a `TransformSpec`, and checks its results against the fields that it declares.

Declared (edited) fields are checked by name, dtype and shape. A value of the declared kind is cast to the declared
dtype; another kind is an error. Fields that the transform does not declare are passed on unchecked.

The threads of a pool call the function at the same time, as Petastorm's do.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...base.errors import TransformError
from ...engine.steps.returned_values import to_array
from ...schema.codec import fits_shape
from ...schema.dtypes import float_holds
from ...schema.ragged import object_array
from .codecs import Value
from .frames import from_series, to_frame
from .transform import TransformSpec
from .unischema import Unischema, UnischemaField
from .values import column_array

if TYPE_CHECKING:
    import pandas as pd


def transform_row(spec: TransformSpec, schema: Unischema, row: dict[str, Any]) -> tuple[Any, ...]:
    """Transforms a row; returns the values of the fields of ``schema``, in its order.

    Raises:
        TransformError: the result lacks a field, has an unknown one, or has one with another dtype or shape.
    """
    assert spec.func is not None
    result = spec.func(row)
    return tuple(_kept(value) for value in _checked_row(spec, schema, row, result).values())


def _kept(value: object) -> Any:
    """Copies a value, because functions may reuse the memory of what they return."""
    return value.copy() if isinstance(value, np.ndarray | list | dict) else value


def _checked_row(spec: TransformSpec, schema: Unischema, row: Mapping[str, Any], result: object) -> dict[str, Any]:
    if not isinstance(result, Mapping):
        raise TransformError(
            f"TransformSpec: expected the function to return a row as a dict, got {type(result).__name__}."
        )
    _check_names(schema, list(result), set(row))
    checked = {field.name: field for field in spec.edit_fields}
    return {name: _checked(checked[name], result[name]) if name in checked else result[name] for name in schema.fields}


def transform_table(spec: TransformSpec | None, schema: Unischema, table: pa.Table) -> dict[str, np.ndarray]:
    """Transforms a row group; returns its columns as arrays. Raises `TransformError` like `transform_row`."""
    if spec is None or spec.func is None:
        return {name: column_array(table.column(name)) for name in schema.fields}
    frame = to_frame(table, "a TransformSpec's function")
    columns = _checked_frame(spec, schema, table, spec.func(frame))
    return {name: values.copy() for name, values in columns.items()}


def _checked_frame(
    spec: TransformSpec, schema: Unischema, table: pa.Table, frame: pd.DataFrame
) -> dict[str, np.ndarray]:
    if not hasattr(frame, "columns"):
        raise TransformError(f"TransformSpec: expected the function to return a DataFrame, got {type(frame).__name__}.")
    _check_names(schema, list(frame.columns), set(table.column_names))
    edited = {field.name for field in spec.edit_fields}
    gaps = {name for name, column in zip(table.column_names, table.columns, strict=True) if column.null_count}
    result = {}
    for name, field in schema.fields.items():
        values = from_series(frame[name])
        if name in edited | gaps and _holds_whole_numbers(field) and values.ndim == 1 and values.dtype.kind in "fO":
            values = _without_gaps(field, values)
        result[name] = _checked_column(field, values) if name in edited else _plain_column(values)
    return result


def _holds_whole_numbers(field: UnischemaField) -> bool:
    dtype = field.numpy_dtype
    return not field.shape and dtype not in (None, decimal.Decimal) and np.dtype(dtype).kind in "iub"


def _without_gaps(field: UnischemaField, values: np.ndarray) -> np.ndarray:
    """Restores the dtype of integers or bools, which pandas turns into floats or objects if some are null."""
    missing = np.array([value is None or value != value for value in values.tolist()], dtype=bool)
    if missing.any() and not field.nullable:
        raise TransformError(
            f"TransformSpec, field '{field.name}': expected a value, got null. Declare the field nullable."
        )
    dtype = np.dtype(field.numpy_dtype)
    present = np.array(values[~missing].tolist())
    made = present.astype(dtype) if present.dtype.kind in ("b" if dtype.kind == "b" else "iuf") else None
    if present.size and (made is None or not np.array_equal(made, present)):
        raise TransformError(
            f"TransformSpec, field '{field.name}': expected dtype {dtype}, got {present.dtype}. "
            f"Cast with .astype(np.{dtype}), or declare another dtype in edit_fields=."
        )
    whole = np.zeros(len(values), dtype=dtype)
    if present.size:
        whole[~missing] = made
    return np.ma.MaskedArray(whole, missing) if missing.any() else whole


def _check_names(schema: Unischema, got: list[Any], given: set[str]) -> None:
    missing = [name for name in schema.fields if name not in got]
    extra = [name for name in got if name not in schema.fields and name not in given]
    if missing or extra:
        raise TransformError(
            f"TransformSpec: expected the function to return the fields {list(schema.fields)}, got {got}. "
            "Declare new fields in edit_fields=, and name removed fields in removed_fields=."
        )


def _checked(field: UnischemaField, value: Value) -> Value:
    """Checks a declared field's value, and casts it to the declared dtype."""
    if value is None:
        if field.nullable:
            return None
        raise TransformError(
            f"TransformSpec, field '{field.name}': expected a value, got None. Declare the field nullable."
        )
    dtype = field.numpy_dtype
    if dtype is decimal.Decimal or dtype is None or np.dtype(dtype).kind in "USO":
        _check_shape(field, np.shape(value))
        return value
    array = to_array(value, lambda: f"TransformSpec, field '{field.name}'")
    _check_shape(field, array.shape)
    made = _cast(field, array)
    return made[()] if not field.shape else made


def _cast(field: UnischemaField, array: np.ndarray) -> np.ndarray:
    dtype = np.dtype(field.numpy_dtype)
    if array.dtype == dtype or (dtype.kind == "M" and array.dtype.kind == "M"):
        return array
    integers = array.dtype.kind in "iu" and dtype.kind in "iu"
    fits = integers or (np.can_cast(array.dtype, dtype, "same_kind") and array.dtype.kind != "b" != dtype.kind)
    made = array.astype(dtype) if fits else array
    if fits and dtype.kind == "f" and array.dtype.kind in "iu":
        fits = bool(float_holds(array, made).all())
    if not fits or (integers and not np.array_equal(made, array)):
        raise TransformError(
            f"TransformSpec, field '{field.name}': expected dtype {dtype}, got {array.dtype}. "
            f"Cast with .astype(np.{dtype}), or declare another dtype in edit_fields=."
        )
    return made


def _check_shape(field: UnischemaField, shape: tuple[int, ...]) -> None:
    if not fits_shape(shape, field.shape):
        raise TransformError(
            f"TransformSpec, field '{field.name}': expected shape {field.shape}, got {shape}. "
            "Declare the new shape in edit_fields=."
        )


def _checked_column(field: UnischemaField, values: np.ndarray) -> np.ndarray:
    if values.dtype != object:
        _check_shape(field, values.shape[1:])
        return values if values.dtype.kind in "USM" else _cast_column(field, values)
    missing = [value is None or (isinstance(value, float) and np.isnan(value)) for value in values]
    present = [None if none else value for none, value in zip(missing, values, strict=True)]
    checked = [_checked(field, value) for value in present]
    if not checked:
        return np.empty((0, *(axis or 0 for axis in field.shape)), _array_dtype(field))
    return _stacked(checked)


def _cast_column(field: UnischemaField, values: np.ndarray) -> np.ndarray:
    if field.numpy_dtype in (None, decimal.Decimal):
        return values
    cast = _cast(field, np.asarray(values))
    return np.ma.MaskedArray(cast, values.mask) if isinstance(values, np.ma.MaskedArray) else cast


def _plain_column(values: np.ndarray) -> np.ndarray:
    """Returns the values of a field that the transform does not declare as an array."""
    if values.dtype != object or not len(values):
        return values
    return _stacked(list(values))


def _stacked(values: list[Any]) -> np.ndarray:
    if all(isinstance(value, str) and value[-1:] != "\0" for value in values):
        return np.array(values, dtype=np.str_)
    arrays = all(isinstance(value, np.ndarray) for value in values)
    if arrays and len({value.shape for value in values}) == 1:
        return np.stack(values)
    if all(isinstance(value, np.generic) for value in values) and len({value.dtype for value in values}) == 1:
        return np.array(values)
    return object_array(values)


def _array_dtype(field: UnischemaField) -> Any:
    if field.numpy_dtype in (None, decimal.Decimal) or np.dtype(field.numpy_dtype).kind in "USO":
        return object
    return field.numpy_dtype
