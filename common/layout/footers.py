"""Reading Parquet footers: in parallel, once per file version in a process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..errors import DatasetError
from ..progress import progress
from .files import DataFile

_MOST_KEPT_BYTES = 256 << 20
_kept: OrderedDict[tuple[str, str, int, int], pq.FileMetaData] = OrderedDict()
_kept_bytes = 0
_lock = Lock()


def read_footers(filesystem: pafs.FileSystem, files: Sequence[DataFile]) -> list[pq.FileMetaData]:
    """The footer of each file, in order; a progress bar appears when it takes longer than two seconds.

    Raises:
        DatasetError: a file that is not Parquet, or cannot be read; says which.
    """
    if len(files) <= 2:
        return [read_footer(filesystem, file) for file in files]
    with ThreadPoolExecutor(max_workers=16, thread_name_prefix="parquetry-footers") as pool:
        footers = pool.map(lambda file: read_footer(filesystem, file), files)
        return list(progress(footers, "reading footers", len(files), unit="file"))


def read_footer(filesystem: pafs.FileSystem, file: DataFile) -> pq.FileMetaData:
    """The footer of one file, from memory if this version of the file was read before."""
    key = (filesystem.type_name, file.path, file.size_bytes, file.mtime_ns)
    with _lock:
        if key in _kept:
            _kept.move_to_end(key)
            return _kept[key]
    try:
        footer = pq.read_metadata(file.path, filesystem=filesystem)
    except (pa.ArrowInvalid, OSError) as error:
        raise DatasetError(
            f"file {file.path}: expected a readable Parquet file of {file.size_bytes} bytes, got: {error}. "
            "Remove it, or write it again."
        ) from error
    _keep(key, footer)
    return footer


def _keep(key: tuple[str, str, int, int], footer: pq.FileMetaData) -> None:
    """Keeps a footer; the least recently used ones go when all together pass the limit."""
    global _kept_bytes
    with _lock:
        if key in _kept:
            return
        _kept[key] = footer
        _kept_bytes += footer.serialized_size
        while _kept_bytes > _MOST_KEPT_BYTES:
            _, dropped = _kept.popitem(last=False)
            _kept_bytes -= dropped.serialized_size
