"""Slots: the shared memory in which batches are built.

`SlotMemory` is a writer's view of one slot: an arena that grows. `write_table` lays out the columns of a batch in it
and describes them in the tensor table. `read_table` is the inverse, without a copy.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...base.errors import SidecarError
from ...engine.columns.batch import Column, Dense, Ragged, Strings
from ...schema.element import OutputField
from .protocol import ALIGNMENT, DTYPE_CODES, ENTRY, ENTRY_BYTES, MAX_DIMS, BatchHeader, Role

_DTYPES = {code: np.dtype(name) for name, code in DTYPE_CODES.items()}
_Entry = tuple[int, Role, int, np.ndarray, tuple[int, ...]]
_CODES = {dtype: code for code, dtype in _DTYPES.items()}


class SlotMemory:
    """A writer's view of a slot; implements `engine.arena.Arena`.

    Args:
        descriptor: the slot's memory; owned by this object.
    """

    separates = False

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._maps: list[tuple[mmap.mmap, int, int]] = []
        self._used = 0
        self._size = os.fstat(descriptor).st_size
        if self._size:
            self._map()

    @property
    def num_bytes(self) -> int:
        return self._size

    def begin(self) -> None:
        """Starts a new batch in the slot."""
        self._maps = self._maps[-1:]
        self._used = 0
        size = os.fstat(self.descriptor).st_size
        if size != self._size:
            self._size = size
            self._map()

    def allocate(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
        """Allocates an array in the slot, which grows if needed. Earlier arrays stay where they are."""
        count = math.prod(shape)
        size = count * dtype.itemsize
        self._reserve(self._used + size)
        memory = self._maps[-1][0]
        array = np.frombuffer(memory, dtype, count, self._used).reshape(shape)
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return array

    def place(self, array: np.ndarray) -> int:
        """Returns the place of an array in the slot. An array from elsewhere is copied into the slot."""
        address = array.__array_interface__["data"][0]
        if array.flags.c_contiguous:
            for _, start, size in self._maps:
                inside = start <= address and address + array.nbytes <= start + size
                if inside and (address - start) % ALIGNMENT == 0:  # a user's view may start anywhere
                    return int(address - start)
        copy = self.allocate(array.dtype, array.shape)
        copy[...] = array
        return int(copy.__array_interface__["data"][0] - self._maps[-1][1])

    def close(self) -> None:
        """Closes the descriptor. A mapping lives as long as the arrays that use it. Idempotent."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
            self._maps = []

    def _reserve(self, end: int) -> None:
        if end > self._size or not self._maps:
            self._size = max(mmap.PAGESIZE, -(-int(max(end, self._size * 1.25)) // mmap.PAGESIZE) * mmap.PAGESIZE)
            os.ftruncate(self.descriptor, self._size)
            self._map()

    def _map(self) -> None:
        memory = mmap.mmap(self.descriptor, self._size)
        address = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
        self._maps.append((memory, address, self._size))


def write_tables(
    slot: SlotMemory, parts: Iterable[tuple[Sequence[Column], int, int]], *, first_element: int
) -> list[BatchHeader]:
    """Writes the columns of consecutive elements into the slot, each part with a table of its own.

    Args:
        parts: the columns, the number of elements in them, and the number of their rows.
    """
    headers = []
    for columns, num_elements, num_rows in parts:
        headers.append(
            write_table(slot, columns, first_element=first_element, num_elements=num_elements, num_rows=num_rows)
        )
        first_element += num_elements
    return [header._replace(slot_bytes=slot.num_bytes) for header in headers]


def write_table(
    slot: SlotMemory, columns: Sequence[Column], *, first_element: int, num_elements: int, num_rows: int
) -> BatchHeader:
    """Writes the columns into the slot, with the table that describes them."""
    entries: list[_Entry] = []
    for number, column in enumerate(columns):
        for role, array, dims in _parts(column):
            entries.append((number, role, slot.place(array), array, dims))
    entries = _separated(slot, entries)
    table = np.zeros(len(entries), ENTRY)
    for row, (number, role, offset, array, dims) in enumerate(entries):
        if len(dims) > MAX_DIMS:
            raise SidecarError(f"batch: expected at most {MAX_DIMS} axes, got shape {dims}. Reshape in a transform.")
        padded = (*dims, *(0,) * (MAX_DIMS - len(dims)))
        table[row] = (number, role, _code(array.dtype), len(dims), offset, array.nbytes, padded)
    offset = slot.place(table.view(np.uint8))
    return BatchHeader(
        slot_bytes=slot.num_bytes,
        table_offset=offset,
        first_element=first_element,
        num_tensors=len(entries),
        num_elements=num_elements,
        num_rows=num_rows,
    )


def _separated(slot: SlotMemory, entries: list[_Entry]) -> list[_Entry]:
    """Separates entries that share bytes, as the results of a function may, because the consumer may write to each."""
    end = 0
    for _, _, offset, array, _ in entries:
        if offset < end:
            break
        end = offset + array.nbytes
    else:
        return entries  # in allocation order, like all arrays that do not come from a user function
    end, result = 0, list(entries)
    for place in sorted(range(len(entries)), key=lambda place: entries[place][2]):
        number, role, offset, array, dims = entries[place]
        if offset < end and array.nbytes:
            copy = slot.allocate(array.dtype, array.shape)
            copy[...] = array
            result[place] = (number, role, slot.place(copy), copy, dims)
        else:
            end = max(end, offset + array.nbytes)
    return result


def _code(dtype: np.dtype[Any]) -> int:
    code = _CODES.get(dtype)  # numpy builds the name of a dtype on each access, which would dominate the cost here
    return DTYPE_CODES[dtype.name] if code is None else code


def read_table(
    memory: Any, header: BatchHeader, outputs: Sequence[OutputField], *, copied_bytes: int = 0
) -> list[Column]:
    """Returns the columns in a slot, as views.

    Args:
        memory: a buffer over the whole slot. Every array that is not copied keeps it alive.
        copied_bytes: arrays of at most this size are copied.
    """
    table = np.frombuffer(memory, ENTRY, header.num_tensors, header.table_offset)
    if table["dims"].min(initial=0) < 0:  # numpy would infer the size of such an axis
        raise SidecarError(f"batch: expected shapes, got {table['dims'].tolist()}.")
    parts: list[dict[Role, tuple[np.ndarray, tuple[int, ...]]]] = [{} for _ in outputs]
    for field, role, code, ndim, offset, size, dims in table.tolist():
        dtype = _DTYPES[code]
        array = np.frombuffer(memory, dtype, size // dtype.itemsize, offset)
        if size <= copied_bytes:
            array = array.copy()
        parts[field][Role(role)] = (array, tuple(dims[:ndim]))
    return [_column(output, part) for output, part in zip(outputs, parts, strict=True)]


def copied_table(slot: SlotMemory, header: BatchHeader, outputs: Sequence[OutputField]) -> list[Column]:
    """Returns copies of the columns in a slot, so that the slot can be reused."""
    with mmap.mmap(slot.descriptor, header.slot_bytes, prot=mmap.PROT_READ) as memory:
        own = np.frombuffer(memory.read(header.slot_bytes), np.uint8)
    return read_table(own, header, outputs)


def _parts(column: Column) -> list[tuple[Role, np.ndarray, tuple[int, ...]]]:
    if isinstance(column, Dense):
        parts = [(Role.DENSE, column.values, column.values.shape)]
    elif isinstance(column, Strings):
        parts = _string_parts(column)
    else:
        assert isinstance(column, Ragged)
        parts = [(Role.RAGGED_SHAPES, column.shapes, column.shapes.shape)]
        if isinstance(column.values, Strings):
            parts += _string_parts(column.values)
        else:
            parts.append((Role.RAGGED_VALUES, column.values, column.values.shape))
    if column.valid is not None:
        parts.append((Role.VALID, np.ascontiguousarray(column.valid), column.valid.shape))
    return parts


def _string_parts(strings: Strings) -> list[tuple[Role, np.ndarray, tuple[int, ...]]]:
    offsets = np.ascontiguousarray(strings.offsets, dtype=np.int64)
    data = np.ascontiguousarray(strings.data)
    return [(Role.STRING_OFFSETS, offsets, strings.shape), (Role.STRING_DATA, data, data.shape)]


def _column(output: OutputField, parts: dict[Role, tuple[np.ndarray, tuple[int, ...]]]) -> Column:
    valid = None
    if Role.VALID in parts:
        array, dims = parts[Role.VALID]
        valid = array.reshape(dims)
    if Role.DENSE in parts:
        array, dims = parts[Role.DENSE]
        return Dense(array.reshape(dims), valid)
    strings = None
    if Role.STRING_OFFSETS in parts:
        offsets, dims = parts[Role.STRING_OFFSETS]
        strings = Strings(offsets, parts[Role.STRING_DATA][0], dims, valid if Role.RAGGED_SHAPES not in parts else None)
    if Role.RAGGED_SHAPES not in parts:
        if strings is None:
            raise SidecarError(f"batch: expected the tensors of field {output.name}, got none.")
        return strings
    shapes, dims = parts[Role.RAGGED_SHAPES]
    shapes = shapes.reshape(dims)
    values = strings if strings is not None else parts[Role.RAGGED_VALUES][0]
    lead = (len(shapes),) if output.window is None else (len(shapes) // output.window, output.window)
    return Ragged(shapes, values, lead, valid)


assert ENTRY.itemsize == ENTRY_BYTES


class Slot:
    """A slot of the reader: its number, which the client knows, and its memory."""

    def __init__(self, number: int, memory: SlotMemory) -> None:
        self.number = number
        self.memory = memory


class MadeSlot(NamedTuple):
    """A slot with the batches that a job has made in it."""

    slot: Slot
    headers: list[BatchHeader]

    @property
    def num_bytes(self) -> int:
        """The size of the batches."""
        return self.headers[-1].table_offset
