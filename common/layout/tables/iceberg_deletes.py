"""Matches the delete files of an Iceberg snapshot to its data files.

Rules (https://iceberg.apache.org/spec/#scan-planning): position deletes and deletion vectors apply to data files of
their partition that are not newer. Equality deletes apply to older data files of their partition, or of all partitions
if they are unpartitioned.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from ...errors import DatasetError
from ...urls import clean_cause
from ..retries import with_retries
from ..table import BITMAP, EQUALITY, POSITIONS, RowDeletes, TableColumn
from .iceberg_columns import table_columns
from .iceberg_manifests import Entry

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

_PATH_FIELD = 2147483546
_MAGIC = b"PFA1"
_COMPRESSED = 1

Key = tuple[int, tuple[Any, ...]]


class DeleteIndex:
    """The deletes of a snapshot, indexed by the data files that they apply to.

    Args:
        storage: provides paths and the file system; see `iceberg._Storage`.

    Raises:
        DatasetError: a delete file is not supported.
    """

    def __init__(self, what: str, table: IcebergTable, storage: Any, entries: list[Entry]) -> None:
        self._what = what
        self._table = table
        self._storage = storage
        self._all: list[RowDeletes] = []
        self._named: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._positions: dict[Key, list[tuple[int, int]]] = defaultdict(list)
        self._equalities: dict[Key | None, list[tuple[int, int]]] = defaultdict(list)
        columns: list[TableColumn] | None = None
        for entry in entries:
            if entry.is_data:
                continue
            if _format_of(entry) == "puffin":
                for location, item in self._vectors(entry):
                    self._named[location].append((entry.sequence, self._add(item)))
            elif int(entry.file.content) == 1:
                place = self._add(RowDeletes(kind=POSITIONS, path=storage.path(entry.file.file_path)))
                name = _only_file(entry)
                target = self._positions[_key(entry)] if name is None else self._named[name]
                target.append((entry.sequence, place))
            else:
                columns = _columns_ever(what, table) if columns is None else columns
                place = self._add(self._equality(entry, columns))
                whole = table.specs()[entry.spec_id].is_unpartitioned()
                self._equalities[None if whole else _key(entry)].append((entry.sequence, place))

    @property
    def all(self) -> tuple[RowDeletes, ...]:
        """All deletes; `of` returns indices in this tuple."""
        return tuple(self._all)

    def of(self, entry: Entry) -> tuple[int, ...]:
        """The indices of the deletes that apply to a data file."""
        candidates = [*self._named.get(entry.file.file_path, ()), *self._positions.get(_key(entry), ())]
        found = [place for sequence, place in candidates if sequence >= entry.sequence]
        equalities = [*self._equalities.get(None, ()), *self._equalities.get(_key(entry), ())]
        return (*found, *(place for sequence, place in equalities if sequence > entry.sequence))

    def _add(self, item: RowDeletes) -> int:
        self._all.append(item)
        return len(self._all) - 1

    def _equality(self, entry: Entry, columns: list[TableColumn]) -> RowDeletes:
        found = []
        for field_id in entry.file.equality_ids or ():
            column = next((column for column in columns if column.ids[-1] == field_id), None)
            if column is None:
                raise DatasetError(
                    f"{self._what}: expected equality deletes of known columns, got field id {field_id} in "
                    f"{entry.file.file_path}. Rewrite the table's data files."
                )
            found.append(column)
        if not found:
            raise DatasetError(
                f"{self._what}: expected the ids of the columns that {entry.file.file_path} compares, got none."
            )
        path = self._storage.path(entry.file.file_path)
        return RowDeletes(kind=EQUALITY, path=path, columns=tuple(sorted(found, key=lambda column: column.ids)))

    def _vectors(self, entry: Entry) -> Iterator[tuple[str, RowDeletes]]:
        """Yields the deletion vectors in a Puffin file, each with the data file that it applies to."""
        path = self._storage.path(entry.file.file_path)
        try:
            yield from vectors_in(_puffin_footer(self._storage.opened(), path), path)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, struct.error, pa.ArrowException) as error:
            raise DatasetError(
                f"{self._what}: expected deletion vectors in {entry.file.file_path}, got: {error!r}. "
                "The file is damaged, or has since been removed."
            ) from clean_cause(error)


def vectors_in(footer: bytes, path: str) -> list[tuple[str, RowDeletes]]:
    """Returns the deletion vectors that the JSON in a Puffin footer lists, each with the data file it applies to.

    Raises:
        ValueError, KeyError, TypeError, RecursionError: the footer is not as the specification says.
    """
    found = []
    for blob in json.loads(footer)["blobs"]:
        if blob["type"] == "deletion-vector-v1":
            name, count = blob["properties"]["referenced-data-file"], int(str(blob["properties"]["cardinality"]))
            offset, length = blob["offset"], blob["length"]
            if type(name) is not str or type(offset) is not int or type(length) is not int or min(offset, count) < 0:
                raise ValueError(f"a deletion vector of {str(name)[:80]!r} with numbers {offset}, {length}, {count}")
            size = length - 8  # without the length and the checksum
            found.append((name, RowDeletes(kind=BITMAP, path=path, offset=offset, size_bytes=size, count=count)))
    return found


def _puffin_footer(filesystem: pafs.FileSystem, path: str) -> bytes:
    """Reads the JSON of a footer (https://iceberg.apache.org/puffin-spec/): magic, JSON, its size, flags, magic."""

    def read() -> tuple[int, bytes, bytes]:
        with filesystem.open_input_file(path) as file:
            end = file.size()
            size, flags, magic = struct.unpack("<II4s", file.read_at(12, end - 12))
            if size > end - 16:
                raise ValueError(f"a footer of {size} bytes in a file of {end}")
            return flags, magic, file.read_at(size + 4, end - 16 - size)

    flags, magic, raw = with_retries(filesystem, read, f"Puffin file {path}")
    if magic != _MAGIC or raw[:4] != _MAGIC:
        raise ValueError("no Puffin footer")
    if flags & _COMPRESSED:
        raise ValueError("a compressed footer, which is not supported")
    return raw[4:]


def _format_of(entry: Entry) -> str:
    return str(getattr(entry.file.file_format, "value", entry.file.file_format)).lower()


def _only_file(entry: Entry) -> str | None:
    """The data file that a position delete file names, if its bounds show that there is only one."""
    lower = (entry.file.lower_bounds or {}).get(_PATH_FIELD)
    upper = (entry.file.upper_bounds or {}).get(_PATH_FIELD)
    return lower.decode() if lower and lower == upper else None


def _key(entry: Entry) -> Key:
    return entry.spec_id, entry.partition


def _columns_ever(what: str, table: IcebergTable) -> list[TableColumn]:
    """The columns of all schemas of the table, latest first: deletes may compare columns that were dropped since."""
    mapping = table.name_mapping()
    older = [schema for _, schema in sorted(table.schemas().items(), reverse=True)]
    return [column for schema in [table.schema(), *older] for column in table_columns(what, schema, mapping)[0]]
