"""Running user functions on rows and batches, and holding what they return to what was declared."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import ParquetryError, TransformError
from ..schema.dtypes import delivered_dtype
from .batch import Column, Dense, Ragged, Strings, rows_of, to_numpy
from .outputs import OutputField, flatten, nest
from .recipe import Projection, Step, TransformStep

Describe = Callable[[int], str]


def apply_step(step: Step, columns: Sequence[Column], count: int, describe: Describe) -> list[Column]:
    """The columns after one step of the recipe; see `apply_transform`."""
    if isinstance(step, Projection):
        return [columns[number] for number in step.keep]
    return apply_transform(step, columns, count, describe)


def apply_transform(step: TransformStep, columns: Sequence[Column], count: int, describe: Describe) -> list[Column]:
    """The columns after one user function.

    Args:
        columns: one for each of ``step.inputs``.
        count: rows.
        describe: where row ``i`` of the batch comes from, for errors.

    Raises:
        TransformError: the function raised, or returned another set of fields, dtype, or shape than declared.
    """
    if step.batched:
        return _apply_to_batch(step, columns, count, describe)
    inputs = [rows_of(column, text=field.kind == "text") for field, column in zip(step.inputs, columns, strict=True)]
    collected: list[list[Any]] = [[] for _ in step.outputs]
    for number in range(count):
        row = nest(step.inputs, [values[number] for values in inputs])
        result = _call(step, row, lambda number=number: describe(number))
        for values, value in zip(collected, _picked(step, result, lambda n=number: describe(n)), strict=True):
            values.append(value)
    return [_column(step, field, values, describe) for field, values in zip(step.outputs, collected, strict=True)]


def _apply_to_batch(step: TransformStep, columns: Sequence[Column], count: int, describe: Describe) -> list[Column]:
    where = (lambda: f"the batch that begins at {describe(0)}") if count else (lambda: "an empty batch")
    values = [to_numpy(column, text=field.kind == "text") for field, column in zip(step.inputs, columns, strict=True)]
    result = _call(step, nest(step.inputs, values), where)
    outputs = _picked(step, result, where)
    made: list[Column] = []
    for field, value in zip(step.outputs, outputs, strict=True):
        if len(value) != count:
            raise TransformError(
                f"transform {step.name}, field '{field.name}': expected {count} rows as it was given, got {len(value)}."
            )
        made.append(_column(step, field, value, describe))
    return made


def _call(step: TransformStep, argument: Any, where: Callable[[], str]) -> Any:
    try:
        return step.function(argument)
    except ParquetryError:
        raise
    except Exception as error:
        trace = "".join(traceback.format_exception(error)).rstrip()
        raise TransformError(f"transform {step.name} failed for {where()}: {error!r}.\n{trace}") from error


def _picked(step: TransformStep, result: Any, where: Callable[[], str]) -> list[Any]:
    if not isinstance(result, Mapping):
        raise TransformError(
            f"transform {step.name} for {where()}: expected a dict of fields, got {type(result).__name__}. "
            "Return the row (or batch) that the function was given, changed."
        )
    try:
        picked = flatten(step.outputs, result)
    except (KeyError, TypeError) as error:
        raise TransformError(
            f"transform {step.name} for {where()}: expected the fields {[field.name for field in step.outputs]}, "
            f"got {list(result)}. Return every declared field, or name it in remove=(...)."
        ) from error
    extra = set(result) - {field.path[0] for field in (*step.outputs, *step.inputs)}
    if extra:
        raise TransformError(
            f"transform {step.name} for {where()}: expected only the fields {[field.name for field in step.outputs]}, "
            f"got also {sorted(map(str, extra))}. Declare them in output=[...]."
        )
    return picked


def _column(step: TransformStep, field: OutputField, values: Any, describe: Describe) -> Column:
    """Checks values (one for each row) against the declared field, and lays them out as a column."""
    shape = field.element_shape
    if field.kind != "dense":
        return _string_column(step, field, values, describe)
    if isinstance(values, np.ndarray) and values.dtype != object:
        _check_dtype(step, field, values.dtype, 0, describe)
        _check_shape(step, field, values.shape[1:], 0, describe)
        if not field.ragged:
            return Dense(_as_delivered(values, field))
    valid = np.array([value is not None for value in values], dtype=bool)
    arrays = []
    for number, value in enumerate(values):
        if value is None and not field.nullable:
            raise TransformError(
                f"transform {step.name}, field '{field.name}', {describe(number)}: expected a value, got None. "
                "Declare the field nullable=True."
            )
        arrays.append(_checked(step, field, value, number, describe))
    mask = None if valid.all() else valid
    if field.ragged:
        shapes = np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), len(shape))
        flat = [array.reshape(-1) for array in arrays]
        return Ragged(shapes, np.concatenate(flat) if flat else np.zeros(0, field.dtype), (len(arrays),), mask)
    fixed = tuple(axis or 0 for axis in shape)
    return Dense(np.stack(arrays) if arrays else np.zeros((0, *fixed), field.dtype), mask)


def _checked(step: TransformStep, field: OutputField, value: Any, number: int, describe: Describe) -> np.ndarray:
    if value is None:
        return np.zeros(tuple(axis or 0 for axis in field.element_shape), field.dtype)
    array = np.asarray(value)
    if isinstance(value, np.ndarray | np.generic) or (
        not np.can_cast(array.dtype, field.dtype, "same_kind") and array.size
    ):
        _check_dtype(step, field, array.dtype, number, describe)
    _check_shape(step, field, array.shape, number, describe)
    return _as_delivered(array, field)


def _as_delivered(array: np.ndarray, field: OutputField) -> np.ndarray:
    return array.view(np.int64) if array.dtype.kind in "mM" else array.astype(field.dtype, copy=False)


def _check_dtype(
    step: TransformStep, field: OutputField, found: np.dtype[Any], number: int, describe: Describe
) -> None:
    if delivered_dtype(found if found.kind != "O" else np.dtype("S")) != field.dtype:
        raise TransformError(
            f"transform {step.name}, field '{field.name}', {describe(number)}: expected dtype {field.dtype}, got {found}. "
            f"Cast with .astype(np.{field.dtype}), or declare another dtype in output=[...]."
        )


def _check_shape(
    step: TransformStep, field: OutputField, found: tuple[int, ...], number: int, describe: Describe
) -> None:
    wanted = field.element_shape
    fits = len(found) == len(wanted) and all(w is None or w == f for w, f in zip(wanted, found, strict=False))
    if not fits:
        raise TransformError(
            f"transform {step.name}, field '{field.name}', {describe(number)}: expected shape {wanted}, got {found}. "
            "Declare the new shape in output=[...]."
        )


def _string_column(step: TransformStep, field: OutputField, values: Any, describe: Describe) -> Column:
    kind: type = str if field.kind == "text" else bytes
    arrow = pa.large_string() if field.kind == "text" else pa.large_binary()
    shape = field.element_shape
    items: list[Any] = []
    shapes = []
    for number, value in enumerate(values):
        array = np.asarray(value, dtype=object)
        _check_shape(step, field, array.shape, number, describe)
        shapes.append(array.shape)
        for item in array.reshape(-1).tolist():
            if not isinstance(item, kind) and not (item is None and field.nullable and not shape):
                raise TransformError(
                    f"transform {step.name}, field '{field.name}', {describe(number)}: expected {kind.__name__}, "
                    f"got {type(item).__name__}."
                )
            items.append(item)
    column = pa.array(items, arrow)
    valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
    filled = column.fill_null("" if field.kind == "text" else b"") if column.null_count else column
    offsets = np.frombuffer(filled.buffers()[1], np.int64, len(filled) + 1) if len(filled) else np.zeros(1, np.int64)
    data = np.frombuffer(filled.buffers()[2] or b"", np.uint8)[: offsets[-1]]
    lead = (len(shapes),)
    if field.ragged:
        table = np.array(shapes, np.int64).reshape(len(shapes), len(shape))
        return Ragged(table, Strings(offsets, data, (len(items),)), lead, valid)
    return Strings(offsets, data, (*lead, *(axis or 0 for axis in shape)), valid)
