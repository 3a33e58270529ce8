"""The file format of a cache entry: a table, its key, and a checksum over both.

An entry consists of an Arrow IPC stream, the key in UTF-8, and a 32-byte trailer. The stream begins at offset 0 to keep
its buffers aligned when the file is mapped. The stream format is used because, unlike the file format, it supports
columns whose chunks have different dictionaries. `open_entry` returns only what `write_entry` wrote under the same key.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable

import pyarrow as pa

from ...errors import DatasetError
from ...layout.kept import UNREADABLE

_MAGIC = b"PQRYCE\x00\x01"
_TRAILER = struct.Struct("<QQQ8s")  # bytes of the stream, bytes of the key, CRC-32 of both, magic


def entry_bytes(key: str, table: pa.Table) -> int:
    """Returns the size of the file that `write_entry` would write."""
    sink = pa.MockOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return int(sink.size()) + len(_key_bytes(key)) + _TRAILER.size


def write_entry(path: str, key: str, table: pa.Table) -> None:
    """Writes an entry to a new file.

    Raises:
        OSError: the disk is full, or the directory is not writable.
        pa.ArrowException: Arrow IPC does not support a column's type.
    """
    name = _key_bytes(key)
    with pa.OSFile(path, "wb") as file:
        with pa.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
        stream_bytes = file.tell()
        file.write(name)
    checksum = zlib.crc32(map_entry(path))  # a second pass through the page cache costs less than a Python sink
    with open(path, "ab") as trailer:
        trailer.write(_TRAILER.pack(stream_bytes, len(name), checksum, _MAGIC))


def map_entry(path: str) -> pa.Buffer:
    """Maps a file into memory. No descriptor stays open, and the mapping stays valid after the file is unlinked."""
    with pa.memory_map(path) as file:
        return file.read_buffer()


def open_entry(mapped: pa.Buffer, key: str, *, verify: bool) -> pa.Table:
    """Returns the table of an entry without copying it.

    Args:
        verify: whether to verify the checksum, offsets and UTF-8 text, which reads every byte.

    Raises:
        DatasetError: the entry is damaged or truncated, has another key, or is not a cache entry.
    """
    if mapped.size < _TRAILER.size:
        raise DatasetError(f"expected at least {_TRAILER.size} bytes, got {mapped.size}.")
    body_bytes = mapped.size - _TRAILER.size
    stream_bytes, key_bytes, checksum, magic = _TRAILER.unpack(mapped.slice(body_bytes))
    if magic != _MAGIC:
        raise DatasetError(f"expected a file that ends in {_MAGIC!r}, got {magic!r}.")
    if stream_bytes + key_bytes != body_bytes:
        raise DatasetError(f"expected {stream_bytes + key_bytes} bytes before the trailer, got {body_bytes}.")
    if verify and zlib.crc32(mapped.slice(0, body_bytes)) != checksum:
        raise DatasetError(f"expected bytes with CRC-32 {checksum:08x}, got a different checksum.")
    if mapped.slice(stream_bytes, key_bytes).to_pybytes() != _key_bytes(key):
        raise DatasetError("expected the entry of the requested key, got that of another key.")
    try:
        table = pa.ipc.open_stream(mapped.slice(0, stream_bytes)).read_all()
        if verify:
            table.validate(full=True)  # Arrow follows offsets unchecked, and a valid checksum can be forged
            _read_names(table.schema)
        return table
    except UNREADABLE as error:
        raise DatasetError(f"expected an Arrow IPC stream, got: {error}.") from error


def _read_names(fields: Iterable[pa.Field]) -> None:
    """Raises ``UnicodeDecodeError`` if the name of a field, nested ones included, is not valid UTF-8."""
    for field in fields:
        assert field.name is not None
        _read_names(field.type.field(number) for number in range(field.type.num_fields))


def _key_bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")  # a path may contain bytes that are not UTF-8
