"""`read_group_footer`: what the footer of a file says about one of its row groups.

pyarrow parses a footer as a whole, which takes a millisecond and about a megabyte for each thousand column chunks. A
shuffle of many small row groups needs a few of each file at a time. So the footer stays as it is stored, and pyarrow
gets a checked footer with only the wanted row group.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from ..base.memory.lru_cache import LRUCache
from ..base.native.kernels import passes, row_group_places
from ..storage.files import DataFile
from .footers import footer_tail, from_footer, is_signed, kept_footer, naming_file, read_footer

_FEW_ROW_GROUPS = 32
_MOST_STORED_BYTES = 32 << 20
_MOST_PARSED = 256
_ONE_STRUCT = b"\x1c"  # the head of a list of one struct, in the Thrift compact protocol

_stored: LRUCache[str, tuple[bytes, np.ndarray]] = LRUCache(
    _MOST_STORED_BYTES, lambda found: len(found[0]) + found[1].nbytes
)
_parsed: LRUCache[tuple[str, int], pq.FileMetaData] = LRUCache(_MOST_PARSED)


def read_group_footer(
    filesystem: pafs.FileSystem, file: DataFile, group: int, groups: int
) -> tuple[pq.FileMetaData, int]:
    """Returns a footer that describes a row group of a file, and the row group's number in that footer.

    Everything else is as in the file's own footer.

    Args:
        groups: the number of row groups of the file.

    Raises:
        DatasetError: as `read_footer`.
    """
    whole = kept_footer(file)
    if whole is not None or groups <= _FEW_ROW_GROUPS:
        return whole or read_footer(filesystem, file), group
    key = file.version.key, group
    footer = _parsed.get(key)
    if footer is not None:
        return footer, 0
    tail, places = _stored.made(key[0], lambda: _read(filesystem, file, groups))
    footer = _of_group(tail, places, group, file.size_bytes) if tail else None
    if footer is None:
        return read_footer(filesystem, file), group  # it says what is wrong, if anything is
    _parsed.keep(key, footer)
    return footer, 0


def _read(filesystem: pafs.FileSystem, file: DataFile, groups: int) -> tuple[bytes, np.ndarray]:
    """Returns a footer as stored, and where its row groups are. Both are empty if it is not as expected."""
    with naming_file(file):
        tail = from_footer(filesystem, file, footer_tail)
    places = None if tail is None else row_group_places(tail[:-8], groups)
    return (b"", np.empty(0, np.int64)) if tail is None or places is None else (tail, places)


def _of_group(tail: bytes, places: np.ndarray, group: int, file_bytes: int) -> pq.FileMetaData | None:
    """Returns a footer with only one row group; ``None`` unless it is certainly safe to ask pyarrow about it."""
    head, begin, end, last = (int(places[number]) for number in (0, group + 1, group + 2, -1))
    stored = tail[:head] + _ONE_STRUCT + tail[begin:end] + tail[last:-8]
    whole = stored + len(stored).to_bytes(4, "little") + tail[-4:]
    try:
        footer = pq.read_metadata(pa.BufferReader(whole))
    except (pa.ArrowException, OSError, ValueError):
        return None
    sound = not is_signed(whole, footer) and passes(stored, footer.num_columns, file_bytes - len(tail) + 8)
    return footer if sound else None
