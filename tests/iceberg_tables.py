"""Iceberg tables in an SQLite catalog, and delete files that pyiceberg cannot write."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import delta_tables
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate
from pyiceberg.typedef import Record


def catalog_in(path: Path) -> SqlCatalog:
    """Returns a catalog with its tables under ``path``."""
    catalog = SqlCatalog("local", **options_of(path))
    catalog.create_namespace("n")
    return catalog


def options_of(path: Path) -> dict[str, str]:
    """Returns the properties that load a catalog of `catalog_in`."""
    return {"type": "sql", "uri": f"sqlite:///{path}/catalog.db", "warehouse": f"file://{path}/warehouse"}


def data_files(table: Table) -> list[str]:
    """Returns the locations of the data files, sorted by first id."""
    tasks = {task.file.file_path for task in table.scan().plan_files()}
    return sorted(tasks, key=lambda path: pq.read_table(path.removeprefix("file://")).column(0)[0].as_py())


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _VectorManifest(_DeleteManifest):
    """A manifest of format 3, which says where deletion vectors are."""

    @property
    def version(self) -> Any:
        return 3

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        schema = self._with_partition(3)
        return AvroOutputFile(
            output_file=self._output_file,
            file_schema=schema,
            record_schema=schema,
            schema_name="manifest_entry",
            metadata=self._meta,
        )


def position_deletes(
    table: Table,
    name: str,
    rows: Iterable[tuple[str, int]],
    *,
    partition: Record | None = None,
    odd: Sequence[tuple[str | None, int | None]] = (),
) -> DataFile:
    """Writes a file of ``(location, row)`` pairs. ``odd`` has more of them, with nulls, which the format forbids."""
    pairs = [*odd, *sorted(rows)]
    ids = [{"PARQUET:field_id": "2147483546"}, {"PARQUET:field_id": "2147483545"}]
    null = bool(odd)
    schema = pa.schema([pa.field("file_path", pa.string(), null, ids[0]), pa.field("pos", pa.int64(), null, ids[1])])
    data = pa.table([[path for path, _ in pairs], [row for _, row in pairs]], schema=schema)
    return _delete_file(table, name, data, DataFileContent.POSITION_DELETES, partition=partition)


def equality_deletes(
    table: Table, name: str, data: pa.Table, ids: Mapping[str, int], *, partition: Record | None = None
) -> DataFile:
    """Writes a file of values; rows that match all of them are deleted."""
    fields = [field.with_metadata({"PARQUET:field_id": str(ids[field.name])}) for field in data.schema]
    content = DataFileContent.EQUALITY_DELETES
    made = data.cast(pa.schema(fields))
    return _delete_file(
        table, name, made, content, equality_ids=[ids[n] for n in data.column_names], partition=partition
    )


def deletion_vectors(
    table: Table, name: str, rows: Mapping[str, Iterable[int]], *, partition: Record | None = None
) -> list[DataFile]:
    """Writes a Puffin file with one deletion vector per data file, and returns the entry of each vector."""
    blobs, body = [], b"PFA1"
    places = []
    for location, numbers in rows.items():
        numbers = list(numbers)
        blob = delta_tables.framed(delta_tables.bitmap(numbers))
        properties = {"referenced-data-file": location, "cardinality": str(len(numbers))}
        place = {"offset": len(body), "length": len(blob)}
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [],
                "snapshot-id": -1,
                "sequence-number": -1,
                **place,
                "properties": properties,
            }
        )
        places.append((location, len(numbers), len(body), len(blob)))
        body += blob
    footer = json.dumps({"blobs": blobs}).encode()
    body += b"PFA1" + footer + struct.pack("<II", len(footer), 0) + b"PFA1"
    path = _place(table, name)
    path.write_bytes(body)
    return [
        DataFile.from_args(
            _table_format_version=3,
            content=DataFileContent.POSITION_DELETES,
            file_path=f"file://{path}",
            file_format=FileFormat("PUFFIN"),
            partition=partition or Record(),
            record_count=count,
            file_size_in_bytes=len(body),
            referenced_data_file=location,
            content_offset=offset,
            content_size_in_bytes=size,
        )
        for location, count, offset, size in places
    ]


def _place(table: Table, name: str) -> Path:
    path = Path(table.location().removeprefix("file://")) / "data" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _delete_file(table: Table, name: str, data: pa.Table, content: DataFileContent, **more: Any) -> DataFile:
    path = _place(table, name)
    pq.write_table(data, path)
    return _described(path, path.stat().st_size, len(data), content, FileFormat.PARQUET, **more)


def _described(
    path: Path,
    size: int,
    count: int,
    content: DataFileContent,
    file_format: FileFormat,
    equality_ids: list[int] | None = None,
    partition: Record | None = None,
) -> DataFile:
    return DataFile.from_args(
        content=content,
        file_path=f"file://{path}",
        file_format=file_format,
        partition=partition or Record(),
        record_count=count,
        file_size_in_bytes=size,
        equality_ids=equality_ids,
    )


def commit_deletes(table: Table, *files: DataFile, spec_id: int | None = None) -> Table:
    """Adds a snapshot with the files of the current one and these delete files or deletion vectors."""
    before = table.current_snapshot()
    assert before is not None
    snapshot_id, sequence = before.snapshot_id + 1, table.metadata.last_sequence_number + 1
    root = f"{table.location()}/metadata"
    spec = table.spec() if spec_id is None else table.specs()[spec_id]
    manifests = []
    for kind in (_DeleteManifest, _VectorManifest):
        held = [file for file in files if (file.file_format == "PUFFIN") == (kind is _VectorManifest)]
        if held:
            output = table.io.new_output(f"{root}/{kind.__name__}-{snapshot_id}.avro")
            with kind(spec, table.schema(), output, snapshot_id, "null") as writer:
                for file in held:
                    entry = ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, sequence_number=None, data_file=file
                    )
                    writer.add_entry(entry)
            manifests.append(writer.to_manifest_file())
    name = f"{root}/list-{snapshot_id}.avro"
    with write_manifest_list(2, table.io.new_output(name), snapshot_id, before.snapshot_id, sequence, "null") as lists:
        lists.add_manifests([*before.manifests(table.io), *manifests])
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=before.snapshot_id,
        sequence_number=sequence,
        manifest_list=name,
        summary=Summary(Operation.DELETE),
        schema_id=table.schema().schema_id,
    )
    reference = SetSnapshotRefUpdate(ref_name="main", type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id)
    table._do_commit((AddSnapshotUpdate(snapshot=snapshot), reference), ())
    return table
