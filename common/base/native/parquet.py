"""Kernels that check Parquet footers, copy parts of them, measure dictionaries and decode column chunks.

Each function takes bytes as stored, which may be damaged. Most are only compiled: they leave some bytes to their
callers, and without the core all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from .library import CORE, address_of, zstd_functions

CHUNK = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("data", "begin", "size", "stored_bytes", "value_bytes", "compressed", "definition", "empty"),
            *("target", "capacity", "offsets", "offset_bytes", "validity", "nulls", "in_order", "found"),
        )
    ]
)
"""``Chunk`` in pages.cc, where its fields are documented. Pointers are stored as addresses."""
SLACK = 8
"""How many bytes after a chunk, and after a page, may be read."""
_NOTHING = np.zeros(SLACK, np.uint8)
COMPRESSIONS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "ZSTD": 2}
"""The compressions of column chunks that can be decoded, ``Compression`` in pages.cc; ``ZSTD`` with `zstd` alone."""
ENTRY_BYTES = 16
"""What each byte string of a dictionary takes beside its bytes."""
CHUNK_FACTS = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("elsewhere", "type", "encodings", "codec", "values", "unpacked_bytes", "stored_bytes"),
            *("data_page", "dictionary_page", "begin", "end"),
        )
    ]
)
"""``ChunkFacts`` in footers.cc: fields of ColumnMetaData in parquet.thrift, -1 for one that is not there.

``encodings`` has a bit for each of them, and ``elsewhere`` is 1 if the chunk is in another file. ``begin`` and ``end``
are where the chunk is described in the row group as stored.
"""
FOOTER_FIELDS = 10
_EMPTY_PAGES = 16  # how many there may be beside a page for each value
_GROUP_BYTES = 16  # that a row group may take more than before: its total size may be a larger number


def passes(footer: bytes, columns: int, limit: int) -> bool:
    """Returns whether a footer certainly passes `parquet.footer_check.check_footer`.

    Args:
        columns: the number of leaf columns.
        limit: the number of bytes before the footer.
    """
    return bool(CORE.parquetry_check_footer(footer, len(footer), columns, limit))


def footer_fields(footer: bytes) -> tuple[list[range], int] | None:
    """Returns the place of the value of each field of a footer, by its number, and where the footer ends.

    The fields are 1 to 9. A field that is not there has an empty range. Returns ``None`` for a malformed footer.
    """
    places = np.empty((FOOTER_FIELDS, 2), np.int64)
    end = int(CORE.parquetry_footer_fields(footer, len(footer), address_of(places)))
    return ([range(*place) for place in places.tolist()], end) if end >= 0 else None


class RowGroupBytes(NamedTuple):
    """Row groups of a footer.

    Attributes:
        stored: the row groups, one after the other, as structs of the Thrift compact protocol.
        ends: where each of them ends there, int64.
        rows: how many rows each has, int64.
    """

    stored: bytes
    ends: np.ndarray
    rows: np.ndarray


def cut_row_groups(footer: bytes, begin: int, groups: int, wanted: bytes, *, bare: bool) -> RowGroupBytes | None:
    """Returns the row groups of a footer with only some columns; ``None`` if the footer is not as expected.

    Args:
        begin: where the list of row groups begins.
        wanted: a byte for each leaf column: 0 leaves it out.
        bare: whether to leave out statistics, and all else that reading does not need.
    """
    ends, rows = np.empty(groups, np.int64), np.empty(groups, np.int64)
    to = np.empty(len(footer) - begin + _GROUP_BYTES * groups, np.uint8)
    memory = (address_of(to), len(to), address_of(ends), address_of(rows))
    size = int(
        CORE.parquetry_cut_row_groups(footer, len(footer), begin, groups, len(wanted), wanted, int(bare), *memory)
    )
    return RowGroupBytes(to[:size].tobytes(), ends, rows) if size >= 0 else None


def chunk_facts(group: bytes, columns: int) -> np.ndarray | None:
    """Returns what a row group of `cut_row_groups` says about each of its columns; ``None`` if it is not as expected.

    The array has the dtype `CHUNK_FACTS`.
    """
    facts = np.empty(columns, CHUNK_FACTS)
    return facts if CORE.parquetry_chunk_facts(group, len(group), columns, address_of(facts)) else None


def longest_value(values: bytes) -> int:
    """Returns the length of the longest value. Each value follows its length (4 bytes, little-endian).

    Raises:
        ValueError: the values do not account for all bytes.
    """
    longest = int(CORE.parquetry_longest_value(values, len(values)))
    if longest < 0:
        raise _misplaced_length()
    return longest


def longest_value_by_python(values: bytes) -> int:
    """Does what `longest_value` does."""
    at = longest = 0
    while at < len(values):
        length = int.from_bytes(values[at : at + 4], "little")
        longest, at = max(longest, length), at + 4 + length
    if at != len(values):
        raise _misplaced_length()
    return longest


def _misplaced_length() -> ValueError:
    return ValueError("expected values that each follow their length")


class FileStatus(NamedTuple):
    """What the file system says about a file, with the names of ``os.stat_result``. All 0 if there is none.

    ``FileStatus`` in local_file.h.
    """

    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int
    st_ino: int
    st_mode: int
    st_nlink: int
    st_uid: int
    st_gid: int


NO_FILE = FileStatus(*(0,) * len(FileStatus._fields))
"""The status of a missing file."""


def decode_chunks(
    chunks: np.ndarray,
    rows: int,
    *,
    checked: bool,
    page: np.ndarray,
    dictionary: np.ndarray,
    path: str | None = None,
    chunk: np.ndarray | None = None,
    column: np.ndarray | None = None,
    items: np.ndarray | None = None,
    wanted: np.ndarray | None = None,
) -> tuple[FileStatus, int]:
    """Decodes column chunks of ``rows`` rows each, and sets ``found``, to -1 for those that it cannot decode.

    Args:
        chunks: of dtype `CHUNK`.
        checked: whether pages are decoded only if they match their checksums.
        page: memory for a decompressed page, uint8. A chunk with a larger page is not decoded.
        dictionary: memory for a dictionary, uint8, aligned to 8 bytes.
        path: the file that holds the chunks; ``None`` if they are in memory.
        chunk: memory for a chunk of the file, uint8. A larger chunk is read page by page, and not decoded if a page is
            larger.
        column: memory for the numbers of a chunk that are put ``in_order``, uint8. A larger chunk is not decoded.
        items: the row of each item in that order, int32. Chunks are not decoded if a row is out of range.
        wanted: the rows that are wanted, int64, ascending; ``None`` = all. Pages of flat columns without any of them
            are neither read nor decoded: their numbers are then anything, their byte strings empty.

    Returns:
        The status of the file at the path after it was read, and how many bytes of the chunks were not read.
    """
    parts = ((_NOTHING if chunk is None else chunk, SLACK), (page, SLACK), (dictionary, 0))
    memory = [number for each, slack in parts for number in (address_of(each), len(each) - slack)]
    for part in (column, items, wanted):
        memory += (0, 0) if part is None else (address_of(part), len(part))
    scratch = np.array([*memory, 0, *zstd_functions()], np.int64)  # `Scratch` in pages.cc
    status = np.zeros(len(NO_FILE), np.int64)
    CORE.parquetry_decode_chunks(
        address_of(chunks),
        len(chunks),
        rows,
        int(checked),
        None if path is None else os.fsencode(path),
        address_of(status),
        address_of(scratch),
    )
    return FileStatus(*status.tolist()), int(scratch[len(memory)])


def read_cells(
    path: str,
    begin: int,
    size: int,
    count: int,
    allocate: Callable[[int], np.ndarray],
    *,
    width: int | None,
    nullable: bool,
    verify: str,
) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray] | None, FileStatus]:
    """Reads a column chunk of byte strings from a file, and finds each value in it.

    Args:
        path, begin, size: the file, where the chunk is, and its number of bytes.
        count: the number of values.
        allocate: returns memory for the chunk (uint8).
        width: the width of values of one length; ``None`` for values that carry their length.
        nullable: whether a value may be null, so that pages begin with definition levels.
        verify: as in `parquet.checksums`.

    Returns:
        The offsets in the chunk of each value's first byte and of the byte after its last (int64 each), and the chunk;
        or ``None`` if the file ends early or the pages are not of this kind, contain a null, do not account for all
        bytes and values, or fail their checksums. Also the status of the file at the path after it was read.
    """
    data = allocate(size)
    places, status = np.empty((2, count), np.int64), np.zeros(len(NO_FILE), np.int64)
    cells = _cells(data, begin, size, places, width, nullable, verify)
    is_plain = CORE.parquetry_find_cells(address_of(cells), os.fsencode(path), address_of(status))
    return (places[0], places[1], data) if is_plain else None, FileStatus(*status.tolist())


def locate_cells(
    descriptor: int, begin: int, size: int, count: int, *, width: int | None, nullable: bool, verify: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Finds each value of a column chunk of byte strings that stays in an open file.

    Args:
        begin, size: where the chunk is in the file, and its number of bytes.
        count, width, nullable, verify: as in `read_cells`.

    Returns:
        The offsets in the chunk of each value's first byte and of the byte after its last, and for each page that must
        match its checksum the offsets of its first byte and of the byte after its last, and the checksum, ``[pages,
        3]``; int64 each. ``None`` as in `read_cells`, or if a page header or a page's levels take more than 16 KiB.
    """
    places, pages = np.empty((2, count), np.int64), np.empty((count + _EMPTY_PAGES, 3), np.int64)
    cells = _cells(None, begin, size, places, width, nullable, verify, pages)
    left = int(CORE.parquetry_locate_cells(address_of(cells), descriptor))
    return (places[0], places[1], pages[:left]) if left >= 0 else None


def _cells(
    data: np.ndarray | None,
    begin: int,
    size: int,
    places: np.ndarray,
    width: int | None,
    nullable: bool,
    verify: str,
    pages: np.ndarray | None = None,
) -> np.ndarray:
    """Returns ``Cells`` in cells.cc, which refers to the memory of the given arrays."""
    address = address_of(places)
    numbers = (begin, size, places.shape[1], -1 if width is None else width, int(nullable))
    checks = (int(verify != "never"), int(verify == "always"))
    left = (0, 0) if pages is None else (address_of(pages), len(pages))
    memory = 0 if data is None else address_of(data)
    return np.array([memory, *numbers, *checks, address, address + places.strides[0], *left], np.int64)


class WantedPage(NamedTuple):
    """A page of a file, and which of its values are wanted.

    Attributes:
        begin, end: the file offsets of its first byte and of the byte after its last.
        places: the file offset of each wanted value, in ascending order, and memory for it.
    """

    begin: int
    end: int
    places: Sequence[tuple[int, memoryview]]


def read_pages(descriptor: int, pages: Sequence[WantedPage], spare: np.ndarray) -> list[int | None]:
    """Reads the wanted values of the given pages. Returns the CRC-32 of each page, or ``None`` if it cannot be read.

    Args:
        spare: memory for the bytes around the values, uint8. No more than this is read at a time.
    """
    described = [(page.begin, page.end, len(page.places), -1) for page in pages]
    table = np.array(described, np.int64).reshape(-1, 4)  # `WantedPage` in cells.cc
    values = [(begin, len(memory), address_of(memory)) for page in pages for begin, memory in page.places]
    places = np.array(values, np.int64)  # `Place` there
    CORE.parquetry_read_pages(
        descriptor, address_of(table), len(table), address_of(places), address_of(spare), len(spare)
    )
    return [None if checksum < 0 else checksum for checksum in table[:, 3].tolist()]
