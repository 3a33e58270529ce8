"""The file format of one cache entry: a table, the key that it is kept under, and a checksum over both.

Layout: an Arrow IPC stream from offset 0 (so that its buffers keep their alignment when the file is mapped), the key
in UTF-8, and a trailer of 32 bytes. The stream form is used because, unlike the file form, it holds columns whose
chunks have different dictionaries. Always holds: what `open_entry` returns was written by `write_entry` under the
same key.
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
    """The size of the file that `write_entry` would write."""
    sink = pa.MockOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return int(sink.size()) + len(_key_bytes(key)) + _TRAILER.size


def write_entry(path: str, key: str, table: pa.Table) -> None:
    """Writes an entry to a new file.

    Raises:
        OSError: the disk is full, or the directory cannot be written.
        pa.ArrowException: a type that Arrow's IPC does not know.
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
    """The file's bytes, mapped; no descriptor stays open, and the bytes outlive the file's name."""
    with pa.memory_map(path) as file:
        return file.read_buffer()


def open_entry(mapped: pa.Buffer, key: str, *, verify: bool) -> pa.Table:
    """The table of an entry, without a copy.

    Args:
        verify: whether to compare the checksum and to check offsets and texts, which reads every byte.

    Raises:
        DatasetError: a damaged, truncated or foreign entry, or one of another key.
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
        raise DatasetError(f"expected bytes with CRC-32 {checksum:08x}, got others.")
    if mapped.slice(stream_bytes, key_bytes).to_pybytes() != _key_bytes(key):
        raise DatasetError("expected the entry of the wanted key, got that of another.")
    try:
        table = pa.ipc.open_stream(mapped.slice(0, stream_bytes)).read_all()
        if verify:
            table.validate(full=True)  # Arrow reads whatever offsets say, and anybody can make a checksum
            _read_names(table.schema)
        return table
    except UNREADABLE as error:
        raise DatasetError(f"expected an Arrow IPC stream, got: {error}.") from error


def _read_names(fields: Iterable[pa.Field]) -> None:
    """Raises ``UnicodeDecodeError`` for a name that is no UTF-8, in the fields or inside them."""
    for field in fields:
        assert field.name is not None
        _read_names(field.type.field(number) for number in range(field.type.num_fields))


def _key_bytes(key: str) -> bytes:
    return key.encode("utf-8", "surrogateescape")  # a path may hold bytes that are not UTF-8
