"""`refuse_old_calendar`: an error for dates and times that Apache Spark wrote in its old calendar.

Spark's INT96 timestamps are like those of other writers; see `int96`.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from ..base.errors import DecodeError
from ..base.process.forks import pc

_VERSION_KEY = b"org.apache.spark.version"
_ROW_KEY = b"org.apache.spark.sql.parquet.row.metadata"
_ZONE_KEY = b"org.apache.spark.timeZone"
_LEGACY_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_GREGORIAN_DAY = -141_427  # 1582-10-15; for earlier dates, Spark 2 and the LEGACY modes of Spark 3 write Julian days
_SECONDS = 86_400
_STANDARD_TIME_DAY = -25_567  # 1900-01-01; for earlier times, these modes and java.time disagree on zone offsets
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


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
