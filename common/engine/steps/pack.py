"""Packs many numeric columns into one matrix, ``[..., K]``, in one pass.

`gather_packed` takes whole rows from the matrix of each loaded block, which is filled straight from Arrow's buffers.
`apply_pack` packs columns that earlier steps have changed. Both return the same values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...base.errors import DecodeError, NullValueError
from ...base.memory.arena import Arena, array_bytes
from ...schema.element import OutputField
from ...stages.pack import PackStep
from ..columns.batch import Column, Dense
from ..columns.protocols import Describe
from .source import Taken, as_slice

_BLOCK_ROWS = 8192  # a block of the matrix stays in the processor's cache while its columns are written


def packed_bytes(step: PackStep, rows: int) -> int:
    """Returns how many bytes the matrix of a block takes in an arena."""
    return array_bytes(step.output.dtype, (rows, sum(step.widths)))


def pack_parts(step: PackStep, columns: Sequence[Sequence[np.ndarray] | None], arena: Arena) -> np.ndarray | None:
    """Returns the matrix of a block, made from the arrays of each row group for each field.

    Returns ``None`` if a field has no such arrays, or a number that does not fit, which `apply_pack` reports if needed.
    """
    known = [column for column in columns if column is not None]
    if len(known) < len(columns):
        return None
    parts = [[column[number] for column in known] for number in range(len(known[0]))]
    if any(_misfit(step, array) is not None for arrays in parts for array in arrays):
        return None
    matrix = arena.allocate(step.output.dtype, (sum(len(arrays[0]) for arrays in parts), sum(step.widths)))
    start = 0
    for arrays in parts:
        _fill(step, arrays, matrix[start : start + len(arrays[0])])
        start += len(arrays[0])
    return matrix


def gather_packed(step: PackStep, taken: Taken, arena: Arena) -> Column | None:
    """Returns the matrix of a batch, made from the matrices of its blocks, or ``None`` if a block has none."""
    matrices = [source.block.packed(step) for source in taken.sources]
    known = [matrix for matrix in matrices if matrix is not None]
    if len(known) < len(matrices):
        return None
    width, steps = sum(step.widths), list(taken.steps)
    out = arena.allocate(step.output.dtype, (*taken.lead, width))
    shaped = out.reshape(taken.lead[0], len(steps), width)
    for source, items, packed in zip(taken.sources, taken.places, known, strict=True):
        every = steps == list(range(source.item_rows.shape[1]))
        rows = source.item_rows if every else source.item_rows[:, steps]
        following = slice(0, taken.lead[0]) if source.places is None else as_slice(items)
        if isinstance(following, slice):
            packed.take(rows.reshape(-1), 0, shaped[following].reshape(-1, width), "wrap")  # as in `FixedColumn`
        else:
            shaped[items] = packed[rows]
    return Dense(out)


def apply_pack(step: PackStep, columns: Sequence[Column], describe: Describe) -> list[Column]:
    """Returns the columns after packing.

    Raises:
        NullValueError: a value is null; names file and row.
        DecodeError: the matrix's dtype cannot hold a number; names file and row.
    """
    chosen = [columns[number] for number in step.numbers]
    inner = 1 if step.output.window is None else step.output.window
    arrays = []
    for field, column in zip(step.fields, chosen, strict=True):
        assert isinstance(column, Dense)
        if column.valid is not None:
            item = int(np.flatnonzero(~column.valid.reshape(len(column.valid), -1).all(axis=1))[0])
            raise _null(field, describe(item), step)
        array = column.values.reshape(-1, *field.shape)  # only fixed shapes are packed
        wrong = _misfit(step, array)
        if wrong is not None:
            raise DecodeError(
                f"pack '{step.output.name}', field '{field.name}', {describe(wrong // inner)}: expected numbers that "
                f"{step.output.dtype} can hold, got {array[wrong]}. Give a wider dtype=."
            )
        arrays.append(array)
    matrix = np.empty((len(arrays[0]), sum(step.widths)), step.output.dtype)
    _fill(step, arrays, matrix)
    lead = (len(matrix),) if step.output.window is None else (-1, step.output.window)
    return [*(columns[number] for number in step.keep), Dense(matrix.reshape(*lead, matrix.shape[1]))]


def _fill(step: PackStep, arrays: Sequence[np.ndarray], matrix: np.ndarray) -> None:
    """Writes the columns into the matrix, block by block."""
    with np.errstate(over="ignore"):  # a float too large for a narrower dtype becomes infinite, as in a cast
        for start in range(0, len(matrix), _BLOCK_ROWS):
            block = matrix[start : start + _BLOCK_ROWS]
            place = 0
            for width, array in zip(step.widths, arrays, strict=True):
                part = array[start : start + _BLOCK_ROWS]
                if array.ndim == 1:
                    np.copyto(block[:, place], part, casting="unsafe")
                else:
                    np.copyto(block[:, place : place + width], part, casting="unsafe")
                place += width


def _misfit(step: PackStep, array: np.ndarray) -> int | None:
    """Returns the first row with an integer that the wanted dtype cannot hold, or ``None``."""
    target = step.output.dtype
    if target.kind not in "iu" or array.dtype.kind not in "iu" or np.can_cast(array.dtype, target) or not array.size:
        return None
    limits = np.iinfo(target)
    if int(array.min()) >= limits.min and int(array.max()) <= limits.max:
        return None
    rows = array.reshape(len(array), -1).tolist()
    return next(n for n, row in enumerate(rows) if not all(limits.min <= value <= limits.max for value in row))


def _null(field: OutputField, where: str, step: PackStep) -> NullValueError:
    return NullValueError(
        f"pack '{step.output.name}', field '{field.name}', {where}: expected a value, found null. Call "
        f"nulls('drop', '{field.name}') before pack(), or use 'fill' or 'mask'."
    )
