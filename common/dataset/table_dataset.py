"""Presents a `Table` as a dataset: its files as a listing, its columns as fields, its values as partition columns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from ..base.errors import SchemaError
from ..parquet.int96 import footer_schema
from ..schema.field import Unischema, UnischemaField, schema_from_metadata
from ..schema.infer import infer_field
from ..storage.file_versions import FileVersion, current_version
from ..storage.files import DataFile, FileListing
from ..storage.filesystem import resolve
from ..storage.stores import store_of
from .row_groups import StoredFiles
from .table import Table, TableColumn
from .table_read import locate, parse_values


def table_listing(url: str, table: Table, *, filesystem: object, storage_options: dict[str, Any] | None) -> FileListing:
    """The files of the table, in path order. Only local files are looked up, which is cheap."""
    store = table_filesystem(url, table, filesystem=filesystem, storage_options=storage_options)
    root = table.root.rstrip("/") + "/"
    files = [
        DataFile(
            version=_on_store(store, file.version),
            relative=file.path[len(root) :] if file.path.startswith(root) else file.path,
        )
        for file in table.files
    ]
    return FileListing(filesystem=store, roots=(table.root,), files=tuple(files), metadata_files=())


def table_filesystem(
    url: str, table: Table | None, *, filesystem: object, storage_options: dict[str, Any] | None
) -> pafs.FileSystem:
    """The file system of a dataset's data files."""
    if table is not None and table.is_manifest:
        return pafs.LocalFileSystem()
    return resolve(url, filesystem=filesystem, storage_options=storage_options)[0]


def _on_store(filesystem: pafs.FileSystem, version: FileVersion) -> FileVersion:
    """The file version that a table refers to; for a local file, the current version."""
    if version.store or version.plan:
        return version  # complete as listed
    now = None
    if isinstance(filesystem, pafs.LocalFileSystem):
        now = current_version(filesystem, version.path)
    return now or replace(version, store=store_of(filesystem))


def describe_table(dataset: StoredFiles, table: Table) -> tuple[Unischema, dict[str, str], dict[str, pa.Array]]:
    """Returns the schema, the columns that cannot become tensors, and each partition column's values by file."""
    declared = _declared(dataset)
    fields: list[UnischemaField] = []
    refused = dict(table.refused)
    times = Counter(column.name for column in table.columns)
    for column in table.columns:
        if times[column.name] > 1:
            refused[column.name] = (
                f"field '{column.name}': expected one column of this name in the table, got {times[column.name]}, so "
                "the name is ambiguous. Rename one of them in the table, or deselect the field with select(...) or "
                "fields=[...]."
            )
            continue
        try:
            fields.append(column.field or _as_declared(column, declared, dataset) or _inferred(column))
        except SchemaError as error:
            refused[column.name] = str(error)
    partitions: dict[str, pa.Array] = {}
    for column in table.columns:
        if column.partition and column.name not in refused:
            texts = [dict(file.values).get(column.name) for file in table.files]
            partitions[column.name] = parse_values(texts, column)
    return Unischema(table.kind, fields), refused, partitions


def _inferred(column: TableColumn) -> UnischemaField:
    return infer_field(column.name, pa.field(column.name, column.arrow, column.nullable))


def _declared(dataset: StoredFiles) -> Unischema | None:
    """The schema that `write_dataset` stored in files that became a table. Only this schema has the codecs."""
    if not dataset.files:
        return None
    footer, where = dataset.head(0), dataset.files[0].path
    return schema_from_metadata(footer.metadata, where=where)


def _as_declared(column: TableColumn, declared: Unischema | None, dataset: StoredFiles) -> UnischemaField | None:
    if declared is None or column.partition:
        return None
    path = locate(footer_schema(dataset.head(0)), column, where=dataset.files[0].path)
    stored = None if path is None else ".".join(path)
    if stored is None or stored not in declared:
        return None
    field = declared[stored]
    if not field.storage.coded:
        return None
    return field.replace(name=column.name, nullable=field.nullable or column.nullable)
