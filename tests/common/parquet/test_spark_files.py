"""The old calendar, in files with Spark's footers."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquetry.common import Pipeline
from parquetry.common.base.errors import DecodeError

pytestmark = pytest.mark.versions

SPARK3 = {b"org.apache.spark.version": b"3.5.0"}
OLD = {**SPARK3, b"org.apache.spark.legacyDateTime": b""}


def write(directory: Path, columns: dict[str, pa.Array], metadata: dict[bytes, bytes], *, int96: bool = True) -> str:
    """Writes a file as Spark does: with Spark's key-value metadata and without Arrow's schema."""
    table = pa.table(columns)
    options = {"use_deprecated_int96_timestamps": int96, "store_schema": False}
    with pq.ParquetWriter(directory / "part.parquet", table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata)
    return str(directory)


def stamps(*values: int) -> pa.Array:
    return pa.array(values, pa.timestamp("us"))


def dates(*values: str) -> pa.Array:
    return pa.array([datetime.date.fromisoformat(value) for value in values])


@pytest.mark.parametrize(
    "metadata",
    [
        OLD,
        {**SPARK3, b"org.apache.spark.legacyINT96": b""},
        {b"org.apache.spark.version": b"2.4.8"},
        {b"org.apache.spark.sql.parquet.row.metadata": b"{}"},
    ],
)
@pytest.mark.parametrize("name", ["day", "at", "days", "st.day", "m.key"])
def test_dates_before_the_gregorian_calendar_are_refused_in_files_that_count_julian_days(
    tmp_path: Path, metadata: dict[bytes, bytes], name: str
) -> None:
    day = dates("1582-10-14", "2024-01-01")
    columns: dict[str, Any] = {
        "day": day,
        "at": day.cast(pa.timestamp("us")),
        "days": pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), day),
        "st": pa.StructArray.from_arrays([day], ["day"]),
        "m": pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), day, pa.array([1, 2])),
    }
    url = write(tmp_path, columns, metadata)
    with pytest.raises(DecodeError, match=r"part\.parquet, row group 0: field '\w+': .* old calendar"):
        list(Pipeline(url, [name]))


@pytest.mark.parametrize("metadata", [{}, SPARK3])
def test_other_files_count_days_as_everybody_does(tmp_path: Path, metadata: dict[bytes, bytes]) -> None:
    url = write(tmp_path, {"day": dates("0001-01-01"), "n": pa.array([1])}, metadata)
    assert [row["day"] for row in Pipeline(url)] == [-719162]


def test_dates_since_the_gregorian_calendar_are_read_in_old_files(tmp_path: Path) -> None:
    columns = {"day": dates("1582-10-15"), "at": stamps(-2_208_988_800_000_000), "none": pa.nulls(1, pa.date32())}
    (row,) = Pipeline(write(tmp_path, columns, OLD))
    assert (row["day"], row["at"], row["none"]) == (-141427, -2_208_988_800_000_000, None)


@pytest.mark.parametrize(("zone", "is_read"), [(b"UTC", True), (b"Europe/Paris", False)])
def test_time_stamps_before_1900_depend_on_the_zone_of_the_old_file(tmp_path: Path, zone: bytes, is_read: bool) -> None:
    url = write(tmp_path, {"at": stamps(-2_208_988_800_000_001)}, {**OLD, b"org.apache.spark.timeZone": zone})
    if is_read:
        assert [row["at"] for row in Pipeline(url)] == [-2_208_988_800_000_001]
    else:
        with pytest.raises(DecodeError, match="from 1900-01-01 on"):
            list(Pipeline(url))
