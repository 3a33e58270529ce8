"""Where each value lies in the pages of a column chunk that is stored as plainly as Parquet can.

In: the bytes of a column chunk, in memory or in its file. Out: the first and last byte of every value, or ``None``
where only Arrow can tell. Always holds: pages account for every byte and every value of the chunk, nothing is
compressed, encoded or null; of what lies in a file, only the little between the values is read.
Source of the rules: the page headers of parquet.thrift, and the Thrift compact protocol that they are written in.
"""

from __future__ import annotations

import os
import struct
from typing import Any, Protocol

import numpy as np

_DATA_PAGE, _DATA_PAGE_V2 = 0, 3
_PLAIN = 0
_RLE = 3
_LENGTH = struct.Struct("<i")
_PREFIX = _LENGTH.size
_HEADER_BYTES = 512

# What parquet.thrift numbers the fields of PageHeader, DataPageHeader and DataPageHeaderV2.
_TYPE, _UNCOMPRESSED, _COMPRESSED, _V1, _V2 = 1, 2, 3, 5, 8
_V1_VALUES, _V1_ENCODING, _V1_DEFINITION = 1, 2, 3
_V2_VALUES, _V2_NULLS, _V2_ENCODING, _V2_DEFINITION_BYTES, _V2_REPETITION_BYTES = 1, 2, 4, 5, 6


class ChunkBytes(Protocol):
    """The bytes of a column chunk."""

    def __len__(self) -> int:
        """How many."""

    def read(self, begin: int, end: int) -> memoryview:
        """Those from ``begin`` to ``end`` (exclusive), which lie inside.

        Raises:
            ValueError: they cannot be read.
        """

    def heads(self, starts: np.ndarray, size: int) -> np.ndarray:
        """The ``size`` bytes from each start on: uint8 ``[starts, size]``; errors as of `read`."""


class MemoryBytes:
    """A chunk in memory: uint8."""

    def __init__(self, chunk: np.ndarray) -> None:
        self._chunk = chunk
        self._view = memoryview(chunk)  # type: ignore[arg-type]  # an array is a buffer

    def __len__(self) -> int:
        return len(self._view)

    def read(self, begin: int, end: int) -> memoryview:
        return self._view[begin:end]

    def heads(self, starts: np.ndarray, size: int) -> np.ndarray:
        return self._chunk[starts[:, None] + np.arange(size)]


class FileBytes:
    """A chunk in an open file.

    Args:
        begin: its first byte there.
    """

    def __init__(self, descriptor: int, begin: int, size_bytes: int) -> None:
        self._descriptor = descriptor
        self._begin = begin
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes

    def read(self, begin: int, end: int) -> memoryview:
        return memoryview(self._pread(begin, end - begin))

    def heads(self, starts: np.ndarray, size: int) -> np.ndarray:
        read = b"".join([self._pread(start, size) for start in starts.tolist()])
        return np.frombuffer(read, np.uint8).reshape(len(starts), size)

    def _pread(self, begin: int, size: int) -> bytes:
        try:
            data = os.pread(self._descriptor, size, self._begin + begin)
        except OSError as error:
            raise ValueError(f"expected {size} bytes at {self._begin + begin}, got {error}") from error
        if len(data) != size:
            raise ValueError(f"expected {size} bytes at {self._begin + begin}, got {len(data)}")
        return data


def find_values(
    chunk: ChunkBytes, count: int, *, width: int | None, nullable: bool
) -> tuple[np.ndarray, np.ndarray] | None:
    """The first byte of each value of a chunk, and the one after its last; int64 each.

    Args:
        chunk: its bytes, uncompressed, without a dictionary.
        count: its values.
        width: of values of fixed length; ``None`` for values that carry their length.
        nullable: whether a value may be null, so that pages begin with definition levels.

    Returns:
        ``None`` where the pages are of another kind, hold a null, or do not account for all bytes and values.
    """
    starts: list[np.ndarray] = []
    ends: list[np.ndarray] = []
    position = found = 0
    try:
        while position < len(chunk):
            header, begin = _page_header(chunk, position)
            end = begin + header[_COMPRESSED]
            if not begin <= end <= len(chunk) or header[_COMPRESSED] != header[_UNCOMPRESSED]:
                return None
            page = _values_of(chunk, header, begin, end, nullable=nullable)
            if page is None:
                return None
            values, begin = page
            first = _fixed(begin, end, values, width) if width is not None else _prefixed(chunk, begin, end, values)
            if first is None:
                return None
            starts.append(first[0])
            ends.append(first[1])
            position, found = end, found + values
    except (IndexError, KeyError, TypeError, ValueError, struct.error):
        return None  # no page header: whatever it is, Arrow says so better
    if found != count:
        return None
    return np.concatenate([_NONE, *starts]), np.concatenate([_NONE, *ends])


def _page_header(chunk: ChunkBytes, position: int) -> tuple[dict[int, Any], int]:
    """A page header, and where it ends; as many bytes are read as it turns out to have."""
    size = _HEADER_BYTES
    while True:
        last = min(position + size, len(chunk))
        try:
            header, used = _struct(chunk.read(position, last), 0)
            return header, position + used
        except IndexError:
            if last == len(chunk):
                raise
        size *= 16


_NONE = np.zeros(0, np.int64)


def _values_of(
    chunk: ChunkBytes, header: dict[int, Any], begin: int, end: int, *, nullable: bool
) -> tuple[int, int] | None:
    """How many values a page holds, and where the first begins; ``None`` for nulls and other kinds of pages."""
    if header[_TYPE] == _DATA_PAGE:
        page = header[_V1]
        count = page[_V1_VALUES]
        if page[_V1_ENCODING] != _PLAIN:
            return None
        levels = begin
        if nullable:
            if page[_V1_DEFINITION] != _RLE:
                return None
            levels = begin + _PREFIX
            begin = levels + _LENGTH.unpack(chunk.read(begin, levels))[0]
    elif header[_TYPE] == _DATA_PAGE_V2:
        page = header[_V2]
        count = page[_V2_VALUES]
        if page[_V2_ENCODING] != _PLAIN or page[_V2_NULLS] or page[_V2_REPETITION_BYTES]:
            return None
        levels = begin
        begin = levels + page[_V2_DEFINITION_BYTES]
    else:
        return None
    if count < 0 or not levels <= begin <= end or (nullable and not _all_defined(chunk.read(levels, begin), count)):
        return None
    return count, begin


def _all_defined(levels: memoryview, count: int) -> bool:
    """Whether definition levels of one bit (runs, or groups of eight) are all one."""
    position = found = 0
    while found < count:
        header, position = _unsigned(levels, position)
        if header & 1:
            size = header >> 1
            bits = np.unpackbits(np.frombuffer(levels[position : position + size], np.uint8), bitorder="little")
            if len(bits) != 8 * size or not bits[: count - found].all():
                return False
            found, position = found + 8 * size, position + size
        else:
            if not header or levels[position] != 1:
                return False
            found, position = found + (header >> 1), position + 1
    return True


def _fixed(begin: int, end: int, count: int, width: int) -> tuple[np.ndarray, np.ndarray] | None:
    if end - begin != count * width:
        return None
    starts = begin + width * np.arange(count, dtype=np.int64)
    return starts, starts + width


def _prefixed(chunk: ChunkBytes, begin: int, end: int, count: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Values that each follow their length (4 bytes, little-endian)."""
    if count == 0:
        return (_NONE, _NONE) if begin == end else None
    length = _length(chunk, begin, end)
    stride = _PREFIX + length
    if length >= 0 and end - begin == count * stride:  # all as long as the first, perhaps
        starts = begin + stride * np.arange(count, dtype=np.int64)
        heads = chunk.heads(starts, _PREFIX)
        if (heads == heads[0]).all():
            return starts + _PREFIX, starts + stride
    starts = np.empty(count, np.int64)
    ends = np.empty(count, np.int64)
    position = begin
    for number in range(count):
        length = _length(chunk, position, end)
        starts[number] = position = position + _PREFIX
        position += length
        if length < 0 or position > end:
            return None
        ends[number] = position
    return (starts, ends) if position == end else None


def _length(chunk: ChunkBytes, position: int, end: int) -> int:
    if position + _PREFIX > end:
        return -1
    return int(_LENGTH.unpack(chunk.read(position, position + _PREFIX))[0])


# --- the Thrift compact protocol ---

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
_INTEGERS = (4, 5, 6)
_MOST_NESTED = 8


def _struct(data: memoryview, position: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """A struct as a dict of its fields by number, and where it ends.

    Raises:
        ValueError, IndexError: no struct in the compact protocol.
    """
    if depth > _MOST_NESTED:
        raise ValueError("expected a page header, got structs in structs")
    fields: dict[int, Any] = {}
    number = 0
    while True:
        head = data[position]
        position += 1
        kind = head & 0x0F
        if kind == _STOP:
            return fields, position
        if head >> 4:
            number += head >> 4
        else:
            number, position = _signed(data, position)
        fields[number], position = _value(data, position, kind, depth)


def _value(data: memoryview, position: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (_TRUE, _FALSE):
        return kind == _TRUE, position
    if kind in _INTEGERS:
        return _signed(data, position)
    if kind == _BYTE:
        return data[position], position + 1
    if kind == _DOUBLE:
        return None, position + 8
    if kind == _BINARY:
        size, position = _unsigned(data, position)
        return None, position + size
    if kind == _STRUCT:
        return _struct(data, position, depth + 1)
    if kind in (_LIST, _SET):
        head = data[position]
        size, position = (head >> 4, position + 1) if head >> 4 != 15 else _unsigned(data, position + 1)
        if size > len(data):
            raise ValueError(f"expected a list, got {size} values in {len(data)} bytes")
        for _ in range(size):
            inner = head & 0x0F
            skip = inner in (_TRUE, _FALSE)  # in a list, a bool is a byte of its own
            _, position = (None, position + 1) if skip else _value(data, position, inner, depth + 1)
        return None, position
    raise ValueError(f"expected a type of the compact protocol, got {kind}")


def _unsigned(data: memoryview, position: int) -> tuple[int, int]:
    result = shift = 0
    while True:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position
        shift += 7
        if shift > 63:
            raise ValueError("expected a number of 64 bits")


def _signed(data: memoryview, position: int) -> tuple[int, int]:
    value, position = _unsigned(data, position)
    return (value >> 1) ^ -(value & 1), position
