"""Checks Parquet footers, finds their row groups, measures dictionaries and decodes column chunks in the compiled core.

Each function takes bytes as stored, which may be damaged. Without the core, the callers do the same work otherwise.
"""

from __future__ import annotations

import numpy as np

from .library import library

CHUNK = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("data", "begin", "size", "stored_bytes", "value_bytes", "compressed", "definition", "empty"),
            *("target", "capacity", "offsets", "offset_bytes", "validity", "nulls", "found"),
        )
    ]
)
"""``Chunk`` in pages.cc, which says what the fields are. Those that are pointers there are addresses here."""
SLACK = 8
"""How many bytes after a chunk, and after a page, may be read."""
ENTRY_BYTES = 16
"""What each byte string of a dictionary takes beside its bytes."""


def passes(footer: bytes, columns: int, limit: int) -> bool:
    """Returns whether a footer certainly passes `layout.footer_check.check_footer`.

    Args:
        columns: the number of leaf columns.
        limit: the number of bytes before the footer.
    """
    core = library()
    return core is not None and bool(core.parquetry_check_footer(footer, len(footer), columns, limit))


def row_group_places(footer: bytes, groups: int) -> np.ndarray | None:
    """Returns where the list of row groups begins, where each row group begins, and where the last one ends.

    Returns ``None`` without the core, and for a footer that does not have this many row groups.
    """
    core = library()
    if core is None:
        return None
    places = np.empty(groups + 2, np.int64)
    return places if core.parquetry_row_groups(footer, len(footer), groups, places.ctypes.data) else None


def longest_value(values: bytes) -> int:
    """Returns the length of the longest of some values, each of which follows its length (4 bytes, little-endian).

    Raises:
        ValueError: the values do not account for all bytes.
    """
    core = library()
    longest = _longest(values) if core is None else int(core.parquetry_longest_value(values, len(values)))
    if longest < 0:
        raise ValueError("expected values that each follow their length")
    return longest


def _longest(values: bytes) -> int:
    at = longest = 0
    while at < len(values):
        length = int.from_bytes(values[at : at + 4], "little")
        longest, at = max(longest, length), at + 4 + length
    return longest if at == len(values) else -1


def decode_chunks(
    chunks: np.ndarray,
    rows: int,
    *,
    checked: bool,
    page: np.ndarray,
    dictionary: np.ndarray,
    descriptor: int = -1,
    chunk: np.ndarray | None = None,
) -> None:
    """Decodes column chunks of ``rows`` rows each, and sets ``found``, to -1 for those that it cannot decode.

    Args:
        chunks: of dtype `CHUNK`.
        checked: whether pages that do not match their checksums are not decoded.
        page: memory for a decompressed page, uint8. A chunk with a larger page is not decoded.
        dictionary: memory for a dictionary, uint8, aligned to 8 bytes.
        descriptor: the open file that holds the chunks; -1 if they are in memory.
        chunk: memory for a chunk of the file, uint8. A larger chunk is not decoded.
    """
    core = library()
    if core is None:
        chunks["found"] = -1
        return
    memory = [(each.ctypes.data, len(each) - slack) for each, slack in ((page, SLACK), (dictionary, 0))]
    memory.insert(0, (0, 0) if chunk is None else (chunk.ctypes.data, len(chunk) - SLACK))
    scratch = np.array(memory, np.int64)  # `Scratch` in pages.cc
    core.parquetry_decode_chunks(chunks.ctypes.data, len(chunks), rows, int(checked), descriptor, scratch.ctypes.data)
