"""`write_index`: writes a dataset's row-group index. Spark's executors read the footers."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from ..layout.files import DataFile, list_files
from ..layout.footers import load_footer
from ..layout.index_writer import IndexLines, LinesFound, write_lines
from ..memory.arrow_views import from_stream, to_stream
from .session import context_of, run_tasks

_FILES_AT_A_TIME = 64


def write_index(
    spark: object,
    url: str | os.PathLike[str],
    *,
    filesystem: object = None,
    storage_options: Mapping[str, Any] | None = None,
    columns: Sequence[str] | None = None,
) -> str:
    """Writes the same index as ``parquetry.common.layout.index.write_index``.

    The executors read the footers.

    Raises:
        DatasetError: ``url`` is not a directory, it contains no Parquet files, a file is damaged,
            or the directory cannot be written to.
        FieldNotFoundError: a pattern matches no field of the first and the last file.
    """
    context_of(spark, "write_index")
    listing = list_files(
        [os.fspath(url)], filesystem=filesystem, storage_options=dict(storage_options) if storage_options else None
    )

    starts = range(0, len(listing.files), _FILES_AT_A_TIME)
    chunks = [listing.files[first : first + _FILES_AT_A_TIME] for first in starts]

    def tables(lines: IndexLines) -> Generator[pa.Table, None, None]:
        describe = _Describe(listing.filesystem, lines.models, columns)
        for data, found in run_tasks(spark, "write_index", describe, chunks):
            lines.absorb(found)
            yield from_stream(data)

    return write_lines(listing, columns, tables)


class _Describe:
    """Creates the index lines of some files, in an executor."""

    def __init__(self, filesystem: pafs.FileSystem, models: Sequence[DataFile], columns: Sequence[str] | None) -> None:
        self._filesystem = filesystem
        self._models = models
        self._columns = columns

    def __call__(self, files: Sequence[DataFile]) -> tuple[bytes, LinesFound]:
        lines = IndexLines(self._filesystem, self._models, self._columns)
        table = lines.of(files, [load_footer(self._filesystem, file) for file in files])
        return bytes(to_stream(table)), lines.found()
