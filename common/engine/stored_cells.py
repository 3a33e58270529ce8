"""`StoredCells`: large values where they lie in the bytes that a file holds, read once and not decoded by Arrow.

In: a row group of a local file and a field. Out: the place of each value, or ``None`` where Arrow has to read the
column. Always holds: the same values as Arrow gives; whatever is not the plainest kind of column is left to it.

Arrow copies each value of such a column twice more, into memory that is new each time: for camera frames and lidar
sweeps that costs more than reading them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ..layout.pages import find_values
from ..schema.codecs import TensorCodec
from ..schema.field import UnischemaField
from .arena import WINDOW_REGIONS

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from ..layout.dataset import StoredDataset

_LARGE_VALUE_BYTES = 2048
_NO_BYTE = np.zeros(1, np.int64)
_PLAIN = {"PLAIN", "RLE", "BIT_PACKED"}  # the last two are of levels


@dataclass(frozen=True, slots=True, eq=False)
class StoredCells:
    """Values of a column as bytes.

    Attributes:
        starts, ends: the first byte of each value in ``data``, and the one after its last; int64.
        data: uint8; also holds what lies between the values.
    """

    starts: np.ndarray
    ends: np.ndarray
    data: np.ndarray

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.data.nbytes + 16 * len(self.starts)

    def take(self, rows: np.ndarray) -> StoredCells:
        """Some of the values; their bytes are copied where most of the others would be kept for them."""
        starts, ends = self.starts[rows], self.ends[rows]
        lengths = ends - starts
        if 2 * int(lengths.sum()) > self.data.nbytes:
            return StoredCells(starts, ends, self.data)
        parts = [self.data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
        bounds = np.concatenate([_NO_BYTE, np.cumsum(lengths)])
        return StoredCells(bounds[:-1], bounds[1:], np.concatenate(parts) if parts else np.zeros(0, np.uint8))

    def runs(self) -> list[tuple[int, int, int]]:
        """Stretches of values at equal distances: the first value, how many they are, and the distance in bytes."""
        if len(self) < 2:
            return [(0, len(self), 0)]
        distances = np.diff(self.starts)
        distance = int(distances.min())
        firsts = [0, *(np.flatnonzero(distances != distance) + 1).tolist()]
        return [(a, b - a, distance) for a, b in zip(firsts, [*firsts[1:], len(self)], strict=True)]


def cells_of(array: pa.Array) -> StoredCells:
    """The values of a ``large_binary`` array, or one of fixed size; a null is any bytes."""
    count = len(array)
    if pa.types.is_fixed_size_binary(array.type):
        width = array.type.byte_width
        bounds = width * np.arange(array.offset, array.offset + count + 1, dtype=np.int64)
        content = array.buffers()[1]
    else:
        ends = array.buffers()[1]
        bounds = np.frombuffer(ends, np.int64, count + 1, array.offset * 8) if count else np.zeros(1, np.int64)
        content = array.buffers()[2]
    data = np.frombuffer(content, np.uint8) if count and content is not None else np.zeros(0, np.uint8)
    return StoredCells(bounds[:-1], bounds[1:], data)


class CellReader:
    """Reads the large values of some fields of a dataset; thread-safe.

    Args:
        fields: those that have columns of their own in the files.
    """

    def __init__(self, dataset: StoredDataset, fields: Sequence[UnischemaField]) -> None:
        here = dataset.table is None and dataset.filesystem.type_name == "local"
        self._dataset = dataset
        self._fields = [f for f in fields if here and f.storage.coded and "." not in f.name]
        self._numbers: dict[str, int] = {}  # where each was found last; most files have one schema

    def read(self, unit: int) -> dict[str, StoredCells]:
        """The values of one row group, by name; without the fields that Arrow has to read."""
        found = {field.name: self._field(unit, field) for field in self._fields}
        return {name: cells for name, cells in found.items() if cells is not None}

    def _field(self, unit: int, field: UnischemaField) -> StoredCells | None:
        groups = self._dataset.row_groups
        file = int(groups.file[unit])
        footer = self._dataset.footer(file)
        column = self._column(footer.schema, field.name)
        chunk = None if column is None else _plain_chunk(footer, int(groups.group[unit]), column, field)
        if chunk is None:
            return None
        data = _read(self._dataset.files[file].path, chunk.begin, chunk.size_bytes)
        if data is None:
            return None
        places = find_values(data, chunk.values, width=chunk.width, nullable=chunk.nullable)
        return None if places is None else StoredCells(*places, data)

    def _column(self, schema: pq.ParquetSchema, name: str) -> int | None:
        guess = self._numbers.get(name, -1)
        if 0 <= guess < len(schema) and schema.column(guess).path == name:
            return guess
        number = next((number for number in range(len(schema)) if schema.column(number).path == name), None)
        if number is not None:
            self._numbers[name] = number
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """A plain column chunk.

    Attributes:
        begin: its first byte in the file.
        values: how many.
        width: bytes of a value, where all have the same.
        nullable: whether values may be null.
    """

    begin: int
    size_bytes: int
    values: int
    width: int | None
    nullable: bool


def _plain_chunk(footer: pq.FileMetaData, group: int, number: int, field: UnischemaField) -> _Chunk | None:
    column = footer.schema.column(number)
    chunk = footer.row_group(group).column(number)
    size, count = chunk.total_compressed_size, chunk.num_values
    plain = chunk.compression == "UNCOMPRESSED" and set(chunk.encodings) <= _PLAIN and not chunk.has_dictionary_page
    flat = column.max_repetition_level == 0 and column.max_definition_level <= 1
    if not plain or not flat or size < _LARGE_VALUE_BYTES * max(count, 1):
        return None
    width = None
    if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
        width = column.length
        if not isinstance(field.storage, TensorCodec) or field.storage.arrow_type(field) != pa.binary(width):
            return None
    elif column.physical_type != "BYTE_ARRAY":
        return None
    nullable = column.max_definition_level == 1
    return _Chunk(begin=chunk.data_page_offset, size_bytes=size, values=count, width=width, nullable=nullable)


def _read(path: str, begin: int, size: int) -> np.ndarray | None:
    """A stretch of a file in reused memory; ``None`` if the file cannot be read, or is shorter."""
    region = WINDOW_REGIONS.acquire(size)
    try:
        data = region.allocate(np.dtype(np.uint8), (size,))
        view = memoryview(data)  # type: ignore[arg-type]  # an array is a buffer
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < size:
                read = os.preadv(descriptor, [view[done:]], begin + done)
                if read == 0:
                    return None
                done += read
        finally:
            os.close(descriptor)
    except OSError:
        return None  # Arrow meets it too, and says what it is
    finally:
        region.end()
    return data
