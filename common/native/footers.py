"""Checks Parquet footers, finds their row groups, and measures dictionaries, with the compiled core.

Each function takes bytes as stored, which may be damaged. Without the core, the callers do the same work in Python.
"""

from __future__ import annotations

import numpy as np

from .library import library


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
