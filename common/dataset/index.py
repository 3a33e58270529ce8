"""The row-group index: plans a huge dataset from one small file instead of all its footers.

`load_index` takes a listing of the files and returns a `RowGroupIndex` in the same order, or ``None``. An index is used
only if it names exactly the listed files with their sizes and times. If it is unreadable, the footers are read instead
and a warning is logged. `write_index` writes the index.
"""

from __future__ import annotations

import logging
import posixpath
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..base.errors import DatasetError
from ..base.memory.arrow_views import as_arrow, as_numpy
from ..base.process.forks import ForkLock
from ..base.urls import url_without_secrets
from ..parquet.chunk_statistics import ChunkStatistics
from ..parquet.group_footers import GroupFooter
from ..parquet.nested import stored_schema
from ..storage.file_versions import current_versions
from ..storage.files import DataFile, FileListing
from ..storage.retries import with_retries
from ..storage.store_answers import told
from .index_file import IndexFile, Value
from .index_footers import IndexFooters, UnreadableIndexError
from .index_format import INDEX_NAME, schema_from_text
from .index_writer import write_index

__all__ = ["RowGroupIndex", "load_index", "write_index"]

_LOGGER = logging.getLogger(__name__)
_VALUES_AT_ONCE = 1 << 22


def load_index(listing: FileListing) -> RowGroupIndex | None:
    """Loads the index of the listed files, if every root directory has one that matches. A bad index never raises."""
    if not set(listing.roots).isdisjoint(file.path for file in listing.files):
        return None  # the URL names a file; only directories have an index
    paths = [posixpath.join(root, INDEX_NAME) for root in dict.fromkeys(listing.roots)]
    try:
        filesystem = listing.filesystem
        versions = with_retries(filesystem, lambda: current_versions(filesystem, paths), "row-group index")
        if None in versions:
            return None
        parts = [IndexFile.open(filesystem, version) for version in versions if version is not None]
        return _in_order(listing, parts)
    except DatasetError as error:
        _LOGGER.warning("%s The footers of all files are read instead; write_index() makes a new index.", error)
        return None
    except OSError as error:
        _LOGGER.warning(
            "row-group index of %s: cannot be reached (%s). Reading the footers instead.",
            ", ".join(map(url_without_secrets, paths)),
            told(error),
        )
        return None


class RowGroupIndex:
    """The contents of a dataset's indexes, in the order of its row groups. Columns are read lazily.

    Attributes:
        file, group, rows: int64 ``(row groups,)``; see `dataset.RowGroups`.
    """

    def __init__(
        self, parts: Sequence[IndexFile], lines: np.ndarray | None, file: np.ndarray, group: np.ndarray
    ) -> None:
        self._parts = tuple(parts)
        self._lines = lines
        self._lock = ForkLock()
        self._unreadable_lock = ForkLock()
        self._is_readable = True
        self.file = file
        self.group = group
        self.rows = as_numpy(self._ordered(pa.chunked_array([part.rows for part in parts])))
        self._bytes = lru_cache(maxsize=4)(self._sum_bytes)
        self._footers = [IndexFooters(part) for part in parts]
        self._ends = np.cumsum([len(part.rows) for part in parts])

    @property
    def schemas(self) -> list[tuple[str, pa.Schema]]:
        """The distinct Arrow schemas, each with the path of the first file that has it."""
        return [
            (posixpath.join(posixpath.dirname(part.version.path), path), stored_schema(schema_from_text(text)))
            for part in self._parts
            for path, text in part.description.schemas
        ]

    def head(self, file: int) -> pq.FileMetaData | None:
        """The footer of a file without its row groups; ``None`` if only the file has it."""
        row_group = int(np.searchsorted(self.file, file))
        if row_group == len(self.file) or self.file[row_group] != file:
            return None
        footers, line = self._place(row_group)
        head = self._unless_unreadable(lambda: footers.head(line))
        return None if head is None else head.empty

    def group_footers(
        self, row_groups: Sequence[int], file: DataFile, names: frozenset[str] | None
    ) -> list[GroupFooter] | None:
        """What the footer says about columns of row groups of a file; ``None`` if only the footer has them.

        Args:
            row_groups: ascending numbers, at least one.
            names: the dotted names of the fields that are read; ``None`` for all columns of the file.

        Raises:
            DatasetError: the file cannot have such a row group.
        """
        footers, first = self._place(row_groups[0])
        lines = [first, *(self._place(each)[1] for each in row_groups[1:])]
        return self._unless_unreadable(lambda: footers.group_footers(lines, file, names))

    def _place(self, row_group: int) -> tuple[IndexFooters, int]:
        """Returns the part that describes a row group, and the line there."""
        line = row_group if self._lines is None else int(self._lines[row_group])
        if len(self._footers) == 1:
            return self._footers[0], line
        part = int(np.searchsorted(self._ends, line, side="right"))
        return self._footers[part], line - (int(self._ends[part - 1]) if part else 0)

    def _unless_unreadable(self, read: Callable[[], Value | None]) -> Value | None:
        if not self._is_readable:
            return None
        try:
            return read()
        except UnreadableIndexError as error:
            self._note_unreadable(error)
            return None

    def _note_unreadable(self, error: DatasetError) -> None:
        with self._unreadable_lock:
            is_first, self._is_readable = self._is_readable, False
        if is_first:
            _LOGGER.warning("%s Footers are read instead; write_index() makes a new index.", error)

    def statistics(self, name: str) -> ChunkStatistics | None:
        """The statistics of one column; ``None`` if only the footers have them."""
        if not all(part.description.covers([name]) for part in self._parts):
            return None
        exact = [name in part.description.exact for part in self._parts]
        if not any(exact):
            unknown = np.full(len(self.rows), -1, dtype=np.int64)
            return ChunkStatistics(minimum=None, maximum=None, null_count=unknown, exact=False)
        table = self._read([f"min:{name}", f"max:{name}", f"nulls:{name}"]) if all(exact) else None
        if table is None:
            return None
        try:
            low, high, nulls = (self._ordered(column) for column in table.columns)
        except pa.ArrowInvalid:  # texts of more than 2 GiB in total do not fit one array
            return None
        known = low.null_count < len(low) and high.null_count < len(high)
        known = known and not any(name in part.description.unbounded for part in self._parts)
        return ChunkStatistics(
            minimum=low if known else None,
            maximum=high if known else None,
            null_count=as_numpy(nulls),
            exact=any(part.description.exact[name] for part in self._parts),
        )

    def bytes_of(self, kind: Literal["stored", "decoded"], names: Sequence[str]) -> np.ndarray | None:
        """The compressed or decompressed size of columns in each row group; ``None`` if only footers have it."""
        with self._lock:
            return self._bytes(kind, tuple(names))

    def _sum_bytes(self, kind: str, names: tuple[str, ...]) -> np.ndarray | None:
        if not all(part.description.covers(names) for part in self._parts):
            return None
        leaves = self._parts[0].description.leaves_of(names)
        if any(set(part.description.leaves_of(names)) != set(leaves) for part in self._parts):
            return None
        total = np.zeros(len(self.rows), dtype=np.int64)
        columns = [f"{kind}:{leaf}" for leaf in leaves]
        at_once = max(1, _VALUES_AT_ONCE // max(1, len(total)))  # each read parses the footer, with all its columns
        for first in range(0, len(columns), at_once):
            table = self._read(columns[first : first + at_once])
            if table is None:
                return None
            for column in table.columns:
                total += as_numpy(self._ordered(column))
        return total

    def _read(self, columns: list[str]) -> pa.Table | None:
        if not self._is_readable:
            return None
        try:
            tables = [part.read(columns) for part in self._parts]
        except DatasetError as error:
            self._note_unreadable(error)
            return None
        if any(table.schema != tables[0].schema for table in tables):
            return None
        return pa.concat_tables(tables)

    def _ordered(self, column: pa.ChunkedArray) -> pa.Array:
        array = column.combine_chunks()
        return array if self._lines is None else array.take(as_arrow(self._lines))


def _in_order(listing: FileListing, parts: Sequence[IndexFile]) -> RowGroupIndex:
    """Combines the parts in listing order. Raises `DatasetError` for the first file that does not match."""
    place = {file.path: number for number, file in enumerate(listing.files)}
    first = np.zeros(len(place), dtype=np.int64)
    count = np.full(len(place), -1, dtype=np.int64)
    start = 0
    for part in parts:
        numbers = [_checked(listing, part, place, number) for number in range(len(part.files))]
        first[numbers] = part.first + start
        count[numbers] = part.count
        start += len(part.rows)
    if (count < 0).any():
        new = listing.files[int(np.argmin(count))].shown_path
        raise DatasetError(
            f"row-group index {parts[0].version.shown_path} is stale: expected every file, got none for {new}."
        )
    file = np.repeat(np.arange(len(place), dtype=np.int64), count)
    group = np.arange(len(file), dtype=np.int64) - np.repeat(np.cumsum(count) - count, count)
    if len(file) != start:
        raise DatasetError(f"row-group index {parts[0].version.shown_path}: expected each file once, got some twice.")
    lines = np.repeat(first, count) + group
    in_place = bool((lines == np.arange(start)).all())
    return RowGroupIndex(parts, None if in_place else lines, file, group)


def _checked(listing: FileListing, part: IndexFile, place: dict[str, int], number: int) -> int:
    described = part.files[number]
    where = f"row-group index {part.version.shown_path} is stale: file {described.shown_path}"
    if described.path not in place:
        raise DatasetError(f"{where}: expected the file, found none.")
    number = place[described.path]
    version = listing.files[number].version
    if described.size_bytes != version.size_bytes:
        raise DatasetError(f"{where}: expected {described.size_bytes} bytes, got {version.size_bytes}.")
    if described.became(version):
        raise DatasetError(f"{where}: expected the version that has {described}, got {version}.")
    if not described.can_tell(version):
        raise DatasetError(f"{where}: expected a time or an ETag that tells versions apart, got {version}.")
    return number
