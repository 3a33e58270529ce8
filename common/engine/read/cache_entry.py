"""The file format of a cache entry: a table, its key, and a checksum over both.

An entry consists of an Arrow IPC stream, the key in UTF-8, and a 32-byte trailer. The stream begins at offset 0 to keep
its buffers aligned in memory. It is read, not mapped: touching a mapped page of a truncated file, or of a failing disk,
ends the process. The stream format is used because, unlike the file format, it supports columns whose chunks have
different dictionaries. `open_entry` returns only what `write_entry` wrote under the same key.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import pyarrow as pa

from ...base.errors import DatasetError
from ...base.memory.arrow_views import from_stream, stream_bytes, write_stream
from ...base.native.kernels import crc32
from ...base.platform.files import read_at
from ...storage.file_cache import UNREADABLE

_MAGIC = b"PQRYCE\x00\x01"
_CHUNK_BYTES = 1 << 20
_MOST_READ_BYTES = 1 << 30  # Linux reads at most 2 GiB at once
_TRAILER = struct.Struct("<QQQ8s")  # bytes of the stream, bytes of the key, CRC-32 of both, magic


def entry_bytes(key: str, table: pa.Table) -> int:
    """Returns the size of the file that `write_entry` would write."""
    return stream_bytes(table) + len(_key_bytes(key)) + _TRAILER.size


def write_entry(path: str, key: str, table: pa.Table) -> None:
    """Writes an entry to a new file.

    Raises:
        OSError: the disk is full, or the directory is not writable.
        pa.ArrowException: Arrow IPC does not support a column's type.
    """
    name = _key_bytes(key)
    with pa.OSFile(path, "wb") as file:
        write_stream(file, table)
        table_bytes = file.tell()
        file.write(name)
    with open(path, "r+b") as written:
        checksum = 0
        while chunk := written.read(_CHUNK_BYTES):  # a second pass through the page cache costs less than a Python sink
            checksum = crc32(chunk, checksum)
        written.write(_TRAILER.pack(table_bytes, len(name), checksum, _MAGIC))


def read_entry(descriptor: int, size_bytes: int) -> pa.Buffer:
    """Reads an open file of a known size into memory.

    Raises:
        DatasetError: the file has become shorter.
        OSError: the disk fails.
        MemoryError: there is not enough memory.
    """
    memory = pa.allocate_buffer(size_bytes)
    view, done = memoryview(memory), 0
    while done < size_bytes:
        count = read_at(descriptor, [view[done : done + _MOST_READ_BYTES]], done)
        if not count:
            raise DatasetError(f"expected {size_bytes} bytes, got {done}.")
        done += count
    return memory


def open_entry(content: pa.Buffer, key: str, *, verify: bool) -> pa.Table:
    """Returns the table of an entry. Its columns point into the content.

    Args:
        verify: whether to verify the checksum, offsets and UTF-8 text, which reads every byte.

    Raises:
        DatasetError: the entry is damaged or truncated, has another key, or is not a cache entry.
    """
    if content.size < _TRAILER.size:
        raise DatasetError(f"expected at least {_TRAILER.size} bytes, got {content.size}.")
    body_bytes = content.size - _TRAILER.size
    table_bytes, key_bytes, checksum, magic = _TRAILER.unpack(content.slice(body_bytes))
    if magic != _MAGIC:
        raise DatasetError(f"expected a file that ends in {_MAGIC!r}, got {magic!r}.")
    if table_bytes + key_bytes != body_bytes:
        raise DatasetError(f"expected {table_bytes + key_bytes} bytes before the trailer, got {body_bytes}.")
    if verify and crc32(content.slice(0, body_bytes)) != checksum:
        raise DatasetError(f"expected bytes with CRC-32 {checksum:08x}, got a different checksum.")
    if content.slice(table_bytes, key_bytes).to_pybytes() != _key_bytes(key):
        raise DatasetError("expected the entry of the requested key, got that of another key.")
    try:
        table = from_stream(content.slice(0, table_bytes))
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
