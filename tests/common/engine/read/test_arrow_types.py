"""Every Arrow type that a Parquet file can hold, and files from other writers."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders import write_table
from cases import check_cases, every_case
from faces import THREADS, plain
from oracle import collapsed

from parquetry.common import Pipeline
from parquetry.common.base.errors import DecodeError, EmptySelectionError, FieldNotFoundError, SchemaError

pytestmark = pytest.mark.versions

DATES = [datetime.date(2020, 1, 2), None, datetime.date(1960, 1, 1), datetime.date(1970, 1, 1)]
MAPS = [[("k", 1)], None, [], [("a", 3), ("b", None)]]
H = np.float16  # older pyarrow does not accept Python floats for half floats
A_MAP = pa.map_(pa.string(), pa.int64())

# name: (column, what a reader returns, dtype, shape)
CASES: dict[str, tuple[pa.Array, list[Any], Any, tuple[int | None, ...]]] = {
    **{
        f"{sign}int{bits}": (
            pa.array([1, None, 2 ** (bits - (not sign)) - 1, 0], f"{sign}int{bits}"),
            [1, None, 2 ** (bits - (not sign)) - 1, 0],
            f"{sign}int{bits}",
            (),
        )
        for bits in (8, 16, 32, 64)
        for sign in ("", "u")
    },
    "half": (pa.array(np.array([1.5, 0, -2, 65504], np.float16), mask=np.array([0, 1, 0, 0], bool)), [1.5, None, -2.0, 65504.0], np.float16, ()),
    "float": (pa.array([0.1, None, float("nan"), float("-inf")], pa.float32()), [float(np.float32(0.1)), None, "nan", float("-inf")], np.float32, ()),
    "double": (pa.array([0.1, None, float("nan"), -0.0]), [0.1, None, "nan", -0.0], np.float64, ()),
    "bool": (pa.array([True, None, False, True]), [True, None, False, True], np.bool_, ()),
    "string": (pa.array(["a", None, "", "é\0x"]), ["a", None, "", "é\0x"], str, ()),
    "large_string": (pa.array(["a", None, "", "é"], pa.large_string()), ["a", None, "", "é"], str, ()),
    "string_view": (pa.array(["a", None, "", "longer than twelve bytes"], pa.string_view()), ["a", None, "", "longer than twelve bytes"], str, ()),
    "binary": (pa.array([b"\0", None, b"", b"\xff\0x"]), [b"\0", None, b"", b"\xff\0x"], bytes, ()),
    "large_binary": (pa.array([b"\0", None, b"", b"x"], pa.large_binary()), [b"\0", None, b"", b"x"], bytes, ()),
    "list_string_view": (pa.array([["a", "longer than twelve bytes"], None, [], ["b"]], pa.list_(pa.string_view())), [["a", "longer than twelve bytes"], None, [], ["b"]], str, (None,)),
    "list_binary_view": (pa.array([[b"a"], None, [], [b"b", b""]], pa.large_list(pa.binary_view())), [[b"a"], None, [], [b"b", b""]], bytes, (None,)),
    "binary_view": (pa.array([b"\0", None, b"", b"x"], pa.binary_view()), [b"\0", None, b"", b"x"], bytes, ()),
    "fixed_binary": (pa.array([b"\0\0", None, b"ab", b"x\0"], pa.binary(2)), [b"\0\0", None, b"ab", b"x\0"], bytes, ()),
    "date32": (pa.array(DATES, pa.date32()), [18263, None, -3653, 0], "datetime64[D]", ()),
    "date64": (pa.array(DATES, pa.date64()), [18263, None, -3653, 0], "datetime64[D]", ()),
    "time32s": (pa.array([1, None, 2, 3], pa.time32("s")), [1000, None, 2000, 3000], "timedelta64[ms]", ()),
    "time32ms": (pa.array([1, None, 2, 3], pa.time32("ms")), [1, None, 2, 3], "timedelta64[ms]", ()),
    "time64us": (pa.array([1, None, 2, 3], pa.time64("us")), [1, None, 2, 3], "timedelta64[us]", ()),
    "time64ns": (pa.array([1, None, 2, 3], pa.time64("ns")), [1, None, 2, 3], "timedelta64[ns]", ()),
    "timestamp_s": (pa.array([1, None, -2, 3], pa.timestamp("s")), [1000, None, -2000, 3000], "datetime64[ms]", ()),
    "timestamp_ms": (pa.array([1, None, -2, 3], pa.timestamp("ms")), [1, None, -2, 3], "datetime64[ms]", ()),
    "timestamp_us": (pa.array([1, None, -2, 3], pa.timestamp("us")), [1, None, -2, 3], "datetime64[us]", ()),
    "timestamp_ns": (pa.array([1, None, -2, 3], pa.timestamp("ns")), [1, None, -2, 3], "datetime64[ns]", ()),
    "timestamp_zone": (pa.array([1, None, -2, 3], pa.timestamp("us", "Europe/Berlin")), [1, None, -2, 3], "datetime64[us]", ()),
    "duration": (pa.array([1, None, -2, 3], pa.duration("ms")), [1, None, -2, 3], "timedelta64[ms]", ()),
    "decimal": (pa.array([Decimal("1.50"), None, Decimal("100.00"), Decimal("-0.01")], pa.decimal128(9, 2)), ["1.5", None, "100", "-0.01"], Decimal, ()),
    "decimal18": (pa.array([Decimal("1e-18"), None, Decimal(0), Decimal("-123456789.1")], pa.decimal128(38, 18)), ["0." + 17 * "0" + "1", None, "0", "-123456789.1"], Decimal, ()),
    "decimal0": (pa.array([Decimal(100), None, Decimal(0), Decimal(-7)], pa.decimal128(5, 0)), ["100", None, "0", "-7"], Decimal, ()),
    "decimal256": (pa.array([Decimal("1.50"), None, Decimal(10**40), Decimal("-0.01")], pa.decimal256(50, 2)), ["1.5", None, "1" + 40 * "0", "-0.01"], Decimal, ()),
    "dictionary": (pa.array(["a", None, "b", "a"]).dictionary_encode(), ["a", None, "b", "a"], str, ()),
    "dictionary_int": (pa.array([5, None, 6, 5]).dictionary_encode(), [5, None, 6, 5], np.int64, ()),
    "list": (pa.array([[1, 2], None, [], [3]]), [[1, 2], None, [], [3]], np.int64, (None,)),
    "large_list": (pa.array([[1, 2], None, [], [3]], pa.large_list(pa.int8())), [[1, 2], None, [], [3]], np.int8, (None,)),
    "list_view": (pa.array([[1, 2], None, [], [3]], pa.list_view(pa.int16())), [[1, 2], None, [], [3]], np.int16, (None,)),
    "large_list_view": (pa.array([["a"], None, [], ["b", "c"]], pa.large_list_view(pa.string_view())), [["a"], None, [], ["b", "c"]], str, (None,)),
    "list_of_views": (pa.array([[[1], [2]], None, [], [[5]]], pa.list_(pa.list_view(pa.int8()))), [[[1], [2]], None, [], [[5]]], np.int8, (None, None)),
    "list_bool": (pa.array([[True, False], None, [], [True]]), [[True, False], None, [], [True]], np.bool_, (None,)),
    "list_half": (pa.array([[H(1.5), H(2)], None, [], [H(3)]], pa.list_(pa.float16())), [[1.5, 2.0], None, [], [3.0]], np.float16, (None,)),
    "list_string": (pa.array([["a", ""], None, [], ["é"]]), [["a", ""], None, [], ["é"]], str, (None,)),
    "list_time": (pa.array([[1, 2], None, [], [3]], pa.list_(pa.timestamp("us"))), [[1, 2], None, [], [3]], "datetime64[us]", (None,)),
    "list_decimal": (pa.array([[Decimal("1.50")], None, [], [Decimal(-1)]], pa.list_(pa.decimal128(9, 2))), [["1.5"], None, [], ["-1"]], Decimal, (None,)),
    "fixed_list": (pa.array([[1, 2], None, [0, 0], [3, 4]], pa.list_(pa.int32(), 2)), [[1, 2], None, [0, 0], [3, 4]], np.int32, (2,)),
    "fixed_list_full": (pa.array([[1, 2], [5, 6], [0, 0], [3, 4]], pa.list_(pa.int32(), 2)), [[1, 2], [5, 6], [0, 0], [3, 4]], np.int32, (2,)),
    "fixed_list_string": (pa.array([["a", "b"], None, ["", "c"], ["d", "e"]], pa.list_(pa.string(), 2)), [["a", "b"], None, ["", "c"], ["d", "e"]], str, (2,)),
    "fixed_list_half": (pa.array([[H(1), H(2)], None, [H(0)] * 2, [H(3), H(4)]], pa.list_(pa.float16(), 2)), [[1.0, 2.0], None, [0.0, 0.0], [3.0, 4.0]], np.float16, (2,)),
    "list_list": (pa.array([[[1, 2], [3, 4]], None, [], [[5, 6]]]), [[[1, 2], [3, 4]], None, [], [[5, 6]]], np.int64, (None, None)),
    "list_of_fixed": (pa.array([[[1, 2], [3, 4]], None, [], [[5, 6]]], pa.list_(pa.list_(pa.int8(), 2))), [[[1, 2], [3, 4]], None, [], [[5, 6]]], np.int8, (None, 2)),
    "fixed_of_fixed": (pa.array([[[1, 2], [3, 4]], None, [[0, 0], [1, 1]], [[5, 6], [7, 8]]], pa.list_(pa.list_(pa.int8(), 2), 2)), [[[1, 2], [3, 4]], None, [[0, 0], [1, 1]], [[5, 6], [7, 8]]], np.int8, (2, 2)),
    "tensor_null": (pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int8(), (2, 2)), pa.array([[1, 2, 3, 4], None, [0] * 4, [5, 6, 7, 8]], pa.list_(pa.int8(), 4))), [[[1, 2], [3, 4]], None, [[0, 0], [0, 0]], [[5, 6], [7, 8]]], np.int8, (2, 2)),
    "fixed_of_tensors": (pa.FixedSizeListArray.from_arrays(pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype=np.float32).reshape(4, 2, 3)), 1), np.arange(24.0).reshape(4, 1, 2, 3).tolist(), np.float32, (1, 2, 3)),
    "tensor": (pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype=np.float32).reshape(4, 2, 3)), np.arange(24.0).reshape(4, 2, 3).tolist(), np.float32, (2, 3)),
}  # fmt: skip

if hasattr(pa, "decimal32"):  # pyarrow 19
    _SOME = [Decimal("1.50"), None, Decimal("-0.01"), Decimal(7)]
    for _kind in (pa.decimal32(9, 2), pa.decimal64(12, 2)):
        CASES[str(_kind)] = pa.array(_SOME, _kind), ["1.5", None, "-0.01", "7"], Decimal, ()
        _lists = pa.array([_SOME[2:], None, [], _SOME[:1]], pa.list_(_kind))
        CASES[f"list_{_kind}"] = _lists, [["-0.01", "7"], None, [], ["1.5"]], Decimal, (None,)


def reader(directory: Path, column: pa.Array, **options: Any) -> Pipeline:
    """Returns a pipeline over a file with ``x`` and ``id``, in row groups of three rows and one."""
    table = pa.table({"id": pa.array(range(len(column))), "x": column})
    try:
        url = write_table(directory, table, row_group_size=3, **options)
    except pa.ArrowNotImplementedError as error:
        pytest.skip(f"this pyarrow cannot write the column: {error}")
    return Pipeline(url, executor="threads", workers=2)


@pytest.fixture(scope="module")
def every_type(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """Returns a pipeline over a file with ``id`` and a column of every type, in row groups of three rows and one."""
    directory = tmp_path_factory.mktemp("every_type")
    written = {name: case[0] for name, case in CASES.items() if _can_write(case[0], directory)}
    assert len(written) > 40
    table = pa.table({"id": pa.array(range(4)), **written})
    return Pipeline(write_table(directory / "data", table, row_group_size=3), executor="threads", workers=2)


def _can_write(column: pa.Array, directory: Path) -> bool:
    try:
        write_table(directory, pa.table({"x": column}), "trial")
    except pa.ArrowNotImplementedError:
        return False
    return True


def check_types(rows: list[Any], wanted: list[int]) -> None:
    """Checks every column of rows, which have the numbers ``wanted`` in the file."""
    names = [name for name in rows[0] if name != "id"]
    assert len(names) > 40

    def check(name: str) -> None:
        assert [row[name] for row in rows] == [CASES[name][1][number] for number in wanted]

    check_cases({name: name for name in names}, check)


def test_every_type_becomes_a_field_with_its_dtype_and_shape(every_type: Pipeline) -> None:
    def check(name: str) -> None:
        field, (_, _, dtype, shape) = every_type.schema[name], CASES[name]
        assert field.dtype == (dtype if dtype is Decimal else np.dtype({str: "U", bytes: "S"}.get(dtype, dtype)))
        assert field.shape == shape

    check_cases({field.name: field.name for field in every_type.schema if field.name != "id"}, check)


def test_every_type_gives_its_values(every_type: Pipeline) -> None:
    check_types(THREADS.elements(every_type), [0, 1, 2, 3])


@every_case("keep", [[1, 2], [2, 3], [0, 2, 3], [1], [3]])
def test_every_type_gives_its_values_in_some_rows(every_type: Pipeline, keep: list[int]) -> None:
    check_types(THREADS.elements(every_type.where(pc.field("id").isin(keep))), keep)


def test_every_type_gives_its_values_in_shuffled_batches(every_type: Pipeline) -> None:
    batches = THREADS.elements(every_type.shuffle(10, seed=2).batch(3))
    rows = sorted((row for batch in batches for row in batch), key=lambda row: row["id"])
    assert [row["id"] for row in rows] == [0, 1, 2, 3]

    def check(name: str) -> None:
        assert [repr(collapsed(row[name])) for row in rows] == [repr(value) for value in CASES[name][1]]

    check_cases({name: name for name in rows[0] if name != "id"}, check)


def test_every_type_gives_its_values_in_windows(every_type: Pipeline) -> None:
    names = [field.name for field in every_type.schema if field.name != "id"]
    check_types([window[1] for window in THREADS.elements(every_type.ngram({0: ["id"], 1: names}))], [1, 2, 3])


def test_every_type_keeps_its_values_in_the_sidecar(every_type: Pipeline) -> None:
    rows = [
        {name: plain(v) for name, v in row.items()} for row in every_type.with_options(executor="sidecar", workers=1)
    ]
    check_types(rows, [0, 1, 2, 3])


def test_all_columns_without_a_tensor_are_named_at_once_and_the_others_are_one_call_away(tmp_path: Path) -> None:
    stored = pa.table({"id": [0], "a": pa.nulls(1), "b": pa.array([[{"c": 1}]]), "label": [3]})
    pq.write_table(stored, tmp_path / "t.parquet")
    pipeline = Pipeline(tmp_path)
    message = r"field 'a': .* Fields that cannot be read: 'a', 'b'; select\('\.\*'\) keeps all others\.$"
    with pytest.raises(SchemaError, match=message):
        pipeline.element  # noqa: B018
    assert [list(row) for row in pipeline.select(".*")] == [["id", "label"]]


def test_structs_are_flattened_and_a_null_struct_has_null_members(tmp_path: Path) -> None:
    column = pa.array(
        [{"a": 1, "in": {"b": "x", "l": [1]}}, None, {"a": None, "in": None}, {"a": 4, "in": {"b": None, "l": None}}],
        pa.struct([("a", pa.int32()), ("in", pa.struct([("b", pa.string()), ("l", pa.list_(pa.int8()))]))]),
    )
    pipeline = reader(tmp_path, column)
    assert [field.name for field in pipeline.schema] == ["id", "x.a", "x.in.b", "x.in.l"]
    rows = THREADS.elements(pipeline)
    assert [row["x.a"] for row in rows] == [1, None, None, 4]
    assert [row["x.in.b"] for row in rows] == ["x", None, None, None]
    assert [row["x.in.l"] for row in rows] == [[1], None, None, None]
    assert [row["x.a"] for row in THREADS.elements(pipeline.select("x.a").where(pc.field("x", "a") > 1))] == [4]
    assert [row["id"] for row in THREADS.elements(pipeline.select("id").where(pc.field(("x", "in", "b")) == "x"))] == [
        0
    ]


def test_maps_become_two_lists_also_inside_structs(tmp_path: Path) -> None:
    column = pa.array([None if m is None else m[:1] for m in MAPS], A_MAP)
    rows = THREADS.elements(reader(tmp_path / "map", column))
    assert [(row["x.key"], row["x.value"]) for row in rows] == [(["k"], [1]), (None, None), ([], []), (["a"], [3])]
    for keep in ([1, 2], [0, 3], [2]):
        found = THREADS.elements(reader(tmp_path / "map", column).where(pc.field("id").isin(keep)))
        assert found == [rows[number] for number in keep]
    inside = pa.array([{"m": [("k", 1)]}, None, {"m": None}, {"m": []}], pa.struct([("m", A_MAP)]))
    rows = THREADS.elements(reader(tmp_path / "struct", inside))
    assert [(row["x.m.key"], row["x.m.value"]) for row in rows] == [(["k"], [1]), (None, None), (None, None), ([], [])]


def test_names_with_dots_and_signs_are_names(tmp_path: Path) -> None:
    names = ["a.b", "a+b", "a b", "ä", "a.b.c", "x[0]"]
    table = pa.table({name: [number] for number, name in enumerate(names)})
    pipeline = Pipeline(write_table(tmp_path, table), executor="threads")
    assert THREADS.elements(pipeline) == [{name: number for number, name in enumerate(names)}]
    for number, name in enumerate(names):
        assert THREADS.elements(pipeline.select(name)) == [{name: number}]
        assert len(pipeline.where(pc.field(name) == number)) == 1
    with pytest.raises(FieldNotFoundError, match=r"field 'x\[1\]'"):
        pipeline.select("x[1]").element  # noqa: B018


def test_a_struct_with_dots_in_its_members_is_read(tmp_path: Path) -> None:
    column = pa.array([{"b.c": 1, "b": {"d": 2}}] * 4)
    rows = THREADS.elements(reader(tmp_path, column))
    assert rows[0] == {"id": 0, "x.b.c": 1, "x.b.d": 2}


def test_half_floats_are_filtered_by_expressions_and_tuples(tmp_path: Path) -> None:
    pipeline = reader(tmp_path, pa.array(np.array([1, 1.5, 2, 2.5], np.float16)))
    for predicate in [("x", ">", 1.5)], pc.field("x") > 1.5, [("x", "in", [2, 2.5])], pc.field("x") >= np.float16(2):
        assert [row["id"] for row in THREADS.elements(pipeline.where(predicate))] == [2, 3]


@every_case("kind", [pa.decimal128(9, 2), pa.decimal128(38, 2), pa.decimal256(60, 2)], ids=str)
def test_decimals_of_any_width_can_be_scaled_integers_or_floats(tmp_path: Path, kind: pa.DataType) -> None:
    values = [Decimal("1.50"), None, Decimal("-100.01"), Decimal(0)]
    pipeline = reader(tmp_path, pa.array(values, kind))
    assert [row["x"] for row in THREADS.elements(pipeline.decimals("scaled", "x"))] == [150, None, -10001, 0]
    assert [row["x"] for row in THREADS.elements(pipeline.decimals("float64", "x"))] == [1.5, None, -100.01, 0.0]
    some = pipeline.decimals("scaled", "x").where(pc.field("id") != 1)
    assert [row["x"] for row in THREADS.elements(some)] == [150, -10001, 0]


def test_a_decimal_too_large_for_a_scaled_integer_is_refused(tmp_path: Path) -> None:
    pipeline = reader(tmp_path, pa.array([Decimal(2**62), Decimal(2**63), None], pa.decimal128(38, 1)))
    with pytest.raises(
        DecodeError, match=r"field 'x'.*a decimal whose digits need more than 64 bits: 4611686018427387904\.0"
    ):
        list(pipeline.decimals("scaled", "x"))


# --- files from other writers ---


def everyday() -> pa.Table:
    """Returns the columns of a warehouse table."""
    count = 50
    return pa.table(
        {
            "id": pa.array(range(count)),
            "city": pa.array([None if n % 7 == 0 else f"city {n % 3}" for n in range(count)]),
            "at": pa.array([n * 1_000_000 for n in range(count)], pa.timestamp("us")),
            "price": pa.array([Decimal(n) / 4 for n in range(count)], pa.decimal128(9, 2)),
            "tags": pa.array([[f"t{k}" for k in range(n % 3)] for n in range(count)]),
            "place": pa.array([{"lat": n / 2, "names": [f"p{n}"]} for n in range(count)]),
        }
    )


def expected_everyday(at_unit: int = 1) -> list[dict[str, Any]]:
    """Returns the same columns as a reader returns them."""
    return [
        {
            "id": n,
            "city": None if n % 7 == 0 else f"city {n % 3}",
            "at": n * 1_000_000 * at_unit,
            "price": format((Decimal(n) / 4).normalize(), "f"),
            "tags": [f"t{k}" for k in range(n % 3)],
            "place.lat": n / 2,
            "place.names": [f"p{n}"],
        }
        for n in range(50)
    ]


@every_case(
    "options",
    [
        {"store_schema": False},
        {"data_page_version": "2.0", "compression": "zstd"},
        {"use_dictionary": False, "compression": "gzip"},
        {"use_dictionary": ["city"], "compression": "none", "write_statistics": False},
        {"compression": "brotli", "data_page_size": 64, "write_page_index": True},
        {"compression": "lz4", "version": "1.0"},
        {"use_compliant_nested_type": False, "store_schema": False},
        {"column_encoding": {"id": "DELTA_BINARY_PACKED"}, "use_dictionary": False},
        {"use_byte_stream_split": ["place.lat"], "use_dictionary": False},
    ],
    ids=str,
)
def test_files_of_every_form_read_the_same(tmp_path: Path, options: dict[str, Any]) -> None:
    pipeline = Pipeline(write_table(tmp_path, everyday(), row_group_size=20, **options), executor="threads", workers=2)
    assert THREADS.elements(pipeline) == expected_everyday()
    filtered = pipeline.where((pc.field("city") == "city 1") & (pc.field("id") >= 25))
    assert THREADS.elements(filtered) == [
        row for row in expected_everyday() if row["city"] == "city 1" and row["id"] >= 25
    ]


def test_spark_files_with_int96_time_stamps_read_as_microseconds(tmp_path: Path) -> None:
    url = write_table(
        tmp_path, everyday(), "part-00000-c000.snappy.parquet", flavor="spark", use_deprecated_int96_timestamps=True,
        row_group_size=20, store_schema=False, compression="snappy",
    )  # fmt: skip
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "._SUCCESS.crc").write_bytes(b"crc")
    pipeline = Pipeline(url, executor="threads")
    assert pipeline.schema["at"].dtype == np.dtype("datetime64[us]")
    assert THREADS.elements(pipeline) == expected_everyday()
    windows = pipeline.ngram({0: ["id"], 1: ["at"]}, timestamp="at", max_gap=datetime.timedelta(seconds=1))
    assert len(windows) == 49
    assert len(pipeline.ngram({0: ["id"], 1: ["at"]}, timestamp="at", max_gap=np.timedelta64(999, "ms"))) == 0


@every_case(
    ("stamps", "gap", "windows"),
    [
        (pa.array([0, 5, 10, 16], pa.time32("s")), datetime.timedelta(seconds=5), 2),
        (pa.array([0, 5, 10, 16], pa.time64("us")), np.timedelta64(5, "us"), 2),
        (pa.array([0, 5, 10, 16], pa.duration("ns")), np.timedelta64(5, "ns"), 2),
        (pa.array([0, 5, 10, 16], pa.date32()), datetime.timedelta(days=5), 2),
        (pa.array([0, 5, 10, 16], pa.timestamp("ms", "UTC")), datetime.timedelta(milliseconds=5), 2),
        (pa.array([0, 5, 10, 16], pa.uint8()), 5, 2),
        (pa.array([0, 5, 10, 16], pa.uint64()), 5.9, 2),
        (pa.array([-(2**63), 0, 2**63 - 1, 2**63 - 1]), 2**63 - 1, 2),
        (pa.array([0, 0.5, 1.0, 1.75], pa.float32()), 0.5, 2),
        (pa.array([H(0), H(0.5), H(1), H(1.75)]), 0.5, 2),
        (pa.array([float("-inf"), 0.0, 1.0, float("inf")]), float("inf"), 3),
        (pa.array([float("-inf"), float("-inf"), 1.0, 1.0]), 2.0, 2),
        (pa.array([Decimal("0"), Decimal("0.1"), Decimal("0.2"), Decimal("0.4")], pa.decimal128(9, 1)), 0.15, 2),
    ],
)  # fmt: skip
def test_gaps_are_measured_in_every_numeric_and_time_type(
    tmp_path: Path, stamps: pa.Array, gap: Any, windows: int
) -> None:
    pipeline = reader(tmp_path, stamps).select("id").ngram(length=2, timestamp="x", max_gap=gap)
    assert len(pipeline) == windows


def test_a_gap_of_pandas_may_be_nanoseconds(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pipeline = reader(tmp_path, pa.array([0, 5, 10, 2_016], pa.timestamp("ns"))).select("id")
    for gap, windows in ((5, 2), (2_006, 3), (2_000, 2)):
        assert len(pipeline.ngram(length=2, timestamp="x", max_gap=pandas.Timedelta(gap, "ns"))) == windows


def test_a_filter_on_a_member_of_a_struct_is_shown_by_its_dotted_name(tmp_path: Path) -> None:
    pipeline = reader(tmp_path, pa.array([{"a": {"b c": 1}, "d": 2}] * 4))
    for filtered in (
        pipeline.nulls("drop", "x.d").where(pc.field("x", "a", "b c") > 3),
        pipeline.where(pc.field("x.a.b c") > 3),
    ):
        with pytest.raises(EmptySelectionError, match=r"where\(\(x\.a\.b c > 3\)\) left 0 of 4"):
            next(iter(filtered))
        assert "FieldRef" not in repr(filtered)


# --- files written over time ---


def test_a_nullable_column_that_a_later_file_lacks_is_null_there(tmp_path: Path) -> None:
    full = pa.table({"id": [0, 1], "x": [1.5, 2.5], "tags": [["a"], []], "s": [{"a": 1, "b": 2}] * 2})
    write_table(tmp_path, full, "a.parquet")
    write_table(tmp_path, pa.table({"id": [2], "s": [{"b": 3}]}), "b.parquet")
    write_table(tmp_path, full.slice(1), "c.parquet")
    pipeline = Pipeline(str(tmp_path), executor="threads")
    rows = THREADS.elements(pipeline)
    assert [row["x"] for row in rows] == [1.5, 2.5, None, 2.5]
    assert [row["tags"] for row in rows] == [["a"], [], None, []]
    assert [row["s.a"] for row in rows] == [1, 1, None, 1]
    assert [row["s.b"] for row in rows] == [2, 2, 3, 2]
    assert THREADS.elements(pipeline.select("x")) == [{"x": row["x"]} for row in rows]
    assert [row["id"] for row in THREADS.elements(pipeline.where(pc.field("x") > 2))] == [1, 1]
    assert [row["id"] for row in THREADS.elements(pipeline.where(pc.field("x").is_null()))] == [2]
