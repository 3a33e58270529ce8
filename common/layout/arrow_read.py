"""`read_group`: columns of one row group by Arrow, held to their checksums and to the footer.

In: a row group, and what chooses the columns. Out: an Arrow table as the file has them. Always holds: each column has
the rows that the footer says, and whatever is wrong with a file is one error that names file, row group and column.
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
"""What pyarrow raises for files that are damaged."""


def read_group(
    dataset: StoredFiles,
    row_group: int,
    choose: Callable[[pa.Schema], Sequence[str]],
    *,
    pre_buffer: bool,
    advice: str,
    **options: Any,
) -> pa.Table:
    """Some columns of one row group.

    Args:
        choose: gives the names of the columns (dotted ones for members of structs), from the file's schema.
        pre_buffer: whether Arrow reads all columns of a local file at once.
        advice: what to do about a file that cannot be read.
        options: for ``pyarrow.parquet.ParquetFile``.

    Raises:
        DatasetError: a file that cannot be read, or is damaged; names file, row group and column.
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
    """Holds each column of a row group to the rows that the footer says it has; Arrow does not.

    Raises:
        DatasetError: a column with more or fewer values.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        if len(column) != rows:
            raise DatasetError(
                f"{place}: expected {rows} rows of column '{name}', as the footer says, got {len(column)}. "
                "The file is damaged: write it again."
            )


def _leaves(footer: pq.FileMetaData, columns: Sequence[str]) -> list[int]:
    """The leaf columns that some columns consist of."""
    wanted, schema = tuple(f"{name}." for name in columns), footer.schema
    return [number for number in range(len(schema)) if f"{schema.column(number).path}.".startswith(wanted)]


def _damaged(reader: pq.ParquetFile, group: int, columns: Sequence[str]) -> str:
    """The first column that cannot be read alone; all of them, if each can be."""
    for name in columns:
        try:
            reader.read_row_group(group, columns=[name], use_threads=False)
        except DAMAGE:
            return name
    return ", ".join(columns)
