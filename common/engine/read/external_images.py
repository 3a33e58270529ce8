"""Reads values that are files of their own: the images of a folder, listed in a manifest.

Given a row group of the manifest and the wanted rows, it returns the stored content of their files. A file that changed
since the folder was listed raises a `DatasetError` that names the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ...base.errors import ParquetryError
from ...base.memory.arrow_views import as_arrow
from ...base.progress import thread_pool
from ...dataset.table import TableColumn
from ...dataset.table_read import read_columns
from ...schema.field import UnischemaField
from ...schema.ragged import ends_of
from ...storage.file_versions import FileVersion
from ...storage.opening import opened
from ...storage.retries import with_retries
from ...storage.stores import store_of
from ...tables.image_folder import MANIFEST
from .column_reader import ReadRequest, ReadResult
from .file_cells import WholeFiles, unreadable
from .stored_cells import StoredCells, read_bytes

if TYPE_CHECKING:
    from ...dataset.dataset import StoredDataset

_COLUMNS = [TableColumn(name=field.name, arrow=field.type, names=((field.name,),)) for field in MANIFEST]
_READS = 16


class ListedPlace(str):
    """A description of a manifest's row group for error texts. It can also name the file of each row.

    Args:
        group: the number of the row group in the manifest.
    """

    def __new__(cls, text: str, manifest: str = "", group: int = 0) -> ListedPlace:
        result = super().__new__(cls, text)
        result.manifest, result.group = manifest, group
        return result

    manifest: str
    group: int

    def describe(self, row: int) -> str:
        """Names the file of a row, or the row group and row number if the manifest can no longer be read."""
        try:
            with pq.ParquetFile(self.manifest, page_checksum_verification=True) as reader:
                return f"file '{reader.read_row_group(self.group, columns=['path']).column(0)[row]}' of {self}"
        except (OSError, pa.ArrowException):
            return f"{self}, row {row}"


def is_listed(dataset: StoredDataset, field: UnischemaField) -> bool:
    """Returns whether each value of a field is a file of its own."""
    column = dataset.columns.get(field.name)
    return column is not None and column.in_files


class ListedReader:
    """Reads the fields of a dataset whose values are files of their own. A `ColumnReader`.

    Args:
        later: whether each file is read only when it is decoded.

    Attributes:
        fields: the fields that it reads, all of them.
    """

    def __init__(self, dataset: StoredDataset, fields: Sequence[UnischemaField], *, later: bool) -> None:
        self._dataset = dataset
        self._read = whole_files if later else read_listed
        self.fields = [field for field in fields if is_listed(dataset, field)]

    def read(self, request: ReadRequest) -> ReadResult:
        """As `ColumnReader`. Raises as `read_listed`."""
        return ReadResult(
            {field.name: self._read(self._dataset, request.row_group, request.rows) for field in self.fields}
        )


def read_listed(dataset: StoredDataset, row_group: int, rows: np.ndarray | None) -> StoredCells:
    """Reads the files of the given rows (ascending; ``None`` = all) of one row group.

    Raises:
        DatasetError: a file is gone, has changed, or cannot be read.
    """
    files = whole_files(dataset, row_group, rows)
    filesystem, _ = dataset.folder
    if isinstance(filesystem, pafs.LocalFileSystem):
        return files.loaded()

    def fill(data: memoryview) -> None:
        places = [data[start:end] for start, end in zip(files.starts.tolist(), files.ends.tolist(), strict=True)]
        with thread_pool(_READS, "parquetry-files") as pool:
            list(pool.map(_read, [filesystem] * len(files), files.versions, places))

    return StoredCells(files.starts, files.ends, read_bytes(int(files.ends[-1]) if len(files) else 0, fill))


def listed_column(dataset: StoredDataset, row_group: int) -> pa.ChunkedArray:
    """Reads the files of all rows of one row group into an Arrow column. Raises as `read_listed`."""
    cells = read_listed(dataset, row_group, None)
    offsets = np.append(cells.starts, cells.ends[-1:])
    array = pa.Array.from_buffers(
        pa.large_binary(), len(cells), [None, pa.py_buffer(offsets), pa.py_buffer(cells.data)]
    )
    return pa.chunked_array([array])


def whole_files(dataset: StoredDataset, row_group: int, rows: np.ndarray | None) -> WholeFiles:
    """Returns the files of the given rows (ascending; ``None`` = all) of one row group without reading them."""
    listed = read_columns(dataset, row_group, _COLUMNS)
    listed = listed if rows is None else listed.take(as_arrow(rows))
    filesystem, root = dataset.folder
    store = store_of(filesystem)
    versions = [
        FileVersion(
            path=f"{root}/{path}",
            size_bytes=size_bytes,
            store=store,
            mtime_ns=mtime_ns,
            tag=tag,
            inode=tuple(inode),
        )
        for path, size_bytes, mtime_ns, tag, inode in zip(
            *(column.to_pylist() for column in listed.columns), strict=True
        )
    ]
    bounds = ends_of([version.size_bytes for version in versions])
    return WholeFiles(bounds[:-1], bounds[1:], versions)


def _read(filesystem: pafs.FileSystem, version: FileVersion, place: memoryview) -> None:
    def read() -> None:
        with opened(filesystem, version) as source:
            done = 0
            while done < len(place):
                count = source.readinto(place[done:])
                if not count:
                    raise OSError(f"{version.size_bytes} bytes expected, {done} found")
                done += count

    try:
        with_retries(filesystem, read, f"file {version.shown_path}")
    except ParquetryError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise unreadable(version, error) from error
