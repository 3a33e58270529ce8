"""Stores pandas and polars data frames as Parquet in the cache directory, named after a hash of their content.

It takes a frame and returns the path of a Parquet file with its rows. The file appears complete or not at all, and
equal frames share one file. If the directory grows too large, files not used within a day are deleted.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..base.errors import DatasetError
from ..base.memory.arrow_views import as_numpy, to_stream
from ..dataset.table import import_package
from ..storage.file_cache import FileCache
from ..storage.whole_files import cache_root

_MOST_BYTES = 16 << 30
_KEPT_S = 24 * 3600
_ROW_GROUP_BYTES = 8 << 20
_VERSION = 1


def keep_pandas(frame: object) -> str:
    """Stores a pandas data frame, without its index, and returns the path.

    Raises:
        DatasetError: the argument is not a data frame, or Arrow has no type for a column.
    """
    pandas = import_package("pandas", extra="frames", what="data frame")
    if not isinstance(frame, pandas.DataFrame):
        raise DatasetError(f"data frame: expected a pandas.DataFrame, got {_class_name(frame)}.")
    names = [name for name in frame.columns if not isinstance(name, str)]
    if names:
        raise DatasetError(f"data frame: expected column names that are strings, got {names[:5]!r}. Rename them.")
    try:
        table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise DatasetError(
            f"data frame: expected columns that Arrow has a type for: {error}. Convert them, or write the rows with "
            "write_dataset(), which stores arrays of any shape."
        ) from error
    return keep_table(table)


def keep_polars(frame: object) -> str:
    """Stores a polars ``DataFrame``, or a ``LazyFrame`` after collecting it, and returns the path.

    Raises:
        DatasetError: the argument is not a frame, or Arrow has no type for a column.
    """
    polars = import_package("polars", extra="frames", what="data frame")
    if isinstance(frame, polars.LazyFrame):
        try:
            frame = frame.collect()
        except polars.exceptions.PolarsError as error:
            raise DatasetError(f"data frame: expected a LazyFrame that can be collected: {error}") from error
    if not isinstance(frame, polars.DataFrame):
        raise DatasetError(f"data frame: expected a polars.DataFrame or LazyFrame, got {_class_name(frame)}.")
    objects = [name for name, kind in frame.schema.items() if kind == polars.Object]
    if objects:  # polars would hand out their addresses
        raise DatasetError(f"data frame: expected columns of values, got Python objects in {objects}. Drop them.")
    try:
        table = frame.to_arrow()
    except (pa.ArrowException, polars.exceptions.PolarsError) as error:
        raise DatasetError(
            f"data frame: expected columns that Arrow has a type for: {error}. Convert or drop them."
        ) from error
    return keep_table(table)


def keep_table(table: pa.Table) -> str:
    """Stores an Arrow table and returns the path.

    Raises:
        DatasetError: there are no columns, names are duplicated, or the directory cannot be written.
    """
    if not table.num_columns or len(set(table.column_names)) < table.num_columns:
        raise DatasetError(f"data frame: expected columns with different names, got {table.column_names}.")
    table = _plain(table)
    directory = cache_root() / "frames"
    cache = FileCache(directory, ".parquet", max_bytes=_MOST_BYTES, spare_s=_KEPT_S)
    digest = _digest(table)
    path = cache.path(digest)
    try:
        if os.path.exists(path):
            with open(path, "rb") as file:  # marks it as used; utime() would change the file's version
                file.read(1)
        else:
            cache.keep(digest, table.nbytes, lambda hidden: _write(table, hidden))
    except (OSError, pa.ArrowException) as error:
        raise DatasetError(
            f"data frame: cannot be kept in {directory}: {error}. Free disk space there, set PARQUETRY_CACHE_DIR, or "
            "leave out columns that Parquet has no type for."
        ) from error
    return path


def _plain(table: pa.Table) -> pa.Table:
    """Removes views and dictionaries, because frames with equal values may differ in them."""
    columns = []
    for column in table.columns:
        kind = column.type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if kind in (pa.string(), pa.string_view()):
            kind = pa.large_string()
        if kind in (pa.binary(), pa.binary_view()):
            kind = pa.large_binary()
        columns.append(column if kind == column.type else column.cast(kind))
    return pa.table(columns, names=table.column_names)


def _digest(table: pa.Table) -> str:
    """A digest of column names, types and values, independent of chunking."""
    digest = hashlib.blake2b(f"{_VERSION} {len(table)} {table.num_columns}".encode(), digest_size=16)
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(f"\0{name}\0{column.type}\0".encode())
        digest.update(np.packbits(as_numpy(column.is_null())).tobytes() if column.null_count else b"-")
        values = pa.table([column.drop_null()], names=["values"]).combine_chunks()
        digest.update(memoryview(to_stream(values)))
    return digest.hexdigest()


def _write(table: pa.Table, path: str) -> None:
    rows = max(1, int(_ROW_GROUP_BYTES / max(table.nbytes / max(len(table), 1), 1)))
    pq.write_table(table, path, row_group_size=rows, compression="zstd", write_page_checksum=True)


def _class_name(value: object) -> str:
    """The class with the name of its package, because several packages have a ``DataFrame``."""
    package = type(value).__module__.partition(".")[0]
    return type(value).__name__ if package == "builtins" else f"{package}.{type(value).__name__}"
