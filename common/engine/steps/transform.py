"""Running user functions on rows and batches, and holding what they return to what was declared."""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from ...errors import ParquetryError, TransformError
from ...schema.dtypes import delivered_dtype
from ...schema.element import OutputField, flatten, nest
from ...schema.field import Shape
from ...stages.functions import lock_of
from ...stages.transform import TransformStep
from ..columns.arrow_columns import from_arrow, to_arrow
from ..columns.batch import Column, Dense, Ragged, Strings, rows_of, timed, to_numpy

Describe = Callable[[int], str]


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
    pairs = zip(step.inputs, columns, strict=True)
    inputs = [rows_of(timed(field, column), text=field.kind == "text") for field, column in pairs]
    kept: list[int] = []
    collected = [Cells(step, field, count, lambda row: describe(kept[row])) for field in step.outputs]
    lock = lock_of(step.function)
    for number in range(count):
        row = nest(step.inputs, [values[number] for values in inputs])
        with lock:
            result = _call(step, row, partial(describe, number))
            if result is None and step.drops:
                continue
            kept.append(number)
            for cells, value in zip(collected, _picked(step, result, partial(describe, number)), strict=True):
                cells.add(value)
    return [cells.column() for cells in collected], np.array(kept, dtype=np.int64)


def _apply_to_batch(step: TransformStep, columns: Sequence[Column], count: int, describe: Describe) -> list[Column]:
    where = (lambda: f"the batch that begins at {describe(0)}") if count else (lambda: "an empty batch")
    pairs = zip(step.inputs, columns, strict=True)
    values = [to_numpy(timed(field, column), text=field.kind == "text") for field, column in pairs]
    argument = nest(step.inputs, values)
    given = {id(values[number]): sys.getrefcount(values[number]) for number in range(len(values))}
    with lock_of(step.function):
        outputs = _picked(step, _call(step, argument, where), where)
        made: list[Column] = []
        for number, field in enumerate(step.outputs):
            found = _length(outputs[number])
            if found != count:
                raise TransformError(
                    f"transform {step.name}, field '{field.name}': expected {count} rows as it was given, "
                    f"got {type(outputs[number]).__name__ if found is None else found}."
                )
            # One reference is the list's and one this call's; more are the function's, which may write there again.
            references = sys.getrefcount(outputs[number])
            own = id(outputs[number]) in given or getattr(outputs[number], "base", True) is None
            alone = own and references <= given.get(id(outputs[number]), 1) + 1
            made.append(_column(step, field, outputs[number], describe, alone=alone))
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
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    with lock_of(step.function):
        return _from_arrow(step, _call(step, batch, where), count, describe, where)


def _from_arrow(
    step: TransformStep, result: object, count: int, describe: Describe, where: Callable[[], str]
) -> list[Column]:
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


def _call(step: TransformStep, argument: object, where: Callable[[], str]) -> Any:
    try:
        return step.function(argument)
    except ParquetryError:
        raise
    except Exception as error:
        trace = "".join(traceback.format_exception(error)).rstrip()
        raise TransformError(f"transform {step.name} failed for {where()}: {error!r}.\n{trace}") from error


def _picked(step: TransformStep, result: object, where: Callable[[], str]) -> list[Any]:
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


def _column(step: TransformStep, field: OutputField, values: Any, describe: Describe, *, alone: bool) -> Column:
    """Checks values (one for each row) against the declared field, and lays them out as a column of its own memory.

    Args:
        alone: nobody else holds ``values``, so that they need no copy.
    """
    if isinstance(values, np.ndarray) and values.dtype != object and field.kind == "dense" and not field.ragged:
        _check_dtype(step, field, values.dtype, 0, describe)
        _check_shape(step, field, values.shape[1:], 0, describe)
        if isinstance(values, np.ma.MaskedArray):
            return _masked_column(step, field, values, describe)
        delivered = _as_delivered(values, field)
        return Dense(delivered if alone or not np.may_share_memory(delivered, values) else delivered.copy())
    cells = Cells(step, field, len(values), describe)
    for value in values:
        cells.add(value)
    return cells.column()


def _masked_column(step: TransformStep, field: OutputField, values: np.ma.MaskedArray, describe: Describe) -> Dense:
    """A masked array: a value that is masked as a whole is null, and zero beneath."""
    lead = values.shape[: 1 if field.window is None else 2]
    mask = np.ma.getmaskarray(values).reshape(*lead, -1)
    null, whole = np.asarray(mask.any(axis=-1)), np.asarray(mask.all(axis=-1))
    if null.any():
        cell = int(np.argmax(null != whole)) if (null != whole).any() else int(np.argmax(null))
        _check_null(step, field, cell // math.prod(lead[1:]), describe, partly=bool((null != whole).any()))
    result = np.array(_as_delivered(values.data, field))
    result[null] = 0
    return Dense(result, ~null if null.any() else None)


class Cells:
    """The values of one field as a function returns them, one row after the other.

    Each is copied when it comes, because a function may return its own memory again, and change it then.

    Args:
        rows: how many may come.
        describe: where the ``n``-th row comes from, for errors.
    """

    def __init__(self, step: TransformStep, field: OutputField, rows: int, describe: Describe) -> None:
        self._step = step
        self._field = field
        self._describe = describe
        self._rows = 0
        self._valid: list[bool] = []
        self._parts: list[np.ndarray] = []
        self._zero = tuple(axis or 0 for axis in field.shape)
        self._window = () if field.window is None else (field.window,)
        self._out: np.ndarray | None = None
        if field.kind == "dense" and not field.ragged:
            self._out = np.empty((rows * math.prod(self._window), *self._zero), field.dtype)

    def add(self, value: object) -> None:
        """Takes in the value of the next row."""
        for cell in self._steps(value):
            cell = self._unmasked(cell)
            if cell is None and not self._field.nullable:
                _check_null(self._step, self._field, self._rows, self._describe)
            if self._out is not None:
                self._out[len(self._valid)] = 0 if cell is None else self._checked(cell)
            else:
                self._parts.append(self._copied(cell))
            self._valid.append(cell is not None)
        self._rows += 1

    def column(self) -> Column:
        """All of them."""
        field, lead = self._field, (self._rows, *self._window)
        mask = None if all(self._valid) else np.array(self._valid, dtype=bool).reshape(lead)
        if self._out is not None:
            return Dense(self._out[: len(self._valid)].reshape(*lead, *self._zero), mask)
        shapes = np.array([part.shape for part in self._parts], np.int64).reshape(len(self._parts), len(field.shape))
        flat = [part.reshape(-1) for part in self._parts]
        if field.kind != "dense":
            return _string_column(field, flat, shapes, lead, self._zero, mask)
        return Ragged(shapes, np.concatenate(flat) if flat else np.zeros(0, field.dtype), lead, mask)

    def _steps(self, value: Any) -> Sequence[Any]:
        """The cells of a row: one, or one for each step of a window."""
        if self._field.window is None:
            return (value,)
        steps = list(value) if hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping) else None
        if steps is None or len(steps) != self._field.window:
            size = () if steps is None else (len(steps), *(axis or 0 for axis in self._field.shape))
            _check_shape(self._step, self._field, size, self._rows, self._describe)
            raise AssertionError("a window of another length has another shape")
        return steps

    def _unmasked(self, cell: object) -> Any:
        """``None`` for a null in any form."""
        if isinstance(cell, np.ma.MaskedArray):
            mask = np.ma.getmaskarray(cell)
            if cell.size and mask.all():
                return None
            if mask.any():
                _check_null(self._step, self._field, self._rows, self._describe, partly=True)
            return cell.data
        if isinstance(cell, np.ndarray):
            empty = cell.dtype == object and cell.size and all(is_null(item) for item in cell.flat)
            return None if empty else cell
        return None if is_null(cell) else cell

    def _checked(self, value: object) -> np.ndarray:
        array = np.asarray(value)
        _check_cell_shape(self._step, self._field, array.shape, self._rows, self._describe)
        if isinstance(value, np.ndarray | np.generic):
            _check_dtype(self._step, self._field, array.dtype, self._rows, self._describe)
            return _as_delivered(array, self._field)
        return _converted(self._step, self._field, array, self._rows, self._describe)

    def _copied(self, cell: object) -> np.ndarray:
        if self._field.kind == "dense":
            return np.zeros(self._zero, self._field.dtype) if cell is None else np.array(self._checked(cell))
        kind: type = str if self._field.kind == "text" else bytes
        array = np.full(self._zero, kind(), dtype=object) if cell is None else np.array(cell, dtype=object)
        _check_cell_shape(self._step, self._field, array.shape, self._rows, self._describe)
        wrong = [item for item in array.reshape(-1).tolist() if not isinstance(item, kind)]
        if wrong:
            raise TransformError(
                f"transform {self._step.name}, field '{self._field.name}', {self._describe(self._rows)}: expected "
                f"{kind.__name__}, got {type(wrong[0]).__name__}."
            )
        return array


def is_null(value: object) -> bool:
    """Whether a value says that there is none: ``None``, and pandas' ``NA`` and ``NaT``."""
    return value is None or type(value).__name__ in ("NAType", "NaTType")


def _check_null(step: TransformStep, field: OutputField, row: int, describe: Describe, *, partly: bool = False) -> None:
    """Raises `TransformError` for a null that the field cannot hold."""
    where = f"transform {step.name}, field '{field.name}', {describe(row)}"
    if partly:
        raise TransformError(
            f"{where}: expected a value without masked parts, or one that is masked as a whole, got one masked in part."
            " Fill it with .filled(...)."
        )
    if not field.nullable:
        raise TransformError(f"{where}: expected a value, got None. Declare the field nullable=True.")


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
    if array.dtype.kind not in "mM":
        return array.astype(field.dtype, copy=False)
    same_kind = field.time is not None and np.dtype(field.time).kind == array.dtype.kind
    return (array.astype(field.time, copy=False) if same_kind else array).view(np.int64)


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
    field: OutputField,
    flat: Sequence[np.ndarray],
    shapes: np.ndarray,
    lead: tuple[int, ...],
    fixed: tuple[int, ...],
    valid: np.ndarray | None,
) -> Column:
    column = pa.array(
        [item for part in flat for item in part.tolist()],
        pa.large_string() if field.kind == "text" else pa.large_binary(),
    )
    offsets = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1) if len(column) else np.zeros(1, np.int64)
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)[: offsets[-1]]
    if field.ragged:
        return Ragged(shapes, Strings(offsets, data, (len(column),)), lead, valid)
    return Strings(offsets, data, (*lead, *fixed), valid)
