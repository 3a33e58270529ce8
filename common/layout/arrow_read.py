"""`read_group` reads columns of one row group with Arrow and checks them against their checksums and the footer.

It takes a row group and a function that chooses the columns, and returns an Arrow table with the columns as stored.
Every column has as many rows as the footer says. Anything wrong with a file raises a single error that names the file,
row group and column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..errors import DatasetError
from .checksums import require_checksums
from .chunk_ranges import ChunkFile, chunk_ranges, fetch_ranges
from .footers import remedy, why
from .row_groups import StoredFiles
from .store_faults import asking_again, is_local

DAMAGE = (pa.ArrowException, OSError, ValueError, IndexError, MemoryError, OverflowError)
"""The exceptions that pyarrow raises for damaged files."""


def read_group(
    dataset: StoredFiles,
    row_group: int,
    choose: Callable[[pa.Schema], Sequence[str]],
    *,
    pre_buffer: bool,
    advice: str,
    **options: Any,
) -> pa.Table:
    """Reads some columns of one row group.

    Args:
        choose: returns the column names to read, given the file's schema. Struct members have dotted names.
        pre_buffer: whether Arrow fetches all columns of a local file at once.
        advice: tells the user what to do about an unreadable file; ends the error message.
        options: passed to ``pyarrow.parquet.ParquetFile``.

    Raises:
        DatasetError: the file cannot be read or is damaged. The message names the file, row group and column.
    """
    groups = dataset.row_groups
    file, group = int(groups.file[row_group]), int(groups.group[row_group])
    place = f"file {dataset.files[file].path}, row group {group}"
    footer = dataset.footer(file)
    wanted: Sequence[str] = ()

    def read(source: pa.NativeFile, fetch: Callable[[], None], *, pre_buffer: bool = False) -> pa.Table:
        nonlocal wanted
        with pq.ParquetFile(
            source,
            metadata=footer,
            pre_buffer=pre_buffer,
            page_checksum_verification=dataset.verify != "never",
            **options,
        ) as reader:
            wanted = choose(reader.schema_arrow)
            fetch()
            if dataset.verify == "always":
                require_checksums(source, footer, group, _leaves(footer, wanted), place)
            try:
                table = reader.read_row_group(group, columns=wanted, use_threads=False)
            except DAMAGE:
                wanted = [_damaged(reader, group, wanted)]
                raise
            check_counts(table, int(groups.rows[row_group]), place)
            return table

    def fetch_chunks() -> None:
        ranges = chunk_ranges(footer, group, _leaves(footer, wanted), size_bytes)

        def fetch() -> list[bytes]:
            with dataset.open(file) as source:
                return fetch_ranges(source, ranges)

        size = sum(end - first for first, end in ranges)
        chunks.hold(ranges, asking_again(dataset.filesystem, fetch, place, size_bytes=size))

    try:
        if is_local(dataset.filesystem):
            with dataset.open(file) as source:
                return read(source, lambda: None, pre_buffer=pre_buffer)
        size_bytes = dataset.files[file].size_bytes
        chunks = ChunkFile(size_bytes)
        return read(pa.PythonFile(chunks, mode="r"), fetch_chunks)
    except DatasetError:
        raise
    except DAMAGE as error:
        raise DatasetError(
            f"{place}: expected readable columns {list(wanted)}, got: {why(error)}. {remedy(error, advice)}"
        ) from error


def check_counts(table: pa.Table, rows: int, place: str) -> None:
    """Checks that each column of a row group has as many rows as the footer says. Arrow does not check this.

    Raises:
        DatasetError: a column has more or fewer values.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        if len(column) != rows:
            raise DatasetError(
                f"{place}: expected {rows} rows of column '{name}', as the footer says, got {len(column)}. "
                "The file is damaged: write it again."
            )


def _leaves(footer: pq.FileMetaData, columns: Sequence[str]) -> list[int]:
    """The numbers of the leaf columns that make up the given columns."""
    wanted, schema = tuple(f"{name}." for name in columns), footer.schema
    return [number for number in range(len(schema)) if f"{schema.column(number).path}.".startswith(wanted)]


def _damaged(reader: pq.ParquetFile, group: int, columns: Sequence[str]) -> str:
    """Names the first column that cannot be read by itself, or all columns if each of them can."""
    for name in columns:
        try:
            reader.read_row_group(group, columns=[name], use_threads=False)
        except DAMAGE:
            return name
    return ", ".join(columns)
