"""`IndexFile`: one `_row_groups.parquet`, opened and checked for what it claims, but not yet against any listing.

In: a path. Out: the files that it describes with their lines, and any column when it is asked for. Always holds: pages
are compared with their checksums, and all columns come from the same version of the file.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..errors import DatasetError
from .index_format import BASE, METADATA_KEY, IndexDescription

_PLAN_COLUMNS = [name for name in BASE.names if name != "compressed_bytes"]
_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexFile:
    """One index file.

    Attributes:
        info: of the index file when it was opened.
        paths, sizes, times, first, count: for each file, its full path, what it was, and its lines.
        rows: of each line.
    """

    filesystem: pafs.FileSystem
    info: pafs.FileInfo
    metadata: pq.FileMetaData
    description: IndexDescription
    paths: list[str]
    sizes: list[int]
    times: list[int]
    first: np.ndarray
    count: np.ndarray
    rows: pa.Array

    @classmethod
    def open(cls, filesystem: pafs.FileSystem, info: pafs.FileInfo) -> IndexFile:
        """Reads what planning always needs. Raises `DatasetError` for a file that is not a sound index."""
        try:
            with pq.ParquetFile(
                info.path, filesystem=filesystem, read_dictionary=["file"], page_checksum_verification=True
            ) as reader:
                metadata = reader.metadata
                description = IndexDescription.from_bytes(metadata.metadata[METADATA_KEY])
                table = reader.read(columns=_PLAN_COLUMNS).unify_dictionaries().combine_chunks()
            return cls._of(filesystem, info, metadata, description, table)
        except DatasetError:
            raise
        except _UNREADABLE as error:
            raise DatasetError(f"row-group index {info.path}: expected a sound index, got: {error!r}.") from error

    @classmethod
    def _of(
        cls,
        filesystem: pafs.FileSystem,
        info: pafs.FileInfo,
        metadata: pq.FileMetaData,
        description: IndexDescription,
        table: pa.Table,
    ) -> IndexFile:
        names = single_chunk(table.column("file"))
        codes = names.indices.to_numpy()
        group, size, time = (table.column(name).to_numpy() for name in ("group", "size_bytes", "mtime_ns"))
        first = np.flatnonzero(np.diff(codes, prepend=-1))
        count = np.diff(first, append=len(codes))
        if not np.array_equal(group, np.arange(len(codes)) - np.repeat(first, count)):
            raise DatasetError(f"row-group index {info.path}: expected the row groups of each file in order.")
        texts = names.dictionary.take(pa.array(codes[first])).to_pylist()
        empty = description.empty
        root = posixpath.dirname(info.path)
        return cls(
            filesystem=filesystem,
            info=info,
            metadata=metadata,
            description=description,
            paths=[posixpath.join(root, text) for text in [*texts, *(path for path, _, _ in empty)]],
            sizes=[*size[first].tolist(), *(size for _, size, _ in empty)],
            times=[*time[first].tolist(), *(time for _, _, time in empty)],
            first=np.concatenate([first, np.zeros(len(empty), np.int64)]),
            count=np.concatenate([count, np.zeros(len(empty), np.int64)]),
            rows=single_chunk(table.column("rows")),
        )

    def read(self, columns: list[str]) -> pa.Table:
        """Some columns. Raises `DatasetError` if the file was replaced since it was opened, or cannot be read."""
        try:
            info = self.filesystem.get_file_info(self.info.path)
            if (info.size, info.mtime_ns) != (self.info.size, self.info.mtime_ns):
                raise DatasetError(f"row-group index {self.info.path}: it was replaced while in use.")
            with pq.ParquetFile(
                self.info.path, filesystem=self.filesystem, metadata=self.metadata, page_checksum_verification=True
            ) as reader:
                table = reader.read(columns=columns).select(columns)
        except DatasetError:
            raise
        except _UNREADABLE as error:
            raise DatasetError(f"row-group index {self.info.path}: expected sound columns, got: {error!r}.") from error
        if table.num_rows != len(self.rows):
            raise DatasetError(
                f"row-group index {self.info.path}: expected {len(self.rows)} lines, got {table.num_rows}."
            )
        return table


def single_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)
