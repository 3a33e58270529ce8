"""Parses the page headers of a column chunk.

It takes the bytes of a chunk and the offset of a page, and returns the header fields of a data page or a dictionary.
Source of the rules: the page headers of parquet.thrift.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base.process.dataclass import dataclass
from .thrift import Wanted, parse_struct, unsigned

__all__ = [
    "DataPage",
    "DictionaryPage",
    "PageTotals",
    "data_page",
    "dictionary_page",
    "page_checksum",
    "page_totals",
    "unsigned",
]
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_PLAIN, _RLE, _PREFIXES = 0, 3, 7
_HEADER_BYTES = 512

# The field numbers of PageHeader, DataPageHeader and DataPageHeaderV2 in parquet.thrift.
_TYPE, _UNCOMPRESSED, _COMPRESSED, _CHECKSUM, _V1, _V2 = 1, 2, 3, 4, 5, 8
_V1_VALUES, _V1_ENCODING, _V1_DEFINITION, _V1_REPETITION = 1, 2, 3, 4
_V2_VALUES, _V2_NULLS, _V2_ENCODING, _V2_DEFINITION_BYTES, _V2_REPETITION_BYTES, _V2_COMPRESSED = 1, 2, 4, 5, 6, 7
_WANTED: Wanted = {_V1: {}, _V2: {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPage:
    """The header of a data page.

    Attributes:
        begin: the offset in the chunk of the first byte after the header.
        end: the offset after the page's last byte.
        uncompressed_bytes: the decompressed size, including levels.
        values: the number of levels: one for each value, null, and empty list.
        plain: whether values have the PLAIN encoding (no dictionary, no other encoding).
        nulls: the number of null values; 0 if the header does not say.
        level_bytes: the sizes of the repetition and definition levels, if these are stored uncompressed; ``None`` if
            the levels carry their own sizes and are compressed with the values.
        run_lengths: whether the repetition and definition levels have the RLE encoding, the only one supported.
        compressed: whether the values are compressed, if the chunk is.
        checksum: CRC-32 of the bytes from ``begin`` to ``end``; ``None`` if the writer omitted it.
    """

    begin: int
    end: int
    uncompressed_bytes: int
    values: int
    plain: bool
    nulls: int
    level_bytes: tuple[int, int] | None
    run_lengths: tuple[bool, bool]
    compressed: bool
    checksum: int | None


def data_page(read: Callable[[int, int], memoryview], position: int, size_bytes: int) -> DataPage | None:
    """Parses the page header at a position of a chunk; ``None`` if it is not a data page that lies inside the chunk.

    Args:
        read: returns the bytes of the chunk from one position to another.
        size_bytes: the size of the chunk.

    Raises:
        IndexError, KeyError, TypeError, ValueError: there is no page header.
    """
    header, begin = _page_header(read, position, size_bytes)
    end = begin + header[_COMPRESSED]
    if not begin <= end <= size_bytes or header[_TYPE] not in (_DATA_PAGE, _DATA_PAGE_V2):
        return None
    second = header[_TYPE] == _DATA_PAGE_V2
    page = header[_V2 if second else _V1]
    return DataPage(
        begin=begin,
        end=end,
        uncompressed_bytes=header[_UNCOMPRESSED],
        values=page[_V2_VALUES if second else _V1_VALUES],
        plain=page[_V2_ENCODING if second else _V1_ENCODING] == _PLAIN,
        nulls=page[_V2_NULLS] if second else 0,
        level_bytes=(page[_V2_REPETITION_BYTES], page[_V2_DEFINITION_BYTES]) if second else None,
        run_lengths=(True, True) if second else (page[_V1_REPETITION] == _RLE, page[_V1_DEFINITION] == _RLE),
        compressed=page.get(_V2_COMPRESSED, True) is not False if second else True,
        checksum=_checksum(header),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DictionaryPage:
    """The header of a dictionary page. See `DataPage`."""

    begin: int
    end: int
    uncompressed_bytes: int


def dictionary_page(read: Callable[[int, int], memoryview], size_bytes: int) -> DictionaryPage:
    """Parses the header of the dictionary page with which a chunk begins. See `data_page`.

    Raises:
        IndexError, KeyError, TypeError, ValueError: there is no header of a dictionary page that lies inside the chunk.
    """
    header, begin = _page_header(read, 0, size_bytes)
    end = begin + header[_COMPRESSED]
    if not begin <= end <= size_bytes or header[_TYPE] != _DICTIONARY_PAGE:
        raise ValueError(f"expected a dictionary page of at most {size_bytes - begin} bytes, got {header}")
    return DictionaryPage(begin=begin, end=end, uncompressed_bytes=header[_UNCOMPRESSED])


def page_checksum(read: Callable[[int, int], memoryview], position: int, size_bytes: int) -> tuple[int | None, int]:
    """Returns the CRC-32 of a page of any kind (``None`` if it has none), and where the next page begins.

    Raises:
        IndexError, KeyError, TypeError, ValueError: there is no page that lies inside the chunk.
    """
    header, begin = _page_header(read, position, size_bytes)
    end = begin + header[_COMPRESSED]
    if not begin <= end <= size_bytes:
        raise ValueError(f"expected a page of at most {size_bytes - begin} bytes, got {header[_COMPRESSED]}")
    return _checksum(header), end


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTotals:
    """What the page headers of a column chunk say together.

    Attributes:
        values: the number of levels; see `DataPage`.
        uncompressed_bytes: the decompressed size of all pages.
        has_dictionary: whether there is a dictionary page.
        has_prefixes: whether values have the encoding DELTA_BYTE_ARRAY.
    """

    values: int
    uncompressed_bytes: int
    has_dictionary: bool
    has_prefixes: bool


def page_totals(read: Callable[[int, int], memoryview], size_bytes: int, values: int | None) -> PageTotals:
    """Adds up the page headers of a chunk, from its beginning until there are as many values as its footer says.

    Arrow stops there, too. The last of these pages may have more values.

    Args:
        values: what the footer says; ``None`` adds up all pages of the chunk.

    Raises:
        IndexError, KeyError, TypeError, ValueError: there are fewer values, or a malformed header.
    """
    position = count = uncompressed = 0
    has_dictionary = has_prefixes = False
    while position < size_bytes if values is None else count < values:
        header, begin = _page_header(read, position, size_bytes)
        end = begin + header[_COMPRESSED]
        if not begin <= end <= size_bytes:
            raise ValueError(f"expected a page of at most {size_bytes - begin} bytes, got {header[_COMPRESSED]}")
        uncompressed += max(header[_UNCOMPRESSED], 0)
        kind = header[_TYPE]
        has_dictionary |= kind == _DICTIONARY_PAGE
        if kind in (_DATA_PAGE, _DATA_PAGE_V2):
            second = kind == _DATA_PAGE_V2
            page = header[_V2 if second else _V1]
            count += max(page[_V2_VALUES if second else _V1_VALUES], 0)
            has_prefixes |= page[_V2_ENCODING if second else _V1_ENCODING] == _PREFIXES
        position = end
    return PageTotals(
        values=count, uncompressed_bytes=uncompressed, has_dictionary=has_dictionary, has_prefixes=has_prefixes
    )


def _checksum(header: dict[int, Any]) -> int | None:
    return header[_CHECKSUM] & 0xFFFFFFFF if _CHECKSUM in header else None  # Thrift integers are signed


def _page_header(read: Callable[[int, int], memoryview], position: int, size_bytes: int) -> tuple[dict[int, Any], int]:
    """Parses a page header. Returns it and where it ends. Reads more bytes until the header is complete."""
    size = _HEADER_BYTES
    while True:
        last = min(position + size, size_bytes)
        try:
            header, used = parse_struct(read(position, last), 0, _WANTED)
            return header, position + used
        except IndexError:
            if last == size_bytes:
                raise
        size *= 16
