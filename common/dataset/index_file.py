"""`IndexFile`: one `_row_groups.parquet`, opened and checked for consistency, but not yet compared with a listing.

It holds the described files with their lines, and reads other columns on demand. Pages are compared with their
checksums, and all columns come from the same version of the file.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..base.errors import DatasetError, ParquetryError, access_failed
from ..base.memory.arrow_views import as_arrow, as_numpy
from ..base.process.dataclass import dataclass
from ..base.urls import clean_cause
from ..parquet.group_footers import StoredFooter, load_stored_footer
from ..parquet.writers import GENERATION
from ..storage.file_versions import FileVersion
from ..storage.files import DataFile
from ..storage.opening import opened
from ..storage.retries import is_local, with_retries
from .index_format import BASE, METADATA_KEY, IndexDescription

Value = TypeVar("Value")
_PLAN_COLUMNS = [name for name in BASE.names if name != "compressed_bytes"]
_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IndexFile:
    """One index file.

    Attributes:
        version: the version of the index file when it was opened.
        files, first, count: the version, first line and number of lines of each described file.
        rows: the number of rows of each line's row group.
        heads: the number of its file's head in the description, int32; -1 if the index does not have it.
    """

    filesystem: pafs.FileSystem
    version: FileVersion
    footer: StoredFooter
    description: IndexDescription
    files: list[FileVersion]
    first: np.ndarray
    count: np.ndarray
    rows: pa.Array
    heads: np.ndarray

    @classmethod
    def open(cls, filesystem: pafs.FileSystem, version: FileVersion) -> IndexFile:
        """Reads the columns that planning always needs.

        Raises:
            DatasetError: the file is not a valid index, or of a release that knew other writers of wrong bounds.
            OSError: it cannot be read.
        """

        try:
            file = DataFile(version=version, relative=posixpath.basename(version.path))
            footer = load_stored_footer(filesystem, file)
            description = IndexDescription.from_bytes(footer.head.empty.metadata[METADATA_KEY])
            if description.by_writer != GENERATION:
                raise DatasetError(
                    f"row-group index {version.shown_path}: expected one without the bounds of all writers that are "
                    "known for wrong ones, got one of another release."
                )
            options = {"read_dictionary": ["file", "tag"]}
            table = _reading(filesystem, version, footer, _PLAN_COLUMNS, _read_plan, **options)
            table = table.unify_dictionaries().combine_chunks()
            return cls._of(filesystem, version, footer, description, table)
        except ParquetryError:
            raise
        except _UNREADABLE as error:
            if access_failed(error):
                raise
            raise DatasetError(
                f"row-group index {version.shown_path}: expected a valid index, got: {error!r}."
            ) from clean_cause(error)

    @classmethod
    def _of(
        cls,
        filesystem: pafs.FileSystem,
        version: FileVersion,
        footer: StoredFooter,
        description: IndexDescription,
        table: pa.Table,
    ) -> IndexFile:
        names = single_chunk(table.column("file"))
        codes = as_numpy(names.indices)
        group, size, time = (as_numpy(table.column(name)) for name in ("group", "size_bytes", "mtime_ns"))
        first = np.flatnonzero(np.diff(codes, prepend=-1))
        count = np.diff(first, append=len(codes))
        if not np.array_equal(group, np.arange(len(codes)) - np.repeat(first, count)):
            raise DatasetError(f"row-group index {version.shown_path}: expected the row groups of each file in order.")
        texts = names.dictionary.take(as_arrow(codes[first])).to_pylist()
        tags = single_chunk(table.column("tag")).take(as_arrow(first)).to_pylist()
        root = posixpath.dirname(version.path)
        described = [
            *zip(texts, size[first].tolist(), time[first].tolist(), tags, strict=True),
            *description.empty,
        ]
        return cls(
            filesystem=filesystem,
            version=version,
            footer=footer,
            description=description,
            files=[
                FileVersion(path=posixpath.join(root, path), size_bytes=size_bytes, mtime_ns=mtime_ns, tag=tag)
                for path, size_bytes, mtime_ns, tag in described
            ],
            first=np.concatenate([first, np.zeros(len(description.empty), np.int64)]),
            count=np.concatenate([count, np.zeros(len(description.empty), np.int64)]),
            rows=single_chunk(table.column("rows")),
            heads=_heads(table, len(description.heads)),
        )

    def read(self, columns: list[str]) -> pa.Table:
        """Reads some columns. Raises `DatasetError` as `reading`."""
        table = self.reading(columns, lambda reader: reader.read(columns=columns).select(columns))
        for column in table.columns:
            if len(column) != len(self.rows):
                raise DatasetError(
                    f"row-group index {self.version.shown_path}: expected {len(self.rows)} lines, got {len(column)}."
                )
        return table

    def reading(self, columns: Sequence[str], read: Callable[[pq.ParquetFile], Value]) -> Value:
        """Opens the file with at least some columns, and returns what a function makes of it.

        The function may be called again if the store fails.

        Raises:
            DatasetError: the file was replaced since it was opened, or is unreadable.
        """
        try:
            return _reading(self.filesystem, self.version, self.footer, columns, read)
        except ParquetryError:
            raise
        except _UNREADABLE as error:
            advice = access_failed(error)
            where = f"row-group index {self.version.shown_path}"
            raise DatasetError(f"{where}: expected valid columns, got: {error!r}. {advice}".rstrip()) from clean_cause(
                error
            )


def _reading(
    filesystem: pafs.FileSystem,
    version: FileVersion,
    footer: StoredFooter,
    columns: Sequence[str],
    read: Callable[[pq.ParquetFile], Value],
    **options: Any,
) -> Value:
    described = footer.columns_footer(frozenset(columns))  # without those of thousands of other columns
    options |= {"page_checksum_verification": True, "pre_buffer": not is_local(filesystem)}

    def attempt() -> Value:
        with (
            opened(filesystem, version) as source,
            pq.ParquetFile(source, metadata=described, **options) as reader,
        ):
            return read(reader)

    return with_retries(filesystem, attempt, f"row-group index {version.shown_path}")


def _read_plan(reader: pq.ParquetFile) -> pa.Table:
    return reader.read(columns=_PLAN_COLUMNS)


def _heads(table: pa.Table, count: int) -> np.ndarray:
    if "head" not in table.column_names:  # the index is older than them
        return np.full(len(table), -1, np.int32)
    heads = as_numpy(single_chunk(table.column("head")))
    if len(heads) and not -1 <= int(heads.min()) <= int(heads.max()) < count:
        raise ValueError(f"expected heads of files below {count}")
    return heads


def single_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.nulls(0, column.type)
