"""`file_columns`: the columns of a file, so that reading a few of them need not look at all the others.

Files with the same schema share them. They are found by the version of a file, or by comparing the schemas, which takes
microseconds for each thousand columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow.parquet as pq

from ..base.memory.lru_cache import LRUCache
from .int96 import with_int96
from .native_decode import leaves_of
from .nested import extension_paths, has_extensions, stored_schema, with_whole_extensions

_MOST_COLUMNS = 1 << 16  # of files that were read last
_MOST_SCHEMAS = 4  # that those of other files are compared with; the footer of each stays in memory


class FileColumns:
    """The columns of a file.

    Attributes:
        arrow, stored: the Arrow schema of the file, and its `footer_schema`.
        has_int96: whether the file has INT96 timestamps.
        leaves: the `leaves_of` the file.
    """

    def __init__(self, footer: pq.FileMetaData) -> None:
        self.arrow = footer.schema.to_arrow_schema()
        plain = stored_schema(self.arrow)
        self.stored = with_int96(plain, footer)
        self.has_int96 = self.stored is not plain
        self.leaves = leaves_of(footer, self.arrow)
        self._extensions = extension_paths(self.arrow)
        self._may_change = any(map(has_extensions, self.arrow))
        self._count: int = footer.num_columns
        self._numbers: dict[str, list[int]] = {}
        self._map_parts: dict[str, list[int]] = {}
        for number in range(len(footer.schema)):
            path = footer.schema.column(number).path
            for place in (*(place for place, letter in enumerate(path) if letter == "."), len(path)):
                self._numbers.setdefault(path[:place], []).append(number)
            top, _, part = path.rpartition(".key_value.")
            if part in ("key", "value"):
                self._map_parts.setdefault(f"{top}.{part}", []).append(number)

    def __len__(self) -> int:
        return self._count

    def is_current(self, footer: pq.FileMetaData) -> bool:
        """Whether the types are still those of the file's footer, even if the process has registered others since."""
        return not self._may_change or footer.schema.to_arrow_schema().equals(self.arrow, check_metadata=True)

    def numbers(self, names: Iterable[str]) -> list[int]:
        """Returns the numbers of the leaf columns that make up the columns with the given dotted names."""
        return sorted({number for name in names for number in self._numbers.get(name, ())})

    def field_numbers(self, names: Iterable[str]) -> list[int]:
        """Returns the numbers of the leaf columns that belong to fields; see `chunk_statistics.belongs`."""
        names = list(names)
        parts = (number for name in names for number in self._map_parts.get(name, ()))
        return sorted({*self.numbers(names), *parts})

    def with_whole_extensions(self, names: Sequence[str]) -> list[str]:
        """Returns the columns to read, given the wanted columns of the `stored` schema."""
        return with_whole_extensions(names, self._extensions)


_by_file: LRUCache[str, FileColumns] = LRUCache(_MOST_COLUMNS, len)
_recent: tuple[tuple[pq.FileMetaData, FileColumns], ...] = ()


def file_columns(key: str, footer: pq.FileMetaData) -> FileColumns:
    """Returns the columns of a file.

    Args:
        key: of the file's version.
        footer: the file's, or that of one of its row groups.
    """
    global _recent
    known = _by_file.get(key)
    if known is not None and known.is_current(footer):
        return known
    same = (each for other, each in _recent if _has_same_columns(other, footer) and each.is_current(footer))
    columns = next(same, None)
    if columns is None:
        columns = FileColumns(footer)
        _recent = ((footer, columns), *_recent[: _MOST_SCHEMAS - 1])
    if known is None:
        _by_file.keep(key, columns)
    return columns


def _has_same_columns(one: pq.FileMetaData, other: pq.FileMetaData) -> bool:
    return bool(one.schema.equals(other.schema) and one.metadata == other.metadata)
