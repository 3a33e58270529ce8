"""``cast``: converts numbers as numpy does; a value that would change is an error."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from cases import every_case
from drive_rows import ROWS, drive_url_once

from parquetry.common import Pipeline, mix
from parquetry.common.base.errors import DecodeError, FieldNotFoundError, PipelineError, SchemaError, TransformError
from parquetry.common.server import serve

pytestmark = pytest.mark.versions

url = drive_url_once()


@pytest.fixture(params=["threads", "sidecar"])
def drive(request: pytest.FixtureRequest, url: str) -> Pipeline:
    return Pipeline(url, executor=request.param, workers=1)


def column(tmp_path: Path, values: Any, kind: Any = None) -> Pipeline:
    """Returns a pipeline over one column ``x``, in row groups of three."""
    pq.write_table(pa.table({"x": pa.array(values, kind)}), tmp_path / "part.parquet", row_group_size=3)
    return Pipeline(str(tmp_path), executor="threads", workers=1)


def test_numbers_come_in_the_dtype_that_is_asked_for(drive: Pipeline) -> None:
    made = drive.select("id", "image").cast(np.float32, "id").cast("float16", "image")
    assert [output.dtype.name for output in made.element.outputs] == ["float32", "float16"]
    batch = next(iter(made.batch(40)))
    assert (batch["id"].dtype, batch["image"].dtype) == (np.float32, np.float16)
    assert batch["id"].tolist() == list(range(40))
    assert np.array_equal(batch["image"], np.stack([row["image"] for row in ROWS]).astype(np.float16))


def test_fractions_are_cut_off_and_nulls_stay_nulls(drive: Pipeline) -> None:
    batch = next(iter(drive.select("speed").cast("int32", "speed").batch(40)))
    assert batch["speed"].dtype == np.int32
    assert batch["speed"].tolist() == [None if row["speed"] is None else int(row["speed"]) for row in ROWS]
    filled = drive.select("speed").cast("int32", "speed").nulls("fill", "speed", value=-1)
    assert int(next(iter(filled))["speed"]) == -1
    masked = next(iter(drive.select("speed").nulls("mask", "speed").cast(bool, "speed").batch(3)))
    assert masked["speed"].tolist() == [False, True, True]
    assert masked["speed__valid"].tolist() == [False, True, True]


def test_values_of_variable_shape_are_cast(drive: Pipeline) -> None:
    made = drive.select("points").cast("int16", "points")
    for row, expected in zip(made, ROWS, strict=True):
        assert row["points"].dtype == np.int16
        assert np.array_equal(row["points"], expected["points"].astype(np.int16))
    assert next(iter(made.pad("points").batch(4)))["points"].dtype == np.int16


@every_case("before", [True, False])
def test_values_in_windows_are_cast(drive: Pipeline, before: bool) -> None:
    fields = drive.select("id", "points", "speed")
    cast = ("id", "points", "speed")
    windows = fields.cast("int8", *cast).ngram(length=2) if before else fields.ngram(length=2).cast("int8", *cast)
    batch = next(iter(windows.batch(2)))
    assert batch["id"].tolist() == [[0, 1], [1, 2]]
    assert (batch["id"].dtype, batch["speed"].dtype, batch["points"].values.dtype) == (np.int8, np.int8, np.int8)
    assert batch["speed"].tolist() == [[None, 0], [0, 1]]


def test_several_names_and_regexes_may_be_given(drive: Pipeline) -> None:
    made = drive.select("id", "speed", "name").cast("float64", "i.*", "speed")
    assert [output.dtype.name for output in made.element.outputs] == ["float64", "object", "float64"]


def test_a_cast_to_the_same_dtype_does_nothing(drive: Pipeline) -> None:
    plan = drive.select("id").cast("int64", "id").plan()
    assert plan.program.item_steps == ()


def test_an_image_that_was_cast_is_no_longer_resized_as_bytes(url: str) -> None:
    resized = Pipeline(url).select("image").cast("float32", "image").resize("image", (2, 2))
    batch = next(iter(resized.batch(3)))
    assert (batch["image"].dtype, batch["image"].shape) == (np.float32, (3, 2, 2, 3))
    after = Pipeline(url).select("image").resize("image", (2, 2), interpolation="nearest").cast("int64", "image")
    assert next(iter(after))["image"].dtype == np.int64


def test_a_client_may_cast_what_a_server_has(url: str) -> None:
    with serve(Pipeline(url).select("id", "speed").nulls("fill", "speed", value=0)) as server:
        batch = next(iter(Pipeline(address=server.address).cast("int8", "id", "speed").batch(4)))
        assert (batch["id"].dtype, batch["speed"].tolist()) == (np.int8, [0, 0, 1, 1])


@every_case(
    ("values", "kind", "dtype", "expected"),
    [
        ([-128, 127], pa.int64(), "int8", [-128, 127]),
        ([0, 2**64 - 1], pa.uint64(), "float64", [0.0, float(2**64)]),
        ([0, 2**63 - 1], pa.uint64(), "int64", [0, 2**63 - 1]),
        ([-0.9, 255.9], pa.float64(), "uint8", [0, 255]),
        ([-(2.0**63), 2.0**62], pa.float64(), "int64", [-(2**63), 2**62]),
        ([2.0**64 - 2.0**12], pa.float64(), "uint64", [2**64 - 2**12]),
        ([1e300, -1.0], pa.float64(), "float32", [float("inf"), -1.0]),
        ([70_000], pa.int32(), "float16", [float("inf")]),
        ([0.0, -0.5, 3.0], pa.float32(), "bool", [False, True, True]),
        ([True, False], pa.bool_(), "int8", [1, 0]),
        ([None, 300, 5], pa.int16(), "int32", [None, 300, 5]),
        ([None, float("nan"), 1.0], pa.float64(), "float32", [None, "nan", 1.0]),
    ],
)
def test_casts_at_the_limits(tmp_path: Path, values: Any, kind: Any, dtype: str, expected: Any) -> None:
    batch = next(iter(column(tmp_path, values, kind).cast(dtype, "x").batch(3)))
    assert batch["x"].dtype == np.dtype(dtype)
    assert ["nan" if value != value else value for value in batch["x"].tolist()] == expected


@every_case(
    ("values", "kind", "dtype", "row", "wrong"),
    [
        ([1, 2, 3, 4, 128], pa.int64(), "int8", 1, "128"),
        ([1, 2, 3, -1], pa.int64(), "uint64", 0, "-1"),
        ([1, 2**63], pa.uint64(), "int64", 1, "9223372036854775808"),
        ([1.0, 2.0, float("nan")], pa.float64(), "int64", 2, "nan"),
        ([1.0, float("-inf")], pa.float32(), "int8", 1, "-inf"),
        ([float("inf")], pa.float32(), "bool", 0, "inf"),
        ([2.0**63], pa.float64(), "int64", 0, "9.22"),
        ([None, 300.0], pa.float64(), "int8", 1, "300"),
        ([np.float16(256)], pa.float16(), "uint8", 0, "256"),
        ([[1], [], [2, 300], None, [4]], pa.list_(pa.int64()), "int8", 2, "300"),
        ([[[1.0, 2.0]], [[3.0, 1e9]]], pa.list_(pa.list_(pa.float64(), 2)), "int16", 1, "1000000000"),
    ],
)
def test_a_number_that_does_not_fit_is_an_error_that_names_its_row(
    tmp_path: Path, values: Any, kind: Any, dtype: str, row: int, wrong: str
) -> None:
    pipeline = column(tmp_path, [None if value is None else value for value in values], kind).cast(dtype, "x")
    message = rf"cast: field 'x', file .*part.parquet, row group \d, row {row}: expected a number that {dtype} can hold, got {wrong}"
    with pytest.raises(DecodeError, match=message):
        list(pipeline)
    with pytest.raises(DecodeError, match=message):
        list(pipeline.batch(5))


def test_values_under_a_null_are_never_read(tmp_path: Path) -> None:
    values = pa.Array.from_buffers(
        pa.int64(), 3, [pa.py_buffer(b"\x05"), pa.py_buffer(np.array([1, 999, 3], np.int64))], null_count=1
    )
    (tmp_path / "x").mkdir()
    assert next(iter(column(tmp_path / "x", values).cast("int8", "x").batch(3)))["x"].tolist() == [1, None, 3]


@every_case(
    ("make", "error", "message"),
    [
        (lambda p: p.cast("int8"), PipelineError, r"cast: expected a field name or regex, or several of them, got \(\)"),
        (lambda p: p.cast(str, "id"), PipelineError, "cast: expected a numeric dtype, got <class 'str'>"),
        (lambda p: p.cast(None, "id"), PipelineError, "cast: expected a numeric dtype, got None"),
        (lambda p: p.cast("int7", "id"), PipelineError, "cast: expected a numeric dtype, got 'int7'"),
        (lambda p: p.cast({"id": "int8"}), PipelineError, "cast: expected a numeric dtype, got {'id': 'int8'}"),
        (lambda p: p.cast("int8,(", "id"), PipelineError, r"cast: expected a numeric dtype, got 'int8,\('"),
        (lambda p: p.cast("datetime64[s]", "speed").element, PipelineError, "expected a type that converts to datetime64.s., got float32 without a unit"),
        (lambda p: p.cast("int8", "name").element, PipelineError, "field 'name': expected numbers or bools, got text"),
        (lambda p: p.cast("int8", "price").element, PipelineError, "field 'price': expected numbers or bools, got text.*decimals"),
        (lambda p: p.cast("int8", "nope").element, FieldNotFoundError, "field 'nope'"),
        (lambda p: p.cast("int32", "id").where(pc.field("id") > 3), PipelineError, "it reads the stored values of 'id'"),
    ],
)  # fmt: skip
def test_invalid_input_is_refused(url: str, make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make(Pipeline(url))


TIMES = [dt.datetime(2020, 1, 1, 12, 0, second) for second in range(4)]


@pytest.fixture
def times(tmp_path: Path) -> Pipeline:
    columns = {
        "t": pa.array([TIMES[0], None, *TIMES[2:]], pa.timestamp("ms", "UTC")),
        "d": pa.array([dt.timedelta(milliseconds=-1500 * n) for n in range(4)], pa.duration("us")),
        "days": pa.array([[dt.date(2020, 1, n + 1)] * n for n in range(4)]),
        "n": pa.array([3, 2, 1, 0], pa.int32()),
    }
    pq.write_table(pa.table(columns), tmp_path / "part.parquet")
    return Pipeline(str(tmp_path), executor="threads", workers=1)


def test_times_come_as_numpys_own_in_their_unit_or_another(times: Pipeline) -> None:
    made = times.cast("datetime64", "t").cast("timedelta64[s]", "d").cast("datetime64[h]", "days")
    batch = next(iter(made.cast("datetime64[D]", "n").batch(4)))
    assert batch["t"].dtype == "datetime64[ms]"
    assert batch["t"].tolist() == [TIMES[0], None, *TIMES[2:]]
    assert np.array_equal(batch["d"], np.array([0, -1500, -3000, -4500], "m8[ms]").astype("m8[s]"))
    assert [day.tolist() for day in batch["days"]] == [[dt.datetime(2020, 1, n + 1)] * n for n in range(4)]
    assert batch["n"].tolist() == [dt.date(1970, 1, n + 1) for n in (3, 2, 1, 0)]
    rows = list(made.ngram(length=2).select("days", "d"))
    assert (rows[1]["d"].dtype, rows[1]["days"][1].dtype) == ("timedelta64[s]", "datetime64[h]")
    assert [output.numpy_dtype for output in made.element.outputs[:2]] == ["datetime64[ms]", "timedelta64[s]"]


def test_the_element_and_the_plan_name_the_unit_of_times(times: Pipeline) -> None:
    assert [output.time for output in times.element.outputs] == [
        "datetime64[ms]",
        "timedelta64[us]",
        "datetime64[D]",
        None,
    ]
    assert "t: int64 or null, datetime64[ms]" in times.explain()
    assert "t: datetime64[s] or null" in times.cast("datetime64[s]", "t").explain()


def test_functions_see_times_and_may_give_them_in_another_unit(times: Pipeline) -> None:
    seen: list[Any] = []

    def later(batch: dict[str, Any]) -> dict[str, Any]:
        seen.append(batch["d"].dtype)
        return {"d": batch["d"] + np.timedelta64(500, "ms")}  # milliseconds

    made = times.select("d").cast("timedelta64[s]", "d").transform(later, batched=True).batch(4)
    before = np.array([0, -1500, -3000, -4500], "m8[ms]").astype("m8[s]")
    found = next(iter(made))["d"]
    assert found.dtype == "timedelta64[s]"
    assert np.array_equal(found, (before + np.timedelta64(500, "ms")).astype("m8[s]"))
    assert seen[0] == "timedelta64[s]"


@every_case("batched", [True, False])
def test_functions_that_give_times_beyond_the_unit_are_an_error(times: Pipeline, batched: bool) -> None:
    def far(value: dict[str, Any]) -> dict[str, Any]:
        return {"d": value["d"].astype("timedelta64[s]") + np.timedelta64(2**62, "s")}

    made = times.select("d").cast("timedelta64[us]", "d").transform(far, batched=batched)
    message = r"field 'd', .*row 0: expected times that timedelta64\[us\] can hold, got 4611686018427387904 seconds"
    with pytest.raises(TransformError, match=message):
        list(made.batch(4))


def test_numbers_come_back_from_times_in_the_unit_that_they_had(times: Pipeline) -> None:
    made = times.nulls("drop", "t").cast("datetime64[s]", "t").cast("int64", "t")
    assert made.element.outputs[0].numpy_dtype == np.int64
    assert [int(row["t"]) for row in made] == [1577880000, 1577880002, 1577880003]


def test_times_that_do_not_fit_are_refused(times: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="field 'd': expected a type that converts to datetime64, got timedelta64"):
        _ = times.cast("datetime64", "d").element
    with pytest.raises(
        PipelineError, match="field 'n': expected a type that converts to datetime64, got int32 without a unit"
    ):
        _ = times.cast("datetime64", "n").element
    for wrong in ("datetime64[Y]", "datetime64[10us]"):
        with pytest.raises(
            PipelineError, match="cast: expected one of the units ns, us, ms, s, m, h, D, W, got datetime64"
        ):
            times.cast(wrong, "t")
    far = column(tmp_path, [0, 2**60, None], pa.timestamp("ms")).cast("datetime64[ns]", "x")
    with pytest.raises(DecodeError, match=r"field 'x', .*row 1: expected a number that datetime64\[ns\] can hold"):
        list(far.batch(3))


@every_case("kind", [pa.timestamp("us"), pa.duration("us")])
def test_times_near_the_ends_of_their_unit_are_rounded_down_to_a_coarser_one(tmp_path: Path, kind: Any) -> None:
    numpys = "datetime64" if pa.types.is_timestamp(kind) else "timedelta64"
    limit = 2**63 - 1
    made = column(tmp_path, [-limit, limit, -1, None, 0, 10**6], kind)
    for unit, count in (("ms", 10**3), ("s", 10**6), ("D", 86_400 * 10**6)):
        values = next(iter(made.cast(f"{numpys}[{unit}]", "x").nulls("mask", "x").batch(6)))["x"]
        expected = [-limit // count, limit // count, -1, 0, 0, 10**6 // count]
        assert values.view(np.int64).tolist() == expected


def test_not_a_time_stays_so_in_another_unit(times: Pipeline) -> None:
    gone = times.select("d").cast("timedelta64[ms]", "d").transform(_no_time, batched=True)
    for unit in ("us", "s"):
        assert np.isnat(next(iter(gone.cast(f"timedelta64[{unit}]", "d").batch(4)))["d"]).all()


def _no_time(batch: dict[str, Any]) -> dict[str, Any]:
    return {"d": np.full(len(batch["d"]), np.timedelta64("NaT", "ms"))}


def test_a_mix_holds_sources_to_one_unit(times: Pipeline) -> None:
    seconds, days = (times.select("t").cast(f"datetime64[{unit}]", "t") for unit in "sD")
    with pytest.raises(SchemaError, match=r"'t' datetime64\[s\] \(\) in pipeline 0, 't' datetime64\[D\]"):
        _ = mix([seconds, days]).element


FAR_US = 253_402_300_799_000_000  # the end of the year 9999


@pytest.mark.parametrize(
    ("dtype", "first", "second", "values"),
    [
        ("datetime64[us]", pa.array([FAR_US], pa.timestamp("us")), pa.array([-1, None], pa.timestamp("ns")), [FAR_US, -1, None]),
        ("datetime64[s]", pa.array([FAR_US], pa.timestamp("us")), pa.array([-1], pa.timestamp("ns")), [FAR_US // 10**6, -1]),
        ("int64", pa.array([2**53 + 1]), pa.array([-1.5, None]), [2**53 + 1, -1, None]),
        ("uint64", pa.array([2**64 - 1], pa.uint64()), pa.array([1]), [2**64 - 1, 1]),
        ("float32", pa.array([2**53 + 1]), pa.array([0.1]), [float(np.float32(2**53)), float(np.float32(0.1))]),
        ("float64", pa.array([True]), pa.array([1.5]), [1.0, 1.5]),
        ("bool", pa.array([2**53 + 1]), pa.array([0.0]), [True, False]),
        ("int64", pa.array([5], pa.timestamp("us")), pa.array([7000], pa.timestamp("ns", "UTC")), [5000, 7000]),
    ],
    ids=["far", "coarse", "whole", "unsigned", "rounded", "truth", "bools", "zones"],
)  # fmt: skip
def test_a_cast_is_from_the_type_of_each_file_where_one_type_would_not_hold_all(
    tmp_path: Path, dtype: str, first: pa.Array, second: pa.Array, values: list[object]
) -> None:
    for number, column in enumerate((first, second)):
        pq.write_table(pa.table({"x": column}), tmp_path / f"{number}.parquet")
    rows = list(Pipeline(tmp_path, executor="threads").shuffle(1, seed=1).cast(dtype, "x"))
    found = [
        row["x"] if row["x"] is None else row["x"].astype("int64" if dtype[0] == "d" else dtype).item() for row in rows
    ]
    assert sorted(map(str, found)) == sorted(map(str, values))


def test_a_number_of_some_file_that_a_cast_cannot_hold_is_named_with_its_row(tmp_path: Path) -> None:
    for number, column in enumerate(([1.5, float("nan")], [2**53 + 1])):
        pq.write_table(pa.table({"x": column}), tmp_path / f"{number}.parquet")
    with pytest.raises(
        DecodeError, match=r"0\.parquet, row group 0: cast: field 'x', row 1: .*int64 can hold, got nan"
    ):
        list(Pipeline(tmp_path, executor="threads").cast("int64", "x"))
