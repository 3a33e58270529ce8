"""`StoredCells`: large values where they lie in the bytes that a file holds, read once and not decoded by Arrow.

In: a row group of a local file and a field. Out: the place of each value, or ``None`` where Arrow has to read the
column. Always holds: the same values as Arrow gives; whatever is not the plainest kind of column is left to it.

Arrow copies each value of such a column twice more, into memory that is new each time: for camera frames and lidar
sweeps that costs more than reading them.
"""

from __future__ import annotations

import os
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


def read_cells(dataset: StoredDataset, unit: int, field: UnischemaField) -> StoredCells | None:
    """The values of one field of a row group, read straight from a local file; ``None`` if Arrow has to read them."""
    codec = field.storage
    if not codec.coded or dataset.table is not None or dataset.filesystem.type_name != "local" or "." in field.name:
        return None
    groups = dataset.row_groups
    number = int(groups.file[unit])
    found = _plain_chunk(dataset.footer(number), int(groups.group[unit]), field)
    if found is None:
        return None
    begin, size, count, width, nullable = found
    data = _read(dataset.files[number].path, begin, size)
    places = None if data is None else find_values(data, count, width=width, nullable=nullable)
    return None if data is None or places is None else StoredCells(*places, data)


def _plain_chunk(
    footer: pq.FileMetaData, group: int, field: UnischemaField
) -> tuple[int, int, int, int | None, bool] | None:
    """First byte, bytes, and values of a chunk, their fixed width, and whether they may be null."""
    schema = footer.schema
    number = next((n for n in range(len(schema)) if schema.column(n).path == field.name), None)
    if number is None:
        return None
    column = schema.column(number)
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
    return chunk.data_page_offset, size, count, width, column.max_definition_level == 1


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
