"""Files written by Spark, in every flavor, read with the same values as by Spark's own reader."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from parquetry.common import Pipeline
from parquetry.common.base.errors import DecodeError, SchemaError
from parquetry.common.dataset.index import write_index

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1)
SAME = ("i", "b", "s", "l", "f", "d", "t", "y", "flag", "arr", "names", "grid")
COLUMNS = """
    i int, b tinyint, s smallint, l bigint, f float, d double, t string, y binary, flag boolean, ts timestamp,
    ntz timestamp_ntz, day date, d9 decimal(9,2), d18 decimal(18,6), d38 decimal(38,10), arr array<double>,
    names array<string>, grid array<array<int>>, times array<timestamp>, m map<string,int>,
    st struct<x:int,`in`:struct<z:string,ts:timestamp>,a:array<bigint>>, iv interval day to second
"""


def make_row(i: int) -> tuple[Any, ...]:
    null = i % 5 == 0
    stamp = datetime.datetime(1700, 1, 1, tzinfo=UTC) + datetime.timedelta(days=i * 5000, microseconds=i)
    return (
        None if null else i * 7,
        i % 100,
        -i,
        i * 2**40,
        i / 3,
        i / 7,
        None if null else f"t{i}é",
        bytes([i % 256]) * (i % 4),
        i % 2 == 0,
        None if null else stamp,
        datetime.datetime(1965, 1, 1) + datetime.timedelta(hours=i, microseconds=i),
        datetime.date(1900, 1, 1) + datetime.timedelta(days=i * 999),
        decimal.Decimal(i) / 4,
        decimal.Decimal(i) / 8,
        None if null else decimal.Decimal(i) * 10**20 / 16,
        [j / 2 for j in range(i % 4)],
        None if null else ["a", "", "z" * i][: i % 4],
        [[i, 1], [2, 3]],
        [stamp] * (i % 3),
        {f"k{j}": j for j in range(i % 3)},
        None if i % 7 == 0 else (i, None if null else (f"z{i}", stamp), [i] * (i % 3)),
        datetime.timedelta(days=i, seconds=1),
    )


def micros(value: datetime.datetime | None) -> int | None:
    """Returns microseconds since the epoch; Spark returns timestamps in the local time zone."""
    if value is None:
        return None
    value = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo is not None else value
    return (value - EPOCH) // datetime.timedelta(microseconds=1)


@pytest.fixture(scope="module")
def frame(spark: Any) -> Any:
    """Returns sixty rows of every type."""
    return spark.createDataFrame([make_row(i) for i in range(60)], COLUMNS).repartition(2)


def expected(spark: Any, url: str) -> list[dict[str, Any]]:
    """Returns the rows from Spark's reader, flattened as in parquetry, with times as counts."""
    exact = (
        "unix_micros(ts) ts",
        "transform(times, x -> unix_micros(x)) times",
        "map_keys(m) mk",
        "map_values(m) mv",
        "unix_micros(st.in.ts) stts",
    )
    columns = [*SAME, "ntz", "day", "d9", "d18", "d38", "st", "iv"]
    rows = []
    for row in spark.read.parquet(url).selectExpr(*columns, *exact).collect():
        st = row.st
        rows.append(
            {
                **{name: row[name] for name in (*SAME, "ts", "times")},
                "y": bytes(row.y),
                "ntz": micros(row.ntz),
                "day": (row.day - datetime.date(1970, 1, 1)).days,
                **{n: None if row[n] is None else format(row[n].normalize(), "f") for n in ("d9", "d18", "d38")},
                "m.key": row.mk,
                "m.value": row.mv,
                "st.x": None if st is None else st.x,
                "st.in.z": None if st is None or st["in"] is None else st["in"].z,
                "st.in.ts": row.stts,
                "st.a": None if st is None else st.a,
                "iv": row.iv // datetime.timedelta(microseconds=1),
            }
        )
    return sorted(rows, key=lambda row: row["l"])


def assert_equal(got: Any, wanted: list[dict[str, Any]]) -> None:
    got = sorted(got, key=lambda row: row["l"])
    assert len(got) == len(wanted)
    for left, right in zip(got, wanted, strict=True):
        assert set(left) == set(right)
        for name, value in right.items():
            if value is None:
                assert left[name] is None, name
            else:
                np.testing.assert_array_equal(
                    np.asarray(left[name]),
                    np.asarray(value, dtype=left[name].dtype) if isinstance(value, list) else value,
                    err_msg=name,
                )


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({}, {"compression": "zstd", "parquet.writer.version": "v2"}),
        ({}, {"compression": "gzip", "parquet.enable.dictionary": "false"}),
        ({"spark.sql.parquet.writeLegacyFormat": "true"}, {}),
        ({"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS"}, {}),
        ({"spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS"}, {}),
    ],
    ids=["int96", "zstd, v2 pages", "no dictionary", "legacy lists", "micros", "millis"],
)
def test_every_value_equals_what_sparks_reader_gives(
    spark: Any, frame: Any, tmp_path: Path, settings: dict[str, str], options: dict[str, str]
) -> None:
    url = f"file://{tmp_path}/set"
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        frame.write.options(**options).parquet(url)
    finally:
        for key in settings:
            spark.conf.unset(key)
    assert (tmp_path / "set" / "_SUCCESS").exists()
    wanted = expected(spark, url)
    if "TIMESTAMP_MILLIS" in settings.values():
        for row in wanted:
            for name in ("ts", "st.in.ts"):
                row[name] = None if row[name] is None else row[name] // 1000
            row["times"] = [value // 1000 for value in row["times"]]
    assert_equal(Pipeline(url), wanted)
    write_index(tmp_path / "set")
    assert_equal(Pipeline(url), wanted)
    assert len(Pipeline(url).where([("l", ">", 2**44)])) == 43


def test_arrays_of_structs_are_refused_only_when_selected(spark: Any, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/set"
    spark.range(2).selectExpr("id", "array(struct(id a, 'x' b)) pairs").write.parquet(url)
    with pytest.raises(SchemaError, match="field 'pairs': Arrow type struct"):
        list(Pipeline(url))
    assert sorted(row["id"] for row in Pipeline(url, ["id"])) == [0, 1]


def test_partitions_with_escaped_names_and_nulls_are_read(spark: Any, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/set"
    rows = [(i, [None, "a b", "c/d=e%f:x", ""][i % 4], i % 3, [True, None][i % 2]) for i in range(24)]
    frame = spark.createDataFrame(rows, "id int, key string, `a number` int, flag boolean")
    frame.write.partitionBy("key", "a number", "flag").parquet(url)
    keys = ["id", "key", "a number"]
    wanted = {row.id: row for row in spark.read.parquet(url).collect()}
    got = list(Pipeline(url))
    assert len(got) == 24
    for row in got:
        assert [row[name] for name in keys] == [wanted[row["id"]][name] for name in keys]
        # Spark also treats "true" as text; a null boolean is its null directory.
        assert row["flag"] == (None if wanted[row["id"]].flag is None else str(wanted[row["id"]].flag).lower())
    assert len(Pipeline(url).where([("key", "=", "c/d=e%f:x")])) == 6


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS"])
def test_the_first_and_the_last_year_are_exact(spark: Any, tmp_path: Path, kind: str) -> None:
    url = f"file://{tmp_path}/set"
    sql = (
        "select timestamp_micros(-62135596800000000) early, timestamp_micros(253402300799999999) late, "
        "date'0001-01-01' first, date'1582-10-14' gregorian, array(timestamp_micros(-62135596800000000)) times"
    )
    spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    try:
        spark.sql(sql).write.parquet(url)
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    (row,) = Pipeline(url)
    assert (row["early"], row["late"]) == (-62135596800000000, 253402300799999999)
    assert (row["first"], row["gregorian"]) == (-719162, -141428)
    assert row["times"].tolist() == [-62135596800000000]


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS"])
def test_dates_in_the_old_calendar_are_refused_and_later_ones_read(spark: Any, tmp_path: Path, kind: str) -> None:
    modes = ("spark.sql.parquet.datetimeRebaseModeInWrite", "spark.sql.parquet.int96RebaseModeInWrite")
    settings = {**dict.fromkeys(modes, "LEGACY"), "spark.sql.parquet.outputTimestampType": kind}
    before = {key: spark.conf.get(key) for key in settings}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        sql = "select date'{0}' day, timestamp'{0} 01:02:03' ts, struct(timestamp'{0} 01:02:03' ts) st"
        spark.sql(sql.format("1500-01-01")).write.parquet(f"file://{tmp_path}/old")
        spark.sql(sql.format("2024-02-29")).write.parquet(f"file://{tmp_path}/new")
    finally:
        for key, value in before.items():
            spark.conf.set(key, value)
    metadata = pq.read_metadata(next((tmp_path / "old").glob("*.parquet"))).metadata
    assert b"org.apache.spark.legacyDateTime" in metadata
    for name in ("day", "ts", "st.ts"):
        with pytest.raises(DecodeError, match=rf"row group 0: field '{name[:2]}.*old calendar"):
            list(Pipeline(tmp_path / "old", [name]))
    (row,) = Pipeline(tmp_path / "new")
    assert (row["day"], row["ts"]) == (19782, 1709186523 * 10**6)
