"""Block columns: one field of all rows of a loaded block, ready to be gathered by row number.

`block_column` chooses the kind: fixed-size values (a numpy array, or a list of them), plain strings, lists, nested
lists, lists with flags, or coded values that are decoded one by one. Each kind gathers rows into a `batch.Column`.
Values of fixed shape go directly to their place in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from ...errors import DecodeError, ParquetryError, ResourceError, limit_met
from ...layout.dataset import MAX_VALUE_BYTES
from ...layout.nested import variable
from ...memory.arena import Arena, array_bytes
from ...memory.arrow_views import as_arrow, as_numpy, is_number, without_nulls
from ...native.gather import gather as gather_rows
from ...native.jpeg import Box
from ...native.kernels import copy_value
from ...process.forks import cached_property
from ...schema.codec import DAMAGE, Codec
from ...schema.codecs import NdarrayCodec, ReadListCodec, TensorCodec
from ...schema.dtypes import delivered_dtype, is_bytes, is_string_like, is_text
from ...schema.field import UnischemaField
from ...schema.images import CompressedImageCodec
from ...schema.npy import npy_header
from ...schema.ragged import ends_of
from ..read.file_cells import FileCells, FileValues, InMemory, Part, file_values
from ..read.stored_cells import StoredCells, cells_of
from .arrow_take import runs_of
from .batch import Column, Compound, Dense, Ragged, Strings, rows_of, values_of
from .jpeg_files import Files, IntactRows, JpegFiles, can_decode, file_in, files_in
from .like_columns import LikeColumns, like_columns
from .nested_column import NestedColumn
from .null_elements import filled, flagged
from .shared_rows import SharedRows

Describe = Callable[[int], str]
_LARGE_ROW_BYTES = 4096
_DECODER_COPIES = 4  # a decoder may need this many times the memory of a value
_BATCH_VALUES = 16  # a batch may take as much memory as this many values of the largest size
_NOTHING = np.zeros(0, np.int64)
_MAPPED_BYTES = 1 << 20  # columns of temporary files are larger, and are not to be copied into memory
_CHECKED_ROWS = 1 << 16


class BlockColumn(Protocol):
    """One field of a loaded block."""

    def gather(self, rows: np.ndarray, out: np.ndarray | None) -> Column:
        """Returns the values of some rows (int64, in any order, repeats allowed).

        A column of fixed-shape numbers writes its values to ``out``, ``[rows, *shape]``, and returns it as `Dense`.
        """


@runtime_checkable
class TokenColumn(Protocol):
    """One field of a loaded block whose values are lists of numbers."""

    @property
    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """The offsets of the rows (one more than there are rows), and the numbers of all rows, end to end."""


def block_column(
    field: UnischemaField,
    parts: Sequence[Part],
    describe: Describe,
    *,
    reuse: bool = False,
    max_value_bytes: int = MAX_VALUE_BYTES,
    intact: Callable[[], IntactRows] | None = None,
) -> BlockColumn:
    """Returns the column of a field, given its normalized parts (one per row group of the block).

    Args:
        describe: describes the location of a row of the block, for error texts.
        reuse: whether rows are requested several times, which makes it worth keeping decoded values.
        max_value_bytes: the size limit for a decoded value of variable shape.
        intact: returns what is known about the field's images; ``None`` if nothing is.
    """
    numbers = numbers_of(parts)
    if numbers is not None:  # most columns of a wide table
        return FixedColumn(numbers, None)
    codec = field.storage
    if isinstance(codec, ReadListCodec) and codec.nulls != "error":
        return _settled(field, codec, _arrays(parts), describe)
    if field.shape == () and not codec.coded:
        arrays = _arrays(parts)
        if all(is_number(part.type) and not part.null_count for part in arrays):
            return FixedColumn([as_numpy(part) for part in arrays], None)
    if codec.coded:
        fixed = _fixed_parts(field, codec, parts)
        return (
            FixedColumn(fixed, _validity(parts))
            if fixed is not None
            else CodedColumn(field, codec, parts, describe, reuse=reuse, max_value_bytes=max_value_bytes, intact=intact)
        )
    arrays = _arrays(parts)
    if isinstance(codec, ReadListCodec) and codec.levels:
        return _nested(field, codec.levels, arrays, describe)
    if field.is_fixed and not is_string_like(field.dtype) and all(map(_is_plain, arrays)):
        return FixedColumn([_plain_numbers(field, array) for array in arrays], _validity(arrays))
    return ArrowColumn(field, arrays, describe)


def numbers_of(parts: Sequence[Part]) -> list[np.ndarray] | None:
    """Returns the parts of a field if they are numbers of which none is null, or else ``None``."""
    numbers = [part for part in parts if isinstance(part, np.ndarray)]
    return numbers if numbers and len(numbers) == len(parts) else None


def plain_parts(field: UnischemaField, parts: Sequence[Part]) -> list[np.ndarray] | None:
    """Returns views of plain numbers without nulls, or ``None`` for other columns."""
    numbers = numbers_of(parts)
    if numbers is not None:
        return numbers
    if field.storage.coded or not field.is_fixed or is_string_like(field.dtype):
        return None
    arrays = _arrays(parts)
    if any(array.null_count or not _is_plain(array) for array in arrays):
        return None
    return [_plain_numbers(field, array) for array in arrays]


def _arrays(parts: Sequence[Part]) -> list[pa.Array]:
    """Returns the parts as arrays of Arrow. Only for fields that are not coded, whose parts are in memory."""
    return [part if isinstance(part, pa.Array) else as_arrow(part) for part in parts]  # type: ignore[arg-type]


class FixedColumn:
    """Numbers of one shape. Small values are joined in one array; large values are not copied.

    Attributes:
        parts: the values of each row group that are in memory; values in files are not included.
        validity: which rows are not null; ``None`` if no row is null.
        large: whether values stay in the arrays or files of their row groups.
    """

    def __init__(self, parts: Sequence[np.ndarray | FileValues], validity: np.ndarray | None) -> None:
        self.parts = [part for part in parts if isinstance(part, np.ndarray)]
        self.validity = validity
        self._all_parts = parts
        self.large = len(self.parts) < len(parts)
        if parts and len(shape := parts[0].shape) > 1:
            self.large |= parts[0].dtype.itemsize * math.prod(shape[1:]) >= _LARGE_ROW_BYTES

    @cached_property
    def _start(self) -> np.ndarray:
        return ends_of([len(part) for part in self._all_parts])

    def joined(self) -> np.ndarray:
        """Returns all values in one array."""
        return self._joined

    def joined_in(self, arena: Arena) -> FixedColumn:
        """Returns the column with all values in one array of the arena."""
        first = self.parts[0]
        values = arena.allocate(first.dtype, (sum(map(len, self.parts)), *first.shape[1:]))
        return FixedColumn([np.concatenate(self.parts, out=values)], self.validity)

    @cached_property
    def _joined(self) -> np.ndarray:
        return _in_one_piece(self.parts[0]) if len(self.parts) == 1 else np.concatenate(self.parts)

    def gather(self, rows: np.ndarray, out: np.ndarray | None) -> Column:
        assert out is not None
        if self.large:
            self._gather_large(rows, out)
        else:
            # "wrap" is the fastest mode. `LoadedBlock` has checked that the rows are in range.
            self._joined.take(rows, 0, out, "wrap")
        return Dense(out, _take_valid(self.validity, rows))

    def _gather_large(self, rows: np.ndarray, out: np.ndarray) -> None:
        part = np.searchsorted(self._start, rows, side="right") - 1
        local = rows - self._start[part]
        firsts = np.flatnonzero(np.diff(part, prepend=-1)).tolist()
        for first, last in zip(firsts, [*firsts[1:], len(rows)], strict=True):
            values = self._all_parts[part[first]]
            if isinstance(values, FileValues):
                values.read(local[first:last], out[first:last])
            else:
                for number, row in enumerate(local[first:last].tolist(), first):
                    copy_value(values[row], out[number, ...])

    @cached_property
    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """As `TokenColumn.flat`."""
        rows, width = self._joined.shape
        return np.arange(rows + 1) * width, self._joined.reshape(-1)

    def arena_bytes(self, rows: int) -> int:
        """Returns the most bytes that this many values take in an arena."""
        return array_bytes(self.parts[0].dtype, (rows, *self.parts[0].shape[1:]))

    def valid(self, rows: np.ndarray) -> np.ndarray | None:
        """Returns which of some rows are not null, or ``None`` if none of them is null."""
        return _take_valid(self.validity, rows)

    def view(self, row: int) -> np.ndarray:
        """Returns one value. You must not write to it."""
        if not self.large:
            result: np.ndarray = self._joined[row]
            return result
        part = int(np.searchsorted(self._start, row, side="right")) - 1
        return self._all_parts[part][row - int(self._start[part])]


def in_order(columns: Mapping[int, Sequence[np.ndarray]], rows: np.ndarray, arena: Arena) -> list[LikeColumns]:
    """Gathers some rows (int64, in this order) of columns of small values, each given in parts, into new ones."""
    groups = like_columns({number: parts[0] for number, parts in columns.items()}, len(rows), arena)
    made = {number: values for group in groups for number, values in zip(group.numbers, group.values, strict=True)}
    whole = [number for number, parts in columns.items() if len(parts) == 1]
    gather_rows([_in_one_piece(columns[number][0]) for number in whole], rows, [made[number] for number in whole])
    scratch: dict[Any, np.ndarray] = {}  # columns that use the same memory in turn stay in the cache
    for number, parts in columns.items() if len(whole) < len(columns) else ():
        if len(parts) > 1:
            target = made[number]
            key = (target.dtype, target.shape[1:])
            if key not in scratch:
                scratch[key] = np.empty((sum(map(len, parts)), *target.shape[1:]), target.dtype)
            gather_rows([np.concatenate(parts, out=scratch[key])], rows, [target])
    return groups


def _in_one_piece(values: np.ndarray) -> np.ndarray:
    flags = values.flags
    return values if flags.c_contiguous and flags.aligned else np.require(values, requirements=["C", "A"])


class ArrowColumn:
    """Strings and lists, gathered by runs of bytes where possible and by Arrow otherwise."""

    def __init__(self, field: UnischemaField, parts: Sequence[pa.Array], describe: Describe) -> None:
        self._field = field
        self._describe = describe
        self._array = _joined(parts)
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
            row = np.searchsorted(ends_of(_list_lengths(self._array)), _first_null(inside), side="right") - 1
            raise _null_inside(self._field, self._describe(int(row)))
        if pa.types.is_fixed_size_list(self._array.type):
            return ends_of(_list_lengths(self._array)), as_numpy(inside)
        first, count = self._array.offset, len(self._array)
        return np.frombuffer(self._array.buffers()[1], np.int64, count + 1, first * 8), as_numpy(self._array.values)

    def gather(self, rows: np.ndarray, out: np.ndarray | None) -> Column:
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
            return _strings(taken, (len(rows),), valid)
        flat, shapes = _flat_list(self._field, taken, lambda number: self._describe(int(rows[number])))
        if self._field.is_fixed:
            full = (len(rows), *(axis or 0 for axis in self._field.shape))
            if valid is not None:
                return _spread(self._field, flat, full, valid, out)
            if is_string_like(self._field.dtype):
                return _strings(flat, full, None)
            assert out is not None
            out[...] = as_numpy(flat).reshape(full)
            return Dense(out)
        values = _strings(flat, (len(flat),), None) if is_string_like(self._field.dtype) else as_numpy(flat)
        return Ragged(shapes, values, (len(rows),), valid)


class FlaggedColumn:
    """Lists, plus flags of the same shapes for the elements that are not null."""

    def __init__(self, field: UnischemaField, values: BlockColumn, flag: UnischemaField, flags: BlockColumn) -> None:
        self._columns = ((field, values), (flag, flags))

    def gather(self, rows: np.ndarray, out: np.ndarray | None) -> Column:
        values, flags = (column.gather(rows, _place(field, len(rows))) for field, column in self._columns)
        present = values_of(flags)
        assert isinstance(present, Dense | Ragged)
        numbers = present.values
        assert isinstance(numbers, np.ndarray)
        parts = values.parts if isinstance(values, Compound) else (values,)
        return Compound((*parts, replace(present, values=numbers.view(np.bool_))))


class KeptColumn:
    """Lists as objects for display: arrays, or Python lists for rows that contain nulls."""

    def __init__(self, field: UnischemaField, array: pa.Array, describe: Describe) -> None:
        self._field = field
        self._array = array
        self._describe = describe

    def gather(self, rows: np.ndarray, out: np.ndarray | None) -> Column:
        objects = np.empty(len(rows), object)
        for place, row in enumerate(rows.tolist()):
            objects[place] = self._row(row)
        return Dense(objects)

    def _row(self, row: int) -> object:
        alone = self._array.take(as_arrow(np.array([row])))
        try:
            found = block_column(self._field, [alone], lambda _: self._describe(row)).gather(
                np.zeros(1, np.int64), _place(self._field, 1)
            )
        except DecodeError:
            return alone[0].as_py()
        return rows_of(found, text=is_text(self._field.dtype))[0]


class CodedColumn:
    """Byte strings that the field's codec decodes, each directly into its place in the batch."""

    def __init__(
        self,
        field: UnischemaField,
        codec: Codec,
        parts: Sequence[Part],
        describe: Describe,
        *,
        reuse: bool,
        max_value_bytes: int,
        intact: Callable[[], IntactRows] | None = None,
    ) -> None:
        self._max_bytes = max_value_bytes
        self._find_intact = intact
        self._item_bytes = 1 if is_string_like(field.dtype) else delivered_dtype(field.dtype).itemsize
        self._field = field
        self._codec = codec
        self._describe = describe
        self._decoded = SharedRows() if reuse else None
        self._finished: dict[Hashable, SharedRows] = {}
        self._start = ends_of([len(part) for part in parts])
        self._valid = _validity(parts)
        encoded = [part for part in parts if not isinstance(part, np.ndarray)]  # all: plain numbers are not encoded
        cells = [cells_of(part) if isinstance(part, pa.Array) else part for part in encoded]
        self._starts = np.concatenate([_NOTHING, *(each.starts for each in cells)])
        self._ends = np.concatenate([_NOTHING, *(each.ends for each in cells)])
        self._data = [
            memoryview(each.data) if isinstance(each, StoredCells) else each.data  # type: ignore[arg-type]
            for each in cells
        ]
        self._inside = [each.data for each in cells if isinstance(each, StoredCells)]

    def gather(self, rows: np.ndarray, out: np.ndarray | None) -> Column:
        valid = _take_valid(self._valid, rows)
        if is_string_like(self._field.dtype):
            return self._gather_strings(rows, valid)
        if self._field.is_fixed:
            assert out is not None
            self._decode_all(rows, out, valid)
            return Dense(out, valid)
        return self._gather_ragged(rows, valid)

    @property
    def field(self) -> UnischemaField:
        """The stored field."""
        return self._field

    @cached_property
    def jpegs(self) -> JpegFiles | None:
        """The images, if they may be JPEG files that the compiled core decodes; ``None`` for other columns."""
        if not can_decode(self._field, self._codec):
            return None
        at_once = len(self._inside) == len(self._data)
        unknown = IntactRows([None], [np.arange(len(self._starts))], [len(self._starts)])
        intact = unknown if self._find_intact is None else self._find_intact()
        return JpegFiles(self._files_at_once if at_once else self._one_file, at_once=at_once, intact=intact)

    def _files_at_once(self, rows: np.ndarray) -> Files:
        parts = np.searchsorted(self._start, rows, side="right") - 1
        return files_in(self._inside, parts, self._starts[rows], self._ends[rows])

    def _one_file(self, rows: np.ndarray) -> Files:
        return file_in(self._bytes(int(rows[0])))

    @property
    def reused(self) -> bool:
        """Whether rows are requested several times, so that results are kept."""
        return self._decoded is not None

    def finished(self, name: Hashable) -> SharedRows:
        """Returns the store of rows to which the operation ``name`` has already been applied."""
        return self._finished.setdefault(name, SharedRows())

    def valid(self, rows: np.ndarray) -> np.ndarray | None:
        """Returns which of some rows are not null, or ``None`` if none of them is null."""
        return _take_valid(self._valid, rows)

    def shape(self, row: int) -> tuple[int, ...]:
        """Returns the shape of one value."""
        return self._field.shape if self._field.is_fixed else self._checked_shape(row)  # type: ignore[return-value]

    def decode(self, row: int, out: np.ndarray, *, keep: bool = True) -> None:
        """Decodes one value into ``out``. If rows are reused and ``keep`` is set, each row is decoded at most once.

        Raises:
            DecodeError: the value cannot be decoded. The error names file, row group and row.
        """
        data = self._bytes(row)
        try:
            if self._decoded is None or not keep:
                self._codec.decode_into(self._field, data, out)
            else:
                self._decoded.copy_into(row, out, partial(self._codec.decode_into, self._field, data))
        except DAMAGE as error:
            raise self._undecodable(row, error, out.nbytes) from error

    def decode_reduced(self, row: int, factor: int, out: np.ndarray) -> bool:
        """Decodes one image at ``1 / factor`` of its size (rounded up) into ``out``.

        Returns False if the codec cannot do that.

        Raises:
            DecodeError: the image cannot be decoded. The error names file, row group and row.
        """
        if not isinstance(self._codec, CompressedImageCodec):
            return False
        data = self._bytes(row)
        try:
            return self._codec.decode_reduced_into(data, factor, out)
        except DAMAGE as error:
            raise self._undecodable(row, error, out.nbytes) from error

    def decode_part(self, row: int, size: tuple[int, int], factor: int, box: Box, out: np.ndarray) -> bool:
        """Decodes a part of one image, as `CompressedImageCodec.decode_part_into` does. Never raises for its bytes."""
        if not isinstance(self._codec, CompressedImageCodec):
            return False
        return self._codec.decode_part_into(self._bytes(row), size, factor, box, out)

    def _bytes(self, row: int) -> memoryview:
        """Returns the stored bytes of a row, valid until this thread requests another row. Raises as `FileData`."""
        part = int(np.searchsorted(self._start, row, side="right")) - 1
        return self._data[part][self._starts[row] : self._ends[row]]

    def _all_bytes(self, rows: np.ndarray) -> Iterator[memoryview]:
        """Iterates over the stored bytes of many rows. Each item is valid until the next one."""
        parts = np.searchsorted(self._start, rows, side="right") - 1
        places = zip(parts.tolist(), self._starts[rows].tolist(), self._ends[rows].tolist(), strict=True)
        return (self._data[part][start:end] for part, start, end in places)

    def _decode_all(self, rows: np.ndarray, out: Any, valid: np.ndarray | None) -> None:
        done = self._decode_jpegs(rows, out, valid) if isinstance(out, np.ndarray) else None
        if done is not None and done.all():
            return
        decode, field = self._codec.decode_into, self._field
        if isinstance(out, np.ndarray) and out.ndim == 1:
            out = [out[number, ...] for number in range(len(out))]  # views of the scalars, not their values
        first: dict[int, int] = {}
        later: dict[int, np.ndarray] = {}  # places for rows that another thread is decoding
        copies: list[tuple[int, int]] = []
        for number, (row, data) in enumerate(zip(rows.tolist(), self._all_bytes(rows), strict=True)):
            if valid is not None and not valid[number]:
                out[number][...] = 0
                continue
            if done is not None and done[number]:
                continue
            if first.setdefault(row, number) != number:  # n-gram windows share rows: decode once, then copy
                if row in later:
                    copies.append((number, first[row]))
                else:
                    copy_value(out[first[row]], out[number])
                continue
            try:
                if self._decoded is None:
                    decode(field, data, out[number])
                    continue
                if not self._decoded.copy_into(row, out[number], partial(decode, field, data), wait=False):
                    later[row] = out[number]
            except DAMAGE as error:
                raise self._undecodable(row, error, out[number].nbytes) from error
        for row, place in later.items():
            self.decode(row, place)
        for number, source in copies:
            copy_value(out[source], out[number])

    def _decode_jpegs(self, rows: np.ndarray, out: np.ndarray, valid: np.ndarray | None) -> np.ndarray | None:
        """Decodes images of one size that are JPEG files. Returns which it has decoded; ``None`` for other columns."""
        if self.reused or out.dtype != np.uint8 or not out.flags.c_contiguous or self.jpegs is None:
            return None
        places = np.arange(len(rows)) if valid is None else np.flatnonzero(valid)
        sizes = np.tile(np.array(out.shape[1:3], np.int64), (len(places), 1))
        done = np.zeros(len(rows), bool)
        images = out.reshape(*out.shape[:3], -1) if out.size else out[..., None]
        done[places] = self.jpegs.decode(rows[places], images, places, sizes=sizes)
        return done

    def _gather_ragged(self, rows: np.ndarray, valid: np.ndarray | None) -> Ragged:
        field = self._field
        shapes = np.zeros((len(rows), len(field.shape)), dtype=np.int64)
        for number, row in enumerate(rows.tolist()):
            if valid is None or valid[number]:
                shapes[number] = self._checked_shape(row)
        sizes = np.prod(shapes, axis=1, dtype=np.int64)
        ends = np.cumsum(sizes)
        if len(rows):
            total, limit = int(ends[-1]) * self._item_bytes, _BATCH_VALUES * self._max_bytes
            self._check_bytes(int(rows[0]), total, limit, f"a batch of {len(rows)} values from here on")
        values = np.empty(int(ends[-1]) if len(ends) else 0, delivered_dtype(field.dtype))
        places = [values[end - size : end].reshape(shape) for end, size, shape in zip(ends, sizes, shapes, strict=True)]
        self._decode_all(rows, places, valid)
        return Ragged(shapes, values, (len(rows),), valid)

    def _checked_shape(self, row: int) -> tuple[int, ...]:
        data = self._bytes(row)
        try:
            shape = self._codec.shape_of(self._field, data)
        except DAMAGE as error:
            raise self._undecodable(row, error, len(data)) from error
        self._check_shape(row, shape)
        return shape

    def _check_shape(self, row: int, shape: tuple[int, ...]) -> None:
        wanted = self._field.shape
        fits = len(shape) == len(wanted) and all(w is None or w == s for w, s in zip(wanted, shape, strict=False))
        if not fits:
            raise self._failed(row, ValueError(f"expected shape {wanted}, got {shape}"))
        self._check_bytes(row, math.prod(shape) * self._item_bytes, self._max_bytes, f"a value of shape {shape}")

    def _check_bytes(self, row: int, size: int, limit: int, what: str) -> None:
        if size > limit:
            text = f"expected at most {limit} bytes, got {what}, which takes {size}; max_value_bytes= allows more"
            raise self._failed(row, ValueError(text))

    def _gather_strings(self, rows: np.ndarray, valid: np.ndarray | None) -> Column:
        assert isinstance(self._codec, NdarrayCodec)
        shapes = np.zeros((len(rows), len(self._field.shape)), dtype=np.int64)
        items: list[bytes] = []
        for number, row in enumerate(rows.tolist()):
            if valid is not None and not valid[number]:
                items += [b""] * int(np.prod([axis or 0 for axis in self._field.shape], dtype=np.int64))
                continue
            data = self._bytes(row)
            try:
                header = self._codec.header_of(data)
                self._check_shape(row, header.shape)
                self._check_bytes(row, header.data_bytes, self._max_bytes, f"a value of shape {header.shape}")
                array = self._codec.decode_strings(self._field, data)
                if array.dtype.kind == "S" and not is_bytes(self._field.dtype):
                    for item in array.reshape(-1).tolist():
                        item.decode("utf-8")  # invalid UTF-8 is an error of this row
            except DAMAGE as error:
                raise self._undecodable(row, error, len(data)) from error
            shapes[number] = array.shape
            flat = array.reshape(-1).tolist()
            items += [item.encode("utf-8") if isinstance(item, str) else item for item in flat]
        strings = _strings(pa.array(items, pa.large_binary()), (len(items),), None)
        if self._field.is_fixed:
            shape = (len(rows), *(axis or 0 for axis in self._field.shape))
            return Strings(strings.offsets, strings.data, shape, valid)
        return Ragged(shapes, strings, (len(rows),), valid)

    def _undecodable(self, row: int, error: Exception, num_bytes: int) -> ParquetryError:
        """Returns the error for a value, which has about so many bytes: its own, or that of a lack of memory."""
        limit = limit_met(error, _DECODER_COPIES * num_bytes)
        if not limit:
            return self._failed(row, error)
        why = f" ({error})" if str(error) else ""
        return ResourceError(
            f"field '{self._field.name}', {self._describe(row)}: cannot decode the value{why}. {limit}"
        )

    def _failed(self, row: int, error: Exception) -> DecodeError:
        return DecodeError(
            f"field '{self._field.name}', {self._describe(row)}: {type(self._codec).__name__} could not decode the "
            f"stored value: {str(error).rstrip('.')}."
        )


def _settled(
    field: UnischemaField, codec: ReadListCodec, arrays: Sequence[pa.Array], describe: Describe
) -> BlockColumn:
    """Returns the column of lists with a policy for the nulls inside."""
    plain = field.replace(codec=replace(codec, nulls="error", value=None))
    if codec.nulls == "fill":
        return block_column(plain, [filled(array, field.shape, codec.value) for array in arrays], describe)
    if codec.nulls == "keep":
        return KeptColumn(plain, _joined(arrays), describe)
    values, flags = zip(*(flagged(array, field.shape) for array in arrays), strict=True)
    flag = plain.replace(dtype=np.uint8)
    return FlaggedColumn(plain, block_column(plain, values, describe), flag, block_column(flag, flags, describe))


def _nested(field: UnischemaField, levels: int, arrays: Sequence[pa.Array], describe: Describe) -> NestedColumn:
    """Returns the column of lists that may differ in length at the outer ``levels`` levels."""
    return NestedColumn(
        field,
        _joined(arrays),
        levels,
        lengths_of=_list_lengths,
        strings_of=lambda array: _strings(array, (len(array),), None),
        refused=lambda row: _null_inside(field, describe(row)),
    )


def _is_plain(array: pa.Array) -> bool:
    """Returns whether a column holds numbers of one shape that numpy can view, apart from null rows."""
    lists = pa.types.is_fixed_size_list(array.type)
    while pa.types.is_fixed_size_list(array.type):
        array = array.flatten()
    return bool(pa.types.is_primitive(array.type)) and not (lists and array.null_count)


def _plain_numbers(field: UnischemaField, part: pa.Array) -> np.ndarray:
    shape = (len(part), *(axis or 0 for axis in field.shape))
    while pa.types.is_fixed_size_list(part.type):
        part = part.flatten()
    if part.null_count:  # not fill_null(), because older Arrow versions cannot fill half floats
        present = pa.Array.from_buffers(part.type, len(part), [None, part.buffers()[1]], offset=part.offset)
        numbers, valid = as_numpy(present), as_numpy(part.is_valid())
        if numbers.nbytes < _MAPPED_BYTES or not _zero_beneath(numbers, valid):
            numbers = np.where(valid, numbers, 0)
        return numbers.astype(delivered_dtype(field.dtype), copy=False).reshape(shape)
    return as_numpy(part).reshape(shape)


def _zero_beneath(numbers: np.ndarray, valid: np.ndarray) -> bool:
    """Returns whether numbers are 0 wherever they are not valid, as in temporary files. Copies little at a time."""
    return not any(
        numbers[first : first + _CHECKED_ROWS][~valid[first : first + _CHECKED_ROWS]].any()
        for first in range(0, len(numbers), _CHECKED_ROWS)
    )


def _fixed_parts(field: UnischemaField, codec: Codec, parts: Sequence[Part]) -> list[np.ndarray | FileValues] | None:
    """Returns arrays that view the stored bytes without a copy, or ``None`` unless all values share one layout."""
    if not field.is_fixed or is_string_like(field.dtype):
        return None
    fixed: list[np.ndarray | FileValues] = []
    for part in parts:
        views: Sequence[np.ndarray | FileValues] | None
        if isinstance(part, FileCells):
            values = file_values(field, codec, part)
            views = None if values is None else [values]
        elif isinstance(codec, TensorCodec):
            views = _raw_views(field, codec, part)
        elif type(codec) is NdarrayCodec:
            views = _npy_views(field, part)
        else:
            views = None
        if views is None:
            return None
        fixed += views
    return fixed


def _raw_views(field: UnischemaField, codec: TensorCodec, part: InMemory) -> Sequence[np.ndarray] | None:
    size = codec.value_bytes(field)
    dtype = delivered_dtype(field.dtype).newbyteorder("<")
    shape = tuple(axis or 0 for axis in field.shape)
    if size == 0:
        return [np.zeros((len(part), *shape), dtype)]
    cells = part if isinstance(part, StoredCells) else cells_of(part)
    if not isinstance(part, StoredCells) and part.null_count:
        if not pa.types.is_fixed_size_binary(part.type):
            return None
        values = np.concatenate(_views(cells, 0, dtype, shape))
        values[~as_numpy(part.is_valid())] = 0
        return [values]
    return _views(cells, 0, dtype, shape) if np.all(cells.ends - cells.starts == size) else None


def _npy_views(field: UnischemaField, part: InMemory) -> Sequence[np.ndarray] | None:
    """Returns the values of the part as strided arrays, or ``None`` unless all have the same ``.npy`` header."""
    if _null_count(part) or len(part) == 0:
        return None
    cells = part if isinstance(part, StoredCells) else cells_of(part)
    length = int(cells.ends[0] - cells.starts[0])
    first = cells.data[cells.starts[0] : cells.ends[0]]
    try:
        header = npy_header(memoryview(first))  # type: ignore[arg-type]  # an array is a buffer
    except ValueError:
        return None  # the general path reports which row is damaged
    dtype = np.dtype(np.int64) if header.dtype.kind in "mM" else header.dtype
    same = header.shape == field.shape and header.dtype == field.dtype and not header.fortran_order
    if not same or not header.data_bytes or not np.all(cells.ends - cells.starts == length):
        return None
    heads = _views(cells, 0, np.dtype(np.uint8), (header.data_offset,))
    if not all((head == first[: header.data_offset]).all() for head in heads):
        return None
    return _views(cells, header.data_offset, dtype, header.shape)


def _views(cells: StoredCells, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> list[np.ndarray]:
    """Returns views of the arrays that begin ``offset`` bytes into each value, one view per run of values."""
    inner = np.zeros(shape, dtype).strides if 0 not in shape else (0,) * len(shape)
    return [
        np.ndarray(
            (count, *shape), dtype, cells.data, int(cells.starts[first]) + offset if count else 0, (distance, *inner)
        )
        for first, count, distance in cells.runs()
    ]


def _binary_buffers(part: pa.Array) -> tuple[np.ndarray, memoryview]:
    offsets = (
        np.frombuffer(part.buffers()[1], np.int64, len(part) + 1, part.offset * 8)
        if len(part)
        else np.zeros(1, np.int64)
    )
    data = part.buffers()[2] if len(part) else None
    return offsets, memoryview(data if data is not None else b"")


def _null_count(part: Part) -> int:
    return part.null_count if isinstance(part, pa.Array) else 0


def _validity(parts: Sequence[Part]) -> np.ndarray | None:
    if not any(_null_count(part) for part in parts):
        return None
    return np.concatenate(
        [as_numpy(part.is_valid()) if isinstance(part, pa.Array) else np.ones(len(part), bool) for part in parts]
    )


def _place(field: UnischemaField, rows: int) -> np.ndarray | None:
    """Allocates the output for numbers of one shape; ``None`` for other fields."""
    if not field.is_fixed or is_string_like(field.dtype):
        return None
    return np.empty((rows, *(axis or 0 for axis in field.shape)), delivered_dtype(field.dtype))


def _take_valid(valid: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    if valid is None:
        return None
    taken = valid[rows]
    return None if taken.all() else taken


def _strings(array: pa.Array, shape: tuple[int, ...], valid: np.ndarray | None) -> Strings:
    """Returns the strings of an array, with offsets that begin at 0. Nulls become empty strings."""
    offsets, data = _binary_buffers(without_nulls(array))
    raw = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    return Strings(offsets - offsets[0], raw, shape, valid)


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
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
        lengths = _list_lengths(array)
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
            raise _null_inside(field, describe(owner[_first_null(array)]))
    return array, shapes


def _first_null(array: pa.Array) -> int:
    return int(np.flatnonzero(as_numpy(array.is_null()))[0])


def _null_inside(field: UnischemaField, where: str) -> DecodeError:
    return DecodeError(
        f"field '{field.name}', {where}: expected a list without nulls inside, found one. "
        f"Write nulls('drop', '{field.name}') or nulls('mask', '{field.name}', elements=True) before other verbs on "
        f"the field, or deselect the field. nulls('fill', '{field.name}', value=...) fills null values, but not null "
        "inner lists of variable length, because their length is unknown."
    )


def _list_lengths(array: pa.Array) -> np.ndarray:
    """Returns how many values each list contributes to ``array.flatten()``: 0 for a null list."""
    if pa.types.is_fixed_size_list(array.type):
        lengths = np.full(len(array), array.type.list_size)
        return np.where(as_numpy(array.is_valid()), lengths, 0) if array.null_count else lengths
    lengths = array.value_lengths()
    return as_numpy(without_nulls(lengths)).astype(np.int64, copy=False)


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
    taken = flat.take(pa.array(index, mask=index < 0))
    return _strings(taken, full, valid)
