"""INT96 timestamps are exact microseconds or an error, whoever wrote them."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders import int96_bytes, int96_column, write_int96, write_table

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.base.errors import DecodeError
from parquetry.common.dataset import index_format
from parquetry.common.dataset.arrow_read import read_slices
from parquetry.common.dataset.index import write_index
from parquetry.common.engine.read import kept_tables
from parquetry.common.parquet import evolution
from parquetry.common.parquet.int96 import bytes_footer, decode_int96, footer_schema

pytestmark = pytest.mark.versions

FAR = [-62_135_596_800_000_000, -(2**55), -1, 0, None, 1, 2**55, 253_402_300_799_999_999]
"""From year 1 to 9999, in microseconds. Nanoseconds overflow outside 1677 to 2262."""
WRITERS = ["Arrow", "parquet-mr version 1.8.1", "impala version 2.0", "parquet-mr (Drill 1.13.0)", None]
KINDS = pa.timestamp("us")


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_s_values_are_exact(tmp_path: Path, writer: str | None) -> None:
    url = write_int96(tmp_path / "a.parquet", pa.table({"at": int96_column(FAR)}), created_by=writer)
    assert pq.read_metadata(tmp_path / "a.parquet").schema.column(0).physical_type == "INT96"
    pipeline = Pipeline(url)
    assert pipeline.schema["at"].dtype == np.dtype("datetime64[us]")
    assert [row["at"] for row in pipeline] == FAR


def test_members_lists_and_maps_are_exact(tmp_path: Path) -> None:
    some = [value for value in FAR if value is not None]
    far, steps = int96_column(some), pa.array(range(len(some) + 1), pa.int32())
    table = pa.table(
        {
            "st": pa.StructArray.from_arrays([pa.array(some), far], ["n", "at"]),
            "all": pa.ListArray.from_arrays(steps, far),
            "m": pa.MapArray.from_arrays(steps, pa.array(map(str, some)), far),
            "odd": pa.array([b"not INT96 %02d" % n for n in range(len(some))], pa.binary(12)).cast(pa.binary()),
        }
    )
    rows = list(Pipeline(write_int96(tmp_path / "a.parquet", table)))
    assert [(row["st.n"], row["st.at"]) for row in rows] == [(value, value) for value in some]
    assert [row["all"].tolist() for row in rows] == [[value] for value in some]
    assert [row["m.value"].tolist() for row in rows] == [[value] for value in some]


def test_byte_strings_of_the_same_length_stay_what_they_are(tmp_path: Path) -> None:
    before = pa.array([0, 1], pa.timestamp("us"))
    table = pa.table({"id": pa.array([b"0123456789ab"] * 2, pa.binary(12)), "at": before, "exact": [2, 3]})
    url = write_table(tmp_path, table, use_deprecated_int96_timestamps=True)
    assert [tuple(row.values()) for row in Pipeline(url)] == [(b"0123456789ab", 0, 2), (b"0123456789ab", 1, 3)]


def test_a_time_of_day_outside_the_day_counts_from_the_day(tmp_path: Path) -> None:
    values = [int96_bytes(0, -1000), int96_bytes(-400_000, -2000), int96_bytes(3, 90_000 * 10**9)]
    url = write_int96(tmp_path / "a.parquet", pa.table({"at": pa.array(values, pa.binary(12))}))
    per_day = 86_400 * 10**6
    assert [row["at"] for row in Pipeline(url)] == [-1, -400_000 * per_day - 2, 3 * per_day + 90_000 * 10**6]


def test_the_last_years_of_spark_wrap_around_as_in_spark(tmp_path: Path) -> None:
    # What Spark 3.4 stores for 290000-12-30T23:00, in int96_from_spark.parquet of apache/parquet-testing
    values = [int96_bytes(-108_302_820, -32_509_551_616_000), int96_bytes(-106_700_000, 0)]
    url = write_int96(tmp_path / "a.parquet", pa.table({"at": pa.array(values, pa.binary(12))}))
    assert [row["at"] for row in Pipeline(url)] == [9_089_380_393_200_000_000, -106_700_000 * 86_400 * 10**6]


@pytest.mark.parametrize("day", [2**31 - 1 - 2_440_588, -(2**31) - 2_440_588, 106_700_000, -109_200_000])
def test_a_day_that_int64_cannot_count_is_an_error_that_names_the_row(tmp_path: Path, day: int) -> None:
    values = pa.array([None, int96_bytes(0, 0), int96_bytes(day, 7)], pa.binary(12))
    url = write_int96(tmp_path / "a.parquet", pa.table({"at": values}))
    wanted = (
        f"a.parquet, row group 0, row 2: field 'at': expected INT96.* in microseconds, got Julian day {day + 2440588}"
    )
    with pytest.raises(DecodeError, match=wanted):
        list(Pipeline(url))


@pytest.mark.parametrize("members", [False, True])
def test_nanoseconds_are_refused_and_never_cut_off(tmp_path: Path, members: bool) -> None:
    stamps = int96_column([5_000, 1_234_567_891], "ns")
    column = pa.StructArray.from_arrays([stamps], ["at"]) if members else stamps
    with pytest.raises(
        DecodeError, match=r"a\.parquet, row group 0: field '[a-z.]+'.*timestamp\[us\].*timestamp\[ns\]"
    ):
        list(Pipeline(write_int96(tmp_path / "a.parquet", pa.table({"at": column}))))


def test_nanoseconds_in_lists_are_read_where_they_are_declared(tmp_path: Path) -> None:
    stamps = int96_column([5_000, 1_234_567_891], "ns")
    lists = pa.ListArray.from_arrays(pa.array([0, 0, 1, 2], pa.int32()), stamps)
    url = write_int96(tmp_path / "a.parquet", pa.table({"at": lists}))
    with pytest.raises(DecodeError, match=r"row 2: .*fields=\[UnischemaField\('at', 'datetime64\[ns\]', \(None,\)\), "):
        list(Pipeline(url))
    field = UnischemaField("at", "datetime64[ns]", (None,))
    assert [row["at"].tolist() for row in Pipeline(url, [field])] == [[], [5_000], [1_234_567_891]]


def test_the_row_is_counted_across_the_chunks_of_a_column(tmp_path: Path) -> None:
    write_int96(tmp_path / "a.parquet", pa.table({"at": int96_column([0])}))
    schema = footer_schema(pq.read_metadata(tmp_path / "a.parquet"))
    chunks = [pa.array([int96_bytes(0, 0)] * 2, pa.binary(12)), pa.array([int96_bytes(2**30, 0)], pa.binary(12))]
    with pytest.raises(DecodeError, match="here, row 12: field 'at'"):
        decode_int96(pa.table({"at": pa.chunked_array(chunks)}), schema, "here", 10)


def test_nanoseconds_beside_years_that_they_cannot_count_are_an_error(tmp_path: Path) -> None:
    values = pa.concat_arrays([int96_column([1], "ns"), int96_column(FAR[:1])])
    with pytest.raises(
        DecodeError, match=r"row 1: .* in nanoseconds, because some have such digits, got Julian day 1721"
    ):
        list(Pipeline(write_int96(tmp_path / "a.parquet", pa.table({"at": values}))))


def test_files_of_several_writers_are_one_column(tmp_path: Path) -> None:
    spark = {b"org.apache.spark.version": b"3.5.0"}
    write_int96(tmp_path / "a.parquet", pa.table({"at": int96_column(FAR[:3])}).replace_schema_metadata(spark))
    write_int96(tmp_path / "b.parquet", pa.table({"at": int96_column(FAR[3:6])}), created_by="impala version 2.0")
    write_table(tmp_path, pa.table({"at": pa.array(FAR[6:], KINDS)}), "c.parquet")
    pipeline = Pipeline(str(tmp_path))
    assert pipeline.schema["at"].dtype == np.dtype("datetime64[us]")
    assert [row["at"] for row in pipeline] == FAR
    assert [row["at"] for row in pipeline.where([("at", ">", np.datetime64(0, "us"))])] == [1, *FAR[6:]]


def _model(value: int | None, operator: str, literal: int) -> bool:
    tests = {"<": int.__lt__, "<=": int.__le__, "==": int.__eq__, "!=": int.__ne__, ">=": int.__ge__, ">": int.__gt__}
    return value is not None and tests[operator](value, literal)


@pytest.mark.parametrize("operator", ["<", "<=", "==", "!=", ">=", ">"])
def test_filters_compare_the_true_values(tmp_path: Path, operator: str) -> None:
    url = write_int96(tmp_path / "a.parquet", pa.table({"id": range(len(FAR)), "at": int96_column(FAR)}))
    for literal in FAR:
        if literal is None:
            continue
        rows = Pipeline(url, ["id"]).where([("at", operator, np.datetime64(literal, "us"))])
        matches = [n for n, value in enumerate(FAR) if _model(value, operator, literal)]
        assert (len(rows), [row["id"] for row in rows] if matches else []) == (len(matches), matches)


def test_an_expression_finds_the_values_of_a_set(tmp_path: Path) -> None:
    url = write_int96(tmp_path / "a.parquet", pa.table({"id": range(len(FAR)), "at": int96_column(FAR)}))
    years = [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999)]
    rows = Pipeline(url, ["id"]).where(pc.field("at").isin(pa.array(years, KINDS)))
    assert [row["id"] for row in rows] == [0, len(FAR) - 1]


def test_windows_end_at_gaps_of_centuries(tmp_path: Path) -> None:
    day = 86_400_000_000
    starts = [value + step * day for value in (FAR[0], FAR[-1] - 2 * day) for step in range(3)]
    url = write_int96(tmp_path / "a.parquet", pa.table({"id": range(6), "at": int96_column(starts)}))
    windows = Pipeline(url).ngram({0: ["id"], 1: ["id", "at"]}, timestamp="at", max_gap=datetime.timedelta(days=1))
    assert [(window[0]["id"], window[1]["id"], window[1]["at"]) for window in windows] == [
        (n, n + 1, starts[n + 1]) for n in (0, 1, 3, 4)
    ]


def test_the_footer_for_arrow_differs_in_these_columns_alone(tmp_path: Path) -> None:
    names = ["a" * 200, "b", "c"]
    table = pa.table({names[0]: int96_column([0]), "b": pa.array([1]), "c": int96_column([2])})
    write_int96(tmp_path / "a.parquet", table, created_by="x")
    footer = pq.read_metadata(tmp_path / "a.parquet")
    made = bytes_footer(footer, f"test {tmp_path}")
    assert footer_schema(footer).types == [KINDS, pa.int64(), KINDS]
    assert made.schema.to_arrow_schema().types == [pa.binary(12), pa.int64(), pa.binary(12)]
    assert (made.schema.names, made.num_rows, made.created_by) == (names, 1, footer.created_by)


def test_slices_are_exact_and_name_the_row_of_the_row_group(tmp_path: Path) -> None:
    values = [n * 10**15 for n in range(-300, 300)]
    wrong = pa.concat_arrays(
        [int96_column(values[:456]), pa.array([b"\x7f" * 12], pa.binary(12)), int96_column(values[457:])]
    )
    write_int96(tmp_path / "a.parquet", pa.table({"right": int96_column(values), "wrong": wrong}))
    dataset = Pipeline(str(tmp_path)).dataset

    def slices(name: str) -> list[pa.Table]:
        return [table for _, table in read_slices(dataset, 0, lambda _: [name], slice_bytes=1200, advice="")]

    tables = slices("right")
    assert len(tables) > 3
    assert pa.concat_tables(tables)["right"].cast(pa.int64()).to_pylist() == values
    with pytest.raises(DecodeError, match="row group 0, row 456: field 'wrong'"):
        slices("wrong")


def test_each_of_many_row_groups_is_exact(tmp_path: Path) -> None:
    values = [n * 10**16 for n in range(-40, 40)]
    write_int96(tmp_path / "a.parquet", pa.table({"at": int96_column(values)}), row_group_size=1)
    assert [Pipeline(str(tmp_path))[n]["at"] for n in (79, 0, 40)] == [values[79], values[0], values[40]]
    assert [row["at"] for row in Pipeline(str(tmp_path)).shard(2, 1)] == values[40:]


def test_columns_that_an_earlier_version_cached_are_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(write_int96(tmp_path / "data" / "a.parquet", pa.table({"at": int96_column(FAR[:1])})))
    with monkeypatch.context() as earlier:
        earlier.setattr(kept_tables, "microsecond_fields", lambda *_: frozenset())
        earlier.setattr(
            kept_tables, "read_row_group", lambda *_: pa.table({"at": pa.array([7000], pa.timestamp("ns"))})
        )
        assert [row["at"] for row in pipeline.cache(tmp_path / "cache")] == [7]
    assert [row["at"] for row in pipeline.cache(tmp_path / "cache")] == FAR[:1]


def test_an_index_of_an_earlier_release_does_not_make_nanoseconds_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_int96(tmp_path / "a.parquet", pa.table({"at": int96_column(FAR)}))
    pq.write_table(pa.table({"at": pa.array([7], pa.timestamp("us"))}), tmp_path / "b.parquet")
    description = index_format.IndexDescription
    to_bytes = description.to_bytes
    monkeypatch.setattr(index_format.zlib, "crc32", lambda data: 0)
    with monkeypatch.context() as earlier:
        earlier.setattr(evolution, "footer_schema", lambda footer: footer.schema.to_arrow_schema())
        earlier.setattr(
            description, "to_bytes", lambda self: to_bytes(self).replace(b'"by_writer": 2', b'"by_writer": 1')
        )
        write_index(tmp_path)
    pipeline = Pipeline(tmp_path)
    assert pipeline.dataset.types["at"] == pa.timestamp("us")
    assert [row["at"] for row in pipeline] == [*FAR, 7]
