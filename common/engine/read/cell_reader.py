"""`CellReader`: large values that a local file holds plainly, read without Arrow or left where they lie.

In: a row group, and the wanted rows of it. Out: for each field the wanted values as `StoredCells` (in memory) or
`FileCells` (in the file); a field that is not there is one that Arrow has to read. Always holds: the same values as
Arrow gives; whatever is not the plainest kind of column is left to it.

Arrow copies each value of such a column twice more, into memory that is new each time: for camera frames and lidar
sweeps that costs more than reading them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from ...layout.checksums import PageCheck, PassedPages, page_check
from ...layout.files import DataFile
from ...layout.pages import FileBytes, MemoryBytes, find_values
from ...schema.codecs import TensorCodec
from ...schema.field import UnischemaField
from .file_cells import FileCells, OpenFile, OpenFiles, read_values, stays_in_file
from .stored_cells import StoredCells, read_bytes

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from ...layout.dataset import StoredDataset

Cells: TypeAlias = StoredCells | FileCells
_LARGE_VALUE_BYTES = 2048
_VALUE_BYTES_TO_STAY = 16 << 10  # to find a value in its file costs as much as to copy this
_FEW = 0.25  # of the values of a row group are read one by one
_PLAIN = {"PLAIN", "RLE", "BIT_PACKED"}  # the last two are of levels
_PASSED = PassedPages()
"""Pages whose values lie in their file: to check them costs a read of its own, so a process does it once."""


class CellReader:
    """Reads the large values of some fields of a dataset; thread-safe.

    Args:
        fields: those that have columns of their own in the files.
        partly: whether other processes take most of the rows, so that each value is read by the one that wants it.
    """

    def __init__(self, dataset: StoredDataset, fields: Sequence[UnischemaField], *, partly: bool = False) -> None:
        here = dataset.table is None and dataset.filesystem.type_name == "local"
        self._dataset = dataset
        self._partly = partly
        self._fields = [f for f in fields if here and f.storage.coded and "." not in f.name]
        self._numbers: dict[str, int] = {}  # where each was found last; most files have one schema
        self._open = OpenFiles()

    def read(self, row_group: int, rows: np.ndarray | None) -> dict[str, Cells]:
        """The values of some rows (ascending; ``None`` = all) of one row group, by name."""
        found = {field.name: self._field(row_group, field, rows) for field in self._fields}
        return {name: cells for name, cells in found.items() if cells is not None}

    def _field(self, row_group: int, field: UnischemaField, rows: np.ndarray | None) -> Cells | None:
        groups = self._dataset.row_groups
        file = int(groups.file[row_group])
        footer = self._dataset.footer(file)
        column = self._column(footer.schema, field.name)
        size = self._dataset.files[file].size_bytes
        chunk = None if column is None else _plain_chunk(footer, int(groups.group[row_group]), column, field)
        if chunk is None or chunk.values != groups.rows[row_group] or not chunk.lies_in(size):
            return None
        few = rows is not None and len(rows) <= _FEW * chunk.values
        stays = self._partly or stays_in_file(field)
        if (few or stays) and chunk.size_bytes >= _VALUE_BYTES_TO_STAY * max(chunk.values, 1):
            found = self._in_file(self._dataset.files[file], chunk, rows)
            if found is not None:
                return found if stays else found.loaded()
        cells = _in_memory(self._dataset.files[file], chunk, page_check(self._dataset.verify))
        return cells if cells is None or rows is None else cells.take(rows)

    def _in_file(self, file: DataFile, chunk: _Chunk, rows: np.ndarray | None) -> FileCells | None:
        """The values in their file; the system is asked to have them in memory soon."""
        opened = self._open.open(file)
        if opened is None:
            return None
        stored = FileBytes(opened.descriptor, chunk.begin, chunk.size_bytes)
        passed = _PASSED.of(file.version.key, chunk.begin)
        check = page_check(self._dataset.verify, rows=rows, passed=passed)
        places = find_values(stored, chunk.values, width=chunk.width, nullable=chunk.nullable, check=check)
        if places is None:
            return None
        cells = FileCells(places[0] + chunk.begin, places[1] + chunk.begin, opened)
        if rows is not None:
            cells = cells.take(rows)
        cells.expect()
        return cells

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

    def lies_in(self, file_bytes: int) -> bool:
        """Whether a file of this size can hold it."""
        return 0 <= self.begin <= self.begin + self.size_bytes <= file_bytes


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


def _in_memory(file: DataFile, chunk: _Chunk, check: PageCheck | None) -> StoredCells | None:
    """All values; ``None`` if the file cannot be read or is shorter, or holds them in another way."""
    try:
        opened = OpenFile(file.version)
        data = read_bytes(chunk.size_bytes, lambda view: read_values(opened, np.array([chunk.begin]), [view]))
    except OSError:
        return None  # Arrow meets it too, and says what it is
    places = find_values(MemoryBytes(data), chunk.values, width=chunk.width, nullable=chunk.nullable, check=check)
    return None if places is None else StoredCells(*places, data)
