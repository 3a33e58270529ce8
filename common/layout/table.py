"""`Table`: an explicit list of files, with what a table format says about them, as plain data.

What a snapshot of a Delta or Iceberg table is, once resolved: files, partition values, deleted rows, and for each
column where files hold it. It compares, hashes, and goes to JSON, so that every process reads the same snapshot.
`TableSource` is what the makers in `tables/` give.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import pyarrow as pa
import pyarrow.fs as pafs

from ..errors import DatasetError, missing_package
from ..forks import cached_property
from ..schema.arrow_types import arrow_type_from_json, arrow_type_to_json
from ..schema.field import UnischemaField
from .file_versions import FileVersion

BITMAP: Literal["bitmap"] = "bitmap"
POSITIONS: Literal["positions"] = "positions"
EQUALITY: Literal["equality"] = "equality"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One column (a leaf; the members of a struct are columns of their own).

    Attributes:
        name: its name in the table, dotted for members.
        arrow: its type in the table; files may hold a narrower one.
        nullable: whether rows may have no value.
        ids: Parquet field ids from the top-level column down to the leaf.
        names: for each of those levels the names that a file may use, where it is not found by ids.
        partition: its values come from the file list, never from the files.
        default: the value (as text) in files that lack the column; ``None`` = null.
        field: the field that it becomes where that is more than its type tells (an image).
        in_files: each value is a file of its own; the table's one file is a `manifest`, which lists them.
    """

    name: str
    arrow: pa.DataType
    nullable: bool = True
    ids: tuple[int, ...] = ()
    names: tuple[tuple[str, ...], ...] = ()
    partition: bool = False
    default: str | None = None
    field: UnischemaField | None = None
    in_files: bool = False

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        more = {"in_files": True} if self.in_files else {}  # the digests of other tables stay as they were
        return {
            **more,
            "name": self.name,
            "arrow": arrow_type_to_json(self.arrow),
            "nullable": self.nullable,
            "ids": list(self.ids),
            "names": [list(names) for names in self.names],
            "partition": self.partition,
            "default": self.default,
            "field": None if self.field is None else self.field.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TableColumn:
        """The inverse of `to_json`."""
        field = value["field"]
        return cls(
            name=value["name"],
            arrow=arrow_type_from_json(value["arrow"]),
            nullable=value["nullable"],
            ids=tuple(value["ids"]),
            names=tuple(tuple(names) for names in value["names"]),
            partition=value["partition"],
            default=value["default"],
            field=None if field is None else UnischemaField.from_json(field),
            in_files=value.get("in_files", False),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDeletes:
    """Where it is written which rows of some files are deleted.

    Attributes:
        kind: ``"bitmap"`` (a deletion vector: a roaring bitmap of row numbers), ``"positions"`` (a Parquet file of file
            names and row numbers), ``"equality"`` (a Parquet file of values; rows that have them are deleted).
        path: of the file, on the file system of the data; empty for an inline bitmap.
        inline: the bytes of an inline bitmap, base64.
        offset, size_bytes: the place of a bitmap in its file.
        count: how many rows a bitmap deletes.
        columns: the columns that an equality compares.
    """

    kind: Literal["bitmap", "positions", "equality"]
    path: str = ""
    inline: str = ""
    offset: int = 0
    size_bytes: int = 0
    count: int = 0
    columns: tuple[TableColumn, ...] = ()

    def to_json(self) -> list[Any]:
        """A JSON list, because there may be many."""
        columns = [column.to_json() for column in self.columns]
        return [self.kind, self.path, self.inline, self.offset, self.size_bytes, self.count, columns]

    @classmethod
    def from_json(cls, value: list[Any]) -> RowDeletes:
        """The inverse of `to_json`."""
        kind, path, inline, offset, size_bytes, count, columns = value
        return cls(
            kind=kind,
            path=path,
            inline=inline,
            offset=offset,
            size_bytes=size_bytes,
            count=count,
            columns=tuple(TableColumn.from_json(column) for column in columns),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """One data file of a table.

    Attributes:
        version: the one that was listed. A format that promises that its files never change leaves the store empty.
        location: what delete files call it; empty if no delete file names it.
        values: ``(column, text)``: partition columns, and columns that the file itself lacks.
        deletes: numbers of the `Table.deletes` that concern it.
    """

    version: FileVersion
    location: str = ""
    values: tuple[tuple[str, str | None], ...] = ()
    deletes: tuple[int, ...] = ()

    @property
    def path(self) -> str:
        """On the file system."""
        return self.version.path

    @property
    def size_bytes(self) -> int:
        """As the table says."""
        return self.version.size_bytes

    def to_json(self) -> list[Any]:
        """A JSON list, because there may be many."""
        values = [list(pair) for pair in self.values]
        return [self.version.to_json(), self.location, values, list(self.deletes)]

    @classmethod
    def from_json(cls, value: list[Any]) -> TableFile:
        """The inverse of `to_json`."""
        version, location, values, deletes = value
        return cls(
            version=FileVersion.from_json(version),
            location=location,
            values=tuple((name, text) for name, text in values),
            deletes=tuple(deletes),
        )


@dataclass(frozen=True, kw_only=True)  # without slots, so that the digest is kept
class Table:
    """A snapshot of a table.

    Attributes:
        kind: the format, such as ``"delta"``.
        root: the directory of the table on its file system; what the names of files are relative to.
        identity: what the format knows the table by, wherever it lies.
        version: of the snapshot.
        refused: ``(column, reason)`` for those that cannot be read.
        labels: ``(column, names)`` of columns whose integers stand for classes.
    """

    kind: str
    root: str
    identity: str
    version: str
    columns: tuple[TableColumn, ...]
    files: tuple[TableFile, ...]
    deletes: tuple[RowDeletes, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def is_manifest(self) -> bool:
        """Whether its one file lists files that hold values; it lies on this machine, and its content names it."""
        return any(column.in_files for column in self.columns)

    @cached_property
    def digest(self) -> str:
        """What tells this snapshot from all others, wherever the table lies."""
        files = () if self.is_manifest else self.files  # `identity` says what is in it
        text = json.dumps(
            [
                [self.kind, self.identity, self.version],
                [column.to_json() for column in self.columns],
                [[_name(self, file.path), file.size_bytes, file.values, file.deletes] for file in files],
                [[_name(self, item.path), item.kind, item.inline, item.offset, item.count] for item in self.deletes],
            ]
        )
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "kind": self.kind,
            "root": self.root,
            "identity": self.identity,
            "version": self.version,
            "columns": [column.to_json() for column in self.columns],
            "files": [file.to_json() for file in self.files],
            "deletes": [item.to_json() for item in self.deletes],
            "refused": [list(pair) for pair in self.refused],
            "labels": [[name, list(names)] for name, names in self.labels],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Table:
        """The inverse of `to_json`."""
        return cls(
            kind=value["kind"],
            root=value["root"],
            identity=value["identity"],
            version=value["version"],
            columns=tuple(TableColumn.from_json(column) for column in value["columns"]),
            files=tuple(TableFile.from_json(file) for file in value["files"]),
            deletes=tuple(RowDeletes.from_json(item) for item in value["deletes"]),
            refused=tuple((name, reason) for name, reason in value["refused"]),
            labels=tuple((name, tuple(names)) for name, names in value["labels"]),
        )

    def __str__(self) -> str:
        return f"{self.kind}, version {self.version}" if self.version else self.kind


def _name(table: Table, path: str) -> str:
    return path[len(table.root) :] if table.root and path.startswith(table.root) else path


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """A snapshot of a table, and how its files are reached.

    Attributes:
        filesystem: where the files are; ``None`` = the URL's own.
    """

    url: str
    table: Table
    filesystem: pafs.FileSystem = None


def sorted_files(table: Table) -> Table:
    """The table with its files in the order of their paths, as every dataset has them."""
    return replace(table, files=tuple(sorted(table.files, key=lambda file: file.path)))


def import_package(name: str, *, extra: str, what: str) -> ModuleType:
    """An optional package, or an error that names the extra to install."""
    try:
        return import_module(name)
    except ImportError as error:
        raise DatasetError(f"{what}: {missing_package(error, name.partition('.')[0], extra)}") from error
