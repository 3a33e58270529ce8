"""`CellReader`: reads large uncompressed values of a local file without Arrow, or leaves them in the file.

Given a row group and the wanted rows, it returns each field's values as `StoredCells` (in memory) or `FileCells` (in
the file), equal to what Arrow would return. It handles only flat, uncompressed, PLAIN-encoded columns. Fields that are
missing from the result must be read with Arrow.

Arrow copies each value of such a column two more times, into newly allocated memory. For camera frames and lidar sweeps
the copies cost more than the read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from ...base.memory.arena import block_memory
from ...base.native.kernels import read_cells
from ...base.process.dataclass import dataclass
from ...dataset.row_groups import describe_row_group
from ...parquet.checksums import Verify, page_check
from ...parquet.pages import MemoryBytes, find_values, locate_values
from ...plan.selection.rows import RowNumbers
from ...schema.codecs import TensorCodec
from ...schema.field import UnischemaField
from ...storage.file_versions import local_version
from ...storage.files import DataFile
from .column_reader import ReadRequest, ReadResult
from .file_cells import FileCells, stays_in_file
from .open_file import OpenFile, OpenFiles, read_values
from .passed_pages import PASSED_PAGES, page_keys
from .stored_cells import StoredCells, read_bytes
from .unchecked_pages import UncheckedPages

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from ...dataset.dataset import StoredDataset

Cells: TypeAlias = StoredCells | FileCells
_LARGE_VALUE_BYTES = 2048
_VALUE_BYTES_TO_STAY = 16 << 10  # locating a value in its file costs as much as copying this many bytes
_FEW = 0.25  # read values one by one if at most this share of a row group is wanted
_PLAIN = {"PLAIN", "RLE", "BIT_PACKED"}  # the last two encode levels


class CellReader:
    """Reads the large values of some fields of a dataset. Thread-safe.

    Args:
        fields: the fields that have their own columns in the files.
        shared_by_workers: whether other processes use most of the rows. Values then stay in the file, and each process
            reads only its own.
    """

    def __init__(
        self, dataset: StoredDataset, fields: Sequence[UnischemaField], *, shared_by_workers: bool = False
    ) -> None:
        here = dataset.table is None and dataset.filesystem.type_name == "local"
        self._dataset = dataset
        self._shared_by_workers = shared_by_workers
        self._fields = [f for f in fields if here and f.storage.coded and "." not in f.name]
        self._names = frozenset([field.name for field in self._fields])
        self._open = OpenFiles()

    def read(self, request: ReadRequest) -> ReadResult:
        """As `ColumnReader`."""
        found = {field.name: self._field(request.row_group, field, request.rows) for field in self._fields}
        values = {name: cells for name, (cells, _) in found.items() if cells is not None}
        return ReadResult(values, unread_bytes=sum(unread_bytes for _, unread_bytes in found.values()))

    def in_files(self, row_group: int, rows: RowNumbers) -> dict[str, FileCells]:
        """Returns the values of the given rows that can stay in their file, by field name."""
        by_name = {}
        for field in self._fields:
            _, chunk = self._chunk(row_group, field)
            if chunk is None or not chunk.has_large_values:
                continue
            cells = self._in_file(row_group, field, chunk, np.asarray(rows, np.int64))
            if cells is not None:
                by_name[field.name] = cells
        return by_name

    def _field(self, row_group: int, field: UnischemaField, rows: np.ndarray | None) -> tuple[Cells | None, float]:
        """Returns the values, and how many bytes of unwanted ones are not read."""
        file, chunk = self._chunk(row_group, field)
        if chunk is None:
            return None, 0
        few = rows is not None and len(rows) <= _FEW * chunk.values
        stays = self._shared_by_workers or stays_in_file(field)
        if (few or stays) and chunk.has_large_values:
            in_file = self._in_file(row_group, field, chunk, rows)
            if in_file is not None:
                unread_bytes = chunk.size_bytes * (1 - len(in_file) / chunk.values)
                return (in_file if stays else in_file.loaded()), unread_bytes
        cells = _in_memory(file, chunk, self._dataset.verify)
        return (cells if cells is None or rows is None else cells.take(rows)), 0

    def _chunk(self, row_group: int, field: UnischemaField) -> tuple[DataFile, _Chunk | None]:
        """Returns the file of a row group, and the field's column chunk if it can be read here."""
        groups = self._dataset.row_groups
        file = self._dataset.files[int(groups.file[row_group])]
        described = self._dataset.group_footer(row_group, self._names)
        footer, columns = described.footer, described.columns.numbers((field.name,))
        column = next((number for number in columns if footer.schema.column(number).path == field.name), None)
        chunk = None if column is None else _plain_chunk(footer, described.group, column, field)
        if chunk is None or chunk.values != groups.rows[row_group] or not chunk.lies_in(file.size_bytes):
            return file, None
        return file, chunk

    def _in_file(
        self, row_group: int, field: UnischemaField, chunk: _Chunk, rows: np.ndarray | None
    ) -> FileCells | None:
        """Locates the values in their file and asks the kernel to read them ahead."""
        file = self._dataset.files[int(self._dataset.row_groups.file[row_group])]
        opened = self._open.open(file)
        if opened is None:
            return None
        located = locate_values(
            opened.descriptor,
            chunk.begin,
            chunk.size_bytes,
            chunk.values,
            width=chunk.width,
            nullable=chunk.nullable,
            verify=self._dataset.verify,
        )
        if located is None:
            return None
        starts, ends, stored = located
        pages = None
        if len(stored.begins):
            keys = page_keys(file.version.key, chunk.begin, stored.begins)
            where = f"{describe_row_group(self._dataset, row_group)}: expected readable columns ['{field.name}']"
            pages = UncheckedPages(opened, stored, begin=chunk.begin, keys=keys, passed=PASSED_PAGES, place=where)
        cells = FileCells(starts + chunk.begin, ends + chunk.begin, opened, pages)
        if rows is not None:
            cells = cells.take(rows)
        cells.expect()
        return cells


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """An uncompressed, PLAIN-encoded column chunk.

    Attributes:
        begin: the file offset of its first byte.
        width: the size of a value in bytes, if all have the same size.
        nullable: whether values may be null.
    """

    begin: int
    size_bytes: int
    values: int
    width: int | None
    nullable: bool

    @property
    def has_large_values(self) -> bool:
        """Returns whether values are large enough to be located in the file."""
        return self.size_bytes >= _VALUE_BYTES_TO_STAY * max(self.values, 1)

    def lies_in(self, file_bytes: int) -> bool:
        """Returns whether the chunk fits into a file of this size."""
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


def _in_memory(file: DataFile, chunk: _Chunk, verify: Verify) -> StoredCells | None:
    """Reads all values. Returns ``None`` if the file is unreadable or too short, or its pages are of another kind."""
    version = file.version
    cells, status = read_cells(
        version.path,
        chunk.begin,
        chunk.size_bytes,
        chunk.values,
        block_memory,
        width=chunk.width,
        nullable=chunk.nullable,
        verify=verify,
    )
    if not version.became(local_version(version.store, version.path, status)):
        return None if cells is None else StoredCells(*cells)
    check = page_check(verify)
    try:
        opened = OpenFile(file.version)
        data = read_bytes(chunk.size_bytes, lambda view: read_values(opened, np.array([chunk.begin]), [view]))
    except OSError:
        return None  # Arrow will hit the same problem and report it
    places = find_values(MemoryBytes(data), chunk.values, width=chunk.width, nullable=chunk.nullable, check=check)
    return None if places is None else StoredCells(*places, data)
