"""Finds the version of a Delta table that was current at a given time.

It takes the log and a time, and returns the last version that is not newer. A version's time is the
``inCommitTimestamp`` of its commit if the table has in-commit timestamps, otherwise the modification time of the
commit's file. A time before the oldest version that can still be read is an error, never another version.

Rules: https://github.com/delta-io/delta/blob/master/PROTOCOL.md (in-commit timestamps). As in Spark, a file that is not
newer than the commit before it counts as one millisecond newer.
"""

from __future__ import annotations

import datetime
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import accumulate

from ..base.errors import DatasetError
from .delta_log import Log

Time = str | datetime.date  # a `datetime` is a `date`

_ISO = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(:\d\d)?(?:\.(\d+))?\s?(Z|[+-]\d\d(?::?\d\d)?)?)?", re.IGNORECASE
)
_EXPECTED = (
    "expected a version number, a datetime, or ISO text, such as '2024-05-31' or '2024-05-31T12:00:00Z' (UTC if it has "
    "no zone)"
)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


def parse_time(value: Time) -> datetime.datetime:
    """The point in time that a date, a ``datetime`` or ISO text means. Without a zone, it is in UTC.

    >>> parse_time("2023-11-14").isoformat(), parse_time("2023-11-14T22:14:50.5+01:00").isoformat()
    ('2023-11-14T00:00:00+00:00', '2023-11-14T22:14:50.500000+01:00')

    Raises:
        ValueError: it is not one of these.
    """
    if isinstance(value, str):
        value = _parse_time(value)
    elif not isinstance(value, datetime.date):
        raise ValueError(f"{_EXPECTED}, got {value!r}")
    elif not isinstance(value, datetime.datetime):
        value = datetime.datetime(value.year, value.month, value.day)
    return value if value.tzinfo else value.replace(tzinfo=datetime.UTC)


def version_at(log: Log, time: Time, configuration: Mapping[str, str | None]) -> int:
    """Returns the version that was current at a time; after the last commit, the last version.

    Args:
        configuration: the properties of the table's latest version.

    Raises:
        DatasetError: the time is before the oldest version that can be read, or the times of commits are not known.
        ValueError: it is not a time.
    """
    asked = (parse_time(time) - _EPOCH) // _MILLISECOND
    versions = log.readable_versions
    if not versions:
        raise DatasetError("expected commits to find the time in, got none in the log. Give a version number instead.")
    if str(configuration.get("delta.enableInCommitTimestamps")).lower() != "true":
        return _last(versions, _file_times(log, versions), asked, log)
    enabled = int(configuration.get("delta.inCommitTimestampEnablementVersion") or 0)
    since = configuration.get("delta.inCommitTimestampEnablementTimestamp")
    older = range(versions.start, min(max(enabled, versions.start), versions.stop))
    newer = range(older.stop, versions.stop)
    if older and (not newer or (since is not None and asked < int(since))):
        return _last(older, _file_times(log, older), asked, log)
    return _last(newer, log.in_commit_time, asked, log)


def _last(versions: range, time_of: Callable[[int], int], asked: int, log: Log) -> int:
    """The last version whose time is not after ``asked``. The times rise with the versions, so few are looked at."""
    place = bisect_right(versions, asked, key=time_of)
    if not place:
        oldest = "the oldest that the log still describes" if versions[0] else "the first"
        raise DatasetError(
            f"expected a time from {_shown(time_of(versions[0]))} on, when version {versions[0]} ({oldest}) was "
            f"written, got {_shown(asked)}. The latest version is {log.newest}. Give a later time, or a version number."
        )
    return versions[place - 1]


def _file_times(log: Log, versions: range) -> Callable[[int], int]:
    """Returns a function that returns the time of each version by its file, in milliseconds since 1970."""
    stored = [log.modified(version) for version in versions]
    rising = list(accumulate(stored, lambda before, own: max(before + 1, own)))
    return lambda version: rising[version - versions.start]


def _shown(milliseconds: int) -> str:
    with suppress(OverflowError):
        return (_EPOCH + milliseconds * _MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{milliseconds} ms since 1970"


def _parse_time(text: str) -> datetime.datetime:
    match = _ISO.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{_EXPECTED}, got {text!r}")
    day, clock, seconds, fraction, zone = match.groups(default="")
    zone = "+00:00" if zone in ("Z", "z") else zone
    if zone:
        digits = zone[1:].replace(":", "")
        zone = f"{zone[0]}{digits[:2]}:{digits[2:] or '00'}"
    return datetime.datetime.fromisoformat(f"{day}T{clock or '00:00'}{seconds or ':00'}.{fraction[:6]:0<6}{zone}")
