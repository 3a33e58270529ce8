"""Parses the page headers of a column chunk.

It takes the bytes of a chunk, and returns the header fields of its pages.
Source of the rules: the page headers of parquet.thrift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..base.process.dataclass import dataclass
from .thrift import Wanted, parse_struct

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Read = Callable[[int, int], memoryview]
"""Returns the bytes of a chunk from one position to another."""
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
_PLAIN, _RLE, _PREFIXES = 0, 3, 7
_HEADER_BYTES = 512

# The field numbers of PageHeader, DataPageHeader and DataPageHeaderV2 in parquet.thrift.
_TYPE, _UNCOMPRESSED, _COMPRESSED, _CHECKSUM, _V1, _V2 = 1, 2, 3, 4, 5, 8
_V1_VALUES, _V1_ENCODING, _V1_DEFINITION, _V1_REPETITION = 1, 2, 3, 4
_V2_VALUES, _V2_NULLS, _V2_ENCODING, _V2_DEFINITION_BYTES, _V2_REPETITION_BYTES, _V2_COMPRESSED = 1, 2, 4, 5, 6, 7
_WANTED: Wanted = {_V1: {}, _V2: {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageHeader:
    """The header of a page. Of a page without data, all attributes after ``checksum`` are the defaults.

    Attributes:
        begin: the offset in the chunk of the first byte after the header.
        end: the offset after the page's last byte.
        uncompressed_bytes: the decompressed size, including levels.
        is_data, is_dictionary: the kind of page.
        checksum: CRC-32 of the bytes from ``begin`` to ``end``; ``None`` if the writer omitted it.
        values: the number of levels: one for each value, null, and empty list.
        nulls: the number of null values; 0 if the header does not say.
        level_bytes: the sizes of the repetition and definition levels, if these are stored uncompressed; ``None`` if
            the levels carry their own sizes and are compressed with the values.
        run_lengths: whether the repetition and definition levels have the RLE encoding, the only one supported.
        compressed: whether the values are compressed, if the chunk is.
    """

    begin: int
    end: int
    uncompressed_bytes: int
    is_data: bool
    is_dictionary: bool
    checksum: int | None
    values: int = 0
    encoding: int = -1
    nulls: int = 0
    level_bytes: tuple[int, int] | None = None
    run_lengths: tuple[bool, bool] = (True, True)
    compressed: bool = True

    @property
    def plain(self) -> bool:
        """Whether values have the PLAIN encoding (no dictionary, no other encoding)."""
        return self.encoding == _PLAIN


def page_headers(read: Read, size_bytes: int) -> Iterator[PageHeader]:
    """Parses the header of each page of a chunk of that size, in order.

    Raises:
        ValueError: a header is malformed, or its page does not lie inside the chunk.
    """
    position = 0
    while position < size_bytes:
        try:
            header = _page_header(read, position, size_bytes)
        except (IndexError, KeyError, TypeError) as error:
            raise ValueError(f"expected a page header at byte {position} of the chunk, got {error!r}") from error
        yield header
        position = header.end


def _page_header(read: Read, position: int, size_bytes: int) -> PageHeader:
    header, begin = _fields(read, position, size_bytes)
    end, kind = begin + _integer(header, _COMPRESSED), _integer(header, _TYPE)
    if not begin <= end <= size_bytes:
        raise ValueError(f"expected a page of at most {size_bytes - begin} bytes, got {end - begin}")
    levels: dict[str, Any] = {}
    if kind == _DATA_PAGE:
        page = header[_V1]
        levels = {
            "values": _integer(page, _V1_VALUES),
            "encoding": _integer(page, _V1_ENCODING),
            "run_lengths": (page[_V1_REPETITION] == _RLE, page[_V1_DEFINITION] == _RLE),
        }
    elif kind == _DATA_PAGE_V2:
        page = header[_V2]
        levels = {
            "values": _integer(page, _V2_VALUES),
            "encoding": _integer(page, _V2_ENCODING),
            "nulls": _integer(page, _V2_NULLS),
            "level_bytes": (_integer(page, _V2_REPETITION_BYTES), _integer(page, _V2_DEFINITION_BYTES)),
            "compressed": page.get(_V2_COMPRESSED, True) is not False,
        }
    return PageHeader(
        begin=begin,
        end=end,
        uncompressed_bytes=_integer(header, _UNCOMPRESSED),
        is_data=kind in (_DATA_PAGE, _DATA_PAGE_V2),
        is_dictionary=kind == _DICTIONARY_PAGE,
        checksum=_integer(header, _CHECKSUM) & 0xFFFFFFFF if _CHECKSUM in header else None,  # Thrift's are signed
        **levels,
    )


def _integer(fields: dict[int, Any], number: int) -> int:
    value = fields[number]
    if type(value) is not int:
        raise ValueError(f"expected an integer in field {number} of a page header, got another type")
    return value


def _fields(read: Read, position: int, size_bytes: int) -> tuple[dict[int, Any], int]:
    """Parses the struct of a page header. Returns it and where it ends. Reads more bytes until it is complete."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PageTotals:
    """What the page headers of a column chunk say together.

    Attributes:
        values: the number of levels; see `PageHeader`.
        uncompressed_bytes: the decompressed size of all pages.
        has_prefixes: whether values have the encoding DELTA_BYTE_ARRAY.
    """

    values: int
    uncompressed_bytes: int
    has_dictionary: bool
    has_prefixes: bool


def page_totals(read: Read, size_bytes: int, values: int | None) -> PageTotals:
    """Adds up the page headers of a chunk, from its beginning until there are as many values as its footer says.

    Arrow stops there, too. The last of these pages may have more values.

    Args:
        values: what the footer says; ``None`` adds up all pages of the chunk.

    Raises:
        ValueError: there are fewer values, or a malformed header.
    """
    count = uncompressed = 0
    has_dictionary = has_prefixes = False
    pages = page_headers(read, size_bytes)
    while values is None or count < values:
        page = next(pages, None)
        if page is None:
            if values is None:
                break
            raise ValueError(f"expected {values} values, got {count}")
        uncompressed += max(page.uncompressed_bytes, 0)
        count += max(page.values, 0)
        has_dictionary |= page.is_dictionary
        has_prefixes |= page.encoding == _PREFIXES
    return PageTotals(
        values=count, uncompressed_bytes=uncompressed, has_dictionary=has_dictionary, has_prefixes=has_prefixes
    )


def chunk_begin(chunk: pq.ColumnChunkMetaData) -> int:
    """Returns the offset in its file of the first byte of a column chunk."""
    first = chunk.dictionary_page_offset if chunk.has_dictionary_page else None
    return int(chunk.data_page_offset if first is None else min(first, chunk.data_page_offset))


def chunk_reader(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> Read:
    """Returns a function that reads bytes of a column chunk from its file."""
    offset = chunk_begin(chunk)
    return lambda begin, end: memoryview(source.read_at(end - begin, offset + begin))
