"""Extracts the numbers of a list column from plain pages, without parsing where each list ends.

The input is the bytes of a column chunk of lists of numbers. The output is the bytes of the numbers, or ``None`` if
only Arrow can read the chunk. The pages must account for every byte of the chunk, and whatever the headers say, no more
memory is allocated than the chunk may hold. Nulls and empty lists have no bytes in the output, so a caller that knows
the list lengths can tell from their sum whether a number is missing.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa

from .checksums import PageCheck
from .page_header import PageHeader, page_headers
from .pages import MemoryBytes
from .thrift import unsigned

_LENGTH = struct.Struct("<i")


def list_numbers(
    chunk: np.ndarray, codec: pa.Codec | None, most_bytes: int, check: PageCheck | None = None
) -> list[np.ndarray] | None:
    """Returns the bytes of the numbers in each page of a chunk, as uint8.

    Args:
        chunk: the bytes of the chunk, uint8. The column has one repetition level and no dictionary.
        codec: the compression of the pages; ``None`` if they are not compressed.
        most_bytes: an upper bound on the total decompressed size of the pages.
        check: checks pages against their checksums; ``None`` skips this.
    """
    stored = MemoryBytes(chunk)
    view = stored.read(0, len(stored))
    pages: list[np.ndarray] = []
    left = most_bytes
    try:
        for page in page_headers(stored.read, len(stored)):
            if not page.is_data or not page.plain or not 0 <= page.uncompressed_bytes <= left:
                return None
            if check is not None and not check.passes(stored, page):
                return None
            left -= page.uncompressed_bytes
            numbers = _numbers(view, page, codec)
            if numbers is None:
                return None
            pages.append(np.frombuffer(numbers, np.uint8))
    except (IndexError, ValueError, OSError, struct.error):
        return None  # no page header, or damaged: Arrow has better error messages
    return pages


def _numbers(chunk: memoryview, page: PageHeader, codec: pa.Codec | None) -> memoryview | None:
    """The bytes after the levels of a page."""
    begin, size = page.begin, page.uncompressed_bytes
    if page.level_bytes is not None:
        levels = sum(page.level_bytes)
        begin, size = begin + levels, size - levels
        if min(page.level_bytes) < 0 or begin > page.end or size < 0:
            return None
    data = chunk[begin : page.end]
    if codec is not None and page.compressed and size:
        data = _decompressed(data, codec, size)
    if len(data) != size:
        return None
    if page.level_bytes is not None:
        return data
    if not all(page.run_lengths):
        return None
    begin = 0
    for _ in ("repetition", "definition"):
        (levels,) = _LENGTH.unpack_from(data, begin)
        begin += _LENGTH.size + levels
        if levels < 0 or begin > size:
            return None
    return data[begin:]


def _decompressed(data: memoryview, codec: pa.Codec, size: int) -> memoryview:
    """Decompresses bytes, and stops one byte beyond ``size``. (`Codec.decompress` does not report the actual size.)

    Raises:
        OSError: the bytes are damaged.
    """
    if codec.name != "snappy":
        return memoryview(pa.CompressedInputStream(pa.BufferReader(data), codec.name).read_buffer(size + 1))
    stated, _ = unsigned(data, 0)  # Snappy enforces this size, and has no stream
    return memoryview(codec.decompress(data, size)) if stated == size else data[:0]
