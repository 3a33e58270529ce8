"""The codecs of the compatibility module: values survive a round trip."""

from __future__ import annotations

import datetime
import decimal
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cases import every_case
from PIL import Image

from parquetry.common.compat.petastorm.codecs import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    DataframeColumnCodec,
    NdarrayCodec,
    ScalarCodec,
)
from parquetry.common.compat.petastorm.unischema import UnischemaField

pytestmark = pytest.mark.versions


class IntegerType:
    """Looks like the Spark type of this name."""

    def __str__(self) -> str:
        return "IntegerType()"


class DecimalType:
    precision, scale = 4, 3


def both_ways(codec: DataframeColumnCodec, dtype: Any, shape: tuple[int | None, ...], value: Any) -> Any:
    field = UnischemaField("x", dtype, shape, codec, False)
    return codec.decode(field, codec.encode(field, value))


@every_case("codec", [NdarrayCodec(), CompressedNdarrayCodec()])
@every_case("dtype", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "?", "M8[ns]"])
def test_arrays_of_any_number_come_back(codec: DataframeColumnCodec, dtype: str) -> None:
    value = np.arange(24).reshape(2, 3, 4).astype(dtype)
    np.testing.assert_array_equal(both_ways(codec, np.dtype(dtype).type, (2, None, 4), value), value, strict=True)


@every_case("value", [np.array(["a", "bé"]), np.array([b"a\0b", b"cc"]), np.array([], dtype="U1")])
def test_arrays_of_strings_come_back_in_numpys_own_type(value: np.ndarray) -> None:
    read = both_ways(NdarrayCodec(), value.dtype.type, (None,), value)
    np.testing.assert_array_equal(read, value, strict=True)


@every_case(("shape", "dtype"), [((30, 20), "u1"), ((30, 20, 3), "u1"), ((30, 20), "u2")])
def test_png_is_lossless(shape: tuple[int, ...], dtype: str) -> None:
    value = np.random.default_rng(1).integers(0, np.iinfo(dtype).max, shape).astype(dtype)
    read = both_ways(CompressedImageCodec("png"), np.dtype(dtype).type, shape, value)
    np.testing.assert_array_equal(read, value, strict=True)


def test_jpeg_loses_less_at_a_higher_quality() -> None:
    value = np.random.default_rng(1).integers(0, 255, (30, 20, 3)).astype(np.uint8)
    errors = [
        np.abs(
            both_ways(CompressedImageCodec("jpeg", quality), np.uint8, value.shape, value).astype(float) - value
        ).mean()
        for quality in (10, 99)
    ]
    assert errors[0] > errors[1]


def test_images_are_rgb_for_other_libraries_too() -> None:
    value = np.random.default_rng(1).integers(0, 255, (6, 5, 3)).astype(np.uint8)
    stream = io.BytesIO()
    Image.fromarray(value).save(stream, "PNG")
    codec = CompressedImageCodec("png")
    field = UnischemaField("x", np.uint8, (6, 5, 3), codec, False)
    np.testing.assert_array_equal(codec.decode(field, stream.getvalue()), value)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(codec.encode(field, value)))), value)


def test_values_that_do_not_fit_are_refused() -> None:
    codec = CompressedImageCodec("png")
    field = UnischemaField("x", np.uint8, (10, 20), codec, False)
    with pytest.raises(ValueError, match="field 'x': Unexpected dimensions"):
        codec.encode(field, np.zeros((100, 200), np.uint8))
    with pytest.raises(ValueError, match="field 'x': Unexpected type uint16"):
        codec.encode(field, np.zeros((10, 20), np.uint16))
    with pytest.raises(ValueError, match="field 'x'"):
        NdarrayCodec().decode(UnischemaField("x", np.uint8, (3,), None, False), b"bogus")


@every_case(
    ("spark_type", "dtype", "value"),
    [
        (IntegerType(), np.int32, np.int32(-(2**31))),
        (np.uint8, np.uint8, np.uint8(255)),
        (pa.int8(), np.uint8, np.uint8(255)),  # Spark's ByteType, which Petastorm takes for bytes of either kind
        (pa.int64(), np.int64, np.int64(2**63 - 1)),
        (np.float32, np.float32, np.float32(1.5)),
        (np.bool_, np.bool_, np.bool_(True)),
        (np.str_, np.str_, np.str_("abc")),
        (DecimalType(), decimal.Decimal, decimal.Decimal("123.4567")),
    ],
)
def test_scalars_come_back_in_numpys_type(spark_type: Any, dtype: Any, value: Any) -> None:
    read = both_ways(ScalarCodec(spark_type), dtype, (), value)
    assert read == value
    assert type(read) is type(value)


def test_scalars_are_stored_as_plain_python() -> None:
    field = UnischemaField("x", np.int32, (), None, False)
    codec = ScalarCodec(IntegerType())
    assert type(codec.encode(field, np.int32(42))) is int
    assert type(ScalarCodec(np.float32).encode(field._replace(numpy_dtype=np.float32), np.float64(0.1))) is float
    assert both_ways(ScalarCodec(np.str_), np.bytes_, (), "abc") == b"abc"
    assert str(codec) == "ScalarCodec(IntegerType())"
    with pytest.raises(TypeError, match="Expected a scalar"):
        codec.encode(field, [1])
    with pytest.raises(ValueError, match="must be an empty tuple"):
        codec.encode(field._replace(shape=(1,)), 1)


@every_case(
    ("spark_type", "dtype", "value"),
    [(pa.int8(), np.uint8, 256), (pa.int8(), np.uint8, -1), (pa.int8(), np.int8, 128), (pa.int8(), np.uint16, 255)],
)
def test_a_scalar_beyond_its_types_is_refused(spark_type: Any, dtype: Any, value: int) -> None:
    with pytest.raises(ValueError, match="gives back unchanged"):
        ScalarCodec(spark_type).encode(UnischemaField("x", dtype, (), None, False), value)


def test_the_stored_type_is_known_by_its_name() -> None:
    assert ScalarCodec(IntegerType()).arrow_type == pa.int32()
    assert ScalarCodec(IntegerType).arrow_type == pa.int32()
    assert ScalarCodec(DecimalType()).arrow_type == pa.decimal128(4, 3)
    assert ScalarCodec(object()).arrow_type is None
    stored = UnischemaField("x", np.uint8, (), ScalarCodec(pa.int16()), False).to_parquetry().storage
    assert stored.arrow_type(UnischemaField("x", np.uint8, ()).to_parquetry()) == pa.int16()
    assert UnischemaField("x", np.bytes_, (), ScalarCodec(np.str_), False).to_parquetry().codec is None


def test_codecs_are_compared_and_shown() -> None:
    assert NdarrayCodec() == NdarrayCodec()
    assert NdarrayCodec() != CompressedNdarrayCodec()
    assert CompressedImageCodec("png") != CompressedImageCodec("jpeg")
    assert str(NdarrayCodec()) == "NdarrayCodec()"
    assert str(CompressedImageCodec(".png", 80)) == "CompressedImageCodec('png', 80)"
    assert CompressedImageCodec("jpeg").image_codec == "jpeg"


def test_scalars_are_cast_to_what_the_stored_type_takes() -> None:
    def stored(spark_type: Any, dtype: Any, value: Any) -> Any:
        return ScalarCodec(spark_type).encode(UnischemaField("x", dtype, (), None, False), value)

    for spark_type, dtype, value, expected in [
        (pa.float32(), np.float32, np.int64(3), 3.0),
        (pa.float64(), np.float64, 3, 3.0),
        (pa.float32(), np.float32, np.float64(0.1), 0.1),
        (pa.int32(), np.int32, np.float64(3), 3),
        (pa.int64(), np.int64, decimal.Decimal(3), 3),
        (pa.bool_(), np.bool_, np.uint8(1), True),
        (pa.string(), np.str_, np.str_("a"), "a"),
        (pa.binary(), np.bytes_, bytearray(b"a\0"), b"a\0"),
        (pa.decimal128(9, 2), decimal.Decimal, np.int64(3), decimal.Decimal(3)),
        (pa.date32(), np.datetime64, np.datetime64("2020-01-02"), datetime.date(2020, 1, 2)),
        (pa.timestamp("us"), np.datetime64, np.datetime64("2020-01-02", "ns"), datetime.datetime(2020, 1, 2)),
    ]:
        made = stored(spark_type, dtype, value)
        assert made == expected
        assert type(made) is type(expected)
    assert np.isnan(stored(pa.float32(), np.float32, np.nan))


@every_case(
    ("spark_type", "dtype", "value"),
    [
        (IntegerType(), np.int32, 1.5),
        (IntegerType(), np.int32, np.float32(np.nan)),
        (IntegerType(), np.int32, 2**31),
        (pa.int16(), np.uint8, 300),
        (pa.int32(), np.int32, "5"),
        (pa.float64(), np.int32, 1.5),
        (pa.float32(), np.float32, 2**24 + 1),
        (pa.float32(), np.float32, 1e300),
        (pa.bool_(), np.bool_, 5),
        (pa.string(), np.str_, 5),
        (pa.string(), np.str_, b"a"),
        (pa.binary(), np.bytes_, "a"),
        (DecimalType(), decimal.Decimal, "abc"),
        (pa.timestamp("us"), np.datetime64, np.datetime64("2020-01-01T00:00:00.000000001")),
        (pa.timestamp("us"), np.datetime64, np.datetime64(2**62, "s")),
        (pa.date32(), np.datetime64, np.datetime64("2020-01-01T01")),
    ],
)
def test_scalars_that_would_change_are_refused(spark_type: Any, dtype: Any, value: Any) -> None:
    with pytest.raises(ValueError, match=r"field 'x': Expected a .* gives back unchanged, got .* Convert it"):
        ScalarCodec(spark_type).encode(UnischemaField("x", dtype, (), None, False), value)
