"""`ListReader`: reads lists of numbers without Arrow if their lengths are known.

Given a row group and the wanted rows, it returns the same lists as Arrow for each field that is PLAIN-encoded. Fields
that are missing from the result must be read with Arrow. The count of numbers always matches the lengths.

Stages that join or sort rows by length have already measured all rows (`stages.measure`). Arrow would derive the
lengths again from the levels of every number, which takes longer than the rest of the read.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...base.memory.arena import BLOCK_REGIONS
from ...base.memory.arrow_views import as_arrow, is_number
from ...parquet.checksums import page_check
from ...parquet.file_columns import FileColumns
from ...parquet.list_pages import list_numbers
from ...parquet.nested import stored_type
from ...schema.field import UnischemaField
from ...schema.ragged import ends_of
from .column_reader import NOTHING, ReadRequest, ReadResult, some_rows
from .stored_cells import read_bytes

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from ...dataset.dataset import StoredDataset

_PLAIN = {"PLAIN", "RLE"}  # RLE encodes the levels
_CODECS = {"BROTLI", "GZIP", "SNAPPY", "ZSTD"}  # Parquet frames them in the same way as Arrow's codecs
_LEVEL_BYTES = 16  # an upper bound for the levels of one number or empty list, even in a page of its own
_STORED: dict[str, np.dtype[Any]] = {
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FLOAT": np.dtype("<f4"),
    "DOUBLE": np.dtype("<f8"),
}


class ListReader:
    """Reads lists of numbers from a dataset. Thread-safe.

    Args:
        fields: the fields whose lengths are known.
        lengths: returns the length of each list of a row group (int64), the same for all fields, or ``None`` if the
            lengths are unknown.
        leaves_out: compressions that another reader reads faster.
    """

    def __init__(
        self,
        dataset: StoredDataset,
        fields: Sequence[UnischemaField],
        lengths: Callable[[int], np.ndarray | None],
        *,
        leaves_out: Container[str] = (),
    ) -> None:
        self._leaves_out = leaves_out
        self._dataset = dataset
        self._lengths = lengths
        self._columns: dict[tuple[FileColumns, str], int | None] = {}
        self._fields = [f for f in fields if dataset.table is None and _is_list(dataset.types.get(f.name), f)]
        self._names = frozenset([field.name for field in self._fields])

    def read(self, request: ReadRequest) -> ReadResult:
        """As `ColumnReader`."""
        lengths = self._lengths(request.row_group) if self._fields else None
        if lengths is None:
            return NOTHING
        ends = ends_of(lengths)
        by_name = {field.name: self._field(request.row_group, field, ends) for field in self._fields}
        return ReadResult(
            {name: some_rows(lists, request.rows) for name, lists in by_name.items() if lists is not None}
        )

    def _field(self, row_group: int, field: UnischemaField, ends: np.ndarray) -> pa.Array | None:
        file = int(self._dataset.row_groups.file[row_group])
        described = self._dataset.group_footer(row_group, self._names)
        footer, columns = described.footer, described.columns
        number = self._dataset.types[field.name].value_type
        if (columns, field.name) not in self._columns:
            self._columns[columns, field.name] = _column(columns, footer.schema, field.name, number)
        column = self._columns[columns, field.name]
        chunk = None if column is None else _plain_chunk(footer.row_group(described.group).column(column))
        if chunk is None or chunk.compression in self._leaves_out:
            return None
        stored = self._bytes(file, chunk)
        if stored is None:
            return None
        codec = None if chunk.compression == "UNCOMPRESSED" else pa.Codec(chunk.compression.lower())
        width, count = _STORED[chunk.physical_type].itemsize, int(ends[-1])
        most_bytes = (count + len(ends)) * (width + _LEVEL_BYTES)
        check = page_check(self._dataset.verify)
        pages = list_numbers(stored, codec, min(chunk.total_uncompressed_size, most_bytes), check)
        if pages is None or any(len(page) % width for page in pages) or sum(map(len, pages)) != count * width:
            return None
        numbers = _joined([page.view(_STORED[chunk.physical_type]) for page in pages], np.dtype(field.dtype), count)
        values = pa.Array.from_buffers(number, count, [None, pa.py_buffer(numbers)])
        return pa.LargeListArray.from_arrays(as_arrow(ends), values)

    def _bytes(self, file: int, chunk: pq.ColumnChunkMetaData) -> np.ndarray | None:
        """Returns the stored bytes of a column chunk (uint8), or ``None`` if they cannot be read."""
        begin, size = chunk.data_page_offset, chunk.total_compressed_size

        def read(view: memoryview) -> None:
            source.seek(begin)
            if source.readinto(view) != len(view):
                raise OSError("the file ends early")

        try:
            with self._dataset.open(file) as source:
                return read_bytes(size, read) if 0 <= begin <= begin + size <= source.size() else None
        except OSError:
            return None  # Arrow will hit the same problem and report it


def _is_list(stored: pa.DataType | None, field: UnischemaField) -> bool:
    """Returns whether a field's values are variable-length lists of numbers, stored in the field's dtype."""
    if stored is None or field.storage.coded or field.shape != (None,) or "." in field.name:
        return False
    lists = pa.types.is_list(stored) or pa.types.is_large_list(stored)
    return lists and is_number(stored.value_type) and stored.value_type == pa.from_numpy_dtype(field.dtype)


def _column(columns: FileColumns, schema: pq.ParquetSchema, name: str, number: pa.DataType) -> int | None:
    """Returns the index of the column with a field's lists, or ``None`` unless the file stores them as ``number``."""
    places = [place for place in columns.numbers((name,)) if schema.column(place).path != name]
    if len(places) != 1 or schema.column(places[0]).max_repetition_level != 1:
        return None
    arrow = stored_type(columns.arrow.field(name).type)
    same = (pa.types.is_list(arrow) or pa.types.is_large_list(arrow)) and arrow.value_type == number
    return places[0] if same else None


def _plain_chunk(chunk: pq.ColumnChunkMetaData) -> pq.ColumnChunkMetaData | None:
    """Returns the chunk if its numbers are PLAIN-encoded, compressed or not, and ``None`` otherwise."""
    plain = set(chunk.encodings) <= _PLAIN and not chunk.has_dictionary_page and chunk.physical_type in _STORED
    return chunk if plain and chunk.compression in ("UNCOMPRESSED", *_CODECS) else None


def _joined(pages: Sequence[np.ndarray], dtype: np.dtype[Any], count: int) -> np.ndarray:
    """Joins the numbers of all pages in memory reused from earlier row groups."""
    region = BLOCK_REGIONS.acquire(count * dtype.itemsize)
    try:
        numbers = region.allocate(dtype, (count,))
        if pages:
            np.concatenate(pages, out=numbers, casting="unsafe")  # Parquet stores narrow integers as int32
        return numbers
    finally:
        region.end()
