"""Verifies page checksums, as far as the option ``verify`` asks for it.

A checksum covers the bytes of a page as stored: compressed, and without the header.
Source of the rule: ``crc`` of PageHeader in parquet.thrift, which is the CRC-32 of zlib.
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
    from isal.isal_zlib import crc32  # same result, twenty times as fast
except ImportError:  # a platform without an isal wheel
    from zlib import crc32

__all__ = ["VERIFY", "ChunkBytes", "PageCheck", "Verify", "crc32", "require_checksums"]

Verify: TypeAlias = Literal["written", "always", "never"]
VERIFY: tuple[Verify, ...] = ("written", "always", "never")
_MOST_REMEMBERED = 1 << 20


class ChunkBytes(Protocol):
    """The bytes of a column chunk."""

    def __len__(self) -> int:
        """The number of bytes."""

    def read(self, begin: int, end: int) -> memoryview:
        """Returns the bytes from ``begin`` to ``end`` (exclusive), a range inside the chunk.

        Raises:
            ValueError: the bytes cannot be read.
        """

    def heads(self, starts: np.ndarray, size: int) -> np.ndarray:
        """Returns the ``size`` bytes after each start as uint8 ``[starts, size]``. Raises like `read`."""

    def checksum(self, begin: int, end: int) -> int:
        """Returns the CRC-32 of the bytes from ``begin`` to ``end``. Raises like `read`."""


class PageCheck:
    """Checks the pages of one column chunk against their checksums.

    Args:
        required: whether a page without a checksum fails.
        rows: the wanted rows of the chunk, ascending. Pages without any of them pass unchecked. ``None`` = all rows.
        passed: start offsets of pages that passed before and are not checked again. Pages that pass are added to it.
    """

    def __init__(
        self, *, required: bool = False, rows: np.ndarray | None = None, passed: set[int] | None = None
    ) -> None:
        self._required = required
        self._rows = rows
        self._passed = passed

    def passes(self, chunk: ChunkBytes, page: DataPage, first_row: int = 0) -> bool:
        """Whether a page is intact, or need not be checked.

        Args:
            first_row: the number of the page's first value in the chunk.
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
    """Remembers which pages passed their check in this process, by file version and chunk."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, int], set[int]] = {}

    def of(self, version: str, chunk: int) -> set[int]:
        """The start offsets of the pages of a chunk that passed. The caller adds to this set."""
        if len(self._pages) >= _MOST_REMEMBERED:
            self._pages.clear()
        return self._pages.setdefault((version, chunk), set())


def page_check(verify: Verify, *, rows: np.ndarray | None = None, passed: set[int] | None = None) -> PageCheck | None:
    """The check that the option ``verify`` requires for a chunk, or ``None``. See `PageCheck` for the arguments."""
    return None if verify == "never" else PageCheck(required=verify == "always", rows=rows, passed=passed)


def require_checksums(
    source: pa.NativeFile, footer: pq.FileMetaData, group: int, columns: Iterable[int], place: str
) -> None:
    """Requires every page of some leaf columns of a row group to have a checksum.

    Reads the page headers itself, because Arrow does not report pages without a checksum.

    Raises:
        DatasetError: a page has no checksum, or a header is malformed.
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
                        f"{where}: expected a checksum in every page because verify='always', got a page without one. "
                        "Rewrite the dataset with parquetry.common.tools.rewrite(), which adds them, or read it with "
                        "verify='written'."
                    )
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise DatasetError(
                f"{where}: expected valid page headers, got: {error}. The file is damaged: write it again."
            ) from error
