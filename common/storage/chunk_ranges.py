"""Fetches the column chunks of row groups from a store in few requests.

Each request to an object store costs tens of milliseconds, so chunks that lie close together are fetched as one range,
along with the bytes between them (`joined`). Arrow then reads the chunks from memory, through a `ChunkFile`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import groupby, pairwise

import pyarrow as pa

from ..base.progress import thread_pool
from .request_slots import held_here, spare_slots, using

SMALL_GAP_BYTES = 64 << 10
"""A gap that costs less than a request even if other requests hide its latency: in processor time on both sides."""
MOST_GAP_BYTES = 1 << 20
"""The largest gap that costs less than a request: what a connection of 100 MB/s transfers in the 10 ms of a store
nearby. Stores take longer, but they answer several requests at once.
"""
MOST_GAP_SHARE = 0.5
"""The most that gaps may add up to, if not all of them are small, as a share of the bytes that are asked for."""
MOST_RANGE_BYTES = 64 << 20
"""The largest range to join chunks to. Several requests at once are faster than one larger request."""
_MOST_REQUESTS_AT_ONCE = 8
PADDING_BYTES = 100
"""How far Arrow reads beyond chunks of old parquet-mr files, whose sizes leave out a page header (PARQUET-816)."""

Range = tuple[int, int]


def chunk_ranges(chunks: Iterable[Range], file_bytes: int) -> list[Range]:
    """Returns the ranges (first byte, end) of column chunks, as far as they lie in a file, in the same order."""
    inside = ((first, min(end, file_bytes)) for first, end in chunks)
    return [(first, end) for first, end in inside if 0 <= first < end]


def requested_ranges(chunks: Sequence[Range], file_bytes: int) -> list[Range]:
    """Returns the ranges to request for column chunks of a file, ascending."""
    return [(first, min(end + PADDING_BYTES, file_bytes)) for first, end in joined(chunks)]


def joined(ranges: Sequence[Range]) -> list[Range]:
    """Joins ranges wherever the bytes between them cost less than another request. Returns them in ascending order.

    Gaps of up to `SMALL_GAP_BYTES` always do. Larger ones, of up to `MOST_GAP_BYTES`, are closed from the smallest on,
    as long as all of them add up to at most `MOST_GAP_SHARE` of what is asked for.

    Example:
        >>> joined([(0, 10), (5_000_000, 5_000_010), (20, 30)])
        [(0, 30), (5000000, 5000010)]
        >>> joined([(0, 400_000), (500_000, 900_000), (1_700_000, 2_100_000)])
        [(0, 900000), (1700000, 2100000)]
    """
    apart: list[Range] = []
    for first, end in sorted(ranges):
        if apart and first < apart[-1][1]:
            apart[-1] = apart[-1][0], max(apart[-1][1], end)
        else:
            apart.append((first, end))
    result: list[Range] = []
    most = _largest_gap(apart)
    for first, end in apart:
        if result and first - result[-1][1] <= most and end - result[-1][0] <= MOST_RANGE_BYTES:
            result[-1] = result[-1][0], end
        else:
            result.append((first, end))
    return result


def _largest_gap(ranges: Sequence[Range]) -> int:
    """Returns the largest gap to close between ascending ranges. Gaps of one size are closed together or not at all."""
    gaps = sorted(after - before for (_, before), (after, _) in pairwise(ranges))
    left = MOST_GAP_SHARE * sum(end - first for first, end in ranges)
    largest = SMALL_GAP_BYTES
    for gap, same in groupby(gaps):
        left -= gap * len([*same])
        if gap > SMALL_GAP_BYTES and (left < 0 or gap > MOST_GAP_BYTES):
            break
        largest = max(largest, gap)
    return largest


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
