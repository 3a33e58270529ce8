"""`CompressedImageCodec`: PNG, JPEG and WebP.

JPEG is decoded by simplejpeg (libjpeg-turbo, directly into the batch buffer), or by Pillow if simplejpeg is missing.
16-bit PNG with several channels uses imagecodecs, because Pillow reads it with 8 bits. Everything else uses Pillow.
"""

from __future__ import annotations

import io
import struct
from typing import Any, ClassVar

import numpy as np

from ..base.errors import SchemaError
from ..base.native.jpeg import Box
from ..base.native.kernels import decode_part
from ..base.process.dataclass import dataclass
from .codec import Codec, CodedField
from .dtypes import dtype_to_json
from .image_files import (
    JPEG_MAGIC,
    MODES,
    PNG_MAGIC,
    ImageHeader,
    check_mode,
    imagecodecs,
    opened,
    pillow,
    pixels,
    read_header,
)

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

_FORMATS = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "webp": "webp"}
_CHANNELS = {"png": (1, 2, 3, 4), "jpeg": (1, 3), "webp": (3, 4)}
_JPEG_COLORS = {1: "GRAY", 3: "RGB"}
_JPEG_MODES = {"Gray": "L", "CMYK": "CMYK", "YCCK": "CMYK"}


@dataclass(frozen=True)
class CompressedImageCodec(Codec):
    """An image of shape ``(H, W)``, ``(H, W, 1)``, ``(H, W, 3)`` (RGB) or ``(H, W, 4)`` (RGBA); H, W may be ``None``.

        >>> field = UnischemaField("image", "uint8", (None, None, 3), CompressedImageCodec("jpeg", quality=90))
        >>> write_dataset(directory, Unischema("pictures", [field]), [{"image": np.zeros((4, 5, 3), np.uint8)}])
        >>> next(iter(Pipeline(directory)))["image"].shape
        (4, 5, 3)

    Args:
        image_codec: ``"png"`` (uint8 or uint16, lossless), ``"jpeg"`` (uint8) or ``"webp"`` (uint8).
        quality: 1 to 100, for JPEG and WebP.
        convert: how to decode files whose channels or depth differ from the field's. ``True`` converts them: grayscale,
            color, CMYK, palettes, 8 and 16 bits; alpha is dropped, or added as opaque. ``False`` makes them an error.
            ``None`` converts only what decoders convert by themselves: JPEG (grayscale, color, CMYK), palettes, 16-bit
            color, and WebP without alpha, as libwebp drops opaque alpha. EXIF orientation is always ignored.

    Write rows as arrays, or as the ``bytes`` of an image file, which are stored unchanged. The file must have this
    format, and its header must fit the field. With ``convert=True``, all three formats are accepted.
    """

    kind: ClassVar[str] = "image"
    costly: ClassVar[bool] = True
    takes_encoded: ClassVar[bool] = True
    image_codec: str = "png"
    quality: int = 80
    convert: bool | None = None

    def check(self) -> None:
        name = _FORMATS.get(str(self.image_codec).lower().lstrip("."))
        if name is None:
            raise SchemaError(f"image codec: expected 'png', 'jpeg' or 'webp', got {self.image_codec!r}.")
        if type(self.quality) is int and not 1 <= self.quality <= 100:  # other types are refused after this
            raise SchemaError(f"quality of image codec '{name}': expected 1 to 100, got {self.quality}.")
        object.__setattr__(self, "image_codec", name)

    @property
    def frees_interpreter(self) -> bool:
        return self.image_codec == "jpeg" and simplejpeg is not None

    def check_field(self, field: CodedField) -> None:
        dtypes = ("uint8", "uint16") if self.image_codec == "png" else ("uint8",)
        if dtype_to_json(field.dtype) not in dtypes:
            raise SchemaError(
                f"codec of field '{field.name}': {self.image_codec} images expected dtype {' or '.join(dtypes)}, "
                f"got {field.dtype}."
            )
        channels = channel_count(field.shape)
        if channels not in _CHANNELS[self.image_codec] or len(field.shape) not in (2, 3):
            raise SchemaError(
                f"codec of field '{field.name}': {self.image_codec} images expected shape (H, W) or (H, W, C) with C "
                f"in {_CHANNELS[self.image_codec]}, got {field.shape}."
            )

    def encode(self, field: CodedField, value: object) -> bytes:
        if isinstance(value, bytes):
            try:
                self.check_stored(field, memoryview(value))
            except ValueError as error:
                raise ValueError(f"expected the bytes of an image of shape {field.shape}, got {error}") from error
            return value
        image = np.ascontiguousarray(value, dtype=field.dtype)  # also byte-swaps big-endian pixels
        channels = _channels_of(image)
        if not image.size:
            raise ValueError(f"expected an image with pixels, got shape {image.shape}")
        if self.image_codec == "jpeg" and simplejpeg is not None:
            image = image.reshape(*image.shape[:2], channels)
            subsampling = "Gray" if channels == 1 else "420"
            return bytes(simplejpeg.encode_jpeg(image, self.quality, _JPEG_COLORS[channels], subsampling))
        if image.dtype == np.uint16 and channels == 2 and not self.convert:
            raise ValueError("expected 1, 3 or 4 channels of uint16, got 2, which only convert=True can read again")
        if image.dtype == np.uint16 and channels > 1:
            return bytes(imagecodecs(field).png_encode(image))
        stream = io.BytesIO()
        flat = image.reshape(image.shape[:2]) if channels == 1 else image
        options = {} if self.image_codec == "png" else {"quality": self.quality}
        pillow(field).fromarray(flat).save(stream, self.image_codec, **options)
        return stream.getvalue()

    def shape_of(self, field: CodedField, data: memoryview) -> tuple[int, ...]:
        height, width = _image_size(field, data)
        return (height, width, *field.shape[2:])  # type: ignore[arg-type]  # check_field refuses a variable channel axis

    def check_stored(self, field: CodedField, data: memoryview) -> None:
        header = self._header(field, data.cast("B"))
        if header.format != self.image_codec and not (self.convert and header.format in _CHANNELS):
            raise ValueError(
                f"a {header.format} file in a field of {self.image_codec} files. Decode it and write the array, or "
                "declare the field with convert=True in its codec"
            )
        super().check_stored(field, data)
        check_mode(header, np.dtype(field.dtype), channel_count(field.shape) or 0, self.convert)

    def _header(self, field: CodedField, data: memoryview) -> ImageHeader:
        if bytes(data[:2]) == JPEG_MAGIC and simplejpeg is not None:
            height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
            return ImageHeader(format="jpeg", height=height, width=width, mode=_JPEG_MODES.get(colors, "RGB"))
        return read_header(field, data)

    def decode_into(self, field: CodedField, data: memoryview, out: np.ndarray) -> None:
        data = data.cast("B")  # Arrow buffers have signed bytes, which the decoders refuse
        channels = _channels_of(out)
        fits_buffer = out.flags.c_contiguous and out.dtype == np.uint8 and channels in _JPEG_COLORS
        if bytes(data[:2]) == JPEG_MAGIC and simplejpeg is not None and fits_buffer:
            if self.convert is False:
                check_mode(self._header(field, data), out.dtype, channels, self.convert)
            try:
                size = simplejpeg.decode_jpeg(data, _JPEG_COLORS[channels], buffer=out).shape[:2]
            except ValueError:  # damaged, or too large for the buffer
                size = simplejpeg.decode_jpeg_header(data)[:2]
                if size == out.shape[:2]:
                    raise
            if size != out.shape[:2]:
                raise ValueError(f"expected an image of shape {out.shape}, got {(*size, *out.shape[2:])}")
            return
        image = pixels(field, data, out.shape, out.dtype, channels, self.convert)
        if image.dtype != out.dtype:
            raise ValueError(f"expected an image of dtype {out.dtype}, got {image.dtype}")
        if image.size != out.size or image.shape[:2] != out.shape[:2]:
            raise ValueError(f"expected an image of shape {out.shape}, got {image.shape}")
        out[...] = image.reshape(out.shape)

    def decode_reduced_into(self, data: memoryview, factor: int, out: np.ndarray) -> bool:
        """Decodes a JPEG at ``1 / factor`` (2, 4 or 8) of its size, rounded up. Scaling in the DCT domain skips much of
        the work. Returns False and does nothing if the image is not a JPEG or must not be converted, or if ``out`` is
        not a contiguous uint8 buffer.
        """
        data = data.cast("B")
        channels = _channels_of(out)
        fits_buffer = out.flags.c_contiguous and out.dtype == np.uint8 and channels in _JPEG_COLORS
        if bytes(data[:2]) != JPEG_MAGIC or simplejpeg is None or not fits_buffer:
            return False
        height, width, colors, _ = simplejpeg.decode_jpeg_header(data)
        if self.convert is False and _JPEG_MODES.get(colors, "RGB") != MODES[channels]:
            return False
        if (-(-height // factor), -(-width // factor)) != out.shape[:2]:
            raise ValueError(f"expected an image of 1 / {factor} of {height} x {width}, got room for {out.shape}")
        least = {"min_height": out.shape[0], "min_width": out.shape[1], "min_factor": factor}
        image = simplejpeg.decode_jpeg(data, _JPEG_COLORS[channels], buffer=out, **least)
        if image.shape[:2] != out.shape[:2]:
            raise ValueError(f"expected a reduced image of shape {out.shape}, got {image.shape}")
        return True

    def decode_part_into(self, data: memoryview, size: tuple[int, int], factor: int, box: Box, out: np.ndarray) -> bool:
        """Decodes a part of a JPEG of ``size`` (H, W) at ``1 / factor`` (1, 2, 4 or 8) of its size, rounded up.

        ``box`` is a part of the reduced image. The pixels are those of the whole image. Returns False, with anything in
        ``out``, if that is not possible here. Decode the whole image then, which raises if it is damaged.
        """
        data = data.cast("B")
        channels = _channels_of(out)
        fits_buffer = out.flags.c_contiguous and out.dtype == np.uint8 and channels in _JPEG_COLORS
        if bytes(data[:2]) != JPEG_MAGIC or simplejpeg is None or not fits_buffer:
            return False
        if self.convert is False:
            colors = simplejpeg.decode_jpeg_header(data)[2]
            if _JPEG_MODES.get(colors, "RGB") != MODES[channels]:
                return False
        return decode_part(data, size, factor, box, out)

    def to_json(self) -> dict[str, Any]:
        stored = {"kind": self.kind, "image_codec": self.image_codec, "quality": self.quality}
        return stored if self.convert is None else {**stored, "convert": self.convert}


def channel_count(shape: tuple[int | None, ...]) -> int | None:
    """Returns the number of channels in an image shape; ``(H, W)`` has one."""
    return shape[2] if len(shape) == 3 else 1


def _channels_of(image: np.ndarray) -> int:
    return image.shape[2] if image.ndim == 3 else 1


def _image_size(field: CodedField, data: memoryview) -> tuple[int, int]:
    data = data.cast("B")
    if bytes(data[:8]) == PNG_MAGIC and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        return height, width
    if bytes(data[:2]) == JPEG_MAGIC and simplejpeg is not None:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        return height, width
    with opened(field, data) as image:
        return image.height, image.width
