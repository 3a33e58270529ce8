"""Which values fit a field, what the errors say, and that the fast paths match the slow one."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cases import every_case
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parquetry.common.base.errors import EncodeError, SchemaError
from parquetry.common.schema import (
    CompressedImageCodec,
    ListCodec,
    NdarrayCodec,
    ScalarCodec,
    TensorCodec,
    Unischema,
    UnischemaField,
)
from parquetry.common.schema import encoding as encoding_module
from parquetry.common.schema.encoding import check_value, encode_columns, encode_rows
from parquetry.common.schema.ragged import object_array

pytestmark = pytest.mark.versions

F = UnischemaField


def encoded(field: UnischemaField, values: Any, *, columns: bool = False) -> list[Any]:
    schema = Unischema("s", [field])
    if columns:
        return encode_columns(schema, {field.name: values})[field.name].to_pylist()
    return encode_rows(schema, [{field.name: value} for value in values])[field.name].to_pylist()


# ---- values that fit

UTC_PLUS_2 = datetime.timezone(datetime.timedelta(hours=2))


@every_case(
    ("dtype", "value", "kept"),
    [
        ("uint8", 255, 255),
        ("uint8", np.int64(7), 7),
        ("uint8", np.array(7), 7),
        ("int64", -(2**63), -(2**63)),
        ("uint64", 2**64 - 1, 2**64 - 1),
        ("bool", np.True_, True),
        ("float64", 3, 3.0),
        ("float64", np.float32(0.5), 0.5),
        ("float32", 0.1, float(np.float32(0.1))),
        ("float32", float("inf"), float("inf")),
        ("float16", np.int8(3), 3.0),
        (str, np.str_("a"), "a"),
        (bytes, bytearray(b"a\0"), b"a\0"),
        (bytes, memoryview(b"abcd")[::2], b"ac"),
        (decimal.Decimal, "1.5", decimal.Decimal("1.5")),
        (decimal.Decimal, 2, decimal.Decimal(2)),
        ("datetime64[us]", 5, datetime.datetime(1970, 1, 1, 0, 0, 0, 5)),
        ("datetime64[us]", datetime.datetime(2020, 1, 1, 2, tzinfo=UTC_PLUS_2), datetime.datetime(2020, 1, 1)),
        ("datetime64[us]", datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1)),
        ("datetime64[us]", np.datetime64("2020-01-01"), datetime.datetime(2020, 1, 1)),
        ("datetime64[D]", np.datetime64("2020-02-29T00", "h"), datetime.date(2020, 2, 29)),
        ("timedelta64[ms]", datetime.timedelta(seconds=1), datetime.timedelta(seconds=1)),
    ],
)
def test_a_scalar_that_fits_is_kept(dtype: Any, value: Any, kept: Any) -> None:
    assert encoded(F("x", dtype), [value]) == [kept]


def test_not_a_number_is_a_number() -> None:
    assert np.isnan(encoded(F("x", np.float32), [float("nan"), np.float32("nan")])).all()


@every_case(
    ("dtype", "shape", "value", "kept"),
    [
        ("float32", (None,), [1, 2.5], [1.0, 2.5]),
        ("float32", (None,), (1, 2), [1.0, 2.0]),
        ("float64", (None,), [2**60], [2.0**60]),
        ("uint64", (None,), [1, 2**63], [1, 2**63]),
        ("bool", (2,), [True, False], [True, False]),
        ("int8", (None,), [], []),
        (str, (None,), np.array(["a", "bc"]), ["a", "bc"]),
        (str, (None,), np.array(["a", "b\0"], dtype=object), ["a", "b\0"]),
        (str, (None,), [], []),
        (bytes, (None,), [b"a\0"], [b"a\0"]),
        (decimal.Decimal, (None,), ["1.5", 2], [decimal.Decimal("1.5"), decimal.Decimal(2)]),
        (
            "datetime64[D]",
            (None,),
            [datetime.date(2020, 1, 1), 1],
            [datetime.date(2020, 1, 1), datetime.date(1970, 1, 2)],
        ),
    ],
)
def test_a_list_that_fits_is_kept(dtype: Any, shape: tuple[int | None, ...], value: Any, kept: Any) -> None:
    assert encoded(F("x", dtype, shape), [value]) == [kept]


# ---- values that do not fit


@every_case(
    ("dtype", "value", "text"),
    [
        ("uint8", 256, r"expected 0 to 255 \(uint8\), got 256\."),
        ("uint8", -1, r"expected 0 to 255 \(uint8\), got -1\."),
        ("int8", np.int64(128), r"expected -128 to 127 \(int8\), got 128\."),
        ("int64", 2**63, r"expected -9223372036854775808 to 9223372036854775807 \(int64\), got 9223372036854775808"),
        ("int32", 1.0, r"expected int32, got float 1\.0\."),
        ("int32", True, r"expected int32, got bool True\."),
        ("int32", np.True_, r"expected int32, got bool True\."),
        ("int32", "5", r"expected int32, got str '5'\."),
        ("int64", np.timedelta64(5, "ns"), r"expected int64, got timedelta64"),
        ("int64", [5], r"expected int64, got list \[5\]\."),
        ("bool", 1, r"expected bool, got int 1\."),
        ("float32", 1e300, r"expected -3\.40282e\+38 to 3\.40282e\+38 \(float32\), got 1e\+300"),
        ("float16", np.float32(1e5), r"expected -65504 to 65504 \(float16\), got 100000"),
        ("float32", 2**24 + 1, r"expected an integer that float32 holds exactly, got 16777217"),
        ("float64", 10**400, r"expected -1\.79769e\+308 to 1\.79769e\+308 \(float64\), got an integer of 1329 bits"),
        ("float64", "1.5", r"expected float64, got str '1\.5'\."),
        ("float64", 1j, r"expected float64, got complex 1j\."),
        (str, b"a", r"expected str, got bytes b'a'\."),
        (str, 5, r"expected str, got int 5\."),
        (bytes, "a", r"expected bytes, got str 'a'\."),
        (str, "\ud800", r"expected a value that string can store: .*surrogates not allowed"),
        (decimal.Decimal, 1.5, r"expected decimal, got float 1\.5\."),
        (decimal.Decimal, "abc", r"expected decimal, got str 'abc'\."),
        (decimal.Decimal, decimal.Decimal("NaN"), r"expected decimal, got Decimal Decimal\('NaN'\)\."),
        (decimal.Decimal, "1e-30", r"expected a value that decimal128\(38, 18\) can store"),
        ("datetime64[us]", "2020-01-01", r"expected datetime64\[us\], got str '2020-01-01'\."),
        ("datetime64[us]", 1.5, r"expected datetime64\[us\], got float 1\.5\."),
        ("datetime64[us]", np.float32(1.5), r"expected datetime64\[us\], got float32"),
        ("datetime64[us]", True, r"expected datetime64\[us\], got bool True\."),
        ("datetime64[us]", datetime.timedelta(1), r"expected datetime64\[us\], got timedelta"),
        ("datetime64[us]", 2**63, r"expected a 64-bit count of datetime64\[us\], got 9223372036854775808"),
        ("datetime64[s]", np.datetime64(1500, "ms"), r"expected a value that datetime64\[s\] holds exactly"),
        ("datetime64[ns]", np.datetime64("3000-01-01"), r"expected a value that datetime64\[ns\] holds exactly"),
        ("datetime64[us]", np.datetime64("NaT", "us"), r"expected a value, got NaT\. Declare the field nullable=True"),
        ("int32", None, r"expected a value, got None\. Declare the field nullable=True"),
    ],
)
def test_a_scalar_that_does_not_fit_is_refused(dtype: Any, value: Any, text: str) -> None:
    with pytest.raises(EncodeError, match=rf"^row 0, field 'x': {text}"):
        encoded(F("x", dtype), [value])


@every_case(
    ("dtype", "shape", "value", "text"),
    [
        ("float32", (2,), np.zeros(2), r"expected dtype float32, got float64\. Convert it .* \.astype\('float32'\)"),
        ("int32", (2,), np.zeros(2, np.int64), r"expected dtype int32, got int64\."),
        (
            "datetime64[us]",
            (1,),
            np.zeros(1, "datetime64[ms]"),
            r"expected dtype datetime64\[us\], got datetime64\[ms\]\. .*\.astype\('datetime64\[us\]'\)",
        ),
        ("float32", (None, 3), np.zeros((2, 4), np.float32), r"expected shape \(None, 3\), got \(2, 4\)\."),
        ("float32", (None, 3), np.zeros(3, np.float32), r"expected shape \(None, 3\), got \(3,\)\."),
        ("float32", (2,), [1.0], r"expected shape \(2,\), got \(1,\)\."),
        ("float32", (None,), 1.0, r"expected shape \(None,\), got \(\)\."),
        ("uint8", (None,), [0, 256], r"expected 0 to 255 \(uint8\), got 256\."),
        ("uint8", (None,), [-1, 0], r"expected 0 to 255 \(uint8\), got -1\."),
        ("int64", (None,), [2**63], r"expected -9223372036854775808 to .* got 9223372036854775808"),
        ("uint8", (None,), [1.0], r"expected uint8, got float 1\.0\."),
        ("float32", (None,), [1e300], r"expected -3\.40282e\+38 to 3\.40282e\+38 \(float32\), got 1e\+300"),
        ("float32", (None,), [2**24 + 1], r"expected an integer that float32 holds exactly, got 16777217"),
        ("float32", (None,), [0.5, 2**24 + 1], r"expected an integer that float32 holds exactly, got 16777217"),
        (
            "float64",
            (None,),
            [0.5, -(2**53) - 1],
            r"expected an integer that float64 holds exactly, got -9007199254740993",
        ),
        ("float32", (None,), ["1"], r"expected float32, got list \['1'\]\."),
        ("float32", (None,), [1, [2]], r"expected float32, got list \[1, \[2\]\]\."),
        ("float32", (None,), [True], r"expected float32, got list \[True\]\."),
        ("bool", (None,), [1], r"expected bool, got int 1\."),
        (str, (None,), ["a", 1], r"expected str, got list \['a', 1\]\."),
        (str, (None,), [b"a"], r"expected str, got list"),
        (bytes, (None,), ["a"], r"expected bytes, got list"),
        (str, (None,), "ab", r"expected shape \(None,\), got \(\)\."),
        (str, (None,), ["a", None], r"expected str, got list \['a', None\]\."),
        ("datetime64[us]", (None,), [1.5], r"expected datetime64\[us\], got float 1\.5\."),
    ],
)
def test_an_array_that_does_not_fit_is_refused(
    dtype: Any, shape: tuple[int | None, ...], value: Any, text: str
) -> None:
    with pytest.raises(EncodeError, match=rf"^row 0, field 'x': {text}"):
        encoded(F("x", dtype, shape), [value])


@every_case("dtype", ["datetime64[us]", "timedelta64[us]"])
def test_the_missing_time_of_pandas_is_null(dtype: str) -> None:
    missing = pytest.importorskip("pandas").NaT
    assert encoded(F("x", dtype, nullable=True), [missing]) == [None]
    with pytest.raises(EncodeError, match=r"row 0, field 'x': expected a value, got NaT\."):
        encoded(F("x", dtype), [missing])


def test_a_long_value_is_shown_in_short() -> None:
    with pytest.raises(EncodeError, match=r"got str 'a{56}\.\.\.\."):
        encoded(F("x", np.int8), ["a" * 1000])


# ---- nulls


@every_case(
    "field",
    [
        F("x", np.int8, nullable=True),
        F("x", str, nullable=True),
        F("x", "datetime64[us]", nullable=True),
        F("x", decimal.Decimal, nullable=True),
        F("x", np.float32, (None,), nullable=True),
        F("x", np.float32, (2, 2), nullable=True),
        F("x", np.uint8, (None, None, 3), CompressedImageCodec(), nullable=True),
    ],
    ids=lambda field: f"{field.dtype}{field.shape}",
)
def test_a_nullable_field_takes_none_and_a_missing_key(field: UnischemaField) -> None:
    schema = Unischema("s", [field, F("other", np.int8)])
    found = encode_rows(schema, [{"x": None, "other": 1}, {"other": 2}])["x"]
    assert found.null_count == len(found) == 2
    assert encode_columns(schema, {"other": [1, 2, 3]})["x"].null_count == 3


def test_nat_is_null_where_the_field_is_nullable() -> None:
    field = F("x", "datetime64[us]", nullable=True)
    values = np.array(["NaT", "2020-01-01"], "datetime64[us]")
    assert encoded(field, values) == encoded(field, values, columns=True) == [None, datetime.datetime(2020, 1, 1)]


@pytest.mark.parametrize("dtype", [str, bytes])
def test_the_missing_values_of_a_data_frame_are_null_in_text(dtype: type) -> None:
    pandas = pytest.importorskip("pandas")
    value = dtype() if dtype is bytes else "x"
    missing = [float("nan"), np.float64("nan"), pandas.NA, None]
    assert encoded(F("x", dtype, nullable=True), [value, *missing]) == [value, None, None, None, None]
    column = pandas.Series([value, *missing], dtype=object)
    for made in (column, column.to_numpy(), list(column)):
        assert encode_columns(Unischema("s", [F("x", dtype, nullable=True)]), {"x": made})["x"].null_count == 4
    assert encoded(F("x", dtype, (None,), nullable=True), [[value], float("nan")]) == [[value], None]
    with pytest.raises(
        EncodeError, match=r"row 1, field 'x': expected a value, got nan\. Declare the field nullable=True"
    ):
        encoded(F("x", dtype), [value, float("nan")])
    with pytest.raises(EncodeError, match=r"row 1, field 'x': expected (str|bytes), got float 1\.5"):
        encoded(F("x", dtype, nullable=True), [float("nan"), 1.5])


def test_nat_in_a_column_that_is_not_nullable_is_refused() -> None:
    with pytest.raises(EncodeError, match=r"row 1, field 'x': expected a value, got NaT"):
        encoded(F("x", "datetime64[us]"), np.array(["2020-01-01", "NaT"], "datetime64[us]"), columns=True)


def test_a_missing_value_of_a_field_that_is_not_nullable_is_refused() -> None:
    schema = Unischema("s", [F("x", np.int8), F("y", np.int8)])
    with pytest.raises(EncodeError, match=r"row 5, field 'y': expected a value, got None"):
        encode_rows(schema, [{"x": 1}], first_row=5)
    with pytest.raises(EncodeError, match=r"row 5, field 'y': expected a value, got None"):
        encode_columns(schema, {"x": [1]}, first_row=5)


# ---- rows and columns


@every_case("path", ["a.jpg", Path("a.jpg")])
def test_the_path_of_an_image_says_how_to_pass_its_bytes(path: Any) -> None:
    field = F("x", np.uint8, (None, None, 3), CompressedImageCodec("jpeg"))
    with pytest.raises(EncodeError, match=r"expected uint8, got .*To store a file, pass its bytes: .*read_bytes\(\)"):
        encode_rows(Unischema("s", [field]), [{"x": path}])


def test_the_error_names_the_row_and_the_field() -> None:
    schema = Unischema("s", [F("x", np.int8), F("y", np.float32, (None,))])
    rows = [{"x": 1, "y": [1.0]}, {"x": 2, "y": ["a"]}]
    with pytest.raises(EncodeError, match=r"^row 101, field 'y': expected float32"):
        encode_rows(schema, rows, first_row=100)


def test_the_error_of_a_storage_type_names_the_row() -> None:
    field = F("x", np.int32, codec=ScalarCodec(pa.int8()))
    for columns in (False, True):
        with pytest.raises(EncodeError, match=r"row 1, field 'x': expected a value that int8 can store"):
            encoded(field, np.array([1, 300], np.int32), columns=columns)
    with pytest.raises(EncodeError, match=r"row 0, field 'x': expected a value that int32 can store: .*truncated"):
        encoded(F("x", np.float64, codec=ScalarCodec(pa.int32())), [1.5])


def test_unknown_fields_are_refused() -> None:
    schema = Unischema("s", [F("x", np.int8)])
    with pytest.raises(EncodeError, match=r"row 0: expected only the fields \['x'\], got also \['z'\]\. Add them"):
        encode_rows(schema, [{"x": 1, "z": 2}])
    with pytest.raises(EncodeError, match=r"columns: expected only the fields \['x'\], got also \['z'\]"):
        encode_columns(schema, {"x": [1], "z": [2]})


def test_a_row_that_is_not_a_mapping_is_refused() -> None:
    with pytest.raises(EncodeError, match=r"row 3: expected a mapping of field names to values, got list"):
        encode_rows(Unischema("s", [F("x", np.int8)]), [[1]], first_row=3)  # type: ignore[list-item]


@every_case("column", ["ab", b"ab", 5, iter([1]), {"a": 1}, {"a"}, np.array(5)])
def test_a_column_that_is_not_a_sequence_is_refused(column: Any) -> None:
    with pytest.raises(EncodeError, match=r"column 'x': expected a sequence or an array, got"):
        encode_columns(Unischema("s", [F("x", str)]), {"x": column})


def test_columns_of_different_lengths_are_refused() -> None:
    schema = Unischema("s", [F("x", np.int8), F("y", np.int8)])
    with pytest.raises(EncodeError, match=r"columns: expected one length for all, got \{'x': 1, 'y': 2\}"):
        encode_columns(schema, {"x": [1], "y": [1, 2]})


def test_no_rows_give_empty_arrays_of_the_right_type() -> None:
    schema = Unischema(
        "s", [F("x", np.int8), F("t", "datetime64[us]"), F("y", np.float32, (2,)), F("z", decimal.Decimal)]
    )
    for arrays in (encode_rows(schema, []), encode_columns(schema, {})):
        assert {name: len(array) for name, array in arrays.items()} == {"x": 0, "t": 0, "y": 0, "z": 0}
        assert arrays["y"].type == pa.list_(pa.float32(), 2)


def test_arrow_columns_are_taken() -> None:
    assert encoded(F("x", np.int8), pa.array([1, 2], pa.int8()), columns=True) == [1, 2]
    assert encoded(F("x", str, nullable=True), pa.chunked_array([["a"], [None]]), columns=True) == ["a", None]


COLUMNS = [
    (F("x", np.int32), np.arange(6, dtype=np.int32)[::2]),
    (F("x", bool), np.array([True, False])),
    (F("x", np.float16), np.array([0.5, 2], np.float16)),
    (F("x", "datetime64[us]"), np.arange(3).astype("datetime64[us]")),
    (F("x", "datetime64[D]"), np.arange(3).astype("datetime64[D]")),
    (F("x", "timedelta64[s]"), np.arange(3).astype("timedelta64[s]")),
    (F("x", np.float32, (2, 3)), np.arange(12, dtype=np.float32).reshape(2, 2, 3)),
    (F("x", "datetime64[us]", (2, 2)), np.arange(8).astype("datetime64[us]").reshape(2, 2, 2)),
    (F("x", np.float32, (2, 2), TensorCodec()), np.asfortranarray(np.arange(8, dtype=np.float32).reshape(2, 2, 2))),
    (F("x", np.float32, (3,)), np.arange(6, dtype=np.float32).reshape(2, 3)),
    (F("x", np.float32, (None,)), np.arange(6, dtype=np.float32).reshape(2, 3)),
    (F("x", "datetime64[D]", (None,)), np.arange(6).astype("datetime64[D]").reshape(2, 3)),
    (
        F("x", decimal.Decimal, (None,), ListCodec(arrow=pa.decimal128(9, 2))),
        np.array([[decimal.Decimal("1.25")]], object),
    ),
    (
        F("x", "datetime64[s]", (2,), ListCodec(arrow=pa.timestamp("s", "UTC"))),
        np.arange(4).astype("datetime64[s]").reshape(2, 2),
    ),
    (F("x", np.int8, (None, 2, None), ListCodec()), np.arange(12, dtype=np.int8).reshape(2, 1, 2, 3)),
    (F("x", np.int8, (None,)), np.zeros((2, 0), np.int8)),
    (F("x", np.float32, (None, 2), NdarrayCodec()), np.zeros((2, 3, 2), np.float32)),
    (F("x", np.int32), np.arange(3, dtype=">i4")),
    (F("x", str), np.array(["a", "b"])),
]


@every_case(("field", "column"), COLUMNS, ids=lambda value: str(getattr(value, "dtype", value)))
def test_a_column_as_an_array_gives_what_its_rows_give(field: UnischemaField, column: np.ndarray) -> None:
    schema = Unischema("s", [field])
    by_column = encode_columns(schema, {"x": column})["x"]
    by_row = encode_rows(schema, [{"x": value} for value in column])["x"]
    by_column.validate(full=True)
    assert by_column.equals(by_row)


@every_case(("field", "column"), COLUMNS, ids=lambda value: str(getattr(value, "dtype", value)))
def test_the_caller_may_reuse_the_memory_of_a_column(field: UnischemaField, column: np.ndarray) -> None:
    mine = column.copy()
    found = encode_columns(Unischema("s", [field]), {"x": mine})["x"]
    before = found.to_pylist()
    mine[...] = mine[::-1].copy()
    assert found.to_pylist() == before


ARROW_COLUMNS = [
    pa.array([1, None, -3], pa.int8()),
    pa.array([1, 2**40], pa.int64()),
    pa.array([2**64 - 1], pa.uint64()),
    pa.array([True, False]),
    pa.array([0.1, float("nan"), 1e300]),
    pa.array([0.5, float("inf")], pa.float32()),
    pa.array(["a", None, "b\0"]),
    pa.array(["a", "b"], pa.large_string()),
    pa.array(["a", "b", "a"]).dictionary_encode(),
    pa.array([b"a\0", b"b\0"], pa.binary(2)),
    pa.array([b"a", b""]),
    pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32())),
    pa.array([[1.0, 2.0], None, []], pa.large_list(pa.float32())),
    pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
    pa.array([[1.0, None]], pa.list_(pa.float32())),
    pa.array([["a"], []], pa.list_(pa.string())),
    pa.nulls(2),
]
ARROW_FIELDS = [
    *(F("x", dtype) for dtype in ("bool", "int8", "uint8", "int64", "float16", "float32", "float64", str, bytes)),
    *(F("x", dtype, nullable=True) for dtype in ("int8", "float32", str)),
    *(F("x", "float32", shape) for shape in ((None,), (2,), (3,), (None, None))),
    *(F("x", "float32", shape, nullable=True) for shape in ((None,), (2,))),
    F("x", "float32", (2,), TensorCodec()),
    F("x", str, (None,)),
    F("x", "int64", codec=ScalarCodec(arrow=pa.int8())),
]


@every_case("field", ARROW_FIELDS, ids=lambda field: f"{field.dtype}{field.shape}")
@every_case("column", ARROW_COLUMNS, ids=lambda column: str(column.type))
def test_an_arrow_column_gives_what_its_values_give(field: UnischemaField, column: pa.Array) -> None:
    schema = Unischema("s", [field])

    def outcome(values: Any) -> pa.Array | str:
        try:
            return encode_columns(schema, {"x": values})["x"]
        except EncodeError as error:
            return str(error)

    by_value = outcome(column.to_pylist())
    for values in (
        column,
        pa.concat_arrays([column.slice(1), column]).slice(len(column) - 1),
        pa.chunked_array([column]),
    ):
        by_column = outcome(values)
        if isinstance(by_value, str) or isinstance(by_column, str):
            assert by_column == by_value
        else:
            by_column.validate(full=True)
            assert by_column.type == by_value.type
            np.testing.assert_equal(by_column.to_pylist(), by_value.to_pylist())


def test_text_that_is_not_utf_8_is_refused() -> None:
    column = pa.array([b"a", b"\xff"]).view(pa.string())
    with pytest.raises(UnicodeDecodeError):
        encode_columns(Unischema("s", [F("x", str)]), {"x": column})


def test_the_caller_may_reuse_the_memory_of_an_arrow_column() -> None:
    numbers = np.arange(3)
    column = encode_columns(Unischema("s", [F("x", "int64")]), {"x": pa.array(numbers)})["x"]
    numbers[:] = 7
    assert column.to_pylist() == [0, 1, 2]


@every_case("shape", [(2, 3), (2,), (2, 2, 2)])
def test_a_column_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(EncodeError, match=r"row 0, field 'x': expected (shape \(2,\), got|float32, got)"):
        encoded(F("x", np.float32, (2,)), np.zeros(shape, np.float32), columns=True)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-200, 300),
    st.floats(),
    st.text(max_size=3),
    st.binary(max_size=3),
    st.sampled_from([np.int8(3), np.uint64(2**63), np.float32(0.1), np.float64(1e300), np.True_, np.str_("a\0")]),
)
DTYPES = ["bool", "int8", "uint8", "int64", "uint64", "float16", "float32", "float64", str, bytes, decimal.Decimal]


def check_that_the_fast_paths_change_nothing(field: UnischemaField, values: list[Any]) -> None:
    arrow_type = field.storage.arrow_type(field)

    def outcome(encode: Any) -> pa.Array | str:
        try:
            array: pa.Array = encode()
        except EncodeError as error:
            return str(error)
        array.validate(full=True)
        return array

    schema = Unischema("s", [field])
    slow = outcome(lambda: encoding_module._encode_one_by_one(field, values, arrow_type, 0))
    for fast in (
        outcome(lambda: encode_rows(schema, [{"x": value} for value in values])["x"]),
        outcome(lambda: encode_columns(schema, {"x": values})["x"]),
        outcome(lambda: encode_columns(schema, {"x": object_array(values)})["x"]),
    ):
        if isinstance(slow, str) or isinstance(fast, str):
            assert slow == fast
        else:
            assert slow.type == fast.type
            np.testing.assert_equal(fast.to_pylist(), slow.to_pylist())


@settings(deadline=None)
@given(st.sampled_from(DTYPES), st.booleans(), st.lists(SCALARS, min_size=1, max_size=4))
def test_the_fast_path_for_scalars_gives_what_one_by_one_gives(dtype: Any, nullable: bool, values: list[Any]) -> None:
    check_that_the_fast_paths_change_nothing(F("x", dtype, nullable=nullable), values)


def lists_of(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists and tuples of equal and of different lengths."""
    lists = st.lists(items, max_size=3) | st.lists(items, min_size=2, max_size=2)
    return lists | lists.map(tuple)


ONE_KIND_OF_LIST = st.one_of(
    *(
        st.lists(st.none() | lists_of(items), min_size=1, max_size=4)
        for items in (st.integers(-200, 300), st.floats(), st.integers() | st.floats(), st.text(max_size=3), SCALARS)
    )
)
LIST_SHAPES = [(None,), (2,), (None, 2)]


@settings(deadline=None)
@given(st.sampled_from(DTYPES), st.sampled_from(LIST_SHAPES), st.booleans(), ONE_KIND_OF_LIST)
def test_the_fast_path_for_lists_gives_what_one_by_one_gives(
    dtype: Any, shape: tuple[int | None, ...], nullable: bool, values: list[Any]
) -> None:
    check_that_the_fast_paths_change_nothing(F("x", dtype, shape, ListCodec(), nullable=nullable), values)


ARRAYS = st.builds(
    lambda dtype, shape: np.arange(int(np.prod(shape))).astype(dtype).reshape(shape),
    st.sampled_from(["float32", "float32", "float32", ">f4", "float64", "int8", "datetime64[us]", "U1", object]),
    st.sampled_from([(2,), (2,), (3,), (0,), (2, 2), (2, 2), (1, 2), ()]),
)


@settings(deadline=None)
@given(
    st.sampled_from(["float32", "float32", "int8", "datetime64[us]", str]),
    st.sampled_from([ListCodec(), ListCodec(), NdarrayCodec(), TensorCodec()]),
    st.sampled_from([*LIST_SHAPES, (2, 2)]),
    st.booleans(),
    st.lists(ARRAYS, min_size=1, max_size=2).flatmap(
        lambda few: st.lists(st.sampled_from([*few, *few, None]), min_size=1, max_size=4)
    ),
)
def test_the_fast_path_for_arrays_gives_what_one_by_one_gives(
    dtype: Any, codec: Any, shape: tuple[int | None, ...], nullable: bool, values: list[Any]
) -> None:
    try:
        field = F("x", dtype, shape, codec, nullable=nullable)
    except SchemaError:
        assume(False)  # no codec takes every shape
    check_that_the_fast_paths_change_nothing(field, values)


@settings(deadline=None)
@given(st.sampled_from(DTYPES[:10]), SCALARS)
def test_a_scalar_reads_back_equal_or_is_refused(dtype: Any, value: Any) -> None:
    field = F("x", dtype)
    try:
        checked = check_value(field, value)
    except EncodeError:
        return
    if isinstance(value, float | np.floating) and field.dtype.kind == "f":
        np.testing.assert_equal(float(checked), float(np.asarray(value).astype(field.dtype)))  # it gets rounded
    else:
        assert checked == value


# ---- values that would become others

NANOSECONDS = [1, 1_577_836_800_123_456_789]


@every_case("unit", ["ns", "us"])
@every_case("kind", ["datetime64", "timedelta64"])
def test_nanoseconds_are_kept_or_refused(kind: str, unit: str) -> None:
    pandas = pytest.importorskip("pandas")
    field = F("t", f"{kind}[{unit}]")
    arrow = pa.timestamp("ns") if kind == "datetime64" else pa.duration("ns")
    scalar = pandas.Timestamp if kind == "datetime64" else pandas.Timedelta
    forms: list[tuple[Any, bool]] = [
        (pa.array(NANOSECONDS, arrow), True),
        (pa.chunked_array([pa.array(NANOSECONDS, arrow)]), True),
        (list(pandas.Series(np.array(NANOSECONDS, f"{kind}[ns]"))), True),
        ([scalar(number) for number in NANOSECONDS], False),
        (np.array(NANOSECONDS, f"{kind}[ns]"), True),
    ]
    for values, columns in forms:
        if unit == "us":
            with pytest.raises(EncodeError, match="field 't'"):
                encoded(field, values, columns=columns)
            continue
        schema = Unischema("s", [field])
        made = encode_columns(schema, {"t": values}) if columns else encode_rows(schema, [{"t": v} for v in values])
        assert made["t"].cast(pa.int64()).to_pylist() == NANOSECONDS


def test_arrow_times_may_be_null() -> None:
    values = pa.array([1, None], pa.timestamp("us"))
    made = encode_columns(Unischema("s", [F("t", "datetime64[us]", nullable=True)]), {"t": values})["t"]
    assert made.cast(pa.int64()).to_pylist() == [1, None]
    with pytest.raises(EncodeError, match="row 1, field 't'"):
        encoded(F("t", "datetime64[us]"), values, columns=True)


@every_case("columns", [False, True])
def test_days_that_arrow_would_cut_are_refused(columns: bool) -> None:
    far = np.array(["2000-01-01", "9999999-01-01"], "datetime64[D]")
    with pytest.raises(EncodeError, match=r"row 1, field 't'.*more than 32 bits"):
        encoded(F("t", "datetime64[D]"), far, columns=columns)


@every_case(
    ("dtype", "arrow", "good", "bad"),
    [
        ("float64", pa.float32(), 0.1, 1e300),
        ("float64", pa.float16(), 0.5, 1e6),
        ("int64", pa.float16(), 2048, 2049),
        ("int64", pa.float16(), -3, 70000),
        ("int64", pa.bool_(), 1, 7),
        ("datetime64[us]", pa.date32(), np.datetime64("2000-01-01", "us"), np.datetime64("2000-01-01T05", "us")),
    ],
)
@every_case("columns", [False, True])
def test_a_stored_type_that_cannot_hold_a_value_refuses_it(
    dtype: str, arrow: pa.DataType, good: Any, bad: Any, columns: bool
) -> None:
    field = F("x", dtype, codec=ScalarCodec(arrow=arrow))
    assert len(encoded(field, np.array([good], dtype), columns=columns)) == 1
    with pytest.raises(EncodeError, match="row 1, field 'x'"):
        encoded(field, np.array([good, bad], dtype), columns=columns)


def test_masked_values_are_null_or_refused() -> None:
    numbers = np.ma.array([1, 2], mask=[False, True])
    assert encoded(F("x", "int64", nullable=True), numbers, columns=True) == [1, None]
    with pytest.raises(EncodeError, match="row 1, field 'x'"):
        encoded(F("x", "int64"), numbers, columns=True)
    pairs = np.ma.array([[1, 2], [3, 4]], mask=[[False, True], [False, False]])
    for codec in (None, TensorCodec(), NdarrayCodec()):
        for columns in (False, True):
            with pytest.raises(EncodeError, match=r"row 0, field 'x'.*masked"):
                encoded(F("x", "int64", (2,), codec), pairs, columns=columns)
    assert encoded(F("x", "int64", (2,)), np.ma.array([[1, 2]]), columns=True) == [[1, 2]]


def test_units_with_a_step_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"expected a unit such as 's' or 'us' for times, got datetime64\[25s\]"):
        F("t", "datetime64[25s]")
