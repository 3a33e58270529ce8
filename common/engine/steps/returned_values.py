"""Checks the values that user functions return against the declared fields, and makes columns of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import filterfalse, pairwise
from typing import Any

import numpy as np

from ...base.errors import TransformError
from ...schema.codec import fits_shape
from ...schema.dtypes import convert_counts, counts_too_far, delivered_dtype, float_holds, has_fixed_unit
from ...schema.element import OutputField
from ...schema.plain import is_null, is_utf_8
from ...schema.ragged import NestedArray, RaggedArray, ends_of
from ...stages.transform import TransformStep
from ..columns.arrow_columns import in_one_shape
from ..columns.batch import Column, Compound, Dense, Ragged, Strings
from ..columns.protocols import Describe


def column_of(step: TransformStep, field: OutputField, values: Any, describe: Describe, *, alone: bool) -> Column:
    """Checks values (one for each row) against the declared field, and converts them to a column with its own memory.

    Args:
        step: the user function's step, for errors.
        field: the declared field.
        describe: describes where row ``i`` comes from, for errors.
        alone: whether nobody else holds ``values``, so that no copy is needed.
    """
    if isinstance(values, np.ndarray) and values.dtype != object and field.kind == "dense" and not field.ragged:
        _check_dtype(step, field, values.dtype, 0, describe)
        _check_shape(step, field, values.shape[1:], 0, describe)
        if isinstance(values, np.ma.MaskedArray):
            return _masked_column(step, field, values, describe)
        delivered = _as_delivered(step, field, values, None, describe)
        return Dense(delivered if alone or not np.may_share_memory(delivered, values) else delivered.copy())
    if isinstance(values, NestedArray):
        try:
            values = _spanning(values)
        except (TypeError, ValueError):
            raise TransformError(
                f"transform {step.name}, field '{field.name}', the batch that begins at {describe(0)}: expected a "
                "NestedArray with ascending offsets within its values, got invalid offsets."
            ) from None
        if (whole := _nested_column(field, values)) is not None:
            return whole
    collector = collector_for(step, field, len(values), describe)
    for value in values:
        collector.add(value)
    return collector.column()


def _masked_column(step: TransformStep, field: OutputField, values: np.ma.MaskedArray, describe: Describe) -> Dense:
    """Converts a masked array to a column. A value that is masked entirely becomes null, and is stored as zero."""
    lead = values.shape[: 1 if field.window is None else 2]
    mask = np.ma.getmaskarray(values).reshape(*lead, -1)
    null, whole = np.asarray(mask.any(axis=-1)), np.asarray(mask.all(axis=-1))
    if null.any():
        place = int(np.argmax(null != whole)) if (null != whole).any() else int(np.argmax(null))
        _check_null(step, field, place // math.prod(lead[1:]), describe, partly=bool((null != whole).any()))
    is_time = values.dtype.kind in "mM"  # what is under the mask of a time need not fit its unit
    data = values.filled(np.zeros(1, values.dtype)[0]) if is_time else values.data
    result = np.array(_as_delivered(step, field, data, None, describe))
    result[null] = 0
    return Dense(result, ~null if null.any() else None)


def _nested_column(field: OutputField, values: NestedArray) -> Compound | None:
    """Converts nested lists to a column. Returns ``None`` unless they match the field."""
    fits = field.window is None and field.kind == "dense" and len(values.offsets) == field.levels
    if not fits or values.dtype != field.dtype or values.values.shape[1:] != field.shape[field.levels :]:
        return None
    held = zip(field.shape, values.offsets, strict=False)
    if np.ma.is_masked(values.values) or any(size is not None and (np.diff(o) != size).any() for size, o in held):
        return None  # converting row by row reports which row is wrong
    ends, parts = values.offsets[0], []
    for offsets in values.offsets[1:]:
        parts.append(Ragged(np.diff(ends)[:, None], np.diff(offsets), (len(values),)))
        ends = offsets[ends]
    shapes = np.empty((len(values), values.values.ndim), np.int64)
    shapes[:, 0], shapes[:, 1:] = np.diff(ends), values.values.shape[1:]
    return Compound((*parts, Ragged(shapes, np.array(values.values).reshape(-1), (len(values),))))


def collector_for(
    step: TransformStep, field: OutputField, rows: int, describe: Describe
) -> ValueCollector | NestedCollector:
    return (NestedCollector if field.levels else ValueCollector)(step, field, rows, describe)


class NestedCollector:
    """Like `ValueCollector`, for nested lists. Each value is split among the leaves of the field."""

    def __init__(self, step: TransformStep, field: OutputField, rows: int, describe: Describe) -> None:
        self._step = step
        self._field = field
        self._describe = describe
        self._rows = 0
        steps = field.window or 1
        leaves = [replace(leaf, window=None) for leaf in field.leaves]
        self._leaves = [
            ValueCollector(step, leaf, rows * steps, lambda place: describe(place // steps)) for leaf in leaves
        ]

    def add(self, value: object) -> None:
        """Adds the value of the next row."""
        window = self._field.window
        try:
            steps = (value,) if window is None else tuple(_as_list(value, self._where))
            if window is not None and len(steps) != window:
                raise TypeError
            for step in map(self._leaves[-1].unmasked, steps):
                if step is None:
                    _check_null(self._step, self._field, self._rows, self._describe)
                parts = [None] * len(self._leaves) if step is None else self._taken_apart(step)
                for leaf, part in zip(self._leaves, parts, strict=True):
                    leaf.add(part)
        except (TypeError, ValueError):
            of_steps = "" if window is None else f" for each of {window} steps"
            raise self._error(f"nested lists of {self._field.levels} levels{of_steps}", f"{value!r}") from None
        self._rows += 1

    def column(self) -> Compound:
        lead = (self._rows,) if self._field.window is None else (self._rows, self._field.window)
        parts = [part for leaf in self._leaves if isinstance(part := leaf.column(), Ragged)]
        for part, inside in pairwise(parts):
            assert isinstance(part.values, np.ndarray)
            lengths = np.diff(ends_of(part.values)[ends_of(part.shapes[:, 0])])
            assert np.array_equal(lengths, inside.shapes[:, 0]), "lists of one level do not fit those of the next"
            assert np.array_equal(part.valid is None or part.valid, inside.valid is None or inside.valid)
        valid = None if parts[0].valid is None else parts[0].valid.reshape(lead)
        return Compound(tuple(replace(part, lead=lead, valid=valid) for part in parts))

    def _where(self) -> str:
        return f"transform {self._step.name}, field '{self._field.name}', {self._describe(self._rows)}"

    def _error(self, expected: str, actual: str) -> TransformError:
        return TransformError(f"{self._where()}: expected {expected}, got {actual}.")

    def _taken_apart(self, value: object) -> list[Any]:
        """Returns the lengths of the lists at each level except the first, and the values, end to end."""
        levels, shape = self._field.levels, self._field.shape
        lists, lengths = [_as_list(value, self._where)], []
        for level in range(levels):
            if level and isinstance(value, NestedArray) and len(value.offsets) == levels - 1:
                if level == 1:
                    lengths += [np.diff(offsets) for offsets in lists[0].offsets]
                    lists = [lists[0].values]
                counts = lengths[level - 1]
            else:
                if level:
                    lists = [self._inside(part, level) for each in lists for part in each]
                counts = np.array([len(part) for part in lists], np.int64)
                if level:
                    lengths.append(counts)
            # A masked null came in without lists, so it may be returned without lists.
            held = shape[level] is None or (level == 0 and not len(lists[0]))
            if not held and (wrong := counts[counts != shape[level]]).size:
                raise self._error(
                    f"lists of {shape[level]} at level {level + 1}, as its shape {shape} declares", f"{wrong[0]}"
                )
        filled = [each for each in lists if len(each)]
        if not filled:
            return [*lengths, np.zeros((0, *(axis or 0 for axis in shape[levels:])), self._field.dtype)]
        if all(isinstance(each, np.ndarray) for each in filled):
            values = np.concatenate([self._inside(each, levels - 1) for each in filled])
            if values.dtype == object:
                self._check_values(list(values.flat), 0)
            return [*lengths, values]
        items = [item for each in filled for item in each]
        self._check_values(items, len(shape) - levels)
        return [*lengths, items]

    def _inside(self, part: object, level: int) -> Any:
        """Returns a list inside a list. Raises `TransformError` if it is null, in any form."""
        unmasked = self._leaves[-1].unmasked(part)
        if unmasked is None:
            raise self._null_inside(level + 1)
        return _as_list(unmasked, self._where)

    def _null_inside(self, level: int) -> TransformError:
        return self._error(f"no null inside a list (level {level})", "one. Remove it, or replace it with a value")

    def _check_values(self, items: list[Any], axes: int) -> None:
        """Checks values with this number of axes for nulls, and for lists that are nested deeper."""
        for axis in range(axes + 1):
            kinds = set(map(type, items))
            masked = any(issubclass(kind, np.ma.MaskedArray) for kind in kinds)
            if any(kind.__name__ in ("NoneType", "NAType", "NaTType") for kind in kinds) or (
                masked and any(np.ma.is_masked(item) for item in items)
            ):
                raise self._null_inside(self._field.levels)
            if axis == axes and any(issubclass(kind, list | tuple | NestedArray | RaggedArray) for kind in kinds):
                raise TypeError
            if axis == axes and np.ndarray in kinds and any(np.ndim(item) for item in items):
                raise TypeError
            items = [part for item in items if isinstance(item, list | tuple) for part in item]


def _as_list(value: object, where: Callable[[], str]) -> Any:
    """Returns a list as it is, and anything array-like as an array.

    Raises:
        TypeError: the value is not a list.
        TransformError: see `to_array`.
    """
    if isinstance(value, NestedArray):
        return _spanning(value)
    if isinstance(value, list | tuple | range | RaggedArray):
        return value
    if not hasattr(value, "__array__") or not np.ndim(value):
        raise TypeError
    return value if isinstance(value, np.ndarray) else to_array(value, where)


def _spanning(nested: NestedArray) -> NestedArray:
    """Returns the same lists, with only the values that they contain.

    Raises:
        TypeError: offsets descend, or point outside of the values.
    """
    if not nested.offsets:
        raise TypeError
    values, inner = np.asanyarray(nested.values), []
    first, last = 0, len(nested)
    for offsets in nested.offsets:
        ends = np.asarray(offsets)
        if ends.ndim != 1 or ends.dtype.kind not in "iu" or last >= len(ends):
            raise TypeError
        ends = ends[first : last + 1].astype(np.int64)
        if ends[0] < 0 or (np.diff(ends) < 0).any():
            raise TypeError
        inner.append(ends - ends[0])
        first, last = int(ends[0]), int(ends[-1])
    if last > len(values):
        raise TypeError
    return NestedArray(values[first:last], tuple(inner))


class ValueCollector:
    """Collects the values of one field that a function returns, one row after the other.

    Each value is copied at once, because a function may reuse and change the memory that it returned.

    Args:
        step: the user function's step, for errors.
        field: the declared field.
        rows: the maximum number of rows.
        describe: describes where the ``n``-th row comes from, for errors.
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
        if field.kind == "dense" and None not in field.shape:
            self._out = np.empty((rows * math.prod(self._window), *self._zero), field.dtype)

    def add(self, value: object) -> None:
        """Adds the value of the next row."""
        for step in self._steps(value):
            step = self.unmasked(step)
            if step is None and not self._field.nullable:
                _check_null(self._step, self._field, self._rows, self._describe)
            if self._out is not None:
                self._out[len(self._valid)] = 0 if step is None else self._checked(step)
            else:
                self._parts.append(self._copied(step))
            self._valid.append(step is not None)
        self._rows += 1

    def column(self) -> Column:
        field, lead = self._field, (self._rows, *self._window)
        mask = None if all(self._valid) else np.array(self._valid, dtype=bool).reshape(lead)
        if self._out is not None:
            return Dense(self._out[: len(self._valid)].reshape(*lead, *self._zero), mask)
        shapes = np.array([part.shape for part in self._parts], np.int64).reshape(len(self._parts), len(field.shape))
        flat = [part.reshape(-1) for part in self._parts]
        if field.kind != "dense":
            column = _string_column(field, flat, shapes, lead, self._zero, mask)
        else:
            column = Ragged(shapes, np.concatenate(flat) if flat else np.zeros(0, field.dtype), lead, mask)
        if not field.padded:
            return column
        return in_one_shape(field, column, f"transform {self._step.name}", self._describe)

    def _steps(self, value: Any) -> Sequence[Any]:
        """Returns the values of a row: one, or one for each step of a window."""
        if self._field.window is None:
            return (value,)
        steps = list(value) if hasattr(value, "__len__") and not isinstance(value, str | bytes | Mapping) else None
        if steps is None or len(steps) != self._field.window:
            size = () if steps is None else (len(steps), *(axis or 0 for axis in self._field.shape))
            _check_shape(self._step, self._field, size, self._rows, self._describe)
            raise AssertionError("a window of another length has another shape")
        return steps

    def unmasked(self, value: object) -> Any:
        """Returns the value without a mask, or ``None`` for a null in any form."""
        if isinstance(value, np.ma.MaskedArray):
            mask = np.ma.getmaskarray(value)
            if value.size and mask.all():
                return None
            if mask.any():
                _check_null(self._step, self._field, self._rows, self._describe, partly=True)
            return value.data
        if isinstance(value, np.ndarray):
            empty = value.dtype == object and value.size and all(is_null(item) for item in value.flat)
            return None if empty else value
        return None if is_null(value, text=self._field.kind != "dense") else value

    def _checked(self, value: object) -> np.ndarray:
        try:
            array = to_array(value, self._where)
        except ValueError as error:
            raise TransformError(
                f"{self._where()}: expected an array, got lists of different lengths in one value ({error}). Declare "
                "the field with None for each such axis in output=[...], and write "
                f".nested('{self._field.path[-1]}') after the function."
            ) from None
        _check_value_shape(self._step, self._field, array.shape, self._rows, self._describe)
        if isinstance(value, np.ndarray | np.generic) or array.dtype.kind in "mM":
            _check_dtype(self._step, self._field, array.dtype, self._rows, self._describe)
            return _as_delivered(self._step, self._field, array, self._rows, self._describe)
        return _converted(self._step, self._field, value, array, self._rows, self._describe)

    def _where(self) -> str:
        return f"transform {self._step.name}, field '{self._field.name}', {self._describe(self._rows)}"

    def _copied(self, value: object) -> np.ndarray:
        if self._field.kind == "dense":
            return np.zeros(self._zero, self._field.dtype) if value is None else np.array(self._checked(value))
        kind: type = str if self._field.kind == "text" else bytes
        array = np.full(self._zero, kind(), dtype=object)
        if value is not None:
            array = np.array(to_array(value, self._where) if hasattr(value, "__array__") else value, dtype=object)
        _check_value_shape(self._step, self._field, array.shape, self._rows, self._describe)
        wrong = [item for item in array.reshape(-1).tolist() if not isinstance(item, kind)]
        if wrong:
            raise TransformError(f"{self._where()}: expected {kind.__name__}, got {type(wrong[0]).__name__}.")
        if kind is str and (broken := next(filterfalse(is_utf_8, array.reshape(-1).tolist()), None)):
            raise TransformError(
                f"{self._where()}: expected text that UTF-8 can hold, got {broken!r:.80}. "
                "text.encode(errors='replace').decode() replaces what it cannot hold."
            )
        return array


def to_array(value: object, where: Callable[[], str]) -> np.ndarray:
    """Returns a value that a user function returned as an array.

    Args:
        where: describes the value's place, for the error.

    Raises:
        TransformError: numpy cannot convert a tensor: it has gradients, a dtype that numpy lacks, or another device.
        ValueError: the value consists of lists of different lengths.
    """
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError) as error:
        raise TransformError(
            f"{where()}: expected a value that numpy can convert, got {type(value).__name__}: "
            f"{str(error).rstrip('.')}. Return a numpy array, such as tensor.detach().float().cpu().numpy()."
        ) from error


def _check_null(step: TransformStep, field: OutputField, row: int, describe: Describe, *, partly: bool = False) -> None:
    """Raises `TransformError` for a null that the field cannot hold."""
    where = f"transform {step.name}, field '{field.name}', {describe(row)}"
    if partly:
        raise TransformError(
            f"{where}: expected a value that is masked entirely or not at all, got one masked in part. "
            "Fill it with .filled(...)."
        )
    if not field.nullable:
        raise TransformError(f"{where}: expected a value, got None. Declare the field nullable=True.")


def _converted(
    step: TransformStep, field: OutputField, value: object, array: np.ndarray, number: int, describe: Describe
) -> np.ndarray:
    """Converts Python numbers, which have no dtype, and tensors to the declared dtype. Floats may be rounded.

    Raises:
        TransformError: the dtype cannot hold an integer exactly, or a float at all.
    """
    if array.size == 0:
        return array.astype(field.dtype)
    if array.dtype.kind not in {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}[field.dtype.kind]:
        _check_dtype(step, field, array.dtype, number, describe)
    with np.errstate(over="ignore"):
        result = array.astype(field.dtype)
    if field.dtype.kind != "f":
        exact = result == array
    elif array.dtype.kind != "f":
        exact = float_holds(array, result)
    else:
        exact = np.isfinite(result) | ~np.isfinite(array)
        if isinstance(value, list | tuple) and (np.abs(array) >= 2.0 ** np.finfo(field.dtype).nmant).any():
            array, exact = _beside_floats(value, array, result, exact)
    if not exact.all():
        raise TransformError(
            f"transform {step.name}, field '{field.name}', {describe(number)}: expected values that {field.dtype} can "
            f"hold, got {array[~exact][0]}. Declare another dtype in output=[...]."
        )
    return result


def _beside_floats(
    value: Sequence[Any], array: np.ndarray, result: np.ndarray, exact: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the values of a list and which are exact. numpy rounds large integers that stand beside floats."""
    items = np.array(value, dtype=object)
    if items.shape != array.shape:
        return array, exact
    pairs = zip(items.flat, result.flat, strict=True)
    same = [not isinstance(item, int | np.integer) or int(item) == float(each) for item, each in pairs]
    return items, exact & np.array(same, np.bool_).reshape(exact.shape)


def _as_delivered(
    step: TransformStep, field: OutputField, array: np.ndarray, number: int | None, describe: Describe
) -> np.ndarray:
    """Converts an array of the right dtype to the field's. Times of another unit are converted to the field's unit.

    Args:
        number: the row of the array; ``None`` if it has a first axis of rows.

    Raises:
        TransformError: the field's unit cannot hold a time.
    """
    if array.dtype.kind not in "mM":
        return array.astype(field.dtype, copy=False)
    if field.time is None or np.dtype(field.time).kind != array.dtype.kind or field.time == array.dtype:
        return array.view(np.int64)
    if not has_fixed_unit(field.time) or not has_fixed_unit(array.dtype):
        return array.astype(field.time).view(np.int64)
    counts = array.astype(array.dtype.newbyteorder("="), copy=False).view(np.int64)
    wrong = counts_too_far(counts, array.dtype, field.time)
    if wrong is not None and wrong.any():
        place = tuple(np.argwhere(wrong)[0])
        row = describe(int(place[0]) if number is None else number)
        raise TransformError(
            f"transform {step.name}, field '{field.name}', {row}: expected times that {field.time} can hold, got "
            f"{array[place]}. Return them in that unit, or cast the field to a coarser unit before the function."
        )
    return convert_counts(counts, array.dtype, field.time)


def _check_dtype(
    step: TransformStep, field: OutputField, dtype: np.dtype[Any], number: int, describe: Describe
) -> None:
    if delivered_dtype(dtype if dtype.kind != "O" else np.dtype("S")) != field.dtype:
        raise TransformError(
            f"transform {step.name}, field '{field.name}', {describe(number)}: expected dtype {field.dtype}, "
            f"got {dtype}. "
            f"Cast with .astype(np.{field.dtype}), or declare another dtype in output=[...]."
        )


def _check_shape(
    step: TransformStep, field: OutputField, shape: tuple[int, ...], number: int, describe: Describe
) -> None:
    expected = field.element_shape
    if not fits_shape(shape, expected):
        raise TransformError(
            f"transform {step.name}, field '{field.name}', {describe(number)}: expected shape {expected}, got {shape}. "
            "Declare the new shape in output=[...]."
        )


def _check_value_shape(
    step: TransformStep, field: OutputField, shape: tuple[int, ...], number: int, describe: Describe
) -> None:
    if not fits_shape(shape, field.shape):
        _check_shape(step, field, shape if field.window is None else (field.window, *shape), number, describe)


def _string_column(
    field: OutputField,
    flat: Sequence[np.ndarray],
    shapes: np.ndarray,
    lead: tuple[int, ...],
    fixed: tuple[int, ...],
    valid: np.ndarray | None,
) -> Column:
    items = [item for part in flat for item in part.tolist()]
    runs = [item.encode() for item in items] if field.kind == "text" else items  # not by Arrow, which imports pandas
    offsets, data = ends_of([len(run) for run in runs]), np.frombuffer(b"".join(runs), np.uint8)
    if None in field.shape:
        return Ragged(shapes, Strings(offsets, data, (len(items),)), lead, valid)
    return Strings(offsets, data, (*lead, *fixed), valid)
