"""`trusted_bounds` says which bounds of a column are right, given the program that wrote the file.

Some releases of some programs wrote bounds that do not bound their values. Where these show by themselves, such as a
minimum above the maximum, no list is needed; see `plan.selection.possible`. The programs in `WRITERS` wrote others.

Arrow itself leaves out the bounds of INT96, and those of texts and unsigned numbers from old releases of parquet-mr
and parquet-cpp (``ApplicationVersion::HasCorrectStatistics`` of Arrow's ``metadata.cc``). It trusts files that do not
name their writer. parquet-java does not (``CorruptStatistics``; PARQUET-251 and PARQUET-297).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from ..base.process.dataclass import dataclass

Trusted = Literal["all", "equal", "none"]
_BYTES = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_TIMES = ("TIMESTAMP", "TIME")


def _is_in_bytes(column: pq.ColumnSchema) -> bool:
    return column.physical_type in _BYTES


def _is_decimal_in_bytes(column: pq.ColumnSchema) -> bool:
    return bool(column.logical_type.type == "DECIMAL" and column.physical_type in _BYTES)


def _is_decimal_of_any_length(column: pq.ColumnSchema) -> bool:
    return bool(column.logical_type.type == "DECIMAL" and column.physical_type == "BYTE_ARRAY")


def _is_decimal_in_int32(column: pq.ColumnSchema) -> bool:
    return bool(column.logical_type.type == "DECIMAL" and column.physical_type == "INT32")


def _is_time(column: pq.ColumnSchema) -> bool:
    return column.logical_type.type in _TIMES


def _is_unsigned(column: pq.ColumnSchema) -> bool:
    return str(column.converted_type).startswith("UINT")


def _is_number(column: pq.ColumnSchema) -> bool:
    return column.physical_type not in (*_BYTES, "BOOLEAN")


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongBounds:
    """A program that wrote wrong bounds.

    Attributes:
        name: what the files call it.
        right_since: the first version, (major, minor), whose bounds are right; ``None`` if there is none.
        columns: whether the bounds of a column are among those that it got wrong.
        trusted: which of these bounds are right all the same.
        source: where this is said.
    """

    name: str
    columns: Callable[[pq.ColumnSchema], bool]
    source: str
    right_since: tuple[int, int] | None = None
    trusted: Trusted = "none"

    def wrote(self, created_by: str) -> bool:
        """Whether a file that says this of its writer is by a version with wrong bounds."""
        match = re.match(rf"{re.escape(self.name)}(?![\w-])(?:\s+version\s+v?(\d+)\.(\d+))?", created_by)
        if match is None:
            return False
        return self.right_since is None or (int(match[1] or 0), int(match[2] or 0)) < self.right_since


WRITERS = (
    WrongBounds(  # bounds are views of memory that was used again
        name="parquet-mr",
        columns=_is_in_bytes,
        right_since=(1, 8),
        source="https://issues.apache.org/jira/browse/PARQUET-251",
    ),
    WrongBounds(  # values are compared as signed bytes
        name="parquet-mr",
        columns=_is_decimal_in_bytes,
        right_since=(1, 10),
        trusted="equal",
        source="https://issues.apache.org/jira/browse/PARQUET-686, PARQUET-1025",
    ),
    WrongBounds(  # likewise; the name of Arrow C++ before 3.0
        name="parquet-cpp",
        columns=_is_decimal_in_bytes,
        trusted="equal",
        source="https://issues.apache.org/jira/browse/PARQUET-1655, PARQUET-2003",
    ),
    WrongBounds(
        name="parquet-cpp-arrow",
        columns=_is_decimal_in_bytes,
        right_since=(4, 0),
        trusted="equal",
        source="https://github.com/apache/arrow/pull/9582",
    ),
    WrongBounds(  # values of different lengths are compared as unsigned bytes
        name="parquet-rs",
        columns=_is_decimal_of_any_length,
        trusted="equal",
        source="https://github.com/apache/arrow-rs/issues/11073",
    ),
    WrongBounds(  # the bounds of pages are right, but they are joined as unsigned bytes
        name="Polars",
        columns=_is_decimal_in_bytes,
        source="https://github.com/pola-rs/polars/issues/29347",
    ),
    WrongBounds(  # the maximum may be that of any page; also Polars before it had a writer of its own
        name="Arrow2",
        columns=_is_number,
        source="https://github.com/jorgecarleitao/parquet2/pull/217, https://github.com/pola-rs/polars/issues/7842",
    ),
    WrongBounds(  # local times are bounded in UTC, and all units in milliseconds
        name="Parquet.Net",
        columns=_is_time,
        source="https://github.com/aloneguid/parquet-dotnet/blob/4.25.0/src/Parquet/Encodings/ParquetPlainEncoder.cs",
    ),
    WrongBounds(  # the least value may be the largest number of the type
        name="parquet-go",
        columns=_is_unsigned,
        source="https://github.com/apache/arrow-go/pull/210, https://github.com/apache/arrow/issues/46391",
    ),
    WrongBounds(  # the bytes of a float
        name="hyparquet",
        columns=_is_decimal_in_int32,
        source="https://github.com/hyparam/hyparquet-writer/pull/43",
    ),
)
"""Programs that wrote wrong bounds, each with a test."""

GENERATION = 2
"""Counts the releases that added to `WRITERS`. An index says which one left out wrong bounds."""


def trusted_bounds(footer: pq.FileMetaData, column: pq.ColumnSchema) -> Trusted:
    """Which bounds of a column are right: all, only a minimum that equals the maximum, or none."""
    writer = writer_of(footer)
    if not writer:
        return "none" if column.physical_type in _BYTES or _is_unsigned(column) else "all"
    return next((entry.trusted for entry in _entries(writer) if entry.columns(column)), "all")


@lru_cache(maxsize=256)
def _entries(writer: str) -> tuple[WrongBounds, ...]:
    return tuple(entry for entry in WRITERS if entry.wrote(writer))


def writer_of(footer: pq.FileMetaData) -> str:
    """What a footer says of the program that wrote the file; empty if nothing, or bytes that are not text."""
    try:
        return str(footer.created_by or "")
    except UnicodeDecodeError:
        return ""


def right_since(kind: pa.DataType) -> int:
    """The `GENERATION` of an index from which on its bounds of this type are right, whoever wrote the files."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_boolean(kind):
        return 0
    numbers = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return GENERATION if numbers or pa.types.is_temporal(kind) else 1
