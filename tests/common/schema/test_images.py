"""Image files of a different kind than their field, and encoded bytes written as they are."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cases import every_case
from PIL import Image

from parquetry.common import CompressedImageCodec, Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import DecodeError, EncodeError, SchemaError
from parquetry.common.schema import images
from parquetry.common.schema.codec import codec_from_json
from parquetry.common.schema.encoding import encode_columns, encode_rows

pytestmark = pytest.mark.versions

MODES = ["1", "L", "LA", "RGB", "RGBA", "P", "I;16", "CMYK"]


def encoded(mode: str, kind: str = "png", size: tuple[int, int] = (7, 5)) -> bytes:
    """Returns an image file in a Pillow mode with ``size`` (width, height)."""
    y, x = np.mgrid[: size[1], : size[0]]
    if mode == "I;16":
        image = Image.fromarray((x * 4000 + y * 999 + 77).astype(np.uint16))
    else:
        rgb = np.stack([x * 30, y * 40, x * y * 5], axis=-1).astype(np.uint8)
        image = Image.fromarray(rgb).convert(mode)
    stream = io.BytesIO()
    image.save(stream, kind, **({"quality": 95} if kind == "jpeg" else {"lossless": True} if kind == "webp" else {}))
    return stream.getvalue()


def see_through() -> bytes:
    """Returns a WebP file whose alpha channel hides something; libwebp drops others."""
    stream = io.BytesIO()
    Image.new("RGBA", (7, 5), (30, 40, 50, 128)).save(stream, "webp", lossless=True)
    return stream.getvalue()


def by_pillow(data: bytes, mode: str) -> np.ndarray:
    image = Image.open(io.BytesIO(data))
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return np.asarray(image.convert(mode))


def field(convert: bool | None = True, kind: str = "png", channels: int = 3, dtype: str = "uint8") -> UnischemaField:
    shape = (None, None) if channels == 1 else (None, None, channels)
    return UnischemaField("image", dtype, shape, CompressedImageCodec(kind, convert=convert))


def decoded(wanted: UnischemaField, data: bytes) -> np.ndarray:
    view = memoryview(data)
    out = np.zeros(wanted.storage.shape_of(wanted, view), wanted.dtype)
    wanted.storage.decode_into(wanted, view, out)
    return out


@every_case("channels", [1, 2, 3, 4])
@every_case("mode", [mode for mode in MODES if mode != "CMYK"])
def test_every_png_converts_to_the_channels_of_its_field(mode: str, channels: int) -> None:
    data = encoded(mode)
    wanted = by_pillow(data, {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}[channels])
    assert np.array_equal(decoded(field(channels=channels), data), wanted)


@every_case("fast", [True, False])
@every_case("channels", [1, 3])
@every_case("mode", ["L", "RGB", "CMYK"])
def test_every_jpeg_converts_to_the_channels_of_its_field(
    monkeypatch: pytest.MonkeyPatch, mode: str, channels: int, fast: bool
) -> None:
    if not fast:
        monkeypatch.setattr(images, "simplejpeg", None)
    data = encoded(mode, "jpeg")
    wanted = by_pillow(data, "L" if channels == 1 else "RGB").astype(int)
    for convert in (True, None):
        assert np.abs(decoded(field(convert, "jpeg", channels), data) - wanted).max() <= 6


@every_case("mode", ["RGB", "RGBA"])
def test_a_webp_image_loses_its_alpha_channel(mode: str) -> None:
    data = encoded(mode, "webp")
    assert np.array_equal(decoded(field(kind="webp"), data), by_pillow(data, "RGB"))


def test_eight_bits_become_sixteen_and_colors_gray() -> None:
    gray, colors = encoded("L"), encoded("RGB")
    assert np.array_equal(
        decoded(field(channels=1, dtype="uint16"), gray), by_pillow(gray, "L").astype(np.uint16) * 257
    )
    deep = field(channels=3, dtype="uint16")
    assert np.array_equal(decoded(deep, colors), by_pillow(colors, "RGB").astype(np.uint16) * 257)


@every_case("channels", [1, 2, 3, 4])
@every_case("stored", [1, 2, 3, 4])
def test_sixteen_bits_keep_their_depth_in_other_channels(stored: int, channels: int) -> None:
    pytest.importorskip("imagecodecs")
    pixels = np.random.default_rng(0).integers(0, 1 << 16, (4, 5, stored)).astype(np.uint16)
    source = field(channels=stored, dtype="uint16")
    data = source.storage.encode(source, pixels[..., 0] if stored == 1 else pixels)
    found = decoded(field(channels=channels, dtype="uint16"), data).reshape(4, 5, channels)
    colors = pixels[..., : 1 if stored < 3 else 3].astype(float)
    if channels < 3:
        colors = (colors @ [0.299, 0.587, 0.114])[..., None] if stored >= 3 else colors
    else:
        colors = np.broadcast_to(colors, (4, 5, 3))
    assert np.abs(found[..., : colors.shape[-1]] - colors).max() <= 0.5
    if channels in (2, 4):
        assert np.array_equal(found[..., -1], pixels[..., -1] if stored in (2, 4) else np.full((4, 5), 65535))


@every_case("order", ["<", ">"])
def test_a_gray_tiff_of_16_bits_is_read_like_a_png_of_16_bits(order: str) -> None:
    """The datasets package writes arrays of uint16, such as depth maps, as TIFF."""
    png = encoded("I;16")
    gray = np.asarray(Image.open(io.BytesIO(png))).astype(np.uint16)
    stream = io.BytesIO()
    mode = "I;16" if order == "<" else "I;16B"
    Image.frombytes(mode, gray.shape[::-1], gray.astype(f"{order}u2").tobytes()).save(stream, "tiff")
    for convert in (None, False, True):
        assert np.array_equal(decoded(field(convert, channels=1, dtype="uint16"), stream.getvalue()), gray)
    for channels, dtype in ((1, "uint8"), (3, "uint8"), (3, "uint16"), (4, "uint16")):
        wanted = field(True, channels=channels, dtype=dtype)
        assert np.array_equal(decoded(wanted, stream.getvalue()), decoded(wanted, png))


@every_case("dtype", ["int32", "float32"])
def test_images_of_32_bits_keep_their_values_or_are_refused(dtype: str) -> None:
    def tiff(*values: float) -> bytes:
        stream = io.BytesIO()
        Image.fromarray(np.array([values], dtype)).save(stream, "tiff")
        return stream.getvalue()

    for wanted in (field(True, channels=1), field(True, channels=1, dtype="uint16")):
        assert decoded(wanted, tiff(3, 255)).tolist() == [[3, 255]]
    assert decoded(field(True), tiff(3, 255)).tolist() == [[[3, 3, 3], [255, 255, 255]]]
    for values in ((3, 256), (-1, 0), *([(0.5, 1), (float("nan"), 0)] if dtype == "float32" else [])):
        with pytest.raises(ValueError, match=f"expected values of uint8 in an image of {dtype}, got"):
            decoded(field(True), tiff(*values))


@every_case(
    ("data", "kind"),
    [
        (encoded("L", "jpeg"), "jpeg"),
        (encoded("CMYK", "jpeg"), "jpeg"),
        (encoded("P"), "png"),
        (encoded("RGBA"), "png"),
        (encoded("I;16"), "png"),
        (see_through(), "webp"),
    ],
)
@every_case("fast", [True, False])
def test_no_image_is_converted_if_that_is_refused(
    monkeypatch: pytest.MonkeyPatch, data: bytes, kind: str, fast: bool
) -> None:
    if not fast:
        monkeypatch.setattr(images, "simplejpeg", None)
    with pytest.raises(ValueError, match=r"expected an image of mode RGB \(3 channels\), got .*convert=True"):
        decoded(field(False, kind), data)


@every_case("mode", ["1", "L", "LA", "RGBA", "I;16"])
def test_without_a_choice_only_what_decoders_convert_is_converted(mode: str) -> None:
    with pytest.raises(ValueError, match=r"expected an image of mode RGB .* Declare the field with convert=True"):
        decoded(field(None), encoded(mode))
    assert decoded(field(None), encoded("P")).shape == (5, 7, 3)


def test_the_choice_is_kept_with_the_schema_and_old_schemas_stay_unchanged() -> None:
    for convert in (True, False):
        codec = CompressedImageCodec("jpeg", convert=np.bool_(convert))  # type: ignore[arg-type]
        assert codec.to_json()["convert"] is convert
        assert codec_from_json(codec.to_json()) == codec
    assert "convert" not in CompressedImageCodec("jpeg").to_json()
    with pytest.raises(SchemaError, match="convert"):
        CompressedImageCodec("jpeg", convert="yes")  # type: ignore[arg-type]


def test_images_convert_on_their_way_through_a_crop_and_a_reduced_resize(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    files = [encoded(mode, "jpeg", (64, 48)) for mode in ("L", "CMYK", "RGB")] + [encoded("RGBA", size=(64, 48))]
    pq.write_table(pa.table({"image": files}), tmp_path / "x.parquet")
    pipeline = Pipeline(tmp_path, [field(True, "jpeg")])
    plain = [row["image"] for row in pipeline]
    assert [image.shape for image in plain] == [(48, 64, 3)] * 4
    assert all(map(np.array_equal, plain, (row["image"] for row in pipeline.with_options(executor="sidecar"))))
    (cropped,) = pipeline.center_crop("image", 16).batch(4)
    assert all(map(np.array_equal, cropped["image"], (image[16:32, 24:40] for image in plain)))
    (small,) = pipeline.resize("image", (6, 8), interpolation="area").batch(4)
    assert small["image"].shape == (4, 6, 8, 3)
    strict = Pipeline(tmp_path, [field(False, "jpeg")]).resize("image", (6, 8), interpolation="area").batch(4)
    with pytest.raises(DecodeError, match=r"field 'image', file .*row 0: .*expected an image of mode RGB .*, got L"):
        list(strict)


# ---- encoded bytes


@every_case("kind", ["png", "jpeg", "webp"])
@every_case("form", [bytes, bytearray, memoryview])
def test_encoded_bytes_are_stored_as_they_are(tmp_path: Path, kind: str, form: Any) -> None:
    data = encoded("RGB", kind)
    schema = Unischema("s", [field(None, kind).replace(nullable=True)])
    rows = [{"image": form(data)}, {"image": by_pillow(data, "RGB")}, {"image": None}]
    write_dataset(tmp_path / "d", schema, rows)
    stored = pq.read_table(tmp_path / "d" / "part-00000.parquet")["image"].to_pylist()
    assert stored[0] == data
    assert stored[2] is None
    read = [row["image"] for row in Pipeline(tmp_path / "d")]
    assert np.abs(read[0].astype(int) - by_pillow(data, "RGB")).max() <= 6


def test_columns_of_encoded_bytes_are_stored_as_they_are() -> None:
    files = [encoded("RGB"), encoded("RGB", size=(3, 2))]
    schema = Unischema("s", [field(None)])
    for column in (files, tuple(files), np.array([*files, None], dtype=object)[:2], pa.array(files)):
        assert encode_columns(schema, {"image": column})["image"].to_pylist() == files


@every_case(
    ("wanted", "data", "text"),
    [
        (field(None, "jpeg"), encoded("RGB"), "a png file in a field of jpeg files"),
        (field(None), encoded("RGB", "webp"), "a webp file in a field of png files"),
        (field(True), encoded("RGB", "bmp"), "a bmp file in a field of png files"),
        (field(None).replace(shape=(5, 8, 3)), encoded("RGB"), r"a value of shape \(5, 7, 3\)"),
        (field(None), encoded("LA"), r"mode RGB \(3 channels\), got LA. Declare the field with convert=True"),
        (field(False, "jpeg"), encoded("CMYK", "jpeg"), r"mode RGB \(3 channels\), got CMYK"),
        (field(None, channels=1, dtype="uint16"), encoded("L"), "expected a 16-bit grayscale image, got mode L"),
        (field(None), b"", "cannot identify image file"),
        (field(None, "jpeg"), encoded("RGB", "jpeg")[:9], r"\w"),
        (field(None, "jpeg"), b"not an image", "cannot identify image file"),
    ],
)
def test_bytes_that_do_not_fit_the_field_are_refused(wanted: UnischemaField, data: bytes, text: str) -> None:
    with pytest.raises(EncodeError, match=f"row 7, field 'image': CompressedImageCodec failed: .*{text}"):
        encode_rows(Unischema("s", [wanted]), [{"image": data}], first_row=7)


def test_files_of_other_formats_are_taken_where_images_are_converted() -> None:
    files = [encoded("L"), encoded("RGBA", "webp"), encoded("CMYK", "jpeg")]
    arrays = encode_rows(Unischema("s", [field(True, "jpeg")]), [{"image": data} for data in files])
    assert arrays["image"].to_pylist() == files


def test_numpys_bytes_are_refused_because_they_lose_zeros() -> None:
    with pytest.raises(EncodeError, match=r"row 0, field 'image': expected bytes, got bytes_, .* dtype object"):
        encode_columns(Unischema("s", [field()]), {"image": np.array([encoded("RGB")])})


def test_bytes_are_not_a_value_of_other_fields() -> None:
    array = UnischemaField("x", "uint8", (None, None))
    with pytest.raises(EncodeError, match="expected uint8, got bytes"):
        encode_rows(Unischema("s", [array]), [{"x": b"\x89PNG"}])


@every_case(
    ("dtype", "shape", "codec", "message"),
    [
        ("uint16", (5, 7, 2), CompressedImageCodec("png"), "expected 1, 3 or 4 channels of uint16, got 2"),
        ("uint8", (0, 7, 3), CompressedImageCodec("webp"), r"expected an image with pixels, got shape \(0, 7, 3\)"),
    ],
)
def test_an_image_that_could_not_be_read_is_not_written(
    dtype: str, shape: tuple[int, ...], codec: CompressedImageCodec, message: str
) -> None:
    field = UnischemaField("x", dtype, (None, None, shape[2]), codec)
    with pytest.raises(EncodeError, match=message):
        encode_rows(Unischema("s", [field]), [{"x": np.zeros(shape, dtype)}])
