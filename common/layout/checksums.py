"""Page checksums: which pages are held to theirs, and how.

In: the value of the option ``verify``, and pages. Out: whether a page holds what was written. Always holds: a checksum
covers the bytes of a page as they are stored, compressed, and without the header.
Source of the rule: ``crc`` of PageHeader in parquet.thrift, the CRC-32 of zlib.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np

from ..errors import DatasetError
from .page_header import DataPage, page_checksum

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

try:
    from isal.isal_zlib import crc32  # the same numbers twenty times as fast
except ImportError:  # a platform that it has no wheel for
    from zlib import crc32

__all__ = ["VERIFY", "ChunkBytes", "PageCheck", "Verify", "crc32", "require_checksums"]

Verify: TypeAlias = Literal["written", "always", "never"]
VERIFY: tuple[Verify, ...] = ("written", "always", "never")
_MOST_REMEMBERED = 1 << 20


class ChunkBytes(Protocol):
    """The bytes of a column chunk."""

    def __len__(self) -> int:
        """How many."""

    def read(self, begin: int, end: int) -> memoryview:
        """Those from ``begin`` to ``end`` (exclusive), which lie inside.

        Raises:
            ValueError: they cannot be read.
        """

    def heads(self, starts: np.ndarray, size: int) -> np.ndarray:
        """The ``size`` bytes from each start on: uint8 ``[starts, size]``; errors as of `read`."""

    def checksum(self, begin: int, end: int) -> int:
        """The CRC-32 of the bytes from ``begin`` to ``end``; errors as of `read`."""


class PageCheck:
    """Holds the pages of one column chunk to their checksums.

    Args:
        required: whether a page without a checksum fails.
        rows: the wanted rows of the chunk, ascending; pages without any of them pass. ``None`` = all.
        passed: where pages begin in the chunk that passed before, which are not read again; new ones are added.
    """

    def __init__(
        self, *, required: bool = False, rows: np.ndarray | None = None, passed: set[int] | None = None
    ) -> None:
        self._required = required
        self._rows = rows
        self._passed = passed

    def passes(self, chunk: ChunkBytes, page: DataPage, first_row: int = 0) -> bool:
        """Whether a page holds what was written, as far as that is asked for.

        Args:
            first_row: the number of its first value in the chunk.
        """
        if page.checksum is None:
            return not self._required
        if self._passed is not None and page.begin in self._passed:
            return True
        if self._rows is not None:
            first, last = np.searchsorted(self._rows, (first_row, first_row + page.values))
            if first == last:
                return True
        if chunk.checksum(page.begin, page.end) != page.checksum:
            return False
        if self._passed is not None:
            self._passed.add(page.begin)
        return True


class PassedPages:
    """Pages of files that passed their check in this process, by file version and chunk."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, int], set[int]] = {}

    def of(self, version: str, chunk: int) -> set[int]:
        """Where pages begin in a chunk that passed; the caller adds to it."""
        if len(self._pages) >= _MOST_REMEMBERED:
            self._pages.clear()
        return self._pages.setdefault((version, chunk), set())


def page_check(verify: Verify, *, rows: np.ndarray | None = None, passed: set[int] | None = None) -> PageCheck | None:
    """What the option ``verify`` asks of the pages of a chunk; see `PageCheck`."""
    return None if verify == "never" else PageCheck(required=verify == "always", rows=rows, passed=passed)


def require_checksums(
    source: pa.NativeFile, footer: pq.FileMetaData, group: int, columns: Iterable[int], place: str
) -> None:
    """Looks at the headers of all pages of some leaf columns of a row group; Arrow does not say what has no checksum.

    Raises:
        DatasetError: a page without a checksum, or what is no page.
    """
    for number in columns:
        chunk = footer.row_group(group).column(number)
        first = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
        begin = chunk.data_page_offset if first is None else min(first, chunk.data_page_offset)
        size, position = chunk.total_compressed_size, 0

        def read(start: int, end: int, begin: int = begin) -> memoryview:
            return memoryview(source.read_at(end - start, begin + start))

        where = f"{place}, column '{chunk.path_in_schema}'"
        try:
            while position < size:
                checksum, position = page_checksum(read, position, size)
                if checksum is None:
                    raise DatasetError(
                        f"{where}: expected a checksum in every page, as verify='always' says, got a page without. "
                        "Write the dataset again by parquetry.common.tools.rewrite(), which adds them, or read it with "
                        "verify='written'."
                    )
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise DatasetError(
                f"{where}: expected pages, got: {error}. The file is damaged: write it again."
            ) from error
