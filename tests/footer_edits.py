"""Rewrites the footers of Parquet files as other writers would have written them.

A footer is parsed from the Thrift compact protocol into a `Struct`, changed, and written back. The names of field
numbers are those of parquet.thrift.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

Struct = dict[int, tuple[int, Any]]
"""The kind and the value of each field, by number. A list is the kind of its items, and the items."""

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 12

# FileMetaData, RowGroup, ColumnChunk, ColumnMetaData and Statistics
SCHEMA, FILE_ROWS, GROUPS, WRITER, ORDERS = 2, 3, 4, 6, 7
COLUMNS, GROUP_ROWS = 1, 3
METADATA = 3
TYPE, VALUES, STATISTICS = 1, 5, 12
OLD_MAX, OLD_MIN, NULLS, DISTINCT, MAX, MIN = 1, 2, 3, 4, 5, 6


def edit(path: Path, change: Callable[[Struct], object]) -> None:
    """Changes the footer of a file in place."""
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer, _ = _read_struct(content, begin)
    change(footer)
    stored = _struct_bytes(footer)
    path.write_bytes(content[:begin] + stored + len(stored).to_bytes(4, "little") + b"PAR1")


def groups_of(footer: Struct) -> list[Struct]:
    """Returns the row groups."""
    found: list[Struct] = footer[GROUPS][1][1]
    return found


def chunks_of(footer: Struct, column: int) -> Iterator[Struct]:
    """Yields the metadata of a column's chunk in each row group."""
    for group in groups_of(footer):
        yield group[COLUMNS][1][1][column][METADATA][1]


def statistics_of(footer: Struct, column: int) -> Iterator[Struct]:
    """Yields the statistics of a column in each row group."""
    for chunk in chunks_of(footer, column):
        yield chunk[STATISTICS][1]


def set_rows(
    footer: Struct, rows: int, *, of_file: bool = True, of_groups: bool = True, of_chunks: bool = True
) -> None:
    """Sets the row counts of the file, of its row groups, and of their column chunks."""
    if of_file:
        footer[FILE_ROWS] = I64, rows
    for group in groups_of(footer) if of_groups else ():
        group[GROUP_ROWS] = I64, rows
        for column in group[COLUMNS][1][1] if of_chunks else ():
            column[METADATA][1][VALUES] = I64, rows


def swap(stated: Struct) -> None:
    """Swaps the bounds."""
    stated[MIN], stated[MAX] = stated[MAX], stated[MIN]


def too_many_nulls(stated: Struct) -> None:
    """Counts more nulls than rows."""
    stated[NULLS] = I64, 1000


def negative_nulls(stated: Struct) -> None:
    """Counts fewer nulls than none."""
    stated[NULLS] = I64, -5


def short(stated: Struct) -> None:
    """Cuts a byte off the upper bound."""
    stated[MAX] = BINARY, stated[MAX][1][:-1]


def long(stated: Struct) -> None:
    """Adds a byte to the lower bound."""
    stated[MIN] = BINARY, stated[MIN][1] + b"\0"


def empty(stated: Struct) -> None:
    """Leaves both bounds empty."""
    stated[MIN] = stated[MAX] = BINARY, b""


def not_a_number(stated: Struct) -> None:
    """Makes the lower bound NaN."""
    stated[MIN] = BINARY, struct.pack("<d", math.nan)


LIES = (swap, too_many_nulls, negative_nulls, short, long, empty, not_a_number)
"""Changes of statistics that cannot be true afterwards. Some of them may be true of texts, or of equal bounds."""


def tell(footer: Struct, lie: Callable[[Struct], None]) -> None:
    """Changes the statistics of all columns."""
    for group in groups_of(footer):
        for column in group[COLUMNS][1][1]:
            stated = column[METADATA][1].get(STATISTICS, (STRUCT, {}))[1]
            if MIN in stated:
                lie(stated)


def forget_rows(footer: Struct) -> None:
    """Counts no rows in the file, as old versions of parquet-rs did."""
    set_rows(footer, 0, of_groups=False)


FOREIGN: dict[str, Callable[[Struct], None]] = {
    **{lie.__name__: partial(tell, lie=lie) for lie in (swap, too_many_nulls, negative_nulls)},
    "forget_rows": forget_rows,
}
"""Changes of a footer that readers see through, whatever the columns hold."""


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return number, at


def _read_signed(data: bytes, at: int) -> tuple[int, int]:
    number, at = _read_number(data, at)
    return number >> 1 ^ -(number & 1), at


def _read_struct(data: bytes, at: int) -> tuple[Struct, int]:
    found: Struct = {}
    field = 0
    while data[at]:
        kind, step = data[at] & 15, data[at] >> 4
        field, at = (field + step, at + 1) if step else _read_signed(data, at + 1)
        value, at = _read_value(data, at, kind)
        found[field] = kind, value
    return found, at + 1


def _read_value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    if kind in (TRUE, FALSE):
        return None, at
    if kind in (I16, I32, I64):
        return _read_signed(data, at)
    if kind == STRUCT:
        return _read_struct(data, at)
    if kind == LIST:
        inner, count, at = data[at] & 15, data[at] >> 4, at + 1
        if count == 15:
            count, at = _read_number(data, at)
        items = []
        for _ in range(count):
            item, at = (data[at], at + 1) if inner in (TRUE, FALSE) else _read_value(data, at, inner)
            items.append(item)
        return (inner, items), at
    size, at = _read_number(data, at) if kind == BINARY else ({BYTE: 1, DOUBLE: 8}[kind], at)
    return data[at : at + size], at + size


def _number_bytes(number: int) -> bytes:
    head = b""
    while number > 127:
        head += bytes([number & 127 | 128])
        number >>= 7
    return head + bytes([number])


def _signed_bytes(number: int) -> bytes:
    return _number_bytes(number * 2 if number >= 0 else -number * 2 - 1)


def _struct_bytes(fields: Struct) -> bytes:
    result, before = b"", 0
    for field, (kind, value) in sorted(fields.items()):
        short = 0 < field - before < 16
        result += bytes([(field - before) << 4 | kind]) if short else bytes([kind]) + _signed_bytes(field)
        result += _value_bytes(kind, value)
        before = field
    return result + b"\0"


def _value_bytes(kind: int, value: Any) -> bytes:
    if kind in (TRUE, FALSE):
        return b""
    if kind in (I16, I32, I64):
        return _signed_bytes(value)
    if kind == STRUCT:
        return _struct_bytes(value)
    if kind == LIST:
        inner, items = value
        head = bytes([len(items) << 4 | inner]) if len(items) < 15 else bytes([240 | inner]) + _number_bytes(len(items))
        flags = inner in (TRUE, FALSE)
        return head + b"".join(bytes([item]) if flags else _value_bytes(inner, item) for item in items)
    return (_number_bytes(len(value)) if kind == BINARY else b"") + value
