"""`check_footer` refuses footers that would make pyarrow terminate the process.

pyarrow parses much of a footer lazily, in calls that cannot raise: a damaged bit there ends in ``std::terminate``.
`check_footer` takes the bytes of a footer and pyarrow's view of it, and raises `ValueError` for a bad one. Once a
footer has passed, access to any of its column chunks and their statistics is safe.
Source of the rules: FileMetaData of parquet.thrift, and the checks of Arrow's ``metadata.cc`` and ``statistics.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from ..native.parquet import passes
from .thrift import Wanted, parse_struct

# The field numbers in parquet.thrift of the fields that are checked.
_ROW_GROUPS = 4  # of FileMetaData
_COLUMNS, _ROWS = 1, 3  # of RowGroup
_OTHER_FILE, _CHUNK_METADATA, _CRYPTO = 1, 3, 8  # of ColumnChunk
_TYPE, _CODEC, _BYTES, _DATA, _DICTIONARY, _STATISTICS, _SIZES = 1, 4, 7, 9, 11, 12, 16  # of ColumnMetaData
_BOUNDS = (1, 2, 5, 6)  # of Statistics
_TEXT_BYTES, _REPETITION, _DEFINITION = 1, 2, 3  # of SizeStatistics

_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_WIDTHS = (1, 4, 8, 12, 4, 8, 0, 0)
_CODECS = 8
_BYTE_ARRAY, _FIXED = 6, 7


def check_footer(data: bytes, footer: pq.FileMetaData, file_bytes: int) -> None:
    """Raises `ValueError` if asking pyarrow about the footer's column chunks might terminate the process.

    Also raises it if a column chunk lies outside the file. The compiled core checks first; what it does not let pass is
    checked here, which takes a hundred times as long and says what is wrong.

    Args:
        data: the footer as stored.
        file_bytes: the size of the whole file.
    """
    if not passes(data, footer.num_columns, file_bytes - len(data)):
        check_slowly(data, footer, file_bytes)


def check_slowly(data: bytes, footer: pq.FileMetaData, file_bytes: int) -> None:
    """Does the same as `check_footer` without the compiled core."""
    schema = footer.schema
    leaves = []
    for number in range(len(schema)):
        column = schema.column(number)
        kind = _TYPES.index(column.physical_type)
        width = _WIDTHS[kind] if kind != _FIXED else 0 if has_no_known_bounds(column) else column.length
        leaves.append((kind, width, column.max_repetition_level, column.max_definition_level))
    try:
        groups = parse_struct(data, 0, {_ROW_GROUPS: {_COLUMNS: _CHUNK}})[0].get(_ROW_GROUPS, [])
        for group in groups:
            _check_group(group, leaves, file_bytes - len(data))
    except (AttributeError, IndexError, TypeError) as error:
        raise ValueError("a footer that ends early, or has fields of the wrong type") from error


def has_no_known_bounds(column: pq.ColumnSchema) -> bool:
    """Whether a column's bounds may be shorter than its values, so that pyarrow must not read them.

    Some writers truncate the bounds of long values. Bounds of numbers (decimals, float16) are always complete.
    """
    return column.physical_type == _TYPES[_FIXED] and column.logical_type.type not in ("DECIMAL", "FLOAT16")


def _check_group(group: dict[int, Any], leaves: Sequence[tuple[int, int, int, int]], limit: int) -> None:
    if group.get(_ROWS, 0) < 0:
        raise ValueError(f"a row group of {group[_ROWS]} rows")
    chunks = group.get(_COLUMNS, [])
    if len(chunks) != len(leaves):
        raise ValueError(f"a row group of {len(chunks)} columns in a file of {len(leaves)}")
    for leaf, chunk in zip(leaves, chunks, strict=True):
        metadata = chunk.get(_CHUNK_METADATA)
        if metadata is None or _CRYPTO in chunk:
            raise ValueError("a column chunk that is encrypted")
        _check_chunk(metadata, *leaf)
        if _OTHER_FILE not in chunk:
            _check_place(metadata, limit)


def _check_chunk(metadata: dict[int, Any], kind: int, width: int, repetition: int, definition: int) -> None:
    if metadata.get(_TYPE) != kind:
        raise ValueError(f"a column chunk of type {metadata.get(_TYPE)} in a column of type {_TYPES[kind]}")
    if not 0 <= metadata.get(_CODEC, -1) < _CODECS:
        raise ValueError(f"a column chunk with compression {metadata.get(_CODEC)}, which Parquet does not have")
    for number, size in metadata.get(_STATISTICS, {}).items():
        if number in _BOUNDS and size < width:
            raise ValueError(f"a bound of {size} bytes for a type of {width}")
    sizes = metadata.get(_SIZES)
    if sizes:
        for number, level in ((_REPETITION, repetition), (_DEFINITION, definition)):
            if sizes.get(number, 0) not in (0, level + 1):
                raise ValueError(f"a histogram of {sizes[number]} levels where there are {level + 1}")
        if _TEXT_BYTES in sizes and kind != _BYTE_ARRAY:
            raise ValueError(f"a total text size in a column of type {_TYPES[kind]}")


def _check_place(metadata: dict[int, Any], limit: int) -> None:
    size, begin = metadata.get(_BYTES, -1), metadata.get(_DATA, -1)
    begin = min(begin, metadata.get(_DICTIONARY) or begin)
    if not 0 <= begin <= begin + size <= limit:
        raise ValueError(f"a column chunk of {size} bytes at {begin}, with only {limit} bytes before the footer")


_CHUNK: Wanted = {_CHUNK_METADATA: {_STATISTICS: {}, _SIZES: {}}}
