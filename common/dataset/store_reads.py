"""Fetches the column chunks of row groups from a store.

It takes a row group and the columns to read, and returns ranges of the file with their bytes, for a `ChunkFile`.
`fetch_chunks` keeps the bytes in memory, and `download_chunks` in a temporary file. The chunks of a `RowGroupRun` are
fetched in the same requests.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np

from ..base.errors import ParquetryError
from ..base.urls import without_secrets
from ..storage.chunk_ranges import PADDING_BYTES, Range, chunk_ranges, fetch_ranges, requested_ranges
from ..storage.retries import ATTEMPTS, FEW_ATTEMPTS, with_retries
from ..storage.store_answers import told
from ..storage.temporary import TemporaryBuffer
from .row_groups import StoredFiles, describe_row_group

_LOGGER = logging.getLogger(__name__)
RUN_BYTES = 8 << 20
"""The most stored bytes of the row groups of a run. A connection of 100 MB/s needs 80 ms for them, about as long as a
store takes to answer at all."""
_FEWER_REQUESTS = 2  # row groups are fetched together if that divides the number of requests by this
_PIECE_BYTES = 4 << 20
_PIECES_AT_ONCE = 8


class HeldChunks(NamedTuple):
    """Ranges of a file, ascending, and the bytes of each."""

    ranges: Sequence[Range]
    content: Sequence[bytes | memoryview]


class RowGroupRun:
    """Neighboring row groups of a file, whose column chunks are fetched in the same requests. Thread-safe.

    The first one that is read fetches the chunks of all, and each of the others takes its own. Whoever finds none
    fetches them by itself: if joining saves few requests, if the joined ones failed, or if its chunks were damaged and
    are read again. So an error always names the row group that cannot be read, and the others are still read.

    Args:
        row_groups: their numbers in the dataset, ascending.
    """

    def __init__(self, row_groups: Sequence[int]) -> None:
        self._row_groups = tuple(row_groups)
        self._columns: tuple[str, ...] | None = None
        self._left: dict[int, HeldChunks] = {}
        self._lock = Lock()

    def take(
        self, dataset: StoredFiles, row_group: int, columns: Sequence[str], names: frozenset[str] | None
    ) -> HeldChunks | None:
        """Returns the chunks of a row group, once; ``None`` if they have to be fetched alone. See `fetch_chunks`.

        Raises:
            ParquetryError: the file has changed, or the read was cancelled.
        """
        with self._lock:
            is_first = self._columns is None
            if is_first:
                self._columns = tuple(columns)
        if is_first:
            chunks = _fetch_run(dataset, self._row_groups, columns, names)
            with self._lock:
                self._left = chunks
        with self._lock:
            return self._left.pop(row_group, None) if self._columns == tuple(columns) else None


def fetch_chunks(
    dataset: StoredFiles,
    row_group: int,
    columns: Sequence[str],
    names: frozenset[str] | None,
    run: RowGroupRun | None = None,
) -> HeldChunks:
    """Fetches the column chunks of the given columns of a row group.

    Args:
        names: the columns that the footer is read for, at least; ``None`` for all. See `StoredFiles.group_footer`.
        run: the row groups that are fetched in the same requests; ``None`` = only this one.

    Raises:
        DatasetError: the file has changed.
        StoreError: the store fails, or refuses.
    """
    chunks = None if run is None else run.take(dataset, row_group, columns, names)
    if chunks is not None:
        return chunks
    ranges = fetched_ranges(dataset, [row_group], columns, names)
    return HeldChunks(ranges, _fetch_bytes(dataset, [row_group], ranges))


def download_chunks(
    dataset: StoredFiles, row_group: int, columns: Sequence[str], names: frozenset[str] | None
) -> HeldChunks:
    """As `fetch_chunks`, but a few pieces at a time, into a temporary file.

    Raises:
        NoRoomError: there is no room for it.
    """
    ranges = fetched_ranges(dataset, [row_group], columns, names)
    pieces = [
        (begin, min(begin + _PIECE_BYTES, end)) for first, end in ranges for begin in range(first, end, _PIECE_BYTES)
    ]
    kept = TemporaryBuffer()
    try:
        for number in range(0, len(pieces), _PIECES_AT_ONCE):
            for piece in _fetch_bytes(dataset, [row_group], pieces[number : number + _PIECES_AT_ONCE]):
                kept.append(piece)
        content = memoryview(kept.mapped() or b"")
    finally:
        kept.close()
    ends = np.cumsum([end - first for first, end in ranges]).tolist()
    return HeldChunks(ranges, [content[begin:end] for begin, end in zip([0, *ends], ends, strict=False)])


def fetched_ranges(
    dataset: StoredFiles, row_groups: Sequence[int], columns: Sequence[str], names: frozenset[str] | None
) -> list[Range]:
    """Returns the ranges that are fetched from a store for the given columns of row groups of one file.

    Args:
        names: see `fetch_chunks`.
    """
    chunks = [chunk for row_group in row_groups for chunk in _chunks(dataset, row_group, columns, names)]
    return requested_ranges(chunks, _file_bytes(dataset, row_groups[0]))


def _chunks(dataset: StoredFiles, row_group: int, columns: Sequence[str], names: frozenset[str] | None) -> list[Range]:
    described = dataset.group_footer(row_group, names)
    return chunk_ranges(described.chunks(described.columns.numbers(columns)), _file_bytes(dataset, row_group))


def _file_bytes(dataset: StoredFiles, row_group: int) -> int:
    return dataset.files[int(dataset.row_groups.file[row_group])].size_bytes


def _fetch_run(
    dataset: StoredFiles, row_groups: Sequence[int], columns: Sequence[str], names: frozenset[str] | None
) -> dict[int, HeldChunks]:
    """Fetches the chunks of several row groups. Returns those of each, or nothing if each is to be fetched alone."""
    ranges = fetched_ranges(dataset, row_groups, columns, names)
    alone = sum(len(fetched_ranges(dataset, [row_group], columns, names)) for row_group in row_groups)
    if len(ranges) > alone / _FEWER_REQUESTS:  # as many readers send more of them at once
        return {}
    try:
        content = _fetch_bytes(dataset, row_groups, ranges, most=FEW_ATTEMPTS)
    except ParquetryError:
        raise
    except Exception as error:
        place = without_secrets(_place(dataset, row_groups))
        _LOGGER.debug("%s: fetching each of them by itself, because the store failed: %s", place, told(error))
        return {}
    views = [memoryview(each) for each in content]
    return {row_group: _part(_chunks(dataset, row_group, columns, names), ranges, views) for row_group in row_groups}


def _part(chunks: Sequence[Range], ranges: Sequence[Range], views: Sequence[memoryview]) -> HeldChunks:
    """Returns what holds some chunks, as views of the fetched ranges."""
    own_ranges: list[Range] = []
    content: list[memoryview] = []
    for (begin, stop), view in zip(ranges, views, strict=True):
        inside = [(first, end) for first, end in chunks if begin <= first < stop]
        if inside:
            first, end = min(inside)[0], min(max(end for _, end in inside) + PADDING_BYTES, stop)
            own_ranges.append((first, end))
            content.append(view[first - begin : end - begin])
    return HeldChunks(own_ranges, content)


def _fetch_bytes(
    dataset: StoredFiles, row_groups: Sequence[int], ranges: Sequence[Range], most: int = ATTEMPTS
) -> list[bytes]:
    file = int(dataset.row_groups.file[row_groups[0]])

    def fetch() -> list[bytes]:
        return fetch_ranges(lambda: dataset.open(file, ranges=True), ranges)

    size = sum(end - first for first, end in ranges)
    return with_retries(dataset.filesystem, fetch, _place(dataset, row_groups), most=most, size_bytes=size)


def _place(dataset: StoredFiles, row_groups: Sequence[int]) -> str:
    """Describes row groups for messages."""
    place = describe_row_group(dataset, row_groups[0])
    return place if len(row_groups) == 1 else f"{place} to {dataset.row_groups.group[row_groups[-1]]}"
