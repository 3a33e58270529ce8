"""`renew_index` adds the files that a row-group index lacks to it, so that it stays in use while a dataset grows.

The lines of the other files are copied, and only the footers of new files are read. If files were removed or changed,
the whole index is written again.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..base.errors import DatasetError
from ..storage.file_versions import current_version
from ..storage.files import DataFile, FileListing, list_files
from ..storage.opening import opened
from .index_file import IndexFile
from .index_format import INDEX_NAME
from .index_writer import IndexLines, new_index_file, tables_of, write_index, write_tables

_ATTEMPTS = 5  # of writers that add files at the same time, the last one describes those of all


def renew_index(filesystem: pafs.FileSystem, root: str) -> None:
    """Brings the index in a directory up to date, if there is one.

    Raises:
        DatasetError: it cannot be written. The old one is unchanged.
    """
    path = posixpath.join(root, INDEX_NAME)
    for _ in range(_ATTEMPTS):
        version = current_version(filesystem, path)
        if version is None:
            return
        listing = list_files([root], filesystem=filesystem)
        try:
            index = IndexFile.open(filesystem, version)
        except DatasetError:
            write_index(root, filesystem=filesystem)
            continue
        new = _new_files(listing, index)
        if new == []:
            return
        if new is None or not _add(listing, index, new, path):
            described = index.description
            columns = None if described.complete or not described.fields else described.fields
            write_index(root, filesystem=filesystem, columns=columns)


def _new_files(listing: FileListing, index: IndexFile) -> list[DataFile] | None:
    """The files that the index lacks. ``None`` if it describes files that were removed or changed."""
    files = {file.path: file for file in listing.files}
    for described in index.files:
        file = files.pop(described.path, None)
        if file is None or described.became(file.version) or not described.can_tell(file.version):
            return None
    return list(files.values())


def _add(listing: FileListing, index: IndexFile, new: list[DataFile], path: str) -> bool:
    """Writes the index with the lines of the new files. Returns whether the old lines fit those of the new files."""
    described = index.description
    places = {place for place, _ in described.schemas}
    models = [file for file in listing.files if file.relative in places]
    ends = [file for file in dict.fromkeys((new[0], new[-1])) if file not in models]
    patterns = None if described.complete else described.fields
    lines: IndexLines | None = IndexLines(listing.filesystem, [*models, *ends], patterns)
    with suppress(_UnlikeError), new_index_file(listing.filesystem, path) as hidden:
        while lines is not None:
            lines.begin_with(described, models)
            if not _fit(index, lines.schema):
                raise _UnlikeError
            tables = chain(_old_tables(index, lines.schema), tables_of(replace(listing, files=tuple(new)), lines))
            write_tables(listing.filesystem, hidden, lines, tables)
            lines = lines.with_more_fields(listing.files)
        return True
    return False


class _UnlikeError(Exception):
    """The old lines do not fit the columns of the new ones."""


def _fit(index: IndexFile, schema: pa.Schema) -> bool:
    with _reader(index) as reader:
        return all(
            column.name in schema.names and column.type in (schema.field(column.name).type, pa.null())
            for column in reader.schema_arrow
        )


def _old_tables(index: IndexFile, schema: pa.Schema) -> Iterator[pa.Table]:
    """The lines that are there, with the columns of the new ones: of fields that their files lack."""
    with _reader(index) as reader:
        for number in range(reader.num_row_groups):
            table = reader.read_row_group(number)
            columns = [_column(table, column) for column in schema]
            yield pa.table(columns, schema=schema)


@contextmanager
def _reader(index: IndexFile) -> Iterator[pq.ParquetFile]:
    with (
        opened(index.filesystem, index.version) as source,
        pq.ParquetFile(source, page_checksum_verification=True) as reader,
    ):
        yield reader


def _column(table: pa.Table, column: pa.Field) -> pa.Array | pa.ChunkedArray:
    if column.name in table.column_names:
        return table.column(column.name).cast(column.type)
    if column.nullable:
        return pa.nulls(len(table), column.type)
    if column.name == "tag" or column.name.startswith("chunk:"):  # of an index that is older than these
        return pa.array([b""] * len(table), pa.binary()).cast(column.type)
    missing = -1 if column.name == "head" or column.name.startswith("nulls:") else 0
    return pa.array(np.full(len(table), missing, np.int64), column.type)
