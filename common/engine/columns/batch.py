"""Column batches: the forms of a batch's fields between the engine and the dataset classes.

A column is `Dense` (one array), `Strings` (offsets and bytes) or `Ragged` (shapes and flat values). The engine also
uses `Compound` (several of these, aligned by row). Columns hold no Python object per row. `to_numpy` converts them to
what Python users see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any, overload

import numpy as np

from ...base.memory.arena import run_memory
from ...base.native.kernels import objects
from ...base.process.dataclass import dataclass
from ...schema.element import Element, OutputField
from ...schema.ragged import NestedArray, RaggedArray, concat_ranges, ends_of
from .arrow_take import take_runs


@dataclass(frozen=True, slots=True)
class Dense:
    """Values of one shape, ``[*lead, *shape]``. ``valid`` (bool ``[*lead]``) is ``None`` if nothing is null."""

    values: np.ndarray
    valid: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings of any length: ``offsets`` int64 ``[n + 1]`` into ``data`` (uint8); ``shape`` has ``n`` elements."""

    offsets: np.ndarray
    data: np.ndarray
    shape: tuple[int, ...]
    valid: np.ndarray | None = None

    def to_objects(self, *, text: bool) -> np.ndarray:
        """Returns an object array of ``str`` or ``bytes``, with ``None`` for nulls."""
        items = np.empty(len(self.offsets) - 1, object)
        items[:] = self._objects(text=text)
        return items.reshape(self.shape)

    def to_list(self, *, text: bool) -> list[Any]:
        """Returns the same as a list, nested if there are several axes."""
        if len(self.shape) == 1:
            return self._objects(text=text)
        nested: list[Any] = self.to_objects(text=text).tolist()
        return nested

    def _objects(self, *, text: bool) -> list[Any]:
        valid = None
        if self.valid is not None:  # of the leading axes
            rest = (1,) * (len(self.shape) - self.valid.ndim)
            valid = np.broadcast_to(self.valid.reshape(*self.valid.shape, *rest), self.shape).reshape(-1)
        return objects(self.offsets, self.data, valid, text=text)


@dataclass(frozen=True, slots=True)
class Ragged:
    """Values of different shapes: ``shapes`` int64 ``[arrays, axes]``, flat ``values``; ``prod(lead) == arrays``."""

    shapes: np.ndarray
    values: np.ndarray | Strings
    lead: tuple[int, ...]
    valid: np.ndarray | None = None


Plain = Dense | Strings | Ragged


@dataclass(frozen=True, slots=True)
class Compound:
    """Columns of one field, aligned by row. None of them is a compound.

    ``parts`` are the columns of `OutputField.leaves`. If null elements of lists are flagged, the last part holds bools
    with the shapes of the values, true where an element is not null.
    """

    parts: tuple[Plain, ...]

    @property
    def valid(self) -> np.ndarray | None:
        """The validity of each part; it is the same for all of them."""
        return self.parts[0].valid

    def each(self, change: Callable[[Plain], Column]) -> Compound:
        """Applies ``change`` to every part."""
        return Compound(tuple(map(change, self.parts)))  # type: ignore[arg-type]  # a part stays of its kind


Column = Plain | Compound


def column_bytes(column: Column) -> int:
    """Returns about how many bytes of memory a column takes."""
    if isinstance(column, Dense):  # checked first: this runs for every column of every job
        return column.values.nbytes
    return sum(array.nbytes for array in arrays_in(column))


def as_one_array(column: Ragged) -> Dense | Strings | None:
    """Converts a ragged column to one array, with zeros or empty strings for nulls; ``None`` if its values have
    different shapes.
    """
    arrays, axes = column.shapes.shape
    valid = np.ones(arrays, bool) if column.valid is None else column.valid.reshape(-1)
    shapes = column.shapes[valid]
    if (shapes != shapes[:1]).any():
        return None
    shape = tuple((shapes if len(shapes) else column.shapes)[0].tolist()) if arrays else (0,) * axes
    there = np.repeat(valid, np.prod(column.shapes, axis=1))
    if isinstance(column.values, Strings):
        lengths = np.zeros((arrays, math.prod(shape)), np.int64)
        lengths[valid] = np.diff(column.values.offsets)[there].reshape(len(shapes), -1)
        offsets = ends_of(lengths.reshape(-1))
        return Strings(offsets, column.values.data, (*column.lead, *shape), column.valid)
    values = np.zeros((arrays, *shape), column.values.dtype)
    values[valid] = column.values[there].reshape(len(shapes), *shape)
    return Dense(values.reshape(*column.lead, *shape), column.valid)


def timed(output: OutputField, column: Column) -> Column:
    """Returns a column whose integers are viewed as numpy times, if its field is delivered as times."""
    values = values_of(column)
    if not output.as_time or isinstance(values, Strings) or isinstance(values.values, Strings):
        return column
    return with_values(column, replace(values, values=values.values.view(output.numpy_dtype)))


def values_of(column: Column) -> Plain:
    """Returns the column of the values themselves, which is the last part of a compound."""
    return column.parts[-1] if isinstance(column, Compound) else column


def with_values(column: Column, values: Plain) -> Column:
    """Returns the column with its values replaced."""
    return Compound((*column.parts[:-1], values)) if isinstance(column, Compound) else values


def by_output(element: Element, leaves: Sequence[Column]) -> Iterator[tuple[OutputField, Column]]:
    """Yields each output of an element with its column, assembled from the columns of its leaves."""
    rest = iter(leaves)
    for output in element.outputs:
        parts = tuple(islice(rest, len(output.leaves)))
        yield output, Compound(parts) if output.levels else parts[0]  # type: ignore[arg-type]  # leaves are plain


def arrays_in(column: Column) -> list[np.ndarray]:
    """Returns the arrays of a column, without those that flag nulls, in the order in which `with_arrays` takes them."""
    if isinstance(column, Compound):
        return [array for part in column.parts for array in arrays_in(part)]
    if isinstance(column, Dense):
        return [column.values]
    if isinstance(column, Strings):
        return [column.offsets, column.data]
    values = column.values
    return [column.shapes, *(arrays_in(values) if isinstance(values, Strings) else [values])]


@overload
def with_arrays(column: Strings, arrays: Iterator[np.ndarray]) -> Strings: ...
@overload
def with_arrays(column: Column, arrays: Iterator[np.ndarray]) -> Column: ...
def with_arrays(column: Column, arrays: Iterator[np.ndarray]) -> Column:
    """Returns the column with other arrays."""
    if isinstance(column, Compound):
        return column.each(lambda part: with_arrays(part, arrays))
    if isinstance(column, Dense):
        return replace(column, values=next(arrays))
    if isinstance(column, Strings):
        offsets = next(arrays)
        shape = (len(offsets) - 1,) if len(column.shape) == 1 else column.shape  # those in lists are of any number
        return replace(column, offsets=offsets, data=next(arrays), shape=shape)
    shapes, values = next(arrays), column.values
    if isinstance(values, np.ndarray):
        return replace(column, shapes=shapes, values=next(arrays))
    return replace(column, shapes=shapes, values=with_arrays(values, arrays))


def leaf_columns(columns: Sequence[Column]) -> list[Column]:
    """Returns the leaf columns of all columns, in order."""
    return [part for column in columns for part in (column.parts if isinstance(column, Compound) else (column,))]


def offsets_of(column: Compound) -> tuple[np.ndarray, ...]:
    """Returns the offsets of each level of nested lists, outermost first, without the levels of windows."""
    first = column.parts[0]
    assert isinstance(first, Ragged)
    lengths = [part.values for part in column.parts[:-1] if isinstance(part, Ragged)]
    return (ends_of(first.shapes[:, 0]), *(ends_of(each) for each in lengths))  # type: ignore[arg-type]  # numbers


def to_numpy(column: Column, *, text: bool) -> Any:
    """Returns what a Python user gets for a batch: an array (masked if it has nulls), an object array, a `RaggedArray`
    or a `NestedArray`.
    """
    if isinstance(column, Dense):
        if column.valid is None:
            return column.values
        valid = column.valid.reshape(column.valid.shape + (1,) * (column.values.ndim - column.valid.ndim))
        return np.ma.MaskedArray(column.values, np.broadcast_to(~valid, column.values.shape))
    if isinstance(column, Strings):
        return column.to_objects(text=text)
    whole = values_of(column)
    assert isinstance(whole, Ragged)
    values = whole.values.to_objects(text=text) if isinstance(whole.values, Strings) else whole.values
    arrays: RaggedArray | NestedArray = RaggedArray(values, whole.shapes)
    if isinstance(column, Compound):
        inner = whole.shapes[:1, 1:].reshape(-1)  # the same for every row
        arrays = NestedArray(values.reshape(int(whole.shapes[:, 0].sum()), *inner), offsets_of(column))
    if column.valid is None:
        return _windowed(arrays, whole.lead)
    rows = np.empty(whole.lead, dtype=object)
    flat = rows.reshape(-1)
    for number, valid in enumerate(column.valid.reshape(-1)):
        flat[number] = arrays[number] if valid else None
    return rows


def _windowed(arrays: RaggedArray | NestedArray, lead: tuple[int, ...]) -> RaggedArray | NestedArray:
    if isinstance(arrays, RaggedArray):
        return RaggedArray(arrays.values, arrays.shapes, lead)
    steps = [np.arange(math.prod(lead[:axis]) + 1) * lead[axis] for axis in range(1, len(lead))]
    return NestedArray(arrays.values, (*steps, *arrays.offsets))


def rows_of(column: Column, *, text: bool) -> list[Any]:
    """Returns what a Python user gets for each row: scalars, arrays (views), strings, or ``None`` for nulls."""
    valid = column.valid
    rows = list(to_numpy(without_valid(column), text=text))
    if valid is None:
        return rows
    if valid.ndim == 1:
        return [row if ok else None for row, ok in zip(rows, valid, strict=True)]
    # The form of a window depends only on its own steps, never on its neighbors in the chunk.
    masked = to_numpy(column, text=text)
    return [row if ok.all() else with_nulls for row, with_nulls, ok in zip(rows, masked, valid, strict=True)]


def without_valid(column: Column) -> Column:
    """Returns the column without its validity, as if nothing were null."""
    return column.each(without_valid) if isinstance(column, Compound) else replace(column, valid=None)


def take_column(column: Column, index: np.ndarray, lead: tuple[int, ...]) -> Column:
    """Takes rows of a column by number (flat int64) and gives them the leading axes ``lead``, whose product is
    ``len(index)``.
    """
    if isinstance(column, Compound):
        return column.each(lambda part: take_column(part, index, lead))
    valid = None if column.valid is None else column.valid.reshape(-1)[index].reshape(lead)
    if valid is not None and valid.all():
        valid = None
    if isinstance(column, Dense):
        return Dense(column.values[index].reshape(*lead, *column.values.shape[1:]), valid)
    if isinstance(column, Strings):
        rows = int(np.prod(column.shape[:1]))
        each = (len(column.offsets) - 1) // rows if rows else 0
        elements = (index[:, None] * each + np.arange(each)).reshape(-1)
        taken = take_strings(column, elements)
        return Strings(taken.offsets, taken.data, (*lead, *column.shape[1:]), valid)
    sizes = np.prod(column.shapes, axis=1, dtype=np.int64)
    ends, flat = ends_of(sizes), column.values
    values: np.ndarray | Strings
    if isinstance(flat, Strings):
        values = take_strings(flat, concat_ranges(ends[:-1][index], sizes[index]))
    else:
        raw = np.ascontiguousarray(flat).view(np.uint8)
        values = take_runs(ends * flat.dtype.itemsize, raw, index)[1].view(flat.dtype)
    return Ragged(column.shapes[index], values, lead, valid)


def take_strings(column: Strings, index: np.ndarray) -> Strings:
    """Takes strings by number, as a flat column."""
    ends, data = take_runs(column.offsets, column.data, index)
    return Strings(ends, data, (len(index),))


def split_array(values: np.ndarray, parts: int) -> Iterable[np.ndarray]:
    """Cuts an array into equal parts along its first axis. The parts are views, made as they are iterated."""
    return [values] if parts == 1 else values.reshape(parts, len(values) // parts, *values.shape[1:])


def split_column(column: Column, parts: int) -> list[Column]:
    """Cuts a column into equal parts along its first axis. Numbers are views."""
    if parts == 1:
        return [column]
    if isinstance(column, Dense) and column.valid is None:
        return [Dense(values) for values in split_array(column.values, parts)]
    size = leading(column) // parts
    return cut_column(column, np.arange(parts + 1) * size)


def cut_column(column: Column, bounds: np.ndarray) -> list[Column]:
    """Cuts a column along its first axis. Numbers are views.

    Args:
        bounds: int64 ``[parts + 1]``: where each part begins, and the last one ends.
    """
    if isinstance(column, Compound):
        cut = zip(*(cut_column(part, bounds) for part in column.parts), strict=True)
        return [Compound(tuple(pieces)) for pieces in cut]
    cut_at = zip(pairwise(bounds.tolist()), cut_valid(column.valid, bounds), strict=True)
    parts = [(first, last, mask) for (first, last), mask in cut_at]
    if isinstance(column, Dense):
        return [Dense(column.values[first:last], mask) for first, last, mask in parts]
    if isinstance(column, Strings):
        each = math.prod(column.shape[1:])
        return [
            _string_part(column, first * each, (last - first) * each, (last - first, *column.shape[1:]), mask)
            for first, last, mask in parts
        ]
    each = math.prod(column.lead[1:])
    sizes = ends_of(np.prod(column.shapes, axis=1, dtype=np.int64))
    result: list[Column] = []
    for first, last, mask in parts:
        begin, count = int(sizes[first * each]), int(sizes[last * each] - sizes[first * each])
        values = column.values
        if isinstance(values, Strings):
            flat: np.ndarray | Strings = _string_part(values, begin, count, (count,), None)
        else:
            flat = values[begin : begin + count]
        shapes = column.shapes[first * each : last * each]
        result.append(Ragged(shapes, flat, (last - first, *column.lead[1:]), mask))
    return result


def cut_valid(valid: np.ndarray | None, bounds: np.ndarray) -> list[np.ndarray | None]:
    """Cuts the validity of a column as `cut_column` does; ``None`` for parts without nulls."""
    if valid is None:
        return [None] * (len(bounds) - 1)
    return [_some(valid[first:last]) for first, last in pairwise(bounds.tolist())]


def _string_part(column: Strings, first: int, count: int, shape: tuple[int, ...], valid: np.ndarray | None) -> Strings:
    offsets = column.offsets[first : first + count + 1]
    return Strings(offsets - offsets[0], column.data[offsets[0] : offsets[-1]], shape, valid)


def _some(valid: np.ndarray) -> np.ndarray | None:
    return None if valid.all() else valid


def take_rows(column: Column, rows: np.ndarray) -> Column:
    """Takes rows of a column by number (int64). Inner leading axes are unchanged."""
    if isinstance(column, Compound):
        return column.each(lambda part: take_rows(part, rows))
    valid = None if column.valid is None else _some(column.valid[rows])
    if isinstance(column, Dense):
        return Dense(column.values[rows], valid)
    if isinstance(column, Strings):
        taken = take_column(Strings(column.offsets, column.data, column.shape), rows, (len(rows),))
        assert isinstance(taken, Strings)
        return Strings(taken.offsets, taken.data, taken.shape, valid)
    inner = math.prod(column.lead[1:])
    arrays = (rows[:, None] * inner + np.arange(inner)).reshape(-1)
    taken = take_column(Ragged(column.shapes, column.values, (len(column.shapes),)), arrays, (len(arrays),))
    assert isinstance(taken, Ragged)
    return Ragged(taken.shapes, taken.values, (len(rows), *column.lead[1:]), valid)


def concat_columns(columns: Sequence[Column]) -> Column:
    """Concatenates columns of one field along the first axis. Their inner leading axes must be equal."""
    if len(columns) == 1:
        return columns[0]
    first = columns[0]
    if isinstance(first, Compound):
        parts = zip(*(column.parts for column in columns if isinstance(column, Compound)), strict=True)
        return Compound(tuple(map(concat_columns, parts)))  # type: ignore[arg-type]  # a part stays of its kind
    valid = _concat_valid(columns)
    if isinstance(first, Dense):
        return Dense(np.concatenate([c.values for c in columns if isinstance(c, Dense)]), valid)
    rows = sum(leading(column) for column in columns)
    if isinstance(first, Strings):
        joined = _join_strings([c for c in columns if isinstance(c, Strings)])
        return Strings(joined.offsets, joined.data, (rows, *first.shape[1:]), valid)
    ragged = [c for c in columns if isinstance(c, Ragged)]
    flat = [c.values for c in ragged]
    values: np.ndarray | Strings
    if isinstance(flat[0], Strings):
        values = _join_strings([v for v in flat if isinstance(v, Strings)])
    else:
        values = _concat_arrays([v for v in flat if isinstance(v, np.ndarray)])
    return Ragged(np.concatenate([c.shapes for c in ragged]), values, (rows, *first.lead[1:]), valid)


def _concat_arrays(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenates values, in memory reused from earlier batches if they have one dtype."""
    rows, shape, dtype = sum(map(len, arrays)), arrays[0].shape[1:], arrays[0].dtype
    if dtype.hasobject or any(each.dtype != dtype for each in arrays):
        return np.concatenate(arrays)
    out = run_memory(rows * math.prod(shape) * dtype.itemsize).view(dtype).reshape(rows, *shape)
    return np.concatenate(arrays, out=out)


def _concat_valid(columns: Sequence[Column]) -> np.ndarray | None:
    inner = next((column.valid.shape[1:] for column in columns if column.valid is not None), None)
    if inner is None:
        return None
    return np.concatenate([np.ones((leading(c), *inner), dtype=bool) if c.valid is None else c.valid for c in columns])


def leading(column: Column) -> int:
    """Returns the length of a column's first axis."""
    if isinstance(column, Compound):
        return leading(column.parts[0])
    if isinstance(column, Dense):
        return len(column.values)
    return column.shape[0] if isinstance(column, Strings) else column.lead[0]


def _join_strings(columns: Sequence[Strings]) -> Strings:
    ends = np.cumsum([len(column.data) for column in columns])
    offsets = [column.offsets[1:] + (end - len(column.data)) for column, end in zip(columns, ends, strict=True)]
    joined = np.concatenate([np.zeros(1, np.int64), *offsets])
    return Strings(joined, _concat_arrays([column.data for column in columns]), (len(joined) - 1,))
