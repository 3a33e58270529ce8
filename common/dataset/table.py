"""`Table`: a resolved snapshot of a table as plain data.

It holds an explicit list of files with everything that a table format such as Delta or Iceberg says about them:
partition values, deleted rows, and where each column is stored in the files. It can be compared, hashed, and converted
to JSON, so that every process reads the same snapshot. The functions in `tables/` return a `TableSource`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from types import ModuleType
from typing import Any, Literal

import pyarrow as pa
import pyarrow.fs as pafs

from ..base.errors import DatasetError, missing_package
from ..base.process.dataclass import dataclass
from ..base.process.forks import cached_property
from ..schema.arrow_types import arrow_type_from_json, arrow_type_to_json
from ..schema.field import UnischemaField
from ..schema.training_statistics import TrainingStatistics
from ..storage.file_versions import FileVersion

BITMAP: Literal["bitmap"] = "bitmap"
POSITIONS: Literal["positions"] = "positions"
EQUALITY: Literal["equality"] = "equality"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumn:
    """One leaf column of a table; the members of a struct are separate columns.

    Attributes:
        name: the name in the table, dotted for members.
        arrow: the type in the table; files may store a narrower one.
        nullable: whether values may be null.
        ids: Parquet field ids from the top-level column down to the leaf.
        names: for each of those levels, the names that a file may use if it has no ids. A file lacks the column if a
            level has no names; without levels, the column can be found only by ids.
        partition: whether the values come from the file list instead of the files.
        default: the value (as text) in files that lack the column; ``None`` = null. It is null where the struct around
            the column is null.
        default_depth: how many of the structs around the column a file must have for the default to apply. Without
            them, the column is null.
        field: the field for this column, if its Arrow type is not enough to infer it (an image).
        in_files: whether each value is a file of its own; the table's only file is then a `manifest` that lists them.
        texts: for a column of text that files store as numbers, the text that each number stands for, from 0.
    """

    name: str
    arrow: pa.DataType
    nullable: bool = True
    ids: tuple[int, ...] = ()
    names: tuple[tuple[str, ...], ...] = ()
    partition: bool = False
    default: str | None = None
    default_depth: int = 0
    field: UnischemaField | None = None
    in_files: bool = False
    texts: tuple[str, ...] = ()

    @property
    def is_image_struct(self) -> bool:
        """Whether it is an image under the name of a struct of ``bytes`` and ``path``, as Hugging Face stores them."""
        *above, last = self.names or ((),)
        return last == ("bytes",) and self.name == ".".join(names[0] for names in above)

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON object."""
        more: dict[str, Any] = (
            {"in_files": True} if self.in_files else {}
        )  # leaves the digests of other tables unchanged
        if self.default_depth:
            more["default_depth"] = self.default_depth
        if self.texts:
            more["texts"] = list(self.texts)
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
            default_depth=value.get("default_depth", 0),
            field=None if field is None else UnischemaField.from_json(field),
            in_files=value.get("in_files", False),
            texts=tuple(value.get("texts", ())),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDeletes:
    """A record of deleted rows of some files.

    Attributes:
        kind: ``"bitmap"`` (a deletion vector: a roaring bitmap of row numbers), ``"positions"`` (a Parquet file of file
            names and row numbers), or ``"equality"`` (a Parquet file of values; rows with these values are deleted).
        path: the path of the file on the data's file system; empty for an inline bitmap.
        inline: the bytes of an inline bitmap, base64.
        offset, size_bytes: the position and size of a bitmap in its file.
        count: the number of rows that a bitmap deletes.
        columns: the columns that an equality delete compares.
    """

    kind: Literal["bitmap", "positions", "equality"]
    path: str = ""
    inline: str = ""
    offset: int = 0
    size_bytes: int = 0
    count: int = 0
    columns: tuple[TableColumn, ...] = ()

    def to_json(self) -> list[Any]:
        """Returns a JSON list, which is compact, because there may be many."""
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
        version: the version that was listed. Its store is empty for formats that never change a file.
        location: the name that delete files use for it; empty if no delete file names it.
        values: ``(column, text)`` pairs for partition columns and for columns that the file itself lacks.
        deletes: the indices in `Table.deletes` of the deletes that apply to it.
    """

    version: FileVersion
    location: str = ""
    values: tuple[tuple[str, str | None], ...] = ()
    deletes: tuple[int, ...] = ()

    @property
    def path(self) -> str:
        """The path on the file system."""
        return self.version.path

    @property
    def size_bytes(self) -> int:
        """The size that the table states."""
        return self.version.size_bytes

    def to_json(self) -> list[Any]:
        """Returns a JSON list, which is compact, because there may be many."""
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


@dataclass(frozen=True, kw_only=True)  # no slots, so that the digest can be cached
class Table:
    """A snapshot of a table.

    Attributes:
        kind: the format, such as ``"delta"``.
        root: the directory of the table on its file system; file names are relative to it.
        identity: the format's own ID of the table, independent of its location.
        version: the version of the snapshot.
        refused: ``(column, reason)`` pairs for columns that cannot be read.
        labels: ``(column, names)`` pairs for columns of class numbers.
        statistics: what the table's metadata says about the numbers of its columns; ``None`` = nothing.
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
    statistics: TrainingStatistics | None = None

    @property
    def is_manifest(self) -> bool:
        """Whether the only file is a manifest of files that hold values. It is local and named after its content."""
        return any(column.in_files for column in self.columns)

    @cached_property
    def digest(self) -> str:
        """A digest that identifies this snapshot, independent of the table's location."""
        files = () if self.is_manifest else self.files  # `identity` covers a manifest's content
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
        """Returns a JSON object."""
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
            "statistics": None if self.statistics is None else self.statistics.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Table:
        """The inverse of `to_json`."""
        statistics = value.get("statistics")
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
            statistics=None if statistics is None else TrainingStatistics.from_json(statistics),
        )

    def __str__(self) -> str:
        return f"{self.kind}, version {self.version}" if self.version else self.kind


def _name(table: Table, path: str) -> str:
    return path[len(table.root) :] if table.root and path.startswith(table.root) else path


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSource:
    """A snapshot of a table, and how to access its files.

    Attributes:
        filesystem: the file system of the files; ``None`` = the URL's own.
    """

    url: str
    table: Table
    filesystem: pafs.FileSystem = None


def sorted_files(table: Table) -> Table:
    """The table with its files in path order, as in every dataset."""
    return replace(table, files=tuple(sorted(table.files, key=lambda file: file.path)))


def import_package(name: str, *, extra: str, what: str) -> ModuleType:
    """Imports an optional package. Raises `DatasetError`, with the extra to install, if it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise DatasetError(f"{what}: {missing_package(error, name.partition('.')[0], extra)}") from error
