"""Changes a dataset's metadata files (``_common_metadata``) atomically: readers see the old file or the new one."""

from __future__ import annotations

import io
import posixpath
from collections.abc import Callable, Mapping
from typing import TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ...base.errors import DatasetError
from ...parquet.footers import remedy
from ...storage.whole_files import whole_file
from ...write.staging import COMMON_METADATA, storage_errors

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
