"""Finds the deleted rows of a table: deletion vectors, position deletes, equality deletes.

It takes the dataset of a table and returns the numbers of the deleted rows for each row group that has any. A delete
that cannot be read or does not match its data file is an error, because ignoring it would bring back deleted rows.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from ..errors import DatasetError
from ..process.forks import arrow_to_numpy
from ..progress import thread_pool
from ..schema.ragged import ends_of
from ..urls import clean_cause
from .arrow_read import check_counts
from .bitmaps import decode_bitmap64
from .footers import open_checked, remedy
from .nested import one_array
from .retries import with_retries
from .row_groups import StoredFiles
from .table import BITMAP, EQUALITY, POSITIONS, RowDeletes, Table, TableColumn
from .table_read import locate, read_columns

_MAGIC = b"\xd1\xd3\x39\x64"
_THREADS = 8


def deleted_rows(dataset: StoredFiles) -> dict[int, np.ndarray]:
    """Returns the deleted rows (ascending) of each row group that has any, by row group number.

    Raises:
        DatasetError: a delete file is missing, damaged, or does not match its data file. The message names it.
    """
    table = dataset.table
    if table is None or not any(file.deletes for file in table.files):
        return {}
    reader = _DeleteReader(dataset, table)
    row_groups = np.flatnonzero([bool(table.files[file].deletes) for file in dataset.row_groups.file])
    with thread_pool(_THREADS, "parquetry-deletes") as pool:
        found = list(pool.map(reader.of_row_group, row_groups.tolist()))
    reader.check_files()
    return {int(row_group): rows for row_group, rows in zip(row_groups, found, strict=True) if len(rows)}


class _DeleteReader:
    """Reads each delete file once and finds the rows that it deletes."""

    def __init__(self, dataset: StoredFiles, table: Table) -> None:
        self._dataset = dataset
        self._table = table
        groups = dataset.row_groups
        starts = ends_of(groups.rows)
        firsts = starts[np.searchsorted(groups.file, np.arange(len(table.files)))]
        self._first_row = starts[:-1] - firsts[groups.file]  # the first row of each row group, within its file
        self._rows_of_file = np.bincount(groups.file, weights=groups.rows, minlength=len(table.files)).astype(np.int64)
        self._in_file = lru_cache(maxsize=256)(self._rows_in_file)
        self._positions = lru_cache(maxsize=64)(self._read_positions)
        self._values = lru_cache(maxsize=64)(self._read_values)

    def check_files(self) -> None:
        """Checks the deletes of files without row groups; `of_row_group` checks those of all other files."""
        for number in np.flatnonzero(self._rows_of_file == 0):
            self._in_file(int(number))

    def of_row_group(self, row_group: int) -> np.ndarray:
        """The deleted rows of one row group."""
        number = int(self._dataset.row_groups.file[row_group])
        count, first = int(self._dataset.row_groups.rows[row_group]), int(self._first_row[row_group])
        positions = self._in_file(number)
        lo, hi = np.searchsorted(positions, [first, first + count])
        gone = np.zeros(count, dtype=bool)
        gone[positions[lo:hi] - first] = True
        by_columns: dict[tuple[TableColumn, ...], list[int]] = defaultdict(list)
        for place in self._table.files[number].deletes:
            item = self._table.deletes[place]
            if item.kind == EQUALITY:
                by_columns[item.columns].append(place)
        for columns, places in by_columns.items():
            gone |= _equal_rows(read_columns(self._dataset, row_group, columns), self._values(tuple(places)))
        return np.flatnonzero(gone)

    def _rows_in_file(self, number: int) -> np.ndarray:
        """The rows of one file that bitmaps and position deletes remove, ascending."""
        file = self._table.files[number]
        parts = [np.zeros(0, dtype=np.int64)]
        for place in file.deletes:
            item = self._table.deletes[place]
            if item.kind == BITMAP:
                self._check_count(item, number)
                parts.append(_checked(self._dataset, item, partial(_bitmap, self._dataset.filesystem, item)))
            elif item.kind == POSITIONS:
                parts.append(self._positions(place).get(file.location, parts[0]))
        positions = np.unique(np.concatenate(parts))
        if len(positions) and not 0 <= positions[0] <= positions[-1] < self._rows_of_file[number]:
            wrong = positions[0] if positions[0] < 0 else positions[-1]
            raise DatasetError(
                f"file {file.path}: expected deleted rows among its {self._rows_of_file[number]} rows, got row "
                f"{wrong}. This is not the file that the table refers to."
            )
        return positions

    def _check_count(self, item: RowDeletes, number: int) -> None:
        rows = self._rows_of_file[number]
        if not 0 <= item.count <= rows:
            raise DatasetError(
                f"file {self._table.files[number].path}: expected at most {rows} deleted rows, because it has no more, "
                f"got {item.count}. This is not the file that the table refers to."
            )

    def _read_positions(self, place: int) -> dict[str, np.ndarray]:
        item = self._table.deletes[place]
        table = _checked(self._dataset, item, partial(_positions, self._dataset, item))
        paths = one_array(table.column("file_path"))
        encoded = paths if pa.types.is_dictionary(paths.type) else paths.dictionary_encode()
        codes = arrow_to_numpy(encoded.indices)
        positions = arrow_to_numpy(table.column("pos"))
        order = np.argsort(codes, kind="stable")
        bounds = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
        names = encoded.dictionary.to_pylist()
        return {name: positions[order[bounds[n] : bounds[n + 1]]] for n, name in enumerate(names)}

    def _read_values(self, places: tuple[int, ...]) -> pa.Table:
        """The combined values of several equality deletes on the same columns."""
        tables = []
        for place in places:
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
                stored = held.column(path[0])
                columns.append(_checked(self._dataset, item, partial(stored.cast, column.arrow)))
            tables.append(pa.table(columns, names=[column.name for column in item.columns]))
        return pa.concat_tables(tables)


def _checked(dataset: StoredFiles, item: RowDeletes, read: Callable[[], Any]) -> Any:
    """Reads deleted rows, again where the store fails for a moment."""
    place = f"{item.kind} of deleted rows {item.path or '(inline)'}"
    try:
        return with_retries(dataset.filesystem, read, place)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        damaged = (
            "It is damaged, or has since been removed (by VACUUM or snapshot expiry). Use a later version of the table."
        )
        raise DatasetError(
            f"{place}: expected a readable one, got: {error}. {remedy(error, damaged)}"
        ) from clean_cause(error)


def _positions(dataset: StoredFiles, item: RowDeletes) -> pa.Table:
    table = _read_parquet(dataset, item, ["file_path", "pos"])
    if table.column_names != ["file_path", "pos"] or any(column.null_count for column in table.columns):
        raise ValueError(f"columns without nulls 'file_path' and 'pos', got {table.schema.names}")
    return table.set_column(1, "pos", table.column("pos").cast(pa.int64()))


def _read_parquet(dataset: StoredFiles, item: RowDeletes, columns: list[str] | None = None) -> pa.Table:
    with dataset.filesystem.open_input_file(item.path) as source:
        file = open_checked(source)
        table = file.read(columns=columns)
        check_counts(table, file.metadata.num_rows, f"delete file {item.path}")
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
        codes.append(arrow_to_numpy(both.dictionary_encode(null_encoding="encode").indices))
    _, number = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)
    number = number.reshape(-1)
    return np.isin(number[: len(table)], number[len(table) :])
