"""Row numbers of large selections: they are found slice by slice, and `joined` lays them end to end.

Up to `MOST_BYTES` they are in memory, and beyond in a temporary file, which is mapped: the system can drop its pages
and read them again. The result is an int32 array in either case.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from typing import TypeAlias

import numpy as np

from ...base.platform.files import forget
from ...storage.temporary import NoRoomError, TemporaryBuffer

RowNumbers: TypeAlias = np.ndarray | range
"""Numbers of rows in a row group, ascending: int32, int64, or a range, which takes no memory whatever its length."""
_LOGGER = logging.getLogger(__name__)
MOST_BYTES = 16 << 20
_AT_ONCE = 1 << 20
_ROW_BYTES = 4
_in_files: weakref.WeakValueDictionary[int, np.ndarray] = weakref.WeakValueDictionary()
"""The arrays in temporary files, by their ids."""


def joined(parts: Iterable[np.ndarray]) -> np.ndarray:
    """Returns int32 arrays end to end. A single one is returned as it is."""
    held: list[np.ndarray] = []
    size = 0
    rest = iter(parts)
    for part in rest:
        if not len(part):
            continue
        held.append(part)
        size += len(part)
        if size * _ROW_BYTES > MOST_BYTES and len(held) > 1:
            return _in_file(held, rest)
    if len(held) == 1:
        return held[0]
    return np.concatenate([np.zeros(0, np.int32), *held])


def rows_in(rows: RowNumbers, first: int, end: int) -> RowNumbers:
    """Returns the rows from ``first`` to ``end - 1`` without a copy."""
    if isinstance(rows, range):
        return range(max(rows.start, first), min(rows.stop, end))
    begin, stop = np.searchsorted(rows, np.array([first, end], rows.dtype))  # of another type, it would copy all rows
    return rows[begin:stop]


def rows_between(rows: RowNumbers, first: int, end: int) -> np.ndarray:
    """Returns the wanted rows of a slice, by their numbers in the slice, which holds rows ``first .. end - 1``."""
    part = rows_in(rows, first, end)
    return (np.arange(part.start, part.stop) if isinstance(part, range) else part) - first


def rows_where(mask: np.ndarray, rows: RowNumbers, first: int) -> np.ndarray:
    """Returns the rows of a slice for which its mask is true, ascending int32. The slice begins at row ``first``."""
    if isinstance(rows, range):
        return (np.flatnonzero(mask[rows.start - first : rows.stop - first]) + rows.start).astype(np.int32)
    return np.asarray(rows[mask[rows - first]], np.int32)


def forget_rows(rows: np.ndarray) -> None:
    """Drops the pages of row numbers in a temporary file from this process's memory. The next use maps them again."""
    while isinstance(rows.base, np.ndarray):
        rows = rows.base
    if _in_files.get(id(rows)) is rows:  # of other memory, this would drop the content
        forget(rows.base)


def _in_file(held: list[np.ndarray], rest: Iterable[np.ndarray]) -> np.ndarray:
    """Returns int32 arrays end to end in a temporary file, or in memory if there is no room for one."""
    try:
        file = TemporaryBuffer()
    except NoRoomError as error:
        _LOGGER.warning("The numbers of selected rows are kept in memory: %s", error)
        return np.concatenate([*held, *rest])
    try:
        while held:
            _append(file, held.pop(0))
        for part in rest:
            _append(file, part)
        mapped = file.mapped()
        assert mapped is not None  # held was not empty
    finally:
        file.close()
    numbers = np.frombuffer(mapped, np.int32)
    _in_files[id(numbers)] = numbers
    return numbers


def _append(file: TemporaryBuffer, part: np.ndarray) -> None:
    for first in range(0, len(part), _AT_ONCE):
        file.append(np.ascontiguousarray(part[first : first + _AT_ONCE], np.int32).data)
    forget_rows(part)
