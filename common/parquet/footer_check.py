"""`check_footer` rejects footers that would make pyarrow terminate the process, or that count rows in two ways.

pyarrow parses much of a footer lazily, in calls that cannot raise: a damaged bit there ends in ``std::terminate``.
`check_footer` takes the bytes of a footer and pyarrow's view of it, and raises `ValueError` for a bad one. Once a
footer has passed, access to any of its column chunks and their statistics is safe.
Source of the rules: FileMetaData of parquet.thrift, and the checks of Arrow's ``metadata.cc`` and ``statistics.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ..base.native.kernels import passes
from .thrift import PLACE, Wanted, parse_struct

# The field numbers in parquet.thrift of the fields that are checked.
_ROW_GROUPS = 4  # of FileMetaData
_COLUMNS, _ROWS = 1, 3  # of RowGroup
_OTHER_FILE, _CHUNK_METADATA, _CRYPTO = 1, 3, 8  # of ColumnChunk
_TYPE, _CODEC, _VALUES, _BYTES, _DATA, _DICTIONARY, _STATISTICS, _SIZES = 1, 4, 5, 7, 9, 11, 12, 16  # of ColumnMetaData
_BOUNDS = (1, 2, 5, 6)  # of Statistics
_TEXT_BYTES, _REPETITION, _DEFINITION = 1, 2, 3  # of SizeStatistics
_IMPOSSIBLE = b"\x36\x01\x00"  # Statistics with a null count of -1

_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_WIDTHS = (1, 4, 8, 12, 4, 8, 0, 0)
_CODECS = 8
_BYTE_ARRAY, _FIXED = 6, 7


def check_footer(data: bytes, footer: pq.FileMetaData, file_bytes: int) -> tuple[pq.FileMetaData, int]:
    """Returns a footer whose column chunks pyarrow can be asked about without terminating the process, and its rows.

    It is ``footer``, unless that has bounds of a wrong length: statistics with such bounds then have a null count that
    is impossible, and nothing else. The rows are those of the row groups. The number of rows of the file may be
    another one, if the column chunks have as many values as the row groups say.

    The compiled core checks first. A footer that it rejects is checked again here, a hundred times more slowly, to find
    out what is wrong.

    Args:
        data: the footer as stored.
        file_bytes: the size of the whole file.

    Raises:
        ValueError: a column chunk lies outside the file, row counts contradict each other, or the footer is malformed.
    """
    if not passes(data, footer.num_columns, file_bytes - len(data)):
        wrong = check_slowly(data, footer, file_bytes)
        footer = _without_statistics(data, wrong) if wrong else footer
    rows = row_count(footer)
    if rows != footer.num_rows and not _has_values_for_rows(footer):
        raise ValueError(f"row groups of {rows:,} rows together in a file of {footer.num_rows:,}")
    return footer, rows


def row_count(footer: pq.FileMetaData) -> int:
    """Returns the number of rows of all row groups. The footer's own number may be wrong; see `check_footer`."""
    return sum(footer.row_group(number).num_rows for number in range(footer.num_row_groups))


def _has_values_for_rows(footer: pq.FileMetaData) -> bool:
    """Whether each row group has a column that is not repeated and has one value for each of its rows."""
    flat = [n for n in range(len(footer.schema)) if footer.schema.column(n).max_repetition_level == 0]
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    return all(any(group.column(n).num_values == group.num_rows for n in flat) for group in groups)


def _without_statistics(data: bytes, places: Sequence[range]) -> pq.FileMetaData:
    """Returns a footer with `_IMPOSSIBLE` statistics at the given places of the stored one."""
    parts, end = [], 0
    for place in places:
        parts += [data[end : place.start], _IMPOSSIBLE]
        end = place.stop
    stored = b"".join([*parts, data[end:]])
    return pq.read_metadata(pa.BufferReader(stored + len(stored).to_bytes(4, "little") + b"PAR1"))


def check_slowly(data: bytes, footer: pq.FileMetaData, file_bytes: int) -> list[range]:
    """Does what the compiled core does for `check_footer`, and says what is wrong.

    Returns:
        Where statistics have bounds of a wrong length, in ascending order.
    """
    schema = footer.schema
    leaves = []
    for number in range(len(schema)):
        column = schema.column(number)
        kind = _TYPES.index(column.physical_type)
        width = _WIDTHS[kind] if kind != _FIXED else 0 if has_no_known_bounds(column) else column.length
        leaves.append((kind, width, column.max_repetition_level, column.max_definition_level))
    try:
        groups = parse_struct(data, 0, {_ROW_GROUPS: [{_COLUMNS: [_CHUNK]}]})[0].get(_ROW_GROUPS, [])
        return [place for group in groups for place in _check_group(group, leaves, file_bytes - len(data))]
    except (AttributeError, IndexError, TypeError) as error:
        raise ValueError("a footer that ends early, or has fields of the wrong type") from error


def has_no_known_bounds(column: pq.ColumnSchema) -> bool:
    """Whether a column's bounds may be shorter than its values, so that pyarrow must not read them.

    Some writers truncate the bounds of long values. Bounds of numbers (decimals, float16) are always complete.
    """
    return column.physical_type == _TYPES[_FIXED] and column.logical_type.type not in ("DECIMAL", "FLOAT16")


def _check_group(group: dict[int, Any], leaves: Sequence[tuple[int, int, int, int]], limit: int) -> list[range]:
    rows = group.get(_ROWS, 0)
    if rows < 0:
        raise ValueError(f"a row group of {rows} rows")
    wrong = []
    chunks = group.get(_COLUMNS, [])
    if len(chunks) != len(leaves):
        raise ValueError(f"a row group of {len(chunks)} columns in a file of {len(leaves)}")
    for leaf, chunk in zip(leaves, chunks, strict=True):
        metadata = chunk.get(_CHUNK_METADATA)
        if metadata is None or _CRYPTO in chunk:
            raise ValueError("a column chunk that is encrypted")
        if not _check_chunk(metadata, *leaf):
            wrong.append(metadata[_STATISTICS][PLACE])
        if leaf[2] == 0 and metadata.get(_VALUES, 0) > rows:
            raise ValueError(f"a column chunk of {metadata[_VALUES]:,} values in a row group of {rows:,} rows")
        if _OTHER_FILE not in chunk:
            _check_place(metadata, limit)
    return wrong


def _check_chunk(metadata: dict[int, Any], kind: int, width: int, repetition: int, definition: int) -> bool:
    """Returns whether the bounds have the right length."""
    if metadata.get(_TYPE) != kind:
        raise ValueError(f"a column chunk of type {metadata.get(_TYPE)} in a column of type {_TYPES[kind]}")
    if not 0 <= metadata.get(_CODEC, -1) < _CODECS:
        raise ValueError(f"a column chunk with compression {metadata.get(_CODEC)}, which Parquet does not have")
    stated = metadata.get(_STATISTICS, {})
    lengths = [len(stated[number]) for number in _BOUNDS if number in stated]
    sizes = metadata.get(_SIZES)
    if sizes:
        for number, level in ((_REPETITION, repetition), (_DEFINITION, definition)):
            if len(sizes.get(number, ())) not in (0, level + 1):
                raise ValueError(f"a histogram of {len(sizes[number])} levels where there are {level + 1}")
        if _TEXT_BYTES in sizes and kind != _BYTE_ARRAY:
            raise ValueError(f"a total text size in a column of type {_TYPES[kind]}")
    return not width or all(length == width for length in lengths)


def _check_place(metadata: dict[int, Any], limit: int) -> None:
    size, begin = metadata.get(_BYTES, -1), metadata.get(_DATA, -1)
    begin = min(begin, metadata.get(_DICTIONARY) or begin)
    if not 0 <= begin <= begin + size <= limit:
        raise ValueError(f"a column chunk of {size} bytes at {begin}, with only {limit} bytes before the footer")


_CHUNK: Wanted = {_CHUNK_METADATA: {_STATISTICS: {}, _SIZES: {}}}
