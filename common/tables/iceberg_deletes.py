"""Matches the delete files of an Iceberg snapshot to its data files.

Rules (https://iceberg.apache.org/spec/#scan-planning): a deletion vector applies to the data file that it names, if
that is not newer. Position deletes apply to data files of their partition that are not newer and have no deletion
vector. Equality deletes apply to older data files of their partition, or of all partitions if they are unpartitioned.

pyiceberg plans position deletes only, and refuses tables with equality deletes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..base.errors import DatasetError
from ..dataset.table import BITMAP, EQUALITY, POSITIONS, RowDeletes, TableColumn
from .iceberg_columns import table_columns
from .iceberg_manifests import Entry

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable

_PATH_FIELD = 2147483546
_FRAME_BYTES = 8  # the length and the checksum around a deletion vector

Key = tuple[int, tuple[Any, ...]]


class DeleteIndex:
    """The deletes of a snapshot, indexed by the data files that they apply to.

    Args:
        path_of: converts the location of a file to a path; see `iceberg._Storage`.

    Raises:
        DatasetError: a delete file is not supported.
    """

    def __init__(self, what: str, table: IcebergTable, path_of: Callable[[str], str], entries: list[Entry]) -> None:
        self._what = what
        self._table = table
        self._path_of = path_of
        self._all: list[RowDeletes] = []
        self._vectors: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._named: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._positions: dict[Key, list[tuple[int, int]]] = defaultdict(list)
        self._equalities: dict[Key | None, list[tuple[int, int]]] = defaultdict(list)
        columns: dict[int, TableColumn] | None = None
        for entry in entries:
            if entry.is_data:
                continue
            if entry.is_vector:
                name, item = self._vector(entry)
                self._vectors[name].append((entry.sequence, self._add(item)))
            elif int(entry.file.content) == 1:
                place = self._add(RowDeletes(kind=POSITIONS, path=path_of(entry.file.file_path)))
                only = _only_file(entry)
                target = self._positions[_key(entry)] if only is None else self._named[only]
                target.append((entry.sequence, place))
            else:
                columns = _columns_ever(table) if columns is None else columns
                place = self._add(self._equality(entry, columns))
                whole = table.specs()[entry.spec_id].is_unpartitioned()
                self._equalities[None if whole else _key(entry)].append((entry.sequence, place))

    @property
    def all(self) -> tuple[RowDeletes, ...]:
        """All deletes; `of` returns indices in this tuple."""
        return tuple(self._all)

    def of(self, entry: Entry) -> tuple[int, ...]:
        """The indices of the deletes that apply to a data file."""
        path = entry.file.file_path
        deletes = [place for sequence, place in self._vectors.get(path, ()) if sequence >= entry.sequence]
        if len(deletes) > 1:
            raise DatasetError(
                f"{self._what}: expected at most one deletion vector for {path}, got {len(deletes)}. "
                "Rewrite the table's data files."
            )
        if not deletes:  # a deletion vector contains the rows of all position deletes
            candidates = [*self._named.get(path, ()), *self._positions.get(_key(entry), ())]
            deletes = [place for sequence, place in candidates if sequence >= entry.sequence]
        equalities = [*self._equalities.get(None, ()), *self._equalities.get(_key(entry), ())]
        return (*deletes, *(place for sequence, place in equalities if sequence > entry.sequence))

    def _add(self, item: RowDeletes) -> int:
        self._all.append(item)
        return len(self._all) - 1

    def _equality(self, entry: Entry, columns: dict[int, TableColumn]) -> RowDeletes:
        keys = []
        for field_id in entry.file.equality_ids or ():
            column = columns.get(field_id)
            if column is None:
                raise DatasetError(
                    f"{self._what}: expected equality deletes of known columns, got field id {field_id} in "
                    f"{entry.file.file_path}. Rewrite the table's data files."
                )
            keys.append(column)
        if not keys:
            raise DatasetError(
                f"{self._what}: expected the ids of the columns that {entry.file.file_path} compares, got none."
            )
        path = self._path_of(entry.file.file_path)
        return RowDeletes(kind=EQUALITY, path=path, columns=tuple(sorted(keys, key=lambda column: column.ids)))

    def _vector(self, entry: Entry) -> tuple[str, RowDeletes]:
        """Returns a deletion vector, and the location of its data file."""
        name, offset, size = entry.data_file, entry.content_offset, entry.content_size_bytes
        if name is None or offset is None or size is None:
            raise DatasetError(
                f"{self._what}: expected the data file, offset and size of each deletion vector in "
                f"{entry.file.file_path}, got {name}, {offset} and {size}. Rewrite the table's data files."
            )
        path = self._path_of(entry.file.file_path)
        count = entry.file.record_count
        return name, RowDeletes(kind=BITMAP, path=path, offset=offset, size_bytes=size - _FRAME_BYTES, count=count)


def _only_file(entry: Entry) -> str | None:
    """The data file that a position delete file names, if its entry or its bounds show that there is only one."""
    if entry.data_file is not None:
        return entry.data_file
    lower = (entry.file.lower_bounds or {}).get(_PATH_FIELD)
    upper = (entry.file.upper_bounds or {}).get(_PATH_FIELD)
    return lower.decode() if lower and lower == upper else None


def _key(entry: Entry) -> Key:
    return entry.spec_id, entry.partition


def _columns_ever(table: IcebergTable) -> dict[int, TableColumn]:
    """The columns of all schemas of the table, by field id. Deletes may compare columns that were dropped since."""
    mapping = table.name_mapping()
    older = [schema for _, schema in sorted(table.schemas().items())]
    schemas = [*older, table.schema()]  # the latest schema has the last word
    return {column.ids[-1]: column for schema in schemas for column in table_columns(schema, mapping)[0]}
