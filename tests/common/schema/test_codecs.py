"""Every codec and dtype: written to Parquet, read with plain pyarrow, decoded by the codec."""

from __future__ import annotations

import datetime
import decimal
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import simplejpeg
from cases import every_case
from PIL import Image

from parquetry.common.base.errors import EncodeError
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
    images,
)
from parquetry.common.schema.dtypes import delivered_dtype
from parquetry.common.schema.encoding import encode_rows

pytestmark = pytest.mark.versions

NUMBERS = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]
TIMES = ["datetime64[s]", "datetime64[ms]", "datetime64[us]", "datetime64[ns]", "datetime64[D]", "timedelta64[us]"]
ARRAY_CODECS = [NdarrayCodec(), CompressedNdarrayCodec(), TensorCodec()]


def stored(tmp_path: Path, field: UnischemaField, values: list[Any]) -> pa.Array:
    """Returns the values read back from a Parquet file."""
    array = encode_rows(Unischema("s", [field]), [{field.name: value} for value in values])[field.name]
    schema = pa.schema([pa.field(field.name, field.storage.arrow_type(field), field.nullable)])
    pq.write_table(pa.Table.from_arrays([array], schema=schema), tmp_path / "x.parquet")
    return pq.read_table(tmp_path / "x.parquet")[field.name].combine_chunks()


def decoded(field: UnischemaField, data: bytes | memoryview) -> np.ndarray:
    view = memoryview(data)
    out = np.zeros(field.storage.shape_of(field, view), dtype=delivered_dtype(field.dtype))
    field.storage.decode_into(field, view, out)
    return out


def round_trip(tmp_path: Path, field: UnischemaField, value: Any) -> np.ndarray:
    return decoded(field, stored(tmp_path, field, [value])[0].as_py())


def sample(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    kind = np.dtype(dtype).kind
    counts = np.arange(int(np.prod(shape))).reshape(shape)
    if kind == "b":
        return counts % 3 == 0
    return counts.astype("int64").astype(dtype) if kind in "mM" else (counts % 100).astype(dtype)


# ---- plain columns


@every_case("dtype", NUMBERS)
def test_numbers_are_plain_columns(tmp_path: Path, dtype: str) -> None:
    limits = np.iinfo(dtype) if np.dtype(dtype).kind in "iu" else None
    values = [limits.min, limits.max] if limits else ([True, False] if dtype == "bool" else [0.5, -2.0])
    found = stored(tmp_path, UnischemaField("x", dtype, nullable=True), [*values, None])
    assert found.type == pa.from_numpy_dtype(np.dtype(dtype))
    assert found.to_pylist() == [*values, None]


@every_case("dtype", TIMES)
def test_time_stamps_keep_their_count(tmp_path: Path, dtype: str) -> None:
    value = np.array(1_234_000, dtype="int64").astype(dtype)[()]
    found = stored(tmp_path, UnischemaField("x", dtype, nullable=True), [value, None])
    assert found.null_count == 1
    assert found.drop_null().to_numpy(zero_copy_only=False).astype(dtype)[0] == value


def test_text_and_bytes_keep_embedded_and_final_nuls(tmp_path: Path) -> None:
    assert stored(tmp_path, UnischemaField("x", str), ["a\0b\0", "", "é"]).to_pylist() == ["a\0b\0", "", "é"]
    assert stored(tmp_path, UnischemaField("x", bytes), [b"a\0b\0", b"", b"\xff"]).to_pylist() == [
        b"a\0b\0",
        b"",
        b"\xff",
    ]


def test_decimals_are_exact(tmp_path: Path) -> None:
    field = UnischemaField("x", decimal.Decimal, codec=ScalarCodec(pa.decimal128(9, 2)))
    found = stored(tmp_path, field, [decimal.Decimal("1234567.89"), "0.10", 3])
    assert [str(value) for value in found.to_pylist()] == ["1234567.89", "0.10", "3.00"]


def test_a_scalar_codec_may_store_another_type_of_the_same_family(tmp_path: Path) -> None:
    field = UnischemaField("x", np.uint8, codec=ScalarCodec(pa.int16()))
    found = stored(tmp_path, field, [0, 255])
    assert (found.type, found.to_pylist()) == (pa.int16(), [0, 255])


@every_case("dtype", [*NUMBERS, *TIMES])
@every_case("shape", [(None,), (3,), (None, 2), (2, None), (2, 2)])
def test_lists_hold_arrays_of_any_rank(tmp_path: Path, dtype: str, shape: tuple[int | None, ...]) -> None:
    field = UnischemaField("x", dtype, shape, ListCodec(), nullable=True)
    value = sample(dtype, tuple(axis or 4 for axis in shape))
    found = stored(tmp_path, field, [value, None, value[::-1]])
    assert not found[1].is_valid
    expected = (
        value if np.dtype(dtype).kind not in "mM" else value.astype("datetime64[ns]" if "date" in dtype else dtype)
    )
    for row, wanted in ((0, expected), (2, expected[::-1])):
        flat = found.slice(row, 1)
        while pa.types.is_list(flat.type) or pa.types.is_fixed_size_list(flat.type):
            flat = flat.flatten()
        got = flat.to_numpy(zero_copy_only=False).astype(wanted.dtype)
        assert np.array_equal(got.reshape(wanted.shape), wanted)


def test_lists_of_strings_keep_final_nuls(tmp_path: Path) -> None:
    texts = [["a\0", "bc"], []]
    assert stored(tmp_path, UnischemaField("x", str, (None,)), texts).to_pylist() == texts
    blobs = [[b"a\0", b"\0"]]
    assert stored(tmp_path, UnischemaField("x", bytes, (None,)), blobs).to_pylist() == blobs


def test_a_list_with_an_axis_of_no_length_can_be_read_back(tmp_path: Path) -> None:
    assert stored(tmp_path, UnischemaField("x", np.int8, (0,)), [[], []]).to_pylist() == [[], []]


def test_a_list_refuses_nat_because_arrow_would_store_null() -> None:
    schema = Unischema("s", [UnischemaField("x", "datetime64[us]", (None,))])
    with pytest.raises(EncodeError, match=r"row 0, field 'x': ListCodec failed: expected no NaT inside a list"):
        encode_rows(schema, [{"x": np.array(["NaT"], "datetime64[us]")}])


# ---- arrays as bytes


@every_case("codec", ARRAY_CODECS, ids=lambda codec: codec.kind)
@every_case("dtype", [*NUMBERS, *TIMES])
def test_arrays_of_every_dtype_round_trip(tmp_path: Path, codec: Codec, dtype: str) -> None:
    value = sample(dtype, (2, 3))
    found = round_trip(tmp_path, UnischemaField("x", dtype, (2, 3), codec), value)
    assert np.array_equal(found, value.astype("int64") if value.dtype.kind in "mM" else value)


@every_case("codec", ARRAY_CODECS, ids=lambda codec: codec.kind)
@every_case("layout", ["big-endian", "fortran", "strided"])
def test_the_memory_layout_of_the_input_does_not_matter(tmp_path: Path, codec: Codec, layout: str) -> None:
    value = sample("float32", (4, 6))
    given = {"big-endian": value.astype(">f4"), "fortran": np.asfortranarray(value), "strided": value[::-1, ::-1]}[
        layout
    ]
    found = round_trip(tmp_path, UnischemaField("x", np.float32, (4, 6), codec), given)
    assert np.array_equal(found, given)


@every_case("codec", ARRAY_CODECS, ids=lambda codec: codec.kind)
def test_an_array_decodes_from_an_arrow_buffer_into_strided_memory(codec: Codec) -> None:
    field = UnischemaField("x", np.int16, (2, 3), codec)
    value = sample("int16", (2, 3))
    out = np.zeros((2, 6), np.int16)[:, ::2]
    codec.decode_into(field, memoryview(pa.py_buffer(codec.encode(field, value))), out)
    assert np.array_equal(out, value)


@every_case("codec", [NdarrayCodec(), CompressedNdarrayCodec()], ids=lambda codec: codec.kind)
@every_case("shape", [(0, 4), (1, 4), (7, 4)])
def test_wildcards_take_any_length(tmp_path: Path, codec: Codec, shape: tuple[int, int]) -> None:
    value = sample("float64", shape)
    found = round_trip(tmp_path, UnischemaField("x", np.float64, (None, 4), codec), value)
    assert found.shape == shape
    assert np.array_equal(found, value)


@every_case("codec", ARRAY_CODECS, ids=lambda codec: codec.kind)
def test_an_array_of_no_elements_round_trips(tmp_path: Path, codec: Codec) -> None:
    assert round_trip(tmp_path, UnischemaField("x", np.int8, (0, 3), codec), np.zeros((0, 3), np.int8)).shape == (0, 3)


@every_case("codec", [NdarrayCodec(), CompressedNdarrayCodec()], ids=lambda codec: codec.kind)
def test_arrays_of_strings_decode_as_strings(tmp_path: Path, codec: NdarrayCodec) -> None:
    for dtype, value in ((str, [["a\0b", "é"], ["", "cd"]]), (bytes, [[b"a\0b", b"\xff"], [b"", b"cd"]])):
        field = UnischemaField("x", dtype, (2, None), codec)
        found = codec.decode_strings(field, memoryview(stored(tmp_path, field, [value])[0].as_py()))
        assert found.tolist() == value


def test_arrays_of_decimals_decode_as_their_exact_text(tmp_path: Path) -> None:
    field = UnischemaField("x", decimal.Decimal, (1, 2))
    found = stored(tmp_path, field, [[["1.50", decimal.Decimal("2")]]])[0].as_py()
    assert NdarrayCodec().decode_strings(field, memoryview(found)).tolist() == [["1.50", "2"]]


@every_case("value", [[["a\0"]], [[b"a\0"]]])
def test_a_string_array_refuses_a_final_nul_that_npy_would_drop(value: Any) -> None:
    schema = Unischema("s", [UnischemaField("x", type(value[0][0]), (1, 1), NdarrayCodec())])
    with pytest.raises(EncodeError, match=r"row 0, field 'x': expected strings without a trailing NUL"):
        encode_rows(schema, [{"x": value}])


@every_case("value", ["a\0", b"\0"])
def test_a_string_refuses_a_final_nul_that_npy_would_drop(value: Any) -> None:
    for codec in (NdarrayCodec(), CompressedNdarrayCodec()):
        with pytest.raises(EncodeError, match=r"field 'x': expected strings without a trailing NUL.*ScalarCodec\(\)"):
            encode_rows(Unischema("s", [UnischemaField("x", type(value), (), codec)]), [{"x": value}])
    assert encode_rows(Unischema("s", [UnischemaField("x", type(value))]), [{"x": value}])["x"].to_pylist() == [value]


def test_ndarray_bytes_are_what_numpy_reads() -> None:
    field = UnischemaField("x", np.float32, (2, 3), NdarrayCodec())
    value = sample("float32", (2, 3))
    assert np.array_equal(np.load(io.BytesIO(NdarrayCodec().encode(field, value))), value)
    packed = CompressedNdarrayCodec().encode(field, value)
    assert np.array_equal(np.load(io.BytesIO(packed))["arr"], value)


def test_arrays_that_numpy_compresses_can_be_decoded() -> None:
    field = UnischemaField("x", np.float32, (2, 3), CompressedNdarrayCodec())
    value = sample("float32", (2, 3))
    stream = io.BytesIO()
    np.savez_compressed(stream, arr=value)
    assert np.array_equal(decoded(field, stream.getvalue()), value)


def test_equal_arrays_give_equal_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    field = UnischemaField("x", np.int8, (3,), CompressedNdarrayCodec())
    first = CompressedNdarrayCodec().encode(field, np.zeros(3, np.int8))
    monkeypatch.setattr(zipfile.time, "time", lambda: 2e9)
    assert CompressedNdarrayCodec().encode(field, np.zeros(3, np.int8)) == first


@every_case(
    ("codec", "data", "text"),
    [
        (NdarrayCodec(), b"garbage....", r"expected \.npy bytes, got b'garbage\.'"),
        (NdarrayCodec(), b"\x93NUMPY\x09\x00\x00\x00", "expected .npy format version 1 to 3, got 9"),
        (CompressedNdarrayCodec(), b"garbage", r"expected a zip file with the member arr\.npy"),
        (TensorCodec(), b"abc", r"expected 24 bytes of float32 \(2, 3\), got 3"),
    ],
)
def test_bytes_that_are_not_the_codecs_own_are_refused(codec: Codec, data: bytes, text: str) -> None:
    field = UnischemaField("x", np.float32, (2, 3), codec)
    with pytest.raises(ValueError, match=text):
        codec.decode_into(field, memoryview(data), np.zeros((2, 3), np.float32))


@every_case("codec", [NdarrayCodec(), CompressedNdarrayCodec()], ids=lambda codec: codec.kind)
def test_truncated_and_damaged_arrays_are_refused(codec: Codec) -> None:
    field = UnischemaField("x", np.float64, (64, 64), codec)
    data = codec.encode(field, np.random.default_rng(0).random((64, 64)))
    with pytest.raises(ValueError, match=r"expected (32768 bytes of float64|a zip file)"):
        codec.shape_of(field, memoryview(data[:-100]))
    if codec.kind == "compressed_ndarray":
        damaged = data[:2000] + bytes(500) + data[2500:]
        with pytest.raises(ValueError, match=r"expected a zip file with the member arr\.npy"):
            codec.shape_of(field, memoryview(damaged))


@every_case(
    ("stored_value", "text"),
    [
        (np.zeros((2, 3), np.int32), "expected dtype float32, got int32"),
        (np.zeros((3, 2), np.float32), r"expected shape \(2, 3\), got \(3, 2\)"),
        (np.zeros((2, 3), "datetime64[us]"), r"expected dtype float32, got datetime64\[us\]"),
    ],
)
def test_an_array_of_another_dtype_or_shape_is_refused(stored_value: np.ndarray, text: str) -> None:
    field = UnischemaField("x", np.float32, (2, 3), NdarrayCodec())
    stream = io.BytesIO()
    np.save(stream, stored_value)
    with pytest.raises(ValueError, match=text):
        NdarrayCodec().decode_into(field, memoryview(stream.getvalue()), np.zeros((2, 3), np.float32))


def test_a_time_unit_is_never_mistaken_for_another() -> None:
    field = UnischemaField("x", "datetime64[us]", (1,), NdarrayCodec())
    stream = io.BytesIO()
    np.save(stream, np.zeros(1, "datetime64[ms]"))
    with pytest.raises(ValueError, match=r"expected dtype datetime64\[us\], got datetime64\[ms\]"):
        NdarrayCodec().decode_into(field, memoryview(stream.getvalue()), np.zeros(1, np.int64))


def test_pickled_objects_are_never_loaded() -> None:
    stream = io.BytesIO()
    np.save(stream, np.array([{}], dtype=object), allow_pickle=True)
    field = UnischemaField("x", np.float32, (1,), NdarrayCodec())
    with pytest.raises(ValueError, match=r"got pickled objects, which are never loaded"):
        NdarrayCodec().shape_of(field, memoryview(stream.getvalue()))


def test_strings_of_a_numeric_array_are_refused() -> None:
    field = UnischemaField("x", str, (1,), NdarrayCodec())
    stream = io.BytesIO()
    np.save(stream, np.zeros(1))
    with pytest.raises(ValueError, match=r"expected an array of strings, got float64"):
        NdarrayCodec().decode_strings(field, memoryview(stream.getvalue()))


# ---- images


def picture(shape: tuple[int, ...], dtype: str = "uint8") -> np.ndarray:
    """Returns a smooth picture, which JPEG and WebP preserve well."""
    y, x = np.mgrid[0 : shape[0], 0 : shape[1]]
    planes = [(x * 3 + y * 2 + 40 * channel) % 200 + 20 for channel in range(shape[2] if len(shape) == 3 else 1)]
    smooth = np.stack([np.minimum(plane, 220 - plane // 4) for plane in planes], axis=-1).reshape(shape)
    return (smooth * (257 if dtype == "uint16" else 1)).astype(dtype)


def image_field(codec: CompressedImageCodec, shape: tuple[int, ...], dtype: str = "uint8") -> UnischemaField:
    return UnischemaField("x", dtype, (None, None, *shape[2:]), codec)


@every_case("dtype", ["uint8", "uint16"])
@every_case("shape", [(20, 30), (20, 30, 1), (20, 30, 3), (20, 30, 4), (1, 1, 3)])
def test_png_is_lossless(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    value = picture(shape, dtype)
    found = round_trip(tmp_path, image_field(CompressedImageCodec("png"), shape, dtype), value)
    assert found.dtype == value.dtype
    assert np.array_equal(found, value)


def test_png_of_gray_with_alpha_is_lossless(tmp_path: Path) -> None:
    value = picture((5, 6, 2))
    assert np.array_equal(round_trip(tmp_path, image_field(CompressedImageCodec("png"), (5, 6, 2)), value), value)


@every_case("shape", [(5, 6), (5, 6, 3)])
def test_png_of_big_endian_pixels_is_lossless(tmp_path: Path, shape: tuple[int, ...]) -> None:
    value = picture(shape, "uint16")
    field = image_field(CompressedImageCodec("png"), shape, "uint16")
    assert np.array_equal(round_trip(tmp_path, field, value.astype(">u2")), value)


@every_case(
    ("codec", "shape"),
    [
        *(("jpeg", shape) for shape in [(32, 48), (32, 48, 1), (32, 48, 3)]),
        *(("webp", (32, 48, channels)) for channels in (3, 4)),
    ],
)
def test_jpeg_and_webp_keep_the_picture(tmp_path: Path, codec: str, shape: tuple[int, ...]) -> None:
    value = picture(shape)
    found = round_trip(tmp_path, image_field(CompressedImageCodec(codec, 95), shape), value)
    assert found.shape == shape
    assert np.abs(found.astype(int) - value).mean() < 8


@every_case("shape", [(32, 48), (32, 48, 1), (32, 48, 3)])
@every_case("encoder", ["simplejpeg", "pillow"])
def test_jpeg_decodes_alike_with_and_without_simplejpeg(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], encoder: str
) -> None:
    field = image_field(CompressedImageCodec("jpeg", 90), shape)
    with monkeypatch.context() as patch:
        if encoder == "pillow":
            patch.setattr(images, "simplejpeg", None)
        data = field.storage.encode(field, picture(shape))
    fast = decoded(field, data)
    monkeypatch.setattr(images, "simplejpeg", None)
    slow = decoded(field, data)
    assert fast.shape == slow.shape == shape
    assert np.abs(fast.astype(int) - slow).max() <= 6


@every_case("colors", [("GRAY", 3), ("RGB", 1)])
def test_a_jpeg_of_other_colors_converts_alike_with_and_without_simplejpeg(
    monkeypatch: pytest.MonkeyPatch, colors: tuple[str, int]
) -> None:
    stored_as, wanted = colors
    pixels = picture((32, 48, 1 if stored_as == "GRAY" else 3))
    data = simplejpeg.encode_jpeg(pixels, 95, stored_as, "Gray" if stored_as == "GRAY" else "444")
    field = image_field(CompressedImageCodec("jpeg"), (32, 48, wanted))
    fast = decoded(field, data)
    monkeypatch.setattr(images, "simplejpeg", None)
    assert np.abs(fast.astype(int) - decoded(field, data)).max() <= 6


def test_webp_without_transparency_keeps_its_alpha_channel(tmp_path: Path) -> None:
    value = picture((32, 48, 4))
    value[..., 3] = 255
    found = round_trip(tmp_path, image_field(CompressedImageCodec("webp", 95), (32, 48, 4)), value)
    assert (found[..., 3] == 255).all()


@every_case("codec", ["png", "jpeg", "webp"])
@every_case("fast", [True, False])
def test_an_image_decodes_from_an_arrow_buffer_into_strided_memory(
    monkeypatch: pytest.MonkeyPatch, codec: str, fast: bool
) -> None:
    if not fast:
        monkeypatch.setattr(images, "simplejpeg", None)
    field = image_field(CompressedImageCodec(codec), (8, 9, 3))
    data = memoryview(pa.py_buffer(field.storage.encode(field, picture((8, 9, 3)))))
    whole = decoded(field, data)
    out = np.zeros((8, 18, 3), np.uint8)[:, ::2]
    field.storage.decode_into(field, data, out)
    assert np.abs(out.astype(int) - whole).max() <= 6


def test_a_palette_png_gives_its_colors() -> None:
    stream = io.BytesIO()
    flag = np.zeros((4, 4, 3), np.uint8)
    flag[:2] = (255, 0, 0)
    Image.fromarray(flag).convert("P", palette=Image.Palette.ADAPTIVE).save(stream, "png")
    assert np.array_equal(decoded(image_field(CompressedImageCodec("png"), (4, 4, 3)), stream.getvalue()), flag)


@every_case("codec", ["png", "jpeg", "webp"])
@every_case("fast", [True, False])
def test_damaged_images_are_refused(monkeypatch: pytest.MonkeyPatch, codec: str, fast: bool) -> None:
    field = image_field(CompressedImageCodec(codec), (64, 64, 3))
    data = field.storage.encode(field, np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))
    if not fast:
        monkeypatch.setattr(images, "simplejpeg", None)
    for damaged in (data[: len(data) // 2], b"not an image", b""):
        with pytest.raises(ValueError, match=r"\w"):
            decoded(field, damaged)


def test_a_damaged_png_of_16_bits_is_refused() -> None:
    field = image_field(CompressedImageCodec("png"), (64, 64, 3), "uint16")
    data = field.storage.encode(field, picture((64, 64, 3), "uint16"))
    with pytest.raises(ValueError, match=r"png"):
        decoded(field, data[: len(data) // 2])


def test_an_image_of_another_kind_is_refused() -> None:
    rgb = image_field(CompressedImageCodec("png"), (4, 4, 3))
    gray = image_field(CompressedImageCodec("png"), (4, 4))
    deep = image_field(CompressedImageCodec("png"), (4, 4), "uint16")
    data = memoryview(rgb.storage.encode(rgb, picture((4, 4, 3))))
    with pytest.raises(ValueError, match=r"expected an image of mode L \(1 channels\), got RGB"):
        gray.storage.decode_into(gray, data, np.zeros((4, 4), np.uint8))
    with pytest.raises(ValueError, match=r"expected a 16-bit grayscale image, got mode RGB"):
        deep.storage.decode_into(deep, data, np.zeros((4, 4), np.uint16))
    with pytest.raises(ValueError, match=r"expected an image of shape \(5, 4, 3\), got \(4, 4, 3\)"):
        rgb.storage.decode_into(rgb, data, np.zeros((5, 4, 3), np.uint8))


@every_case("height", [3, 5])
def test_a_jpeg_of_another_size_is_refused(height: int) -> None:
    field = image_field(CompressedImageCodec("jpeg"), (4, 4, 3))
    data = memoryview(field.storage.encode(field, picture((4, 4, 3))))
    with pytest.raises(ValueError, match=rf"expected an image of shape \({height}, 4, 3\), got \(4, 4, 3\)"):
        field.storage.decode_into(field, data, np.zeros((height, 4, 3), np.uint8))


def test_a_jpeg_never_lands_in_a_16_bit_buffer() -> None:
    eight = image_field(CompressedImageCodec("jpeg"), (4, 4))
    deep = image_field(CompressedImageCodec("png"), (4, 4), "uint16")
    data = memoryview(eight.storage.encode(eight, picture((4, 4))))
    with pytest.raises(ValueError, match=r"expected a 16-bit grayscale image, got mode L"):
        deep.storage.decode_into(deep, data, np.zeros((4, 4), np.uint16))


def test_an_image_of_no_pixels_cannot_be_encoded() -> None:
    schema = Unischema("s", [image_field(CompressedImageCodec("jpeg"), (0, 4, 3))])
    with pytest.raises(EncodeError, match=r"row 0, field 'x': CompressedImageCodec failed"):
        encode_rows(schema, [{"x": np.zeros((0, 4, 3), np.uint8)}])


def test_dates_of_python_are_days(tmp_path: Path) -> None:
    day = datetime.date(2024, 2, 29)
    assert stored(tmp_path, UnischemaField("x", datetime.date), [day]).to_pylist() == [day]
