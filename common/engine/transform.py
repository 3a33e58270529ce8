"""Running user functions on rows and batches, and holding what they return to what was declared."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ..errors import ParquetryError, TransformError
from ..schema.dtypes import delivered_dtype
from ..schema.field import Shape
from .arrow_columns import from_arrow, to_arrow
from .batch import Column, Dense, Ragged, Strings, rows_of, to_numpy
from .chance import ItemKeys
from .image_columns import SizeCheck, apply_images
from .images import ImageStep
from .outputs import OutputField, flatten, nest
from .pack import PackStep, apply_pack
from .recipe import Projection, Step, TransformStep
from .shaping import NullStep, PadStep, PermuteStep, apply_nulls, apply_pad, apply_permute

Describe = Callable[[int], str]


def apply_step(
    step: Step,
    columns: Sequence[Column],
    count: int,
    describe: Describe,
    keys: Callable[[], ItemKeys],
    check: SizeCheck,
) -> list[Column]:
    """The columns after one step of the recipe; see `apply_transform`.

    Args:
        keys: names the items, for random numbers.
        check: holds images that are cut alike to one size.
    """
    if isinstance(step, Projection):
        return [columns[number] for number in step.keep]
    if isinstance(step, NullStep):
        return apply_nulls(step, list(columns), describe)
    if isinstance(step, PadStep):
        return apply_pad(step, list(columns), describe)
    if isinstance(step, PermuteStep):
        return apply_permute(step, list(columns))
    if isinstance(step, ImageStep):
        return apply_images(step, columns, describe, keys, check)
    if isinstance(step, PackStep):
        return apply_pack(step, columns, describe)
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
    if step.form == "arrow":
        return _apply_to_arrow(step, columns, count, describe)
    if step.form == "batch":
        return _apply_to_batch(step, columns, count, describe)
    return _apply_to_rows(step, columns, count, describe)[0]


def apply_dropping(
    step: TransformStep, columns: Sequence[Column], count: int, describe: Describe
) -> tuple[list[Column], np.ndarray]:
    """As `apply_transform`, for a function that may leave rows out; also gives the numbers of the rows that are
    left.
    """
    return _apply_to_rows(step, columns, count, describe)


def _apply_to_rows(
    step: TransformStep, columns: Sequence[Column], count: int, describe: Describe
) -> tuple[list[Column], np.ndarray]:
    inputs = [rows_of(column, text=field.kind == "text") for field, column in zip(step.inputs, columns, strict=True)]
    collected: list[list[Any]] = [[] for _ in step.outputs]
    kept = []
    for number in range(count):
        row = nest(step.inputs, [values[number] for values in inputs])
        result = _call(step, row, partial(describe, number))
        if result is None and step.drops:
            continue
        kept.append(number)
        for values, value in zip(collected, _picked(step, result, partial(describe, number)), strict=True):
            values.append(value)
    place = np.array(kept, dtype=np.int64)
    columns = [
        _column(step, field, values, lambda row: describe(int(place[row])))
        for field, values in zip(step.outputs, collected, strict=True)
    ]
    return columns, place


def _apply_to_batch(step: TransformStep, columns: Sequence[Column], count: int, describe: Describe) -> list[Column]:
    where = (lambda: f"the batch that begins at {describe(0)}") if count else (lambda: "an empty batch")
    values = [to_numpy(column, text=field.kind == "text") for field, column in zip(step.inputs, columns, strict=True)]
    result = _call(step, nest(step.inputs, values), where)
    outputs = _picked(step, result, where)
    made: list[Column] = []
    for field, value in zip(step.outputs, outputs, strict=True):
        found = _length(value)
        if found != count:
            raise TransformError(
                f"transform {step.name}, field '{field.name}': expected {count} rows as it was given, "
                f"got {type(value).__name__ if found is None else found}."
            )
        made.append(_column(step, field, value, describe))
    return made


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except TypeError:
        return None


def _apply_to_arrow(step: TransformStep, columns: Sequence[Column], count: int, describe: Describe) -> list[Column]:
    where = (lambda: f"the batch that begins at {describe(0)}") if count else (lambda: "an empty batch")
    names = [field.name for field in step.inputs]
    arrays = [to_arrow(field, column) for field, column in zip(step.inputs, columns, strict=True)]
    result = _call(step, pa.RecordBatch.from_arrays(arrays, names=names), where)
    if not isinstance(result, pa.RecordBatch | pa.Table):
        raise TransformError(
            f"transform {step.name} for {where()}: expected a pyarrow RecordBatch or Table, "
            f"got {type(result).__name__}."
        )
    if result.num_rows != count:
        raise TransformError(
            f"transform {step.name} for {where()}: expected {count} rows as it was given, got {result.num_rows}."
        )
    missing = [field.name for field in step.outputs if field.name not in result.column_names]
    extra = [
        name for name in result.column_names if name not in {field.name for field in (*step.outputs, *step.inputs)}
    ]
    if missing or extra:
        raise TransformError(
            f"transform {step.name} for {where()}: expected the fields {[field.name for field in step.outputs]}, "
            f"got {result.column_names}. Declare new fields in output=[...], and name the others in remove=(...)."
        )
    return [from_arrow(field, result.column(field.name), f"transform {step.name}", describe) for field in step.outputs]


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
            "Return the row (or batch) that the function was given, changed; to leave rows out, say drops=True."
        )
    try:
        picked = flatten(step.outputs, result)
    except (LookupError, TypeError) as error:
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
    plain = isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray) and values.dtype != object
    if plain and field.kind == "dense" and not field.ragged:
        _check_dtype(step, field, values.dtype, 0, describe)
        _check_shape(step, field, values.shape[1:], 0, describe)
        return Dense(_as_delivered(values, field))
    cells, lead = _cells(step, field, values, describe)
    valid = np.array([cell is not None for _, cell in cells], dtype=bool).reshape(lead)
    mask = None if valid.all() else valid
    if field.kind != "dense":
        return _string_column(step, field, cells, lead, mask, describe)
    arrays = [_checked(step, field, cell, number, describe) for number, cell in cells]
    if field.ragged:
        flat = [array.reshape(-1) for array in arrays]
        values = np.concatenate(flat) if flat else np.zeros(0, field.dtype)
        return Ragged(_shapes(field, arrays), values, lead, mask)
    fixed = tuple(axis or 0 for axis in field.shape)
    return Dense(np.stack(arrays).reshape(*lead, *fixed) if arrays else np.zeros((*lead, *fixed), field.dtype), mask)


def _cells(
    step: TransformStep, field: OutputField, values: Any, describe: Describe
) -> tuple[list[tuple[int, Any]], tuple[int, ...]]:
    """Every value (of windows, every step's) with its row, ``None`` where null; and the leading axes."""
    cells: list[tuple[int, Any]] = []
    for number, row in enumerate(values):
        if field.window is None:
            cells.append((number, _unmasked(row)))
            continue
        steps = list(row) if hasattr(row, "__len__") and not isinstance(row, str | bytes | Mapping) else None
        if steps is None or len(steps) != field.window:
            size = () if steps is None else (len(steps), *(axis or 0 for axis in field.shape))
            _check_shape(step, field, size, number, describe)
            raise AssertionError("a window of another length has another shape")
        cells += [(number, _unmasked(cell)) for cell in steps]
    for number, cell in cells:
        if cell is None and not field.nullable:
            raise TransformError(
                f"transform {step.name}, field '{field.name}', {describe(number)}: expected a value, got None. "
                "Declare the field nullable=True."
            )
    return cells, (len(values),) if field.window is None else (len(values), field.window)


def _unmasked(cell: Any) -> Any:
    """A cell as it was before a null in it, or beside it, changed its form: ``None``, or the plain value."""
    if isinstance(cell, np.ma.MaskedArray):
        return None if cell.size and np.ma.getmaskarray(cell).all() else cell.data
    if isinstance(cell, np.ndarray) and cell.dtype == object and cell.size and all(item is None for item in cell.flat):
        return None
    return cell


def _shapes(field: OutputField, arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.array([array.shape for array in arrays], np.int64).reshape(len(arrays), len(field.shape))


def _checked(step: TransformStep, field: OutputField, value: Any, number: int, describe: Describe) -> np.ndarray:
    if value is None:
        return np.zeros(tuple(axis or 0 for axis in field.shape), field.dtype)
    array = np.asarray(value)
    _check_cell_shape(step, field, array.shape, number, describe)
    if isinstance(value, np.ndarray | np.generic):
        _check_dtype(step, field, array.dtype, number, describe)
        return _as_delivered(array, field)
    return _converted(step, field, array, number, describe)


def _converted(
    step: TransformStep, field: OutputField, array: np.ndarray, number: int, describe: Describe
) -> np.ndarray:
    """Python numbers have no dtype of their own: they take the declared one, if it holds them."""
    if array.size == 0:
        return array.astype(field.dtype)
    if array.dtype.kind not in {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}[field.dtype.kind]:
        _check_dtype(step, field, array.dtype, number, describe)
    with np.errstate(over="ignore"):
        result = array.astype(field.dtype)
    exact = np.isfinite(result) | ~np.isfinite(array) if field.dtype.kind == "f" else result == array
    if not exact.all():
        raise TransformError(
            f"transform {step.name}, field '{field.name}', {describe(number)}: expected values that {field.dtype} can "
            f"hold, got {array[~exact][0]}. Declare another dtype in output=[...]."
        )
    return result


def _as_delivered(array: np.ndarray, field: OutputField) -> np.ndarray:
    return array.view(np.int64) if array.dtype.kind in "mM" else array.astype(field.dtype, copy=False)


def _check_dtype(
    step: TransformStep, field: OutputField, found: np.dtype[Any], number: int, describe: Describe
) -> None:
    if delivered_dtype(found if found.kind != "O" else np.dtype("S")) != field.dtype:
        raise TransformError(
            f"transform {step.name}, field '{field.name}', {describe(number)}: expected dtype {field.dtype}, "
            f"got {found}. "
            f"Cast with .astype(np.{field.dtype}), or declare another dtype in output=[...]."
        )


def _check_shape(
    step: TransformStep, field: OutputField, found: tuple[int, ...], number: int, describe: Describe
) -> None:
    wanted = field.element_shape
    if not _fits(wanted, found):
        raise TransformError(
            f"transform {step.name}, field '{field.name}', {describe(number)}: expected shape {wanted}, got {found}. "
            "Declare the new shape in output=[...]."
        )


def _check_cell_shape(
    step: TransformStep, field: OutputField, found: tuple[int, ...], number: int, describe: Describe
) -> None:
    if not _fits(field.shape, found):
        _check_shape(step, field, found if field.window is None else (field.window, *found), number, describe)


def _fits(wanted: Shape, found: tuple[int, ...]) -> bool:
    return len(found) == len(wanted) and all(w is None or w == f for w, f in zip(wanted, found, strict=False))


def _string_column(
    step: TransformStep,
    field: OutputField,
    cells: Sequence[tuple[int, Any]],
    lead: tuple[int, ...],
    valid: np.ndarray | None,
    describe: Describe,
) -> Column:
    kind: type = str if field.kind == "text" else bytes
    empty = np.full(tuple(axis or 0 for axis in field.shape), kind(), dtype=object)
    arrays = []
    for number, cell in cells:
        array = empty if cell is None else np.asarray(cell, dtype=object)
        _check_cell_shape(step, field, array.shape, number, describe)
        wrong = next((item for item in array.reshape(-1).tolist() if not isinstance(item, kind)), None)
        if wrong is not None or any(item is None for item in array.reshape(-1).tolist()):
            raise TransformError(
                f"transform {step.name}, field '{field.name}', {describe(number)}: expected {kind.__name__}, "
                f"got {type(wrong).__name__}."
            )
        arrays.append(array)
    column = pa.array(
        [item for array in arrays for item in array.reshape(-1).tolist()],
        pa.large_string() if field.kind == "text" else pa.large_binary(),
    )
    offsets = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1) if len(column) else np.zeros(1, np.int64)
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)[: offsets[-1]]
    if field.ragged:
        return Ragged(_shapes(field, arrays), Strings(offsets, data, (len(column),)), lead, valid)
    return Strings(offsets, data, (*lead, *(axis or 0 for axis in field.shape)), valid)
