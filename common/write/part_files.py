"""The Parquet files of a dataset that is being written: one `Part` for each file, one `Partition` for each directory.

Row groups arrive in order. Files are named ``part-00000.parquet``, ``part-00001.parquet``, ... in order of creation.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict

import pyarrow as pa
import pyarrow.parquet as pq

from ..base.errors import DatasetError, PipelineError
from ..base.process.dataclass import dataclass
from ..schema.field import Unischema
from ..schema.plain import integer
from .file_format import writer_options
from .row_groups import RowGroupBuffer, RowGroupLimit
from .staging import Staging, storage_errors
from .videos import VideoWriters

MAX_PARTS = 100_000  # with five digits, the names sort in order


def checked_files(files: object) -> int:
    """The number of files as a plain integer.

    Raises:
        PipelineError: the number is out of range, or not an integer.
    """
    number = integer(files, least=1)
    if number is None or number >= MAX_PARTS:
        raise PipelineError(f"files: expected an integer from 1 to {MAX_PARTS - 1}, got {files!r}.")
    return number


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFormat:
    """The settings shared by all files of a dataset. ``stored`` is the Arrow schema without partition columns."""

    schema: Unischema
    stored: pa.Schema
    compression: str
    limit: RowGroupLimit


class Part:
    """One Parquet file. It is opened at its first row group, whose value sizes determine how it is written."""

    def __init__(self, staging: Staging, relative: str, file_format: FileFormat) -> None:
        self._staging = staging
        self._relative = relative
        self._format = file_format
        self._stream: pa.NativeFile | None = None
        self._writer: pq.ParquetWriter | None = None
        self._videos = VideoWriters(staging, relative, file_format.schema)
        self.closed = False
        self.row_groups = 0

    def write(self, rows: pa.Table) -> None:
        """Writes the rows as one row group. If there are none, only creates the file."""
        rows = self._videos.write(rows)
        with storage_errors("writing", f"{self._staging.root}/{self._relative}"):
            if self._writer is None:
                options = writer_options(self._format.schema, self._format.stored, self._format.compression, rows)
                self._stream = self._staging.open(self._relative)
                self._writer = pq.ParquetWriter(self._stream, self._format.stored, **options)
            if rows.num_rows:
                self._writer.write_table(rows, row_group_size=rows.num_rows)
                self.row_groups += 1

    def close(self) -> None:
        """Writes the footer. Idempotent."""
        if self.closed:
            return
        self.closed = True
        with storage_errors("writing", f"{self._staging.root}/{self._relative}"):
            try:
                self._videos.close()
                if self._writer is not None:
                    self._writer.close()
            finally:
                if self._stream is not None:
                    self._stream.close()
                self._writer = self._stream = None  # from now on, only the count is needed

    def abandon(self) -> None:
        """Closes the file, which will be deleted, and ignores errors of the file system. Idempotent."""
        self._videos.abandon()
        with contextlib.suppress(DatasetError):
            self.close()


class OpenParts:
    """The open files, at most ``limit``. Opening one more closes the least recently used."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: OrderedDict[Part, None] = OrderedDict()

    def use(self, part: Part) -> None:
        """Marks ``part`` as about to be written."""
        self._parts[part] = None
        self._parts.move_to_end(part)
        while len(self._parts) > self._limit:
            oldest, _ = self._parts.popitem(last=False)
            oldest.close()

    def close(self, part: Part) -> None:
        """Closes one file."""
        self._parts.pop(part, None)
        part.close()

    def abandon(self) -> None:
        """Closes all files, which will be deleted, and ignores errors of the file system."""
        while self._parts:
            self._parts.popitem()[0].abandon()


class Partition:
    """One directory: the rows buffered for the next row group, and the files that row groups are assigned to.

    Args:
        deal: the number of files that row groups are assigned to, round-robin.
    """

    def __init__(
        self, directory: str, staging: Staging, file_format: FileFormat, open_parts: OpenParts, *, deal: int
    ) -> None:
        self._directory = directory
        self._staging = staging
        self._format = file_format
        self._open_parts = open_parts
        self._buffer = RowGroupBuffer(file_format.limit)
        self._parts: list[Part | None] = [None] * deal
        self._turn = 0
        self._begun: dict[str, Part] = {}

    @property
    def row_group_counts(self) -> dict[str, int]:
        """The number of row groups written to each file, by relative path."""
        return {relative: part.row_groups for relative, part in self._begun.items()}

    @property
    def waiting_bytes(self) -> int:
        """The encoded size of the buffered rows."""
        return self._buffer.size_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        """Buffers rows, and writes the row groups that become full."""
        for rows in self._buffer.add(batch):
            self.write_row_group(rows)

    def write_row_group(self, rows: pa.Table) -> None:
        """Writes one row group to the file whose turn it is."""
        part = self._parts[self._turn]
        if part is None or part.closed:
            part = self._parts[self._turn] = self._begin_part()
        self._open_parts.use(part)
        part.write(rows)
        self._turn = (self._turn + 1) % len(self._parts)

    def finish_files(self) -> None:
        """Writes the buffered rows as a shorter row group and closes the files. Later rows start new files."""
        if self._buffer.rows:
            self.write_row_group(self._buffer.take())
        for part in self._parts:
            if part is not None:
                self._open_parts.close(part)
        self._parts = [None] * len(self._parts)
        self._turn = 0

    def _begin_part(self) -> Part:
        if len(self._begun) == MAX_PARTS:
            raise DatasetError(
                f"dataset '{self._staging.root}', directory '{self._directory}': expected at most {MAX_PARTS} files. "
                "Sort the rows by partition, or write larger row groups."
            )
        name = f"part-{len(self._begun):05d}.parquet"
        relative = f"{self._directory}/{name}" if self._directory else name
        self._begun[relative] = Part(self._staging, relative, self._format)
        return self._begun[relative]
