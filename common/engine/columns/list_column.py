"""`ListColumn`: strings and lists in a loaded block, gathered by row number."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from ...base.errors import DecodeError
from ...base.memory.arrow_views import as_arrow, as_numpy, is_list, is_number, without_nulls
from ...base.process.forks import cached_property
from ...dataset.row_groups import most_bytes_of_many
from ...parquet.nested import variable
from ...schema.dtypes import is_string_like
from ...schema.field import UnischemaField
from ...schema.ragged import ends_of
from .arrow_take import runs_of
from .batch import Column, Dense, Ragged, Strings
from .protocols import DecodeContext, Describe

_MOST_GROWTH = 8  # bits of flags become bytes


class SizeLimit:
    """Refuses values that are larger than the limit.

    Args:
        array: all values of the block. They are measured only if one of them may be too large.
    """

    def __init__(self, field: UnischemaField, array: pa.Array, context: DecodeContext) -> None:
        self._field = field
        self._describe = context.describe
        self._limit = context.max_value_bytes
        self._sizes = value_bytes(array) if _MOST_GROWTH * array.nbytes > self._limit else None

    def check(self, rows: np.ndarray) -> None:
        """Raises `DecodeError` if the value of one of the rows is too large, or all of them together."""
        if self._sizes is None:
            return
        sizes = self._sizes[rows]
        if (wrong := sizes > self._limit).any():
            number = int(np.argmax(wrong))
            raise self._too_large(int(rows[number]), self._limit, f"a value of {sizes[number]}")
        total, limit = int(sizes.sum()), most_bytes_of_many(self._limit)
        if total > limit:
            raise self._too_large(
                int(rows[0]), limit, f"a batch of {len(rows)} values from here on, which takes {total}"
            )

    def _too_large(self, row: int, limit: int, got: str) -> DecodeError:
        place = f"field '{self._field.name}', {self._describe(row)}"
        return DecodeError(f"{place}: expected at most {limit} bytes, got {got}; max_value_bytes= allows more.")


class ListColumn:
    """Strings and lists, gathered by runs of bytes where possible and by Arrow otherwise."""

    def __init__(self, field: UnischemaField, parts: Sequence[pa.Array], context: DecodeContext) -> None:
        self._field = field
        self._describe = context.describe
        self._array = joined(parts)
        self._limit = SizeLimit(field, self._array, context)
        plain = not field.shape or (len(field.shape) == 1 and not field.is_fixed)
        self._runs = runs_of(self._array) if plain else None

    @cached_property
    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """As `TokenColumn.flat`.

        Raises:
            DecodeError: a list contains a null.
        """
        inside = self._array.flatten()
        if inside.null_count:
            row = np.searchsorted(ends_of(list_lengths(self._array)), first_null(inside), side="right") - 1
            raise null_inside(self._field, self._describe(int(row)))
        if pa.types.is_fixed_size_list(self._array.type):
            return ends_of(list_lengths(self._array)), as_numpy(inside)
        first, count = self._array.offset, len(self._array)
        return np.frombuffer(self._array.buffers()[1], np.int64, count + 1, first * 8), as_numpy(self._array.values)

    def gather(self, rows: np.ndarray, out: np.ndarray | None) -> Column:
        self._limit.check(rows)
        if self._runs is not None:
            ends, items, valid = self._runs.take(rows)
            lead = (len(rows),)
            return (
                Ragged(np.diff(ends)[:, None], items, lead, valid)
                if self._field.shape
                else Strings(ends, items, lead, valid)
            )
        taken = self._array.take(as_arrow(rows))
        valid = None if taken.null_count == 0 else as_numpy(taken.is_valid())
        axes = len(self._field.shape)
        if axes == 0:
            return strings_of(taken, (len(rows),), valid)
        flat, shapes = _flat_list(self._field, taken, lambda number: self._describe(int(rows[number])))
        if self._field.is_fixed:
            full = (len(rows), *(axis or 0 for axis in self._field.shape))
            if valid is not None:
                return _spread(self._field, flat, full, valid, out)
            if is_string_like(self._field.dtype):
                return strings_of(flat, full, None)
            assert out is not None
            out[...] = as_numpy(flat).reshape(full)
            return Dense(out)
        values = strings_of(flat, (len(flat),), None) if is_string_like(self._field.dtype) else as_numpy(flat)
        return Ragged(shapes, values, (len(rows),), valid)


def strings_of(array: pa.Array, shape: tuple[int, ...], valid: np.ndarray | None) -> Strings:
    """Returns the strings of an array, with offsets that begin at 0. Nulls become empty strings."""
    offsets, data = _binary_buffers(without_nulls(array))
    raw = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return Strings(offsets - offsets[0], raw, shape, valid)


def _binary_buffers(part: pa.Array) -> tuple[np.ndarray, memoryview]:
    offsets = (
        np.frombuffer(part.buffers()[1], np.int64, len(part) + 1, part.offset * 8)
        if len(part)
        else np.zeros(1, np.int64)
    )
    data = part.buffers()[2] if len(part) else None
    return offsets, memoryview(data if data is not None else b"")


def joined(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(_same_type(parts))


def _same_type(parts: Sequence[pa.Array]) -> list[pa.Array]:
    """Casts all parts to variable lists if fixed-size and variable lists (a part with nulls) meet in one block."""
    kinds = {part.type for part in parts}
    if len(kinds) == 1:
        return list(parts)
    return [part.cast(variable(part.type)) for part in parts]


def _flat_list(field: UnischemaField, array: pa.Array, describe: Describe) -> tuple[pa.Array, np.ndarray]:
    """Returns the innermost values of a column of lists, and the shape of each row's value.

    Raises:
        DecodeError: the rows of a nested list differ in length, so it is not an array, or a list contains a null.
    """
    count = len(array)
    shapes = np.tile(np.array([axis or 0 for axis in field.shape], dtype=np.int64), (count, 1))  # empty lists too
    owner = np.arange(count)
    for axis in range(len(field.shape)):
        lengths = list_lengths(array)
        if axis == 0:
            shapes[:, 0] = lengths
        elif len(lengths):
            shapes[owner, axis] = lengths
            uneven = np.flatnonzero(shapes[owner, axis] != lengths)
            if len(uneven):
                raise DecodeError(
                    f"field '{field.name}', {describe(owner[uneven[0]])}: expected lists that form an array of "
                    f"{len(field.shape)} axes, found rows of different lengths in one value. Write "
                    f".nested('{field.name}') to get lists of any lengths, or deselect the field."
                )
        owner = np.repeat(owner, lengths)
        array = array.flatten()
        if array.null_count:
            raise null_inside(field, describe(owner[first_null(array)]))
    return array, shapes


def first_null(array: pa.Array) -> int:
    return int(np.flatnonzero(as_numpy(array.is_null()))[0])


def null_inside(field: UnischemaField, where: str) -> DecodeError:
    return DecodeError(
        f"field '{field.name}', {where}: expected a list without nulls inside, found one. "
        f"Write nulls('drop', '{field.name}') or nulls('mask', '{field.name}', elements=True) before other verbs on "
        f"the field, or deselect the field. nulls('fill', '{field.name}', value=...) fills null values, but not null "
        "inner lists of variable length, because their length is unknown."
    )


def list_lengths(array: pa.Array) -> np.ndarray:
    """Returns how many values each list contributes to ``array.flatten()``: 0 for a null list."""
    if pa.types.is_fixed_size_list(array.type):
        lengths = np.full(len(array), array.type.list_size)
        return np.where(as_numpy(array.is_valid()), lengths, 0) if array.null_count else lengths
    lengths = array.value_lengths()
    return as_numpy(without_nulls(lengths)).astype(np.int64, copy=False)


def value_bytes(array: pa.Array) -> np.ndarray:
    """Returns the size in bytes of each string, or of the values in each list: int64."""
    kind = array.type
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return np.diff(_binary_buffers(array)[0])
    if not is_list(kind):
        return np.full(len(array), _item_bytes(kind))
    lengths, inside = list_lengths(array), kind.value_type
    if is_number(inside):
        return lengths * _item_bytes(inside)
    return np.diff(ends_of(value_bytes(array.flatten()))[ends_of(lengths)])


def _item_bytes(kind: pa.DataType) -> int:
    """Returns the size of a value of a type that is neither a string nor a list; 0 if there is none."""
    try:
        return max(int(kind.bit_width) // 8, 1)
    except ValueError:
        return 0


def _spread(
    field: UnischemaField, flat: pa.Array, full: tuple[int, ...], valid: np.ndarray, out: np.ndarray | None
) -> Column:
    """Spreads the fixed-shape values of the valid rows over all rows, with zeros (or empty strings) for null rows."""
    if not is_string_like(field.dtype):
        assert out is not None
        out[...] = 0
        out[valid] = as_numpy(flat).reshape(-1, *full[1:])
        return Dense(out, valid)
    each = int(np.prod(full[1:], dtype=np.int64))
    index = np.where(np.repeat(valid, each), np.cumsum(np.repeat(valid, each)) - 1, -1)
    taken = flat.take(as_arrow(index, index >= 0))
    return strings_of(taken, full, valid)
