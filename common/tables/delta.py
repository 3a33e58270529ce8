"""Delta tables: the files, partition values, deletion vectors and column mapping of one version.

It takes a URI and a version, and returns a `TableSource`. A table feature that could change rows and is not supported
here is an error. Rules: https://github.com/delta-io/delta/blob/master/PROTOCOL.md.
"""

from __future__ import annotations

import base64
import json
import os
import posixpath
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from ..base.errors import DatasetError, SchemaError
from ..base.urls import clean_cause
from ..dataset.table import BITMAP, RowDeletes, Table, TableColumn, TableFile, TableSource, import_package, sorted_files
from ..storage.file_versions import FileVersion
from ..storage.filesystem import local_path, resolve
from .delta_log import Action, Log
from .delta_times import Time, version_at

if TYPE_CHECKING:
    from deltalake.table import Metadata, ProtocolVersions

Version = int | Time

_KNOWN_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",  # each column of this type is refused
        "variantType-preview",
        "variantShredding-preview",
    }
)
_PRIMITIVES = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = str.maketrans(_Z85, _B85)
_INTEGER = re.compile(r"\+(\d+)", re.ASCII)
_DATE = re.compile(r"\+?(\d{1,4})-(\d{1,2})-(\d{1,2})", re.ASCII)
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_DIGITS = 6  # of the fraction of a second; moments are microseconds
_EPOCH = "1970-01-02"  # the first day that is after 1970 began in every time zone


def open_delta(
    uri: str | os.PathLike[str],
    version: Version | None,
    *,
    filesystem: object = None,
    storage_options: Mapping[str, str] | None = None,
) -> TableSource:
    """Opens a version of a Delta table; ``None`` = the latest version now.

    Raises:
        DatasetError: there is no such table or version, or the table has an unsupported feature.
    """
    text = os.fspath(uri)
    what = f"Delta table '{text}'"
    if "://" not in text:
        text = local_path(text)
    deltalake = import_package("deltalake", extra="delta", what=what)
    asked = "" if version is None else f" at version {version}"
    try:
        filesystem, root = _storage(text, filesystem, storage_options)
        log = Log(filesystem or pafs.LocalFileSystem(), root)
        log.check(log.newest)
        table = deltalake.DeltaTable(text, storage_options=dict(storage_options) if storage_options else None)
        if version is not None:
            if not isinstance(version, int):
                version = version_at(log, version, table.metadata().configuration or {})
            log.check(version)
            table.load_as_version(version)
        number, protocol = int(table.version()), table.protocol()
        metadata, schema = table.metadata(), json.loads(table.schema().to_json())
    except (deltalake.exceptions.DeltaError, OSError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise DatasetError(f"{what}: cannot be opened{asked}: {_message_of(error)}") from clean_cause(error)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # what a panic in Rust becomes; it has no public class
            raise
        raise DatasetError(f"{what}: cannot be opened{asked}: {_message_of(error)}") from clean_cause(error)
    _check_features(what, protocol)
    columns, refused = _columns(what, schema, metadata)
    try:
        adds = log.live_files(number)
    except DatasetError as error:
        raise DatasetError(f"{what}: {error}") from clean_cause(error)
    if len(adds) != len(table.file_uris()):
        raise DatasetError(
            f"{what}: expected the {len(table.file_uris())} files that deltalake sees at version {number}, got "
            f"{len(adds)} from its log. Do not read this table with this release; please report it."
        )
    files, deletes = _files(what, adds, root, columns)
    made = Table(
        kind="delta",
        root=root,
        identity=str(metadata.id),
        version=str(number),
        columns=tuple(columns),
        files=tuple(files),
        deletes=tuple(deletes),
        refused=tuple(refused),
    )
    return TableSource(url=text, table=sorted_files(made), filesystem=filesystem)


def _message_of(error: BaseException) -> str:
    """An error's message without the frames that deltalake appends."""
    return str(error).partition("\n   0: ")[0]


def _check_features(what: str, protocol: ProtocolVersions) -> None:
    unknown = sorted(set(protocol.reader_features or ()) - _KNOWN_FEATURES)
    if unknown or protocol.min_reader_version > 3:
        raise DatasetError(
            f"{what}: expected reader features among {sorted(_KNOWN_FEATURES)}, got {unknown} (reader version "
            f"{protocol.min_reader_version}). Remove the feature from the table, or update parquetry."
        )


def _storage(uri: str, filesystem: object, storage_options: Mapping[str, str] | None) -> tuple[Any, str]:
    """Returns the file system of the data (``None`` = local) and the table's directory in it."""
    if filesystem is not None:
        return resolve(uri, filesystem=filesystem)
    if "://" not in uri or uri.lower().startswith("file://"):
        return None, local_path(uri)
    from .delta_storage import DeltaStorage

    return pafs.PyFileSystem(DeltaStorage(uri, dict(storage_options or {}))), ""


# --- columns ---


def _columns(
    what: str, schema: Mapping[str, Any], metadata: Metadata
) -> tuple[list[TableColumn], list[tuple[str, str]]]:
    mode = (metadata.configuration or {}).get("delta.columnMapping.mode", "none")
    if mode not in ("none", "name", "id"):
        raise DatasetError(f"{what}: expected column mapping by 'name' or 'id', got '{mode}'. Update parquetry.")
    refused: list[tuple[str, str]] = []
    columns = list(_flatten(schema["fields"], mode, set(metadata.partition_columns), refused))
    return columns, refused


def _flatten(
    fields: list[Any], mode: str, partitions: set[str], refused: list[tuple[str, str]], above: TableColumn | None = None
) -> Iterator[TableColumn]:
    for field in fields:
        name = field["name"] if above is None else f"{above.name}.{field['name']}"
        details = field.get("metadata") or {}
        physical = field["name"] if mode == "none" else details.get("delta.columnMapping.physicalName", field["name"])
        partition = above is None and field["name"] in partitions
        ids = (details["delta.columnMapping.id"],) if mode == "id" else ()
        column = TableColumn(
            name=name,
            arrow=pa.null(),
            nullable=field["nullable"] or (above is not None and above.nullable),
            ids=(*(above.ids if above else ()), *ids),
            names=() if mode == "id" and not partition else (*(above.names if above else ()), (physical,)),
            partition=partition,
        )
        kind = field["type"]
        if isinstance(kind, dict) and kind["type"] == "struct":
            yield from _flatten(kind["fields"], mode, set(), refused, column)
            continue
        try:
            if isinstance(kind, dict) and kind["type"] == "map":
                for part, member in (("key", "keyType"), ("value", "valueType")):
                    arrow = pa.list_(_arrow_type(kind[member], name))
                    yield _changed(column, name=f"{name}.{part}", arrow=arrow)
            else:
                yield _changed(column, name=name, arrow=_arrow_type(kind, name))
        except SchemaError as error:
            refused.append((name, str(error)))


def _changed(column: TableColumn, *, name: str, arrow: pa.DataType) -> TableColumn:
    return replace(column, name=name, arrow=arrow)


def _arrow_type(kind: str | dict[str, Any], name: str) -> pa.DataType:
    if isinstance(kind, dict):
        if kind["type"] == "array":
            return pa.list_(_arrow_type(kind["elementType"], name))
    elif kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    elif kind.startswith("decimal"):
        precision, scale = kind.removeprefix("decimal").strip("()").split(",")
        return pa.decimal128(int(precision), int(scale))
    shown = kind["type"] if isinstance(kind, dict) else kind
    raise SchemaError(
        f"field '{name}': Delta type {shown} cannot become a tensor here. Deselect it with select(...) or fields=[...]."
    )


# --- files ---


def _files(
    what: str, adds: list[Action], root: str, columns: list[TableColumn]
) -> tuple[list[TableFile], list[RowDeletes]]:
    files: list[TableFile] = []
    deletes: list[RowDeletes] = []
    keyed = [(column, _key_of(column)) for column in columns if column.partition]
    for add in adds:
        values = dict(add.get("partitionValues") or {})
        vector = add.get("deletionVector")
        if vector:
            deletes.append(_vector(what, vector, root))
        files.append(
            TableFile(
                version=FileVersion(
                    path=_path(what, add["path"], root),
                    size_bytes=add["size"],
                    tag=f"delta={add.get('modificationTime') or 0}",  # copies of the table have other file times
                ),
                values=tuple(
                    (column.name, partition_text(values.get(key, values.get(column.name)), column.arrow))
                    for column, key in keyed
                ),
                deletes=(len(deletes) - 1,) if vector else (),
            )
        )
    return files, deletes


def _key_of(column: TableColumn) -> str:
    return column.names[0][0]


def _path(what: str, text: str, root: str) -> str:
    """Decodes the path of a data file: percent-encoded, relative to the table or absolute (in a shallow clone).

    Absolute paths are part of the protocol. Relative ones that leave the table are not: no writer makes them.
    """
    if "\0" in (plain := unquote(text)):
        raise DatasetError(f"{what}: expected paths without NUL characters, got {text!r}. Repair the table.")
    if "://" not in text and not text.startswith(("/", "file:")):
        if ".." in plain.split("/"):
            raise DatasetError(f"{what}: expected paths below the table or absolute ones, got '{text}'.")
        return posixpath.join(root, plain)
    if root and (text.startswith("/") or text.lower().startswith("file:")):
        return local_path(text) if text.lower().startswith("file:") else unquote(text)
    raise DatasetError(
        f"{what}: expected data files below the table, got '{text}' (a shallow clone of a table elsewhere). "
        "Read the table it was cloned from, or make a deep clone."
    )


def _vector(what: str, vector: Action, root: str) -> RowDeletes:
    kind, text = vector["storageType"], vector["pathOrInlineDv"]
    size, count = vector["sizeInBytes"], vector["cardinality"]
    try:
        decoded = b"" if kind == "p" else _from_z85(text[-20:] if kind == "u" else text)
        name = uuid.UUID(bytes=decoded) if kind == "u" else None
    except ValueError as error:
        raise DatasetError(
            f"{what}: expected a deletion vector's name or bytes in Z85, got '{text[:80]}' ({error}). Repair the table."
        ) from clean_cause(error)
    if kind == "i":
        return RowDeletes(kind=BITMAP, inline=base64.b64encode(decoded).decode("ascii"), size_bytes=size, count=count)
    if kind == "u":
        path = _path(what, posixpath.join(text[:-20], f"deletion_vector_{name}.bin"), root)
    elif kind == "p":
        path = _path(what, text, root)
    else:
        raise DatasetError(
            f"{what}: expected deletion vectors stored as 'u', 'i' or 'p', got '{kind}'. Update parquetry."
        )
    return RowDeletes(kind=BITMAP, path=path, offset=vector.get("offset") or 0, size_bytes=size, count=count)


def _from_z85(text: str) -> bytes:
    """Decodes Z85 (https://rfc.zeromq.org/spec/32/): base 85 with another alphabet and without partial groups."""
    return base64.b85decode(text.translate(_TO_B85))


def partition_text(text: str | None, arrow: pa.DataType) -> str | None:
    """Returns the text of a partition value in the form that `dataset.table_read.parse_values` reads.

    Writers differ in how they write values, and delta-kernel, which deltalake opens tables with, reads more than one
    form. Texts of other forms are returned as they are; `parse_values` refuses them.

    Rules: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#partition-value-serialization.

    Args:
        text: as the log has it; an empty text is null.
        arrow: the type of the column.
    """
    if not text:
        return None
    if pa.types.is_binary(arrow):
        return text.encode().decode("latin-1")
    if pa.types.is_boolean(arrow):
        return text.lower()
    if pa.types.is_integer(arrow) and (found := _INTEGER.fullmatch(text)):
        return found[1]
    if pa.types.is_date(arrow) and (found := _DATE.fullmatch(text)):
        year, month, day = found.groups()
        return f"{year:0>4}-{month:0>2}-{day:0>2}"
    if pa.types.is_timestamp(arrow) and (found := _MOMENT.fullmatch(text)):
        return _moment(text, found)
    return text


def _moment(text: str, found: re.Match[str]) -> str:
    """Returns a moment without an offset and with at most six digits. As in delta-kernel, further digits are dropped.

    Nonzero ones before 1970 stay, so that they are refused: delta-kernel rounds these up, and Spark down.
    """
    fraction, offset = found[2] or "", found[3] or "Z"
    if len(fraction) <= _DIGITS and offset == "Z":
        return text
    if fraction[_DIGITS:].strip("0") and text < _EPOCH:
        return text
    plain = f"{found[1]}.{fraction[:_DIGITS]:0<{_DIGITS}}"
    if offset == "Z":
        return plain
    try:
        moment = pa.scalar(plain + offset).cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return text
    shifted: str = moment.cast(pa.string()).as_py()
    return shifted
