"""`trusted_bounds` says which bounds of a column are right, given the program that wrote the file.

Some releases of some programs wrote bounds that do not bound their values. Where these show by themselves, such as a
minimum above the maximum, no list is needed; see `plan.selection.possible`. The programs in `WRITERS` wrote others.

Arrow itself leaves out the bounds of INT96, and those of texts and unsigned numbers from old releases of parquet-mr
and parquet-cpp (``ApplicationVersion::HasCorrectStatistics`` of Arrow's ``metadata.cc``). It trusts files that do not
name their writer. parquet-java does not (``CorruptStatistics``; PARQUET-251 and PARQUET-297).

`refuse_old_calendar` raises an error for dates and times that Apache Spark wrote in its old calendar. Spark's INT96
timestamps are like those of other writers; see `int96`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from ..base.errors import DecodeError
from ..base.process.dataclass import dataclass
from ..base.process.forks import pc

Trusted = Literal["all", "equal", "none"]
_BYTES = ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_TIMES = ("TIMESTAMP", "TIME")
_VERSION_KEY = b"org.apache.spark.version"
_ROW_KEY = b"org.apache.spark.sql.parquet.row.metadata"
_ZONE_KEY = b"org.apache.spark.timeZone"
_LEGACY_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_GREGORIAN_DAY = -141_427  # 1582-10-15; for earlier dates, Spark 2 and the LEGACY modes of Spark 3 write Julian days
_SECONDS = 86_400
_STANDARD_TIME_DAY = -25_567  # 1900-01-01; for earlier times, these modes and java.time disagree on zone offsets
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


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
"""Counts the lists of `WRITERS`. A row-group index names the one it was made with, and is not used with another."""


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


def refuse_old_calendar(footer: pq.FileMetaData, column: pa.ChunkedArray, name: str) -> None:
    """Raises `DecodeError` if a column has dates that Spark wrote in the hybrid Julian and Gregorian calendar."""
    if not _has_old_calendar(footer):
        return
    zone = (footer.metadata or {}).get(_ZONE_KEY)
    first_day = _GREGORIAN_DAY if zone in (b"UTC", b"GMT", b"Z", b"Etc/UTC") else _STANDARD_TIME_DAY
    for chunk in column.chunks:
        _refuse(chunk, name, first_day)


def _refuse(values: pa.Array, name: str, first_day: int) -> None:
    kind = values.type
    if pa.types.is_dictionary(kind):
        return  # only strings are read as dictionaries
    if pa.types.is_date32(kind):
        low, limit = pc.min(values.view(pa.int32())).as_py(), _GREGORIAN_DAY
    elif pa.types.is_timestamp(kind):
        low, limit = pc.min(values.view(pa.int64())).as_py(), first_day * _SECONDS * _PER_SECOND[kind.unit]
    elif pa.types.is_struct(kind):
        for child in values.flatten():
            _refuse(child, name, first_day)
        return
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        _refuse(values.flatten(), name, first_day)
        return
    elif pa.types.is_map(kind):
        _refuse(values.keys, name, first_day)
        _refuse(values.items, name, first_day)
        return
    else:
        return
    if low is not None and low < limit:
        day = "1582-10-15" if limit == _GREGORIAN_DAY or first_day == _GREGORIAN_DAY else "1900-01-01"
        raise DecodeError(
            f"field '{name}': expected {kind} from {day} on, because Spark wrote this file in its old calendar "
            f"(LEGACY rebase mode, or Spark 2), got an earlier value. Write the file again with "
            "spark.sql.parquet.datetimeRebaseModeInWrite and int96RebaseModeInWrite set to CORRECTED, or leave the "
            "rows out."
        )


def _by_spark(footer: pq.FileMetaData) -> bool:
    metadata = footer.metadata or {}
    return _VERSION_KEY in metadata or _ROW_KEY in metadata


def _has_old_calendar(footer: pq.FileMetaData) -> bool:
    metadata = footer.metadata or {}
    if any(key in metadata for key in _LEGACY_KEYS):
        return True
    if not _by_spark(footer):
        return False
    major = metadata.get(_VERSION_KEY, b"2").split(b".")[0]  # Spark before 2.4.5 omits its version
    return major.isdigit() and int(major) < 3
