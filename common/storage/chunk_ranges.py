"""Fetches the column chunks of a row group from a store in few requests.

Each request to an object store costs tens of milliseconds, so chunks that lie close together are fetched as one range,
along with the bytes between them. If more than two ranges are left, the closest ones are joined across larger gaps, as
long as the bytes between them cost less than the requests. Arrow then reads the chunks from memory, through a
`ChunkFile`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from ..base.progress import thread_pool
from .request_slots import held_here, spare_slots, using

MOST_GAP_BYTES = 1 << 20
"""Chunks at most this far apart are fetched together: one more request takes longer than the bytes between them."""
FEW_RANGES = 2
"""This many requests per row group are always fine. If there are more ranges, some are joined across larger gaps."""
MOST_WIDE_GAP_BYTES = 4 << 20
"""The largest of these gaps: a connection of 100 MB/s transfers as much in the 40 ms that a request takes."""
MOST_WASTED_BYTES = 8 << 20
"""The most bytes that the gaps of a row group may add up to. More would be slower, even if a request takes 100 ms,
because several requests run at once.
"""
MOST_RANGE_BYTES = 64 << 20
"""The largest range to join chunks to. Several requests at once are faster than one larger request."""
_MOST_REQUESTS_AT_ONCE = 8
PADDING_BYTES = 100
"""How far Arrow reads beyond chunks of old parquet-mr files, whose sizes leave out a page header (PARQUET-816)."""

Range = tuple[int, int]


def chunk_ranges(footer: pq.FileMetaData, group: int, columns: Sequence[int], file_bytes: int) -> list[Range]:
    """Returns the ranges (first byte, end) to fetch for the given leaf columns of a row group, ascending."""
    row_group = footer.row_group(group)
    ranges = []
    for number in columns:
        chunk = row_group.column(number)
        first = chunk.data_page_offset
        if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
            first = min(first, chunk.dictionary_page_offset or first)
        end = min(first + chunk.total_compressed_size, file_bytes)
        if 0 <= first < end:
            ranges.append((first, end))
    return [(first, min(end + PADDING_BYTES, file_bytes)) for first, end in few_ranges(coalesced(ranges))]


def coalesced(ranges: Sequence[Range]) -> list[Range]:
    """Joins ranges that overlap or lie close together.

    Example:
        >>> coalesced([(0, 10), (5_000_000, 5_000_010), (20, 30)])
        [(0, 30), (5000000, 5000010)]
    """
    joined: list[Range] = []
    for first, end in sorted(ranges):
        if joined:
            begin, before = joined[-1]
            near = first - before <= MOST_GAP_BYTES and end - begin <= MOST_RANGE_BYTES
            if near or first < before:
                joined[-1] = begin, max(before, end)
                continue
        joined.append((first, end))
    return joined


def few_ranges(ranges: Sequence[Range]) -> list[Range]:
    """Joins ascending ranges across the smallest gaps, until few are left or too many bytes would be wasted.

    Example:
        >>> few_ranges([(0, 10), (3_000_000, 3_000_010), (5_000_000, 5_000_010)])
        [(0, 10), (3000000, 5000010)]
    """
    gaps = sorted((after[0] - before[1], number) for number, (before, after) in enumerate(pairwise(ranges), 1))
    joins: set[int] = set()
    wasted = 0
    for gap, number in gaps[: max(0, len(ranges) - FEW_RANGES)]:
        wasted += gap
        if gap > MOST_WIDE_GAP_BYTES or wasted > MOST_WASTED_BYTES:
            break
        joins.add(number)
    joined: list[Range] = []
    for number, (first, end) in enumerate(ranges):
        if number in joins and end - joined[-1][0] <= MOST_RANGE_BYTES:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((first, end))
    return joined


def fetch_ranges(opened: Callable[[], AbstractContextManager[pa.NativeFile]], ranges: Sequence[Range]) -> list[bytes]:
    """Reads the bytes of each range, several at once if the store allows as many requests (`request_slots`).

    Args:
        opened: opens the file. A file of Python takes one request at a time, so each range opens its own.

    Raises:
        OSError: the store fails, or returns fewer bytes.
    """

    def fetch(source: pa.NativeFile, wanted: Range) -> bytes:
        first, end = wanted
        data: bytes = source.read_at(end - first, first)
        if len(data) != end - first:
            raise OSError(f"expected {end - first} bytes at {first}, but got {len(data)}")
        return data

    held = held_here()

    def fetch_apart(wanted: Range) -> bytes:
        with using(held), opened() as source:
            return fetch(source, wanted)

    if not ranges:
        return []
    with opened() as source:
        others = spare_slots(min(len(ranges), _MOST_REQUESTS_AT_ONCE) - 1)
        if not others:
            return [fetch(source, wanted) for wanted in ranges]
        if not isinstance(source, pa.PythonFile):
            with thread_pool(1 + others, "parquetry-ranges") as pool:
                return list(pool.map(partial(fetch, source), ranges))
        own_ranges = ranges[:: 1 + others]
        with thread_pool(others, "parquetry-ranges") as pool:
            apart = {wanted: pool.submit(fetch_apart, wanted) for wanted in ranges if wanted not in own_ranges}
            contents = {wanted: fetch(source, wanted) for wanted in own_ranges}
            return [contents[wanted] if wanted in contents else apart[wanted].result() for wanted in ranges]


class SizedFile:
    """A read-only file of known size, for a ``pyarrow.PythonFile``. Keeps the position; subclasses do the reading.

    Args:
        size_bytes: the size of the whole file.
    """

    closed = False

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._position = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._size_bytes)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        """Does nothing: there is nothing to close."""

    def _end_of(self, size: int) -> int:
        """Returns where the next ``size`` bytes end; -1 = all that follow."""
        return self._size_bytes if size < 0 else min(self._position + size, self._size_bytes)


class ChunkFile(SizedFile):
    """A file with some of its ranges in memory, which is freed with the last view of it."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self._begins: list[int] = []
        self._views: list[memoryview] = []

    def hold(self, ranges: Sequence[Range], content: Sequence[bytes | memoryview]) -> None:
        """Stores the bytes of the given ranges, which must ascend."""
        self._begins = [first for first, _ in ranges]
        self._views = [memoryview(part) for part in content]

    def read(self, size: int = -1) -> memoryview:
        """Returns the next bytes, without a copy.

        Raises:
            OSError: the bytes were not fetched.
        """
        end = self._end_of(size)
        number = bisect_right(self._begins, self._position) - 1
        offset = self._position - self._begins[number] if number >= 0 else 0
        if end > self._position and (number < 0 or offset + end - self._position > len(self._views[number])):
            raise OSError(f"bytes {self._position} to {end} lie outside of the column chunks that the footer names")
        view = self._views[number][offset : offset + end - self._position] if number >= 0 else memoryview(b"")
        self._position = end
        return view

    read_buffer = read
