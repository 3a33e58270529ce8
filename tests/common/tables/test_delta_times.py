"""The version at a time, compared with the rules of the protocol, over logs of any age and order of times."""

from __future__ import annotations

import datetime
import os
from pathlib import Path
from tempfile import TemporaryDirectory

import delta_tables as hand
import pyarrow.fs as pafs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquetry.common.base.errors import DatasetError
from parquetry.common.tables.delta_log import Log
from parquetry.common.tables.delta_times import parse_time, version_at

BASE = 1_700_000_000
TIMES = st.lists(st.integers(0, 20), min_size=1, max_size=8)  # seconds after BASE


def moment(seconds: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(BASE + seconds, datetime.UTC)


def expected(times_ms: dict[int, int], asked: int) -> int | None:
    """The last version that is not newer, ``None`` if all are."""
    return max((version for version, time in times_ms.items() if time <= (BASE + asked) * 1000), default=None)


def found(log: Log, asked: int, configuration: dict[str, str | None]) -> int | None:
    try:
        return version_at(log, moment(asked), configuration)
    except DatasetError as error:
        assert "expected a time from 20" in str(error)  # noqa: PT017
        return None


@settings(max_examples=60, deadline=None)
@given(TIMES, TIMES, st.integers(0, 8), st.integers(0, 8), st.booleans(), st.integers(-1, 25))
def test_the_version_at_a_time_is_the_last_one_that_is_not_newer(
    file_times: list[int], own_times: list[int], cleaned: int, enabled: int, in_commit: bool, asked: int
) -> None:
    count = len(file_times)
    cleaned, enabled = min(cleaned, count - 1), min(enabled, count - 1)
    rising = sorted({*own_times, *range(30, 30 + count)})[: count - enabled]  # as writers must keep them
    own = {enabled + number: (BASE + time) * 1000 for number, time in enumerate(rising)}
    with TemporaryDirectory() as directory:
        table = Path(directory)
        for version in range(cleaned, count):
            about = [{"commitInfo": {"inCommitTimestamp": own[version]}}] if in_commit and version in own else []
            hand.commit(table, version, *about, hand.protocol([]))
            time = BASE + file_times[version]
            os.utime(table / "_delta_log" / f"{version:020d}.json", (time, time))
        if cleaned:
            (table / "_delta_log" / f"{cleaned:020d}.checkpoint.parquet").write_bytes(b"not empty")
        log = Log(pafs.LocalFileSystem(), directory)
        assert log.readable_versions == range(cleaned, count)
        stored: dict[int, int] = {}
        for version in range(cleaned, count):
            stored[version] = max((BASE + file_times[version]) * 1000, stored.get(version - 1, -2) + 1)
        if not in_commit:
            assert found(log, asked, {}) == expected(stored, asked)
            return
        configuration: dict[str, str | None] = {"delta.enableInCommitTimestamps": "true"}
        if enabled:
            configuration["delta.inCommitTimestampEnablementVersion"] = str(enabled)
            configuration["delta.inCommitTimestampEnablementTimestamp"] = str(own[enabled])
        is_new = (BASE + asked) * 1000 >= own[enabled] or enabled <= cleaned
        times = {version: time for version, time in own.items() if version >= cleaned} if is_new else stored
        known = {version: time for version, time in times.items() if is_new or version < enabled}
        assert found(log, asked, configuration) == expected(known, asked)


def test_versions_without_all_their_files_do_not_count(tmp_path: Path) -> None:
    for version in (1, 2, 4, 5):
        hand.commit(tmp_path, version, hand.protocol([]))
    filesystem = pafs.LocalFileSystem()
    assert not Log(filesystem, str(tmp_path)).readable_versions
    with pytest.raises(DatasetError, match="expected commits to find the time in, got none"):
        version_at(Log(filesystem, str(tmp_path)), "2024-01-01", {})
    log = tmp_path / "_delta_log"
    (log / f"{1:020d}.checkpoint.parquet").write_bytes(b"not empty")  # version 3 is not there
    assert not Log(filesystem, str(tmp_path)).readable_versions
    (log / f"{5:020d}.checkpoint.0000000001.0000000002.parquet").write_bytes(b"not empty")  # half a checkpoint
    assert not Log(filesystem, str(tmp_path)).readable_versions
    (log / f"{3:020d}.checkpoint.parquet").write_bytes(b"not empty")  # the time of version 3 is not known
    assert Log(filesystem, str(tmp_path)).readable_versions == range(4, 6)


def test_a_commit_without_its_time_is_an_error(tmp_path: Path) -> None:
    hand.commit(tmp_path, 0, {"commitInfo": {"inCommitTimestamp": "soon"}})
    log = Log(pafs.LocalFileSystem(), str(tmp_path))
    with pytest.raises(
        DatasetError, match=r"expected an inCommitTimestamp in 0{20}\.json, .* got soon\. Give a version"
    ):
        version_at(log, "2024-01-01", {"delta.enableInCommitTimestamps": "True"})


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2024-05-31", "2024-05-31T00:00:00+00:00"),
        ("2024-05-31T12:30", "2024-05-31T12:30:00+00:00"),
        ("2024-05-31 12:30:15.1234567z", "2024-05-31T12:30:15.123456+00:00"),
        ("2024-05-31T12:30:15-0530", "2024-05-31T12:30:15-05:30"),
        ("2024-05-31T12:30:15 +02", "2024-05-31T12:30:15+02:00"),
    ],
)
def test_a_text_without_a_zone_is_in_utc(text: str, iso: str) -> None:
    assert parse_time(text).isoformat() == iso


@pytest.mark.parametrize("text", ["3", "2024", "20240531", "2024-13-01", "yesterday", "2024-05-31T12:30:15+25:00", ""])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a version number|month must be|strictly between"):
        parse_time(text)
