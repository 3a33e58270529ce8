"""Reads the manifests of an Iceberg snapshot: data and delete files, with sequence numbers and partitions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import DatasetError, ParquetryError
from ...progress import thread_pool
from ...urls import clean_cause
from ..file_cache import UNREADABLE

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.typedef import Record

_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file of a snapshot.

    Attributes:
        file: pyiceberg's ``DataFile``.
        sequence: the file's sequence number.
        spec_id: the ID of its partition spec.
        partition: the values of the fields of that spec.
    """

    file: DataFile
    sequence: int
    spec_id: int
    partition: tuple[Any, ...]

    @property
    def is_data(self) -> bool:
        """Whether the file holds rows rather than deletes."""
        return int(self.file.content) == 0


def read_entries(what: str, snapshot: Snapshot, io: FileIO) -> list[Entry]:
    """Returns every live file of the snapshot.

    Raises:
        DatasetError: the manifests cannot be read, or a data file is encrypted or not Parquet.
    """
    try:
        manifests = snapshot.manifests(io)
        with thread_pool(_THREADS, "parquetry-manifests") as pool:
            lists = list(pool.map(lambda manifest: _entries(manifest, io), manifests))
    except ParquetryError:
        raise
    except (*UNREADABLE, AssertionError, MemoryError) as error:
        raise DatasetError(
            f"{what}: the manifests of snapshot {snapshot.snapshot_id} cannot be read: {error}"
        ) from clean_cause(error)
    entries = [entry for entries in lists for entry in entries]
    for entry in entries:
        kind = str(getattr(entry.file.file_format, "value", entry.file.file_format)).lower()
        if kind != "parquet" and (entry.is_data or kind != "puffin"):
            raise DatasetError(
                f"{what}: expected Parquet files, got {kind} ({entry.file.file_path}). Rewrite the table's data files."
            )
        if entry.file.key_metadata is not None:
            raise DatasetError(f"{what}: expected files without encryption, got {entry.file.file_path}.")
    return entries


def _entries(manifest: ManifestFile, io: FileIO) -> list[Entry]:
    return [
        Entry(
            file=entry.data_file,
            sequence=entry.sequence_number or 0,  # tables of format 1 have no sequence numbers
            spec_id=manifest.partition_spec_id,
            partition=_as_tuple(entry.data_file.partition),
        )
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
    ]


def _as_tuple(record: Record) -> tuple[Any, ...]:
    return tuple(record[number] for number in range(len(record)))
