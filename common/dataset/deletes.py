"""Finds the deleted rows of a table: deletion vectors, position deletes, equality deletes.

It takes the dataset of a table and returns the numbers of the deleted rows for each row group that has any. A delete
that cannot be read or does not match its data file is an error, because ignoring it would bring back deleted rows.

Each delete file is read once. The positions in it are handed out to their data files at once. The values in it are kept
until `_VALUES_BYTES` have come together, compared with all row groups that they concern, and dropped.
"""

from __future__ import annotations

import base64
import logging
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from ..base.errors import DatasetError, ResourceError
from ..base.memory.arrow_views import as_numpy
from ..base.progress import thread_pool
from ..base.urls import clean_cause
from ..parquet.footer_check import row_count
from ..parquet.footers import open_checked, remedy
from ..parquet.nested import one_array
from ..schema.ragged import ends_of
from ..storage.retries import with_retries
from .arrow_read import check_counts
from .bitmaps import decode_bitmap64
from .row_groups import StoredFiles
from .table import BITMAP, EQUALITY, POSITIONS, RowDeletes, Table, TableColumn
from .table_read import locate, read_columns

_LOGGER = logging.getLogger(__name__)
_MAGIC = b"\xd1\xd3\x39\x64"
_ENCRYPTED_MAGIC = b"AGS1"  # an encrypted stream of Iceberg (https://iceberg.apache.org/gcm-stream-spec/)
_THREADS = 8
_VALUES_BYTES = 1 << 26


def deleted_rows(dataset: StoredFiles) -> dict[int, np.ndarray]:
    """Returns the deleted rows (ascending) of each row group that has any, by row group number.

    Raises:
        DatasetError: a delete file is missing, damaged, or does not match its data file. The message names it.
    """
    table = dataset.table
    if table is None or not any(file.deletes for file in table.files):
        return {}
    reader = _DeleteReader(dataset, table)
    deletes: dict[int, list[np.ndarray]] = defaultdict(list)
    with thread_pool(_THREADS, "parquetry-deletes") as pool:
        for row_group, rows in chain(reader.by_position(pool), reader.by_value(pool)):
            deletes[row_group].append(rows)
    return {row_group: _union(deletes[row_group]) for row_group in sorted(deletes)}


def _union(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts))


class _DeleteReader:
    """Reads the deletes of a table, each file once. Yields row groups and their deleted rows, ascending, if any."""

    def __init__(self, dataset: StoredFiles, table: Table) -> None:
        self._dataset = dataset
        self._table = table
        groups = dataset.row_groups
        self._starts = ends_of(groups.rows)  # the first row of each row group, among the rows of all files
        self._groups = np.searchsorted(groups.file, np.arange(len(table.files) + 1))  # the first one of each file
        self._files_of: dict[int, list[int]] = defaultdict(list)  # the data files that each delete concerns
        for number, file in enumerate(table.files):
            for place in file.deletes:
                self._files_of[place].append(number)

    def by_position(self, pool: Executor) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the rows that bitmaps and position deletes remove. Also checks those of files without row groups."""
        marked: dict[int, list[np.ndarray]] = {
            number: []
            for kind in (BITMAP, POSITIONS)
            for place in self._places(kind)
            for number in self._files_of[place]
        }
        for found in pool.map(self._read_positions, self._places(POSITIONS)):
            for number, rows in found:
                marked[number].append(rows)
        for number, rows in zip(marked, pool.map(self._rows_in_file, marked, marked.values()), strict=True):
            for row_group in range(self._groups[number], self._groups[number + 1]):
                first, stop = self._starts[row_group : row_group + 2] - self._starts[self._groups[number]]
                lo, hi = np.searchsorted(rows, [first, stop])
                if lo < hi:
                    yield row_group, rows[lo:hi] - first

    def by_value(self, pool: Executor) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the rows that equality deletes remove."""
        held: dict[int, pa.Table] = {}
        size_bytes, places = 0, self._places(EQUALITY)
        for first in range(0, len(places), _THREADS):
            some = places[first : first + _THREADS]
            held.update(zip(some, pool.map(self._read_values, some), strict=True))
            size_bytes += sum(held[place].nbytes for place in some)
            if size_bytes >= _VALUES_BYTES or first + _THREADS >= len(places):
                row_groups = self._row_groups_of(held)
                matches = pool.map(partial(self._rows_with_values, held), row_groups)
                yield from (pair for pair in zip(row_groups, matches, strict=True) if len(pair[1]))
                held, size_bytes = {}, 0

    def _places(self, kind: str) -> list[int]:
        return [place for place in sorted(self._files_of) if self._table.deletes[place].kind == kind]

    def _row_groups_of(self, places: Container[int]) -> list[int]:
        """The row groups that some of the deletes concern."""
        files = [any(place in places for place in file.deletes) for file in self._table.files]
        return [number for number, file in enumerate(self._dataset.row_groups.file) if files[file]]

    def _rows_with_values(self, held: Mapping[int, pa.Table], row_group: int) -> np.ndarray:
        """The rows of one row group that match some equality deletes."""
        by_columns: dict[tuple[TableColumn, ...], list[pa.Table]] = defaultdict(list)
        for place in self._table.files[self._dataset.row_groups.file[row_group]].deletes:
            if place in held:
                by_columns[self._table.deletes[place].columns].append(held[place])
        gone = np.zeros(int(self._dataset.row_groups.rows[row_group]), dtype=bool)
        for columns, values in by_columns.items():
            gone |= _equal_rows(read_columns(self._dataset, row_group, columns), pa.concat_tables(values))
        return np.flatnonzero(gone)

    def _rows_in_file(self, number: int, named: Sequence[np.ndarray]) -> np.ndarray:
        """The rows of one file that its bitmaps and some position deletes remove, ascending."""
        file, count = self._table.files[number], self._rows_of(number)
        parts = [np.zeros(0, dtype=np.int64), *named]
        for place in file.deletes:
            item = self._table.deletes[place]
            if item.kind == BITMAP:
                self._check_count(item, number)
                parts.append(_checked(self._dataset, item, partial(_bitmap, self._dataset.filesystem, item)))
        positions = np.unique(np.concatenate(parts))
        if len(positions) and not 0 <= positions[0] <= positions[-1] < count:
            wrong = positions[0] if positions[0] < 0 else positions[-1]
            raise DatasetError(
                f"file {file.path}: expected deleted rows among its {count} rows, got row {wrong}. "
                "This is not the file that the table refers to."
            )
        return positions

    def _rows_of(self, number: int) -> int:
        return int(self._starts[self._groups[number + 1]] - self._starts[self._groups[number]])

    def _check_count(self, item: RowDeletes, number: int) -> None:
        rows = self._rows_of(number)
        if not 0 <= item.count <= rows:
            raise DatasetError(
                f"file {self._table.files[number].path}: expected at most {rows} deleted rows, because it has no more, "
                f"got {item.count}. This is not the file that the table refers to."
            )

    def _read_positions(self, place: int) -> list[tuple[int, np.ndarray]]:
        """Reads a file of position deletes: the rows of each data file that it concerns and names."""
        item = self._table.deletes[place]
        table = _checked(self._dataset, item, partial(_positions, self._dataset, item))
        paths = one_array(table.column("file_path"))
        encoded = paths if pa.types.is_dictionary(paths.type) else paths.dictionary_encode()
        codes = as_numpy(encoded.indices)
        positions = as_numpy(table.column("pos"))
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
        names = {name: number for number, name in enumerate(encoded.dictionary.to_pylist())}
        files = [(number, names.get(self._table.files[number].location)) for number in self._files_of[place]]
        return [(number, positions[order[bounds[n] : bounds[n + 1]]]) for number, n in files if n is not None]

    def _read_values(self, place: int) -> pa.Table:
        """Reads the values of an equality delete, in the types of its columns."""
        item = self._table.deletes[place]
        held = _checked(self._dataset, item, partial(_read_parquet, self._dataset, item))
        columns = []
        for column in item.columns:
            path = locate(held.schema, column, where=f"delete file {item.path}")
            if path is None or len(path) > 1:
                raise DatasetError(
                    f"delete file {item.path}: expected the top-level column '{column.name}' that it compares, got "
                    f"{held.column_names}. Equality deletes of members of structs are not supported: rewrite the "
                    "table's data files."
                )
            columns.append(_checked(self._dataset, item, partial(held.column(path[0]).cast, column.arrow)))
        return pa.table(columns, names=[column.name for column in item.columns])


def _checked(dataset: StoredFiles, item: RowDeletes, read: Callable[[], Any]) -> Any:
    """Reads deleted rows. Tries again if the store fails for a moment."""
    place = f"{item.kind} of deleted rows {item.path or '(inline)'}"
    try:
        return with_retries(dataset.filesystem, read, place)
    except ResourceError:
        raise
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        damaged = (
            "It is damaged, or has since been removed (by VACUUM or snapshot expiry). Use a later version of the table."
        )
        raise DatasetError(
            f"{place}: expected a readable one, got: {error}. {remedy(error, damaged)}"
        ) from clean_cause(error)


def _positions(dataset: StoredFiles, item: RowDeletes) -> pa.Table:
    table = _read_parquet(dataset, item, ["file_path", "pos"])
    if table.column_names != ["file_path", "pos"]:
        raise ValueError(f"columns {table.column_names}, not 'file_path' and 'pos'")
    table = table.set_column(1, "pos", table.column("pos").cast(pa.int64()))
    named = table.drop_null()
    if len(named) < len(table):  # the format forbids nulls, but pyiceberg skips them, too
        _LOGGER.warning(
            "%s of deleted rows %s: %d of %d entries have a null path or position. They name no row, so they delete "
            "none.",
            *(item.kind, item.path, len(table) - len(named), len(table)),
        )
    return named


def _read_parquet(dataset: StoredFiles, item: RowDeletes, columns: list[str] | None = None) -> pa.Table:
    with dataset.filesystem.open_input_file(item.path) as source:
        file = open_checked(source)
        table = file.read(columns=columns)
        check_counts(table, row_count(file.metadata), f"delete file {item.path}")
        return table


def _bitmap(filesystem: pafs.FileSystem, item: RowDeletes) -> np.ndarray:
    """Reads a deletion vector. In a file: size (big endian), magic, bitmap, CRC-32. Inline: magic, bitmap."""
    if item.path:
        with filesystem.open_input_file(item.path) as file:
            if not 0 <= item.offset <= file.size() - item.size_bytes - 8 <= file.size() - 8:
                raise ValueError(f"{file.size()} bytes, not {item.size_bytes} at offset {item.offset} and 8 more")
            raw = file.read_at(item.size_bytes + 8, item.offset)
            (size,) = struct.unpack(">I", raw[:4])
            if size != item.size_bytes or len(raw) != size + 8:
                if file.read_at(4, 0) == _ENCRYPTED_MAGIC:
                    raise ValueError("an encrypted file")
                raise ValueError(f"{size} bytes, not {item.size_bytes}, at offset {item.offset}")
        data = raw[4:-4]
        if struct.unpack(">I", raw[-4:])[0] != zlib.crc32(data):
            raise ValueError("a checksum that does not match")
    else:
        data = base64.b64decode(item.inline)[: item.size_bytes]
    if data[:4] != _MAGIC:
        raise ValueError(f"the format {data[:4].hex()}, not a portable roaring bitmap ({_MAGIC.hex()})")
    rows = decode_bitmap64(data[4:], item.count)
    if len(rows) != item.count:
        raise ValueError(f"{len(rows)} rows, not {item.count}")
    return rows


def _equal_rows(table: pa.Table, deleted: pa.Table) -> np.ndarray:
    """Which rows of ``table`` occur in ``deleted``, as bool. Nulls equal each other."""
    codes = []
    for mine, theirs in zip(table.columns, deleted.columns, strict=True):
        both = pa.concat_arrays([one_array(mine), one_array(theirs.cast(mine.type))])
        codes.append(as_numpy(both.dictionary_encode(null_encoding="encode").indices))
    _, number = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)
    number = number.reshape(-1)
    return np.isin(number[: len(table)], number[len(table) :])
