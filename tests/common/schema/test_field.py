"""`UnischemaField` and `Unischema`: construction, views, and their JSON form."""

from __future__ import annotations

import datetime
import decimal
import json
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from parquetry.common.base.errors import FieldNotFoundError, SchemaError
from parquetry.common.schema import (
    Codec,
    CompressedImageCodec,
    CompressedNdarrayCodec,
    ListCodec,
    NdarrayCodec,
    ScalarCodec,
    TensorCodec,
    Unischema,
    UnischemaField,
)

pytestmark = pytest.mark.versions

FRAME = UnischemaField("frame", np.uint8, (None, None, 3), CompressedImageCodec("jpeg", 90), dims=("H", "W", "C"))
SCHEMA = Unischema(
    "drive",
    [
        FRAME,
        UnischemaField("frame_id", np.int64),
        UnischemaField("points", np.float32, (None, 4), NdarrayCodec(), nullable=True),
        UnischemaField("mask", bool, (4, 4), CompressedNdarrayCodec()),
        UnischemaField("pose", np.float64, (4, 4), TensorCodec()),
        UnischemaField("tags", str, (None,), ListCodec()),
        UnischemaField("price", decimal.Decimal, (), ScalarCodec(pa.decimal128(9, 2))),
        UnischemaField("stamp", "datetime64[us]"),
        UnischemaField("blob", bytes),
    ],
)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (str, "U"),
        ("string", "U"),
        ("<U7", "U"),
        (bytes, "S"),
        (">f4", "float32"),
        (int, "int64"),
        (bool, "bool"),
        (datetime.datetime, "datetime64[us]"),
        (datetime.date, "datetime64[D]"),
        ("datetime64", "datetime64[ns]"),
    ],
)
def test_a_dtype_has_one_form(given: Any, kept: str) -> None:
    assert UnischemaField("x", given).dtype == np.dtype(kept)


@pytest.mark.parametrize("dtype", [object, complex, "no such dtype", np.dtype([("a", "i4")])])
def test_a_dtype_that_is_not_a_tensor_is_refused(dtype: Any) -> None:
    with pytest.raises(SchemaError, match=r"dtype of field 'x': expected"):
        UnischemaField("x", dtype)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": ""}, "name of a field: expected a non-empty string, got ''"),
        ({"name": "x\ud800"}, r"name of a field: expected text that UTF-8 can hold, got 'x\\ud800'"),
        ({"shape": (-1,)}, r"shape of field 'x': expected axes >= 0 or None, got \(-1,\)\. Write None for an axis"),
        ({"shape": (2, 3), "dims": ("H",)}, r"dims of field 'x': expected 2 names for shape \(2, 3\), got \('H',\)"),
        ({"codec": "png"}, "codec of field 'x': expected a parquetry codec such as .* got 'png'"),
        ({"shape": (2,), "codec": ScalarCodec()}, r"ScalarCodec expected shape \(\), got \(2,\)"),
        ({"codec": ScalarCodec(pa.string())}, "expected an Arrow type that can hold int32, got string"),
        ({"codec": ListCodec()}, r"ListCodec expected at least one axis, got shape \(\)"),
        (
            {"shape": (2,), "codec": ListCodec(arrow=pa.time64("us"))},
            "expected arrow= to be a type of decimals, timestamps or dates, got time64",
        ),
        (
            {"shape": (2,), "codec": ListCodec(arrow=pa.date32())},
            "expected an Arrow type that can hold int32, got date32",
        ),
        ({"shape": (None,), "codec": TensorCodec()}, "TensorCodec expected a fixed shape of numbers"),
        ({"dtype": str, "shape": (2,), "codec": TensorCodec()}, "TensorCodec expected a fixed shape of numbers"),
        ({"shape": (2, 2), "codec": CompressedImageCodec()}, "png images expected dtype uint8 or uint16, got int32"),
        (
            {"dtype": "uint16", "shape": (2, 2), "codec": CompressedImageCodec("jpeg")},
            "jpeg images expected dtype uint8, got uint16",
        ),
        (
            {"dtype": "uint8", "shape": (2, 2, 5), "codec": CompressedImageCodec()},
            r"png images expected shape \(H, W\) or \(H, W, C\) with C in \(1, 2, 3, 4\), got \(2, 2, 5\)",
        ),
        (
            {"dtype": "uint8", "shape": (2, 2, None), "codec": CompressedImageCodec("webp")},
            r"webp images expected shape .* got \(2, 2, None\)",
        ),
    ],
)
def test_an_invalid_field_is_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        UnischemaField(**{"name": "x", "dtype": np.int32, **arguments})


def test_an_image_codec_checks_its_parameters() -> None:
    assert CompressedImageCodec(".JPG").image_codec == "jpeg"
    with pytest.raises(SchemaError, match=r"expected 'png', 'jpeg' or 'webp', got 'gif'"):
        CompressedImageCodec("gif")
    with pytest.raises(SchemaError, match=r"quality of image codec 'jpeg': expected 1 to 100, got 101"):
        CompressedImageCodec("jpeg", 101)


@pytest.mark.parametrize(
    ("dtype", "shape", "codec"),
    [
        (np.float32, (), ScalarCodec),
        (np.float32, (None,), ListCodec),
        (np.float32, (2, 3), TensorCodec),
        (np.float32, (None, 3), NdarrayCodec),
        (str, (2, 3), NdarrayCodec),
    ],
)
def test_a_field_without_a_codec_gets_the_one_for_its_shape(
    dtype: Any, shape: tuple[int | None, ...], codec: type[Codec]
) -> None:
    assert type(UnischemaField("x", dtype, shape).storage) is codec


def test_a_shape_may_be_one_number() -> None:
    assert UnischemaField("x", np.int8, 3).shape == (3,)  # type: ignore[arg-type]


@pytest.mark.parametrize("fields", [3, "id", [("id", np.int8)], {"id": np.int8}])
def test_a_schema_of_something_else_than_fields_is_refused(fields: Any) -> None:
    with pytest.raises(SchemaError, match="schema 's': expected UnischemaField values, got"):
        Unischema("s", fields)


def test_a_schema_may_be_one_field() -> None:
    field = UnischemaField("x", np.int8)
    assert Unischema("s", field) == Unischema("s", [field])  # type: ignore[arg-type]


def test_json_brings_back_the_same_schema() -> None:
    text = json.dumps(SCHEMA.to_json())
    back = Unischema.from_json(json.loads(text))
    assert back == SCHEMA
    assert hash(back) == hash(SCHEMA)
    assert back.frame.codec == CompressedImageCodec("jpeg", 90)
    assert back.price.codec == ScalarCodec(pa.decimal128(9, 2))
    assert json.dumps(back.to_json()) == text


def test_json_without_a_codec_keeps_the_default() -> None:
    field = UnischemaField("x", np.float32, (2, 2), dims=("a", "b"))
    assert UnischemaField.from_json(json.loads(json.dumps(field.to_json()))) == field


def test_json_of_a_newer_version_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"expected version 1, got 2. Update parquetry"):
        Unischema.from_json({**SCHEMA.to_json(), "version": 2})


def test_json_of_an_unknown_codec_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"stored codec: expected one of .*'tensor'.* got 'zarr'"):
        UnischemaField.from_json({"name": "x", "dtype": "int8", "shape": [2], "codec": {"kind": "zarr"}})


def test_a_schema_pickles() -> None:
    assert pickle.loads(pickle.dumps(SCHEMA)) == SCHEMA


def test_a_schema_does_not_change() -> None:
    with pytest.raises(AttributeError, match=r"immutable"):
        SCHEMA.name = "other"


def test_two_fields_of_one_name_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"schema 's': expected unique field names, got 'frame' twice"):
        Unischema("s", [FRAME, FRAME])


def test_fields_are_found_by_key_and_by_attribute() -> None:
    assert SCHEMA["frame"] is FRAME
    assert SCHEMA.frame is FRAME
    assert "frame" in SCHEMA
    with pytest.raises(
        FieldNotFoundError, match=r"field 'fram': expected the name of a field .* Fields are: blob, frame"
    ):
        SCHEMA["fram"]
    with pytest.raises(AttributeError, match=r"schema 'drive' has no field 'fram'"):
        _ = SCHEMA.fram


def test_a_view_takes_names_fields_and_regexes_in_schema_order() -> None:
    view = SCHEMA.view(["p.*", FRAME, "stamp"])
    assert [field.name for field in view] == ["frame", "points", "pose", "price", "stamp"]


def test_a_regex_must_match_in_full() -> None:
    assert SCHEMA.match(["frame"]) == ["frame"]
    assert SCHEMA.match(["frame.*"]) == ["frame", "frame_id"]
    with pytest.raises(FieldNotFoundError, match=r"field 'rame': expected"):
        SCHEMA.match(["rame"])


def test_a_pattern_that_is_not_a_regex_is_refused() -> None:
    with pytest.raises(FieldNotFoundError, match=r"field pattern '\(': not a name, and not a regular expression"):
        SCHEMA.match(["("])


def test_replace_changes_one_attribute() -> None:
    assert FRAME.replace(nullable=True) == UnischemaField(
        "frame", np.uint8, (None, None, 3), CompressedImageCodec("jpeg", 90), nullable=True, dims=("H", "W", "C")
    )
