"""Reads the manifests of an Iceberg snapshot: data and delete files, with sequence numbers and partitions.

Manifests are read with the schema of format 3, whatever the table's format: columns that a manifest lacks are null.
pyiceberg itself reads them with the schema of format 2, which leaves out where deletion vectors are.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, cast

from ..base.errors import DatasetError, ParquetryError
from ..base.process.dataclass import dataclass
from ..base.progress import thread_pool
from ..base.urls import clean_cause
from ..storage.file_cache import UNREADABLE

if TYPE_CHECKING:
    from pyiceberg.avro.decoder import BinaryDecoder
    from pyiceberg.avro.reader import Reader
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.typedef import Record

_THREADS = 8
_ADDED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file of a snapshot.

    Attributes:
        file: pyiceberg's ``DataFile``.
        sequence: the file's sequence number.
        spec_id: the ID of its partition spec.
        partition: the values of the fields of that spec.
        data_file: the location of the only data file that a delete file or a deletion vector applies to, if stated.
        content_offset, content_size_bytes: the place of a deletion vector in its file.
    """

    file: DataFile
    sequence: int
    spec_id: int
    partition: tuple[Any, ...]
    data_file: str | None = None
    content_offset: int | None = None
    content_size_bytes: int | None = None

    @property
    def is_vector(self) -> bool:
        """Whether this is a deletion vector."""
        return not self.is_data and format_of(self.file) == "puffin"

    @property
    def is_data(self) -> bool:
        """Whether the file holds rows rather than deletes."""
        return int(self.file.content) == 0


def read_entries(what: str, snapshot: Snapshot, io: FileIO) -> list[Entry]:
    """Returns every live file of the snapshot.

    Raises:
        DatasetError: the manifests cannot be read, or a data file is not Parquet.
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
        kind = format_of(entry.file)
        if kind != "parquet" and not entry.is_vector:
            raise DatasetError(
                f"{what}: expected Parquet files, got {kind} ({entry.file.file_path}). Rewrite the table's data files."
            )
    return entries


def format_of(file: DataFile) -> str:
    """The format of a file, in lower case."""
    return str(getattr(file.file_format, "value", file.file_format)).lower()


def _entries(manifest: ManifestFile, io: FileIO) -> list[Entry]:
    from pyiceberg.avro.file import AvroFile
    from pyiceberg.manifest import (
        DATA_FILE_TYPE,
        MANIFEST_ENTRY_SCHEMAS,
        DataFile,
        DataFileContent,
        FileFormat,
        ManifestEntry,
        ManifestEntryStatus,
    )

    place = {field.name: number for number, field in enumerate(DATA_FILE_TYPE[3].fields)}
    with AvroFile[ManifestEntry](
        io.new_input(manifest.manifest_path),
        MANIFEST_ENTRY_SCHEMAS[3],
        read_types={-1: ManifestEntry, 2: DataFile},
        read_enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
    ) as reader:
        if _has_doubles(reader.schema):
            reader.reader = cast("Reader", _ExactReader(reader.reader))
        return [
            Entry(
                file=entry.data_file,
                sequence=_sequence(entry, manifest),
                spec_id=manifest.partition_spec_id,
                partition=_as_tuple(entry.data_file.partition),
                data_file=entry.data_file[place["referenced_data_file"]],
                content_offset=entry.data_file[place["content_offset"]],
                content_size_bytes=entry.data_file[place["content_size_in_bytes"]],
            )
            for entry in reader
            if entry.status != ManifestEntryStatus.DELETED
        ]


def _has_doubles(schema: Schema) -> bool:
    """Whether a manifest has partition values of type double."""
    from pyiceberg.types import DoubleType, StructType

    partition = schema.find_type("data_file.partition")
    return isinstance(partition, StructType) and any(isinstance(f.field_type, DoubleType) for f in partition.fields)


class _ExactReader:
    """Reads a record with all digits of its doubles. pyiceberg's own decoder rounds them to 32 bits."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def read(self, decoder: BinaryDecoder) -> Any:
        return self._reader.read(cast("BinaryDecoder", _ExactDecoder(decoder)))


class _ExactDecoder:
    def __init__(self, decoder: BinaryDecoder) -> None:
        self._decoder = decoder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._decoder, name)

    def read_double(self) -> float:
        (value,) = struct.unpack("<d", self._decoder.read(8))
        return float(value)


def _sequence(entry: ManifestEntry, manifest: ManifestFile) -> int:
    """The sequence number of a file. Added files inherit that of the manifest; format 1 has none."""
    if entry.sequence_number is not None:
        return entry.sequence_number
    return manifest.sequence_number if entry.status == _ADDED else 0


def _as_tuple(record: Record) -> tuple[Any, ...]:
    return tuple(record[number] for number in range(len(record)))
