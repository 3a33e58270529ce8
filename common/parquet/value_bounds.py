"""`most_bytes`: how many bytes some columns of a row group take in memory once Arrow has read them.

A footer says how large the decompressed pages are. With dictionaries, run lengths or prefixes, values may be larger
than their pages by any factor. So the bound is computed from the number of values, their width, and the longest entry
of a dictionary. If the bound is too large, the values are read in slices until all are counted or the count is too
large. A footer may say less than its pages hold, so `measured` adds up the page headers, which Arrow goes by.
Source of the rules: "Encodings" of the Parquet format.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from ..base.native.kernels import longest_value
from ..base.process.dataclass import dataclass
from ..base.process.forks import pc
from ..storage.chunk_ranges import PADDING_BYTES
from .nested import extension_paths, with_whole_extensions
from .page_header import PageTotals, chunk_begin, chunk_reader, page_headers, page_totals

_OFFSET_BYTES = 8
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_NARROW = {"INT_8": 1, "UINT_8": 1, "INT_16": 2, "UINT_16": 2}
_DECIMAL_BYTES = 16
_DICTIONARIES = {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}
_PREFIXES = "DELTA_BYTE_ARRAY"
_CODECS = {"SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4": "lz4_raw"}
_MOST_DICTIONARY_BYTES = 64 << 20
_SLICE_BYTES = 8 << 20
_MOST_SLICE_ROWS = 1 << 16
_FIRST_ROWS = 64
_PREFIX_MARGIN = 4
_MOST_PREFIX_ROWS = 1 << 10  # of values that may be much longer than the first ones
_DAMAGE = (pa.ArrowException, OSError, ValueError)  # Arrow reports it better


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column chunk, as far as it says how large its values are.

    Attributes:
        rows: how many the row group has.
        totals: what the page headers say; ``None`` if only the footer was read.
    """

    column: pq.ColumnSchema
    metadata: pq.ColumnChunkMetaData
    rows: int
    totals: PageTotals | None = None

    @property
    def values(self) -> int:
        """The number of values, nulls and empty lists."""
        read = 0 if self.totals is None else self.totals.values
        return max(int(self.metadata.num_values), self.rows, read)

    @property
    def stored_bytes(self) -> int:
        """The size of the decompressed pages."""
        read = 0 if self.totals is None else self.totals.uncompressed_bytes
        return max(int(self.metadata.total_uncompressed_size), read)

    @property
    def width(self) -> int | None:
        """The bytes of a value in memory; ``None`` for values of any length."""
        column = self.column
        if column.logical_type.type == "DECIMAL":
            return max(_DECIMAL_BYTES, column.length or 0)
        if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
            return int(column.length)
        return _NARROW.get(column.converted_type, _WIDTHS.get(column.physical_type))

    @property
    def has_dictionary(self) -> bool:
        """Whether values may be entries of a dictionary."""
        if self.totals is not None and self.totals.has_dictionary:
            return True
        return bool(self.metadata.has_dictionary_page) or not _DICTIONARIES.isdisjoint(self.metadata.encodings)

    @property
    def has_prefixes(self) -> bool:
        """Whether values may begin like the values before them."""
        return _PREFIXES in self.metadata.encodings or (self.totals is not None and self.totals.has_prefixes)

    @property
    def expands(self) -> bool:
        """Whether values may be longer than their pages say."""
        return self.width is None and (self.has_dictionary or self.has_prefixes)

    @property
    def plain_bytes(self) -> int:
        """The most bytes of the values in memory, if they do not expand."""
        return self.stored_bytes + self.values * _OFFSET_BYTES if self.width is None else self.values * self.width


def chunks_of(footer: pq.FileMetaData, group: int, columns: Iterable[int]) -> list[Chunk]:
    """Returns the column chunks of the given leaf columns, by number."""
    row_group, schema = footer.row_group(group), footer.schema
    rows = max(int(row_group.num_rows), 0)
    return [Chunk(schema.column(number), row_group.column(number), rows) for number in columns]


def measured(source: pa.NativeFile, chunk: Chunk) -> Chunk:
    """Returns a chunk with the `page_totals` of its pages.

    Raises:
        ValueError: a page header is malformed, or there are fewer values than the footer says.
    """
    metadata = chunk.metadata
    size = min(metadata.total_compressed_size + PADDING_BYTES, source.size() - chunk_begin(metadata))
    return replace(chunk, totals=_totals(source, metadata, size, int(metadata.num_values)))


def values_in_pages(source: pa.NativeFile, footer: pq.FileMetaData, group: int) -> list[int]:
    """Returns the number of values of each column chunk of a row group, nulls and empty lists included, by its pages.

    Arrow reads only as many as the footer says. If the pages cannot be counted, it is the footer's number.
    """
    row_group = footer.row_group(group)
    chunks = [row_group.column(number) for number in range(row_group.num_columns)]
    begins = sorted({chunk_begin(chunk) for chunk in chunks} | {source.size()})
    counts = []
    for chunk in chunks:
        following = begins[min(bisect_right(begins, chunk_begin(chunk)), len(begins) - 1)]
        size = min(chunk.total_compressed_size, following - chunk_begin(chunk))
        counts.append(int(chunk.num_values))
        with suppress(ValueError):
            counts[-1] = _totals(source, chunk, size, None).values
    return counts


def _totals(source: pa.NativeFile, chunk: pq.ColumnChunkMetaData, size: int, values: int | None) -> PageTotals:
    """Returns the `page_totals` of the first bytes of a chunk. Raises `ValueError` if a page header is malformed."""
    try:
        return page_totals(chunk_reader(source, chunk), size, values)
    except ValueError as error:
        raise ValueError(f"malformed page headers ({error})") from error


def most_bytes(
    source: pa.NativeFile,
    reader: pq.ParquetFile,
    group: int,
    columns: Iterable[int],
    *,
    enough: int,
    by_pages: bool = False,
) -> int:
    """Returns the bytes that the values of the given leaf columns of a row group take, or more.

    Args:
        source: the file that ``reader`` reads.
        enough: the size to compare with. The search ends when the values are known to take no more, or to take more.
        by_pages: whether to go by the page headers, not by the footer alone, which may say less.

    Raises:
        ValueError: see `measured`.
    """
    chunks = chunks_of(reader.metadata, group, columns)
    if by_pages:
        chunks = [measured(source, chunk) for chunk in chunks]
    certain = sum(chunk.plain_bytes for chunk in chunks)
    expanding = [chunk for chunk in chunks if chunk.expands]
    total = certain + sum(chunk.values * chunk.stored_bytes for chunk in expanding)
    if total <= enough or not expanding:
        return total
    longest = [_longest(source, reader, group, chunk) for chunk in expanding]
    total = certain + sum(chunk.values * length for chunk, length in zip(expanding, longest, strict=True))
    if total <= enough and not (by_pages and any(chunk.has_prefixes for chunk in expanding)):
        return total
    total = certain - sum(chunk.plain_bytes for chunk in expanding)
    for chunk, length in zip(expanding, longest, strict=True):
        if total > enough:
            break
        total += _counted(source, reader, group, chunk, length, enough - total)
    return total


def slice_rows(
    source: pa.NativeFile, reader: pq.ParquetFile, group: int, columns: Iterable[int], *, slice_bytes: int
) -> int:
    """Returns how many rows of the leaf columns to read at a time, so that they take no more than ``slice_bytes``."""
    chunks = chunks_of(reader.metadata, group, columns)
    size = sum(chunk.plain_bytes for chunk in chunks)
    size += sum(chunk.values * _longest(source, reader, group, chunk) for chunk in chunks if chunk.expands)
    most = _MOST_PREFIX_ROWS if any(chunk.has_prefixes for chunk in chunks) else _MOST_SLICE_ROWS
    return min(max(slice_bytes * _rows(reader, group) // max(size, 1), 1), most)


def _rows(reader: pq.ParquetFile, group: int) -> int:
    return max(int(reader.metadata.row_group(group).num_rows), 1)


def _counted(source: pa.NativeFile, reader: pq.ParquetFile, group: int, chunk: Chunk, longest: int, enough: int) -> int:
    """Reads values in slices and counts their bytes, until there are more than ``enough``.

    Entries of a dictionary are read once, so that even a row of many long values takes little memory.
    """
    most, each = _MOST_PREFIX_ROWS, longest
    if not chunk.has_prefixes:
        most, each = _MOST_SLICE_ROWS, _OFFSET_BYTES
        reader = pq.ParquetFile(source, metadata=reader.metadata, read_dictionary=[chunk.metadata.path_in_schema])
    per_row = each * -(-chunk.values // _rows(reader, group))
    total = 0
    for found in _sizes(reader, group, chunk, min(max(_SLICE_BYTES // max(per_row, 1), 1), most)):
        total += found
        if total > enough:
            break
    return total


def _sizes(reader: pq.ParquetFile, group: int, chunk: Chunk, rows: int) -> Iterator[int]:
    columns = with_whole_extensions([chunk.metadata.path_in_schema], extension_paths(reader.schema_arrow))
    batches = reader.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False)
    return (sum(map(expanded_bytes, batch.columns)) for batch in batches)


def expanded_bytes(array: pa.Array) -> int:
    """Returns the bytes that the values of an array take once those of a dictionary are written out."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return expanded_bytes(array.storage)
    if pa.types.is_dictionary(kind):
        entries = array.dictionary
        if not pa.types.is_binary(entries.type) and not pa.types.is_string(entries.type):
            return int(entries.nbytes * len(array) // max(len(entries), 1))  # all of one width
        lengths = pc.binary_length(entries).cast(pa.int64())
        return _OFFSET_BYTES * len(array) + (pc.sum(lengths.take(array.indices)).as_py() or 0)
    if pa.types.is_struct(kind):
        return sum(expanded_bytes(array.field(number)) for number in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _OFFSET_BYTES * len(array) + expanded_bytes(array.keys) + expanded_bytes(array.items)
    if pa.types.is_nested(kind):
        return _OFFSET_BYTES * len(array) + expanded_bytes(array.flatten())
    return int(array.nbytes)


def _longest(source: pa.NativeFile, reader: pq.ParquetFile, group: int, chunk: Chunk) -> int:
    """Returns the length of the longest value that is not stored as such. Reads the dictionary.

    For values that share prefixes, which have no bound, it is several times the mean of the first ones.
    """
    if not chunk.has_prefixes:
        return _longest_entry(source, chunk)
    first = next(_sizes(reader, group, chunk, _FIRST_ROWS), 0)
    return _PREFIX_MARGIN * -(-first * _rows(reader, group) // (max(chunk.values, 1) * _FIRST_ROWS))


def _longest_entry(source: pa.NativeFile, chunk: Chunk) -> int:
    most, metadata = chunk.stored_bytes, chunk.metadata
    first, end = metadata.dictionary_page_offset, metadata.data_page_offset
    if first is None or not 0 < end - first <= _MOST_DICTIONARY_BYTES:
        return most
    try:
        stored = memoryview(source.read_at(end - first, first))
        page = next(page_headers(lambda begin, end: stored[begin:end], len(stored)))
        if not page.is_dictionary or not 0 <= page.uncompressed_bytes <= _MOST_DICTIONARY_BYTES:
            return most
        data = stored[page.begin : page.end]
        if metadata.compression in _CODECS:
            data = memoryview(pa.Codec(_CODECS[metadata.compression]).decompress(data, page.uncompressed_bytes))
        elif metadata.compression != "UNCOMPRESSED":
            return most
        return longest_value(bytes(data))
    except _DAMAGE:
        return most
