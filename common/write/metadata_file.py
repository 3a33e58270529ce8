"""Changes a dataset's metadata files (``_common_metadata``) atomically: readers see the old file or the new one.

The row-group indexes, which Petastorm pickled, are stored there as JSON: ``{"version": 1, "indexes": [...]}``. Each
index is either ``{"name", "column", "row_groups"}`` or ``{"name", "column", "values": [[value, row groups], ...]}``.
A byte string is ``{"bytes": latin-1 text}``.
"""

from __future__ import annotations

import io
import json
import posixpath
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..base.errors import DatasetError, SchemaError
from ..parquet.footers import remedy
from ..schema.petastorm_metadata import INDEXES_KEY, IndexValue, PetastormIndex
from ..storage.whole_files import whole_file
from .staging import COMMON_METADATA, storage_errors

Found = TypeVar("Found")


def read_metadata(filesystem: pafs.FileSystem, root: str) -> pa.Schema | None:
    """Reads the Arrow schema in ``_common_metadata``, with its key-value metadata; ``None`` if there is no such file.

    Raises:
        DatasetError: the file is not Parquet.
    """
    return read_if_there(pq.read_schema, filesystem, posixpath.join(root, COMMON_METADATA))


def read_if_there(read: Callable[..., Found], filesystem: pafs.FileSystem, path: str) -> Found | None:
    """Calls a function of ``pyarrow.parquet`` for a file, and returns its result; ``None`` if there is no file.

    Raises:
        DatasetError: it is not Parquet metadata.
    """
    if filesystem.get_file_info(path).type != pafs.FileType.File:
        return None
    try:
        return read(path, filesystem=filesystem)
    except (pa.ArrowException, OSError) as error:
        raise DatasetError(
            f"file {path}: expected Parquet metadata, got: {error}. {remedy(error, 'Delete it, or write it again.')}"
        ) from error


def write_metadata(filesystem: pafs.FileSystem, root: str, schema: pa.Schema, metadata: Mapping[bytes, bytes]) -> str:
    """Replaces ``_common_metadata``. Returns its path.

    Raises:
        DatasetError: the file system refused. The old file is unchanged.
    """
    path = posixpath.join(root, COMMON_METADATA)
    content = io.BytesIO()
    pq.write_metadata(schema.with_metadata(dict(metadata)), content)
    replace_file(filesystem, path, content.getvalue())
    return path


def replace_file(filesystem: pafs.FileSystem, path: str, data: bytes) -> None:
    """Replaces a file atomically: readers see the old one or the new one.

    Raises:
        DatasetError: the file system refused. The old file is unchanged.
    """
    with storage_errors("writing", path):
        with whole_file(path, filesystem) as hidden:
            _write(filesystem, hidden, data)
        _remove_checksum(filesystem, path)


def remove_file(filesystem: pafs.FileSystem, path: str) -> None:
    """Removes a file.

    Raises:
        DatasetError: the file system refused.
    """
    with storage_errors("removing", path):
        filesystem.delete_file(path)
        _remove_checksum(filesystem, path)


def _remove_checksum(filesystem: pafs.FileSystem, path: str) -> None:
    """Removes Hadoop's checksum of the old file, which would make Spark refuse the new one."""
    checksum = posixpath.join(posixpath.dirname(path), f".{posixpath.basename(path)}.crc")
    if filesystem.get_file_info(checksum).type == pafs.FileType.File:
        filesystem.delete_file(checksum)


def _write(filesystem: pafs.FileSystem, path: str, data: bytes) -> None:
    with filesystem.open_output_stream(path) as stream:
        stream.write(data)


def indexes_to_metadata(indexes: Mapping[str, PetastormIndex]) -> dict[bytes, bytes]:
    """Encodes indexes as key-value metadata. Empty if there are no indexes."""
    if not indexes:
        return {}
    value = {"version": 1, "indexes": [_to_json(index) for index in indexes.values()]}
    return {INDEXES_KEY: json.dumps(value, separators=(",", ":")).encode()}


def indexes_from_metadata(metadata: Mapping[bytes, bytes] | None, *, where: str) -> dict[str, PetastormIndex] | None:
    """Decodes indexes by name. Returns ``None`` if the metadata has none in this format.

    Raises:
        SchemaError: the JSON is damaged, or was written by a newer release.
    """
    text = (metadata or {}).get(INDEXES_KEY)
    if text is None:
        return None
    try:
        value = json.loads(text)
        if value["version"] != 1:
            raise SchemaError(f"version: expected 1, got {value['version']!r}. Update parquetry.")
        indexes = [_from_json(item) for item in value["indexes"]]
    except (ValueError, KeyError, TypeError) as error:
        raise SchemaError(f"row-group indexes of {where}: {error}") from error
    return {index.name: index for index in indexes}


def _to_json(index: PetastormIndex) -> dict[str, Any]:
    result: dict[str, Any] = {"name": index.name, "column": index.column}
    if index.ordinals_by_value is None:
        return {**result, "row_groups": sorted(index.ordinals)}
    values = [
        [{"bytes": value.decode("latin1")} if isinstance(value, bytes) else value, sorted(ordinals)]
        for value, ordinals in index.ordinals_by_value.items()
    ]
    return {**result, "values": values}


def _from_json(value: Mapping[str, Any]) -> PetastormIndex:
    if "values" not in value:
        return PetastormIndex(name=value["name"], column=value["column"], ordinals=frozenset(value["row_groups"]))
    by_value: dict[IndexValue, frozenset[int]] = {
        key["bytes"].encode("latin1") if isinstance(key, dict) else key: frozenset(ordinals)
        for key, ordinals in value["values"]
    }
    union: frozenset[int] = frozenset().union(*by_value.values())
    return PetastormIndex(name=value["name"], column=value["column"], ordinals=union, ordinals_by_value=by_value)
