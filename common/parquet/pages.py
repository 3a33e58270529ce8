"""Locates each value in the pages of a column chunk that is uncompressed, PLAIN-encoded and free of nulls.

It takes the bytes of a column chunk, in memory or in its file, and returns where every value begins and ends, or
``None`` if only Arrow can read the chunk. The pages must account for every byte and every value of the chunk. From a
file, it reads only the few bytes between the values.

Arrow would copy each value of such a column twice. For camera frames and lidar sweeps, that costs more than the read.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

import numpy as np

from ..base.native.kernels import locate_cells
from .checksums import ChunkBytes, LaterCheck, PageCheck, Verify
from .page_header import PageHeader, page_headers
from .thrift import unsigned

_LENGTH = struct.Struct("<i")
_PREFIX = _LENGTH.size


class MemoryBytes:
    """A chunk in memory, as uint8."""

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
        begin: the offset of the chunk in the file.
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
    chunk: ChunkBytes, count: int, *, width: int | None, nullable: bool, check: PageCheck | None = None
) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the offsets of each value's first byte and of the byte after its last; int64 each.

    Args:
        chunk: the bytes of the chunk, uncompressed and without a dictionary.
        count: the number of values in the chunk.
        width: the byte width of fixed-length values; ``None`` for values that carry their length.
        nullable: whether a value may be null, so that pages begin with definition levels.
        check: checks pages against their checksums; ``None`` skips this.

    Returns:
        The offsets, or ``None`` if the pages are of another kind, contain a null, do not account for all bytes and
        values, or fail their checksums.
    """
    starts: list[np.ndarray] = []
    ends: list[np.ndarray] = []
    found = 0
    try:
        for page in page_headers(chunk.read, len(chunk)):
            if not page.is_data or page.end - page.begin != page.uncompressed_bytes:
                return None
            begin, end, values = _begin_of_values(chunk, page, nullable=nullable), page.end, page.values
            if begin is None or found + values > count:
                return None
            first = _fixed(begin, end, values, width) if width is not None else _prefixed(chunk, begin, end, values)
            if first is None or (check is not None and not check.passes(chunk, page)):
                return None
            starts.append(first[0])
            ends.append(first[1])
            found += values
    except (IndexError, ValueError, struct.error):
        return None  # no page header: Arrow has better error messages
    if found != count:
        return None
    return np.concatenate([_NONE, *starts]), np.concatenate([_NONE, *ends])


class StoredPages(NamedTuple):
    """Pages with checksums: the offsets of each page's first byte after the header and after its last; int64 each."""

    begins: np.ndarray
    ends: np.ndarray
    checksums: np.ndarray


def locate_values(
    descriptor: int, begin: int, size_bytes: int, count: int, *, width: int | None, nullable: bool, verify: Verify
) -> tuple[np.ndarray, np.ndarray, StoredPages] | None:
    """Returns what `find_values` does for a chunk in an open file, and the pages to check when their values are read.

    Args:
        begin: the offset of the chunk in the file. All offsets that are returned count from there.
        count, width, nullable: as in `find_values`.
    """
    located = locate_cells(descriptor, begin, size_bytes, count, width=width, nullable=nullable, verify=verify)
    if located is not None:
        return located[0], located[1], StoredPages(*located[2].T)
    chunk, check = FileBytes(descriptor, begin, size_bytes), LaterCheck(required=verify == "always")
    places = find_values(chunk, count, width=width, nullable=nullable, check=None if verify == "never" else check)
    pages = np.array([(page.begin, page.end, page.checksum) for page in check.pages], np.int64).reshape(-1, 3)
    return None if places is None else (*places, StoredPages(*pages.T))


_NONE = np.zeros(0, np.int64)


def _begin_of_values(chunk: ChunkBytes, page: PageHeader, *, nullable: bool) -> int | None:
    """Where the first value of a page begins; ``None`` if the page has nulls or is of another kind."""
    if not page.plain or page.nulls or page.values < 0:
        return None
    begin = levels = page.begin
    if page.level_bytes is not None:
        repetition, definition = page.level_bytes
        if repetition:
            return None
        begin = levels + definition
    elif nullable:
        if not page.run_lengths[1]:
            return None
        levels = begin + _PREFIX
        begin = levels + _LENGTH.unpack(chunk.read(begin, levels))[0]
    if not levels <= begin <= page.end or (nullable and not _all_defined(chunk.read(levels, begin), page.values)):
        return None
    return begin


def _all_defined(levels: memoryview, count: int) -> bool:
    """Whether one-bit definition levels (runs, or groups of eight) are all 1."""
    position = total = 0
    while total < count:
        header, position = unsigned(levels, position)
        if header & 1:
            size = header >> 1
            bits = np.unpackbits(np.frombuffer(levels[position : position + size], np.uint8), bitorder="little")
            if len(bits) != 8 * size or not bits[: count - total].all():
                return False
            total, position = total + 8 * size, position + size
        else:
            if not header or levels[position] != 1:
                return False
            total, position = total + (header >> 1), position + 1
    return True


def _fixed(begin: int, end: int, count: int, width: int) -> tuple[np.ndarray, np.ndarray] | None:
    if end - begin != count * width:
        return None
    starts = begin + width * np.arange(count, dtype=np.int64)
    return starts, starts + width


def _prefixed(chunk: ChunkBytes, begin: int, end: int, count: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Locates values that each follow their length (4 bytes, little-endian)."""
    if count == 0:
        return (_NONE, _NONE) if begin == end else None
    length = _length(chunk, begin, end)
    stride = _PREFIX + length
    if length >= 0 and end - begin == count * stride:  # perhaps all are as long as the first
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
