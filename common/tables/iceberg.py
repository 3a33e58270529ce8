"""Iceberg tables: the data files of one snapshot, the deletes that apply to them, and columns by field id.

It takes a pyiceberg table and a snapshot, and returns a `TableSource`. An unsupported feature that could change rows is
an error. Rules: https://iceberg.apache.org/spec/ (scan planning, column projection, delete formats).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow.fs as pafs

from ..base.errors import DatasetError, ParquetryError
from ..base.urls import clean_cause
from ..dataset.table import Table, TableColumn, TableFile, TableSource, import_package, sorted_files
from ..storage.file_versions import FileVersion
from ..storage.filesystem import resolve
from .iceberg_columns import table_columns, value_text
from .iceberg_deletes import DeleteIndex
from .iceberg_manifests import read_entries

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table as IcebergTable
    from pyiceberg.table.snapshots import Snapshot

_STORES = {"": "file", "s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}
"""The schemes that name the store of another scheme, as engines differ in how they write them."""


def open_iceberg(
    table: object,
    snapshot_id: int | None,
    *,
    catalog_options: Mapping[str, Any] | None = None,
    filesystem: object = None,
) -> TableSource:
    """Opens a snapshot of an Iceberg table; ``None`` = the snapshot that is current now.

    Raises:
        DatasetError: there is no such table or snapshot, or the table has an unsupported feature.
    """
    source = _load(table, catalog_options)
    what = f"Iceberg table {'.'.join(source.name())}"
    try:
        return _opened(what, source, snapshot_id, filesystem)
    except ParquetryError:
        raise
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DatasetError(
            f"{what}: expected metadata that follows the specification, got: {error!r}. Repair the table."
        ) from clean_cause(error)


def _opened(what: str, found: IcebergTable, snapshot_id: int | None, filesystem: object) -> TableSource:
    snapshot, schema = _snapshot(what, found, snapshot_id)
    storage = _Storage(what, found, filesystem)
    columns, refused = table_columns(schema, found.name_mapping())
    entries = [] if snapshot is None else read_entries(what, snapshot, found.io)
    deletes = DeleteIndex(what, found, storage.path, entries)
    identities = _identities(found, columns)
    made = Table(
        kind="iceberg",
        root=storage.path(found.location()),
        identity=str(found.metadata.table_uuid),
        version="empty" if snapshot is None else str(snapshot.snapshot_id),
        columns=tuple(columns),
        files=tuple(
            TableFile(
                version=FileVersion(
                    path=storage.path(entry.file.file_path), size_bytes=entry.file.file_size_in_bytes, tag="iceberg="
                ),
                location=entry.file.file_path,
                values=tuple(
                    (column.name, value_text(column, entry.partition[number]))  # for files without that column
                    for number, column in identities[entry.spec_id]
                ),
                deletes=deletes.of(entry),
            )
            for entry in entries
            if entry.is_data
        ),
        deletes=deletes.all,
        refused=tuple(refused),
    )
    return TableSource(url=found.location(), table=sorted_files(made), filesystem=storage.filesystem)


def _load(table: object, catalog_options: Mapping[str, Any] | None) -> IcebergTable:
    what = f"Iceberg table {table!r}" if isinstance(table, str) else "Iceberg table"
    import_package("pyiceberg.table", extra="iceberg", what=what)
    from pyiceberg.table import Table as IcebergTable

    if isinstance(table, IcebergTable):
        return table
    if not isinstance(table, str) or table.count(".") < 2:
        raise DatasetError(f"{what}: expected a pyiceberg Table, or a name 'catalog.namespace.table', got {table!r}.")
    from pyiceberg.catalog import load_catalog

    catalog, _, name = table.partition(".")
    try:
        return load_catalog(catalog, **dict(catalog_options or {})).load_table(name)
    except Exception as error:  # catalogs are plug-ins; their errors have no common base class
        raise DatasetError(f"{what}: cannot be loaded: {type(error).__name__}: {error}") from clean_cause(error)


def _snapshot(what: str, table: IcebergTable, snapshot_id: int | None) -> tuple[Snapshot | None, Schema]:
    """Returns the snapshot and its schema. Without ``snapshot_id``, these are the table's current ones."""
    if snapshot_id is None:
        return table.current_snapshot(), table.schema()
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        known = [item.snapshot_id for item in table.snapshots()]
        raise DatasetError(f"{what}: expected snapshot_id to be one of {known}, got {snapshot_id}.")
    schema = table.schema() if snapshot.schema_id is None else table.schemas()[snapshot.schema_id]
    return snapshot, schema


def _identities(table: IcebergTable, columns: Sequence[TableColumn]) -> dict[int, list[tuple[int, TableColumn]]]:
    """For each partition spec, by ID: the numbers of the fields that are column values, and their columns."""
    from pyiceberg.transforms import IdentityTransform

    by_id = {column.ids[-1]: column for column in columns}
    return {
        spec_id: [
            (number, by_id[field.source_id])
            for number, field in enumerate(spec.fields)
            if isinstance(field.transform, IdentityTransform) and field.source_id in by_id
        ]
        for spec_id, spec in table.specs().items()
    }


class _Storage:
    """Locates the files of a table, on the file system that pyiceberg itself uses if that is one of Arrow's."""

    def __init__(self, what: str, table: IcebergTable, filesystem: pafs.FileSystem) -> None:
        self._what = what
        self._io = table.io
        self.filesystem: pafs.FileSystem = filesystem
        self._scheme = _scheme_of(table.location())
        if filesystem is None and self._scheme not in ("", "file"):
            self.filesystem = self._own(table.location())

    def path(self, location: str) -> str:
        """Converts the location of a file to a path on the file system."""
        if "\0" in location:
            raise DatasetError(f"{self._what}: expected paths without NUL characters, got {location!r}.")
        scheme = _scheme_of(location)
        if _STORES.get(scheme, scheme) != _STORES.get(self._scheme, self._scheme):
            raise DatasetError(
                f"{self._what}: expected all files on one file system ({self._scheme or 'file'}), got '{location}'. "
                "Rewrite its data files, or pass filesystem=."
            )
        if self._scheme in ("", "file"):  # not a URL: a percent sign is literal
            plain = location.removeprefix("file:")
            return os.path.abspath("/" + plain.lstrip("/") if plain != location else plain)
        if self._scheme in ("hdfs", "viewfs"):
            return urlsplit(location).path  # the host belongs to the file system
        return resolve(self._scheme + location[len(scheme) :], filesystem=self.filesystem)[1]

    def _own(self, location: str) -> Any:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        if isinstance(self._io, PyArrowFileIO):
            scheme, netloc, _ = PyArrowFileIO.parse_location(location)
            return self._io.fs_by_scheme(scheme, netloc)
        return resolve(location)[0]


def _scheme_of(location: str) -> str:
    scheme, found, _ = location.partition(":/")
    return scheme.lower() if found else ""
