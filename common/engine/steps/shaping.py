"""Steps that convert nulls and shapes to a form that models can use: fill, mask, pad, permute.

All are pure functions of the columns of a whole batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...base.errors import DecodeError, NullValueError, PipelineError
from ...base.memory.arena import run_memory
from ...base.native.kernels import pad_runs
from ...schema.element import OutputField
from ...schema.ragged import concat_ranges, ends_of
from ...stages.nulls import NullStep
from ...stages.pad import PadStep
from ...stages.permute import PermuteStep
from ..columns.batch import (
    Column,
    Compound,
    Dense,
    Plain,
    Ragged,
    Strings,
    cut_valid,
    take_strings,
    values_of,
    without_valid,
)
from ..columns.protocols import Describe


def apply_permute(step: PermuteStep, columns: Sequence[Column]) -> list[Column]:
    column = columns[step.number]
    result = list(columns)
    if isinstance(column, Dense):
        lead = column.values.ndim - len(step.axes)
        order = (*range(lead), *(lead + axis for axis in step.axes))
        result[step.number] = Dense(np.ascontiguousarray(column.values.transpose(order)), column.valid)
    elif isinstance(column, Ragged) and isinstance(column.values, np.ndarray):
        ends = np.cumsum(np.prod(column.shapes, axis=1, dtype=np.int64))
        values = np.empty_like(column.values)
        for end, shape in zip(ends.tolist(), column.shapes.tolist(), strict=True):
            start = end - math.prod(shape)
            values[start:end] = column.values[start:end].reshape(shape).transpose(step.axes).reshape(-1)
        result[step.number] = replace(column, shapes=column.shapes[:, list(step.axes)], values=values)
    return result


def apply_nulls(step: NullStep, columns: Sequence[Column], describe: Describe) -> list[Column]:
    """Returns the columns after applying a null policy.

    Raises:
        NullValueError: a value is null, and the policy is ``"error"``.
    """
    column = columns[step.number]
    present: Column | None = None
    if step.elements:
        assert isinstance(column, Compound)
        column, present = _taken_apart(column)
    valid = column.valid
    lead = lead_of(values_of(column), step.field)
    if step.policy == "error" and valid is not None:
        row = int(np.flatnonzero(~valid.reshape(len(valid), -1).all(axis=1))[0])
        raise NullValueError(
            f"field '{step.field.name}', {describe(row)}: expected a value, found null. Its policy is 'error'; "
            "choose 'drop', 'fill' or 'mask' with nulls(...)."
        )
    result = list(columns)
    result[step.number] = column
    if present is not None:
        result.append(without_valid(present))
    elif step.policy == "mask":
        mask = np.ones(lead, dtype=bool) if valid is None else valid.copy()
        result.append(Dense(mask))
    if valid is not None:
        value = step.value if step.policy == "fill" else None
        if value is not None and not isinstance(column, Dense | Strings):
            row = int(np.flatnonzero(~valid.reshape(len(valid), -1).all(axis=1))[0])
            raise PipelineError(
                f"field '{step.field.name}', {describe(row)}: expected a value, found null, which no fill value can "
                "replace, because the field has no fixed shape: it replaces nulls inside lists. Leave such rows out "
                f"before, with where(pc.is_valid(pc.field('{step.field.name}')))."
            )
        result[step.number] = _filled(column, valid, value)
    return result


def apply_pad(step: PadStep, columns: Sequence[Column], describe: Describe) -> list[Column]:
    """Returns the columns after padding.

    Raises:
        DecodeError: a value is larger than the wanted shape, or, without padding, has another shape.
    """
    column = columns[step.number]
    assert not isinstance(column, Compound)
    result = list(columns)
    if not isinstance(column, Ragged):
        shape = column.values.shape if isinstance(column, Dense) else column.shape
        axes = len(step.shape)
        lead, own = shape[: len(shape) - axes], shape[len(shape) - axes :]
        shapes = np.broadcast_to(np.asarray(own, np.int64), (int(np.prod(lead)), axes))
    else:
        lead, shapes = column.lead, column.shapes
        most = shapes.max(axis=0, initial=0)
        if step.sizes:
            axis = step.axes[0]
            most[axis] = next((size for size in step.sizes if size >= most[axis]), most[axis])
        target = tuple(int(most[axis]) if size is None else size for axis, size in enumerate(step.shape))
        _check_fit(step, shapes, target, column, describe)
        result[step.number] = _padded(column, target, step)
    if step.lengths:
        chosen = shapes[:, list(step.axes)]
        values = chosen.reshape(lead) if len(step.axes) == 1 else chosen.reshape(*lead, len(step.axes))
        result.append(Dense(np.ascontiguousarray(values)))
    return result


def pad_batches(step: PadStep, column: Column, bounds: np.ndarray) -> tuple[list[Column], Column] | None:
    """Pads the numbers of several batches at once, each to its own largest value; `apply_pad` pads a single one.

    Args:
        column: one axis of values, for the rows of all batches.
        bounds: int64 ``[batches + 1]``: where each batch begins, and the last one ends.

    Returns:
        The padded column of each batch, and the lengths of all rows. ``None`` for other columns and steps.
    """
    if not isinstance(column, Ragged) or isinstance(column.values, Strings):
        return None
    if step.shape != (None,) or not step.lengths or len(column.lead) != 1:
        return None
    lengths, dtype = column.shapes[:, 0], column.values.dtype
    widths = np.maximum.reduceat(lengths, bounds[:-1])
    if step.sizes:
        sizes = np.asarray(step.sizes)
        larger = np.minimum(np.searchsorted(sizes, widths), len(sizes) - 1)
        widths = np.maximum(widths, sizes[larger])
    shapes = zip(np.diff(bounds).tolist(), widths.tolist(), strict=True)
    padded = [_run_array(dtype, shape) for shape in shapes]  # apart: whoever keeps a batch keeps no others
    pad_runs(ends_of(lengths), column.values, step.value, padded)
    batches: list[Column] = list(map(Dense, padded, cut_valid(column.valid, bounds)))
    return batches, Dense(np.ascontiguousarray(lengths))


def _run_array(dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    return run_memory(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


def lead_of(column: Plain, field: OutputField) -> tuple[int, ...]:
    """Returns the sizes of the leading axes of a column: rows, and steps for stacked windows."""
    axes = 1 if field.window is None else 2
    if isinstance(column, Dense):
        return column.values.shape[:axes]
    return column.shape[:axes] if isinstance(column, Strings) else column.lead


def _taken_apart(column: Compound) -> tuple[Column, Column]:
    """Splits a column into the field without its flags, and the flags."""
    *lengths, values, flags = column.parts
    return (Compound((*lengths, values)), Compound((*lengths, flags))) if lengths else (values, flags)


def _filled(column: Column, valid: np.ndarray, value: object) -> Column:
    if isinstance(column, Dense):
        if value is None:
            return replace(column, valid=None)
        values = column.values.copy()
        values[~valid] = value
        return Dense(values)
    if isinstance(column, Strings):
        return replace(column, valid=None) if value is None else _filled_strings(column, valid, value)
    return without_valid(column)


def _filled_strings(column: Strings, valid: np.ndarray, value: Any) -> Strings:
    raw = np.frombuffer(value.encode() if isinstance(value, str) else value, np.uint8)
    count = len(column.offsets) - 1
    longer = Strings(
        np.append(column.offsets, column.offsets[-1] + len(raw)), np.append(column.data, raw), (count + 1,)
    )
    each = count // max(valid.size, 1)
    index = np.where(np.repeat(valid.reshape(-1), each), np.arange(count), count)
    taken = take_strings(longer, index)
    return Strings(taken.offsets, taken.data, column.shape)


def _check_fit(step: PadStep, shapes: np.ndarray, target: tuple[int, ...], column: Ragged, describe: Describe) -> None:
    present = np.ones(len(shapes), dtype=bool) if column.valid is None else column.valid.reshape(-1)
    limit = np.asarray(target)
    wrong = (shapes > limit).any(axis=1) if step.lengths else (shapes != limit).any(axis=1) & present
    if wrong.any():
        number = int(np.flatnonzero(wrong)[0])
        row = number // int(np.prod(column.lead[1:], dtype=np.int64))
        rule = f"a shape of at most {target}" if step.lengths else f"shape {target}"
        remedy = "Give a larger shape" if step.lengths else "Call pad() in place of fixed()"
        raise DecodeError(
            f"field '{step.field.name}', {describe(row)}: expected {rule}, got {tuple(shapes[number].tolist())}. "
            f"{remedy}, or crop in a transform."
        )


def _padded(column: Ragged, target: tuple[int, ...], step: PadStep) -> Column:
    arrays = len(column.shapes)
    size = int(np.prod(target, dtype=np.int64))
    if len(target) == 1 and not isinstance(column.values, Strings):
        padded = _run_array(column.values.dtype, (arrays, size))
        pad_runs(ends_of(column.shapes[:, 0]), column.values, step.value, [padded])
        return Dense(padded.reshape(*column.lead, size), column.valid)
    places = _places(column.shapes, target)
    if isinstance(column.values, Strings):
        index = np.full(arrays * size, len(column.values.offsets) - 1)
        index[places] = np.arange(len(places))
        raw = np.frombuffer((step.value or "").encode(), np.uint8)
        longer = Strings(
            np.append(column.values.offsets, column.values.offsets[-1] + len(raw)),
            np.append(column.values.data, raw),
            (len(column.values.offsets),),
        )
        taken = take_strings(longer, index)
        return Strings(taken.offsets, taken.data, (*column.lead, *target), column.valid)
    out = np.full(arrays * size, step.value, column.values.dtype)
    out[places] = column.values
    return Dense(out.reshape(*column.lead, *target), column.valid)


def _places(shapes: np.ndarray, target: tuple[int, ...]) -> np.ndarray:
    """Returns, for each element of all arrays laid end to end, its place in the flat padded array."""
    arrays = len(shapes)
    size = int(np.prod(target, dtype=np.int64))
    begins = np.arange(arrays) * size
    counts = np.ones(arrays, dtype=np.int64)
    owner = np.arange(arrays)
    stride = size
    for axis, length in enumerate(target):
        stride //= max(length, 1)
        counts = shapes[owner, axis]
        inner = concat_ranges(np.zeros(len(counts), np.int64), counts)
        begins = np.repeat(begins, counts) + inner * stride
        owner = np.repeat(owner, counts)
    return begins
