"""Verifies page checksums, as far as the option ``verify`` asks for it.

A checksum covers the bytes of a page as stored: compressed, and without the header.
Source of the rule: ``crc`` of PageHeader in parquet.thrift, which is the CRC-32 of zlib.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np

from ..base.errors import DatasetError
from ..base.native.kernels import crc32
from .page_header import PageHeader, chunk_reader, page_headers

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Verify: TypeAlias = Literal["written", "always", "never"]
VERIFY: tuple[Verify, ...] = ("written", "always", "never")
WRONG_CHECKSUMS = 'If only its checksums are wrong, as in files of Parquet.jl, read it with verify="never".'
"""What else to do about a page that does not match its checksum."""


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


class PageCheck:
    """Checks the pages of one column chunk against their checksums.

    Args:
        required: whether a page without a checksum fails.
    """

    def __init__(self, *, required: bool = False) -> None:
        self._required = required

    def passes(self, chunk: ChunkBytes, page: PageHeader) -> bool:
        """Whether a page is intact, or need not be checked."""
        if page.checksum is None:
            return not self._required
        return self._matches(chunk, page)

    def _matches(self, chunk: ChunkBytes, page: PageHeader) -> bool:
        return crc32(chunk.read(page.begin, page.end)) == page.checksum


class LaterCheck(PageCheck):
    """Collects the pages of one column chunk that have checksums, to be checked when they are read.

    Attributes:
        pages: in the order of the chunk.
    """

    def __init__(self, *, required: bool = False) -> None:
        super().__init__(required=required)
        self.pages: list[PageHeader] = []

    def _matches(self, chunk: ChunkBytes, page: PageHeader) -> bool:
        self.pages.append(page)
        return True


def page_check(verify: Verify) -> PageCheck | None:
    """The check that the option ``verify`` requires for a chunk in memory, or ``None``."""
    return None if verify == "never" else PageCheck(required=verify == "always")


def require_checksums(
    source: pa.NativeFile, footer: pq.FileMetaData, group: int, columns: Iterable[int], place: str
) -> None:
    """Requires every page of the given leaf columns of a row group to have a checksum.

    Reads the page headers itself, because Arrow does not report pages without a checksum.

    Raises:
        DatasetError: a page has no checksum, or a header is malformed.
    """
    for number in columns:
        chunk = footer.row_group(group).column(number)
        where = f"{place}, column '{chunk.path_in_schema}'"
        try:
            for page in page_headers(chunk_reader(source, chunk), chunk.total_compressed_size):
                if page.checksum is None:
                    raise DatasetError(
                        f"{where}: expected a checksum in every page because verify='always', got a page without one. "
                        "Rewrite the dataset with parquetry.common.apps.tools.rewrite(), which adds them, or read it "
                        "with verify='written'."
                    )
        except ValueError as error:
            raise DatasetError(
                f"{where}: expected valid page headers, got: {error}. The file is damaged: write it again."
            ) from error
