"""`CompressedImageCodec`: PNG, JPEG and WebP.

JPEG goes through simplejpeg (libjpeg-turbo, straight into the batch buffer) and through Pillow where that is absent;
PNG of more than one 16-bit channel through imagecodecs, because Pillow reads it at 8 bits; all else through Pillow.
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from ..errors import CodecUnavailableError, SchemaError
from .codec import Codec, CodedField
from .dtypes import dtype_to_json

try:
    import simplejpeg
except ImportError:
    simplejpeg = None

_FORMATS = {"png": "png", "jpeg": "jpeg", "jpg": "jpeg", "webp": "webp"}
_CHANNELS = {"png": (1, 2, 3, 4), "jpeg": (1, 3), "webp": (3, 4)}
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_JPEG_COLORS = {1: "GRAY", 3: "RGB"}
_JPEG_MAGIC = b"\xff\xd8"
_PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True)
class CompressedImageCodec(Codec):
    """An image of shape ``(H, W)``, ``(H, W, 1)``, ``(H, W, 3)`` (RGB) or ``(H, W, 4)`` (RGBA), H and W maybe ``None``.

    Args:
        image_codec: ``"png"`` (uint8 or uint16, lossless), ``"jpeg"`` (uint8) or ``"webp"`` (uint8).
        quality: 1 to 100, for JPEG and WebP.
    """

    kind: ClassVar[str] = "image"
    costly: ClassVar[bool] = True
    image_codec: str = "png"
    quality: int = 80

    def check(self) -> None:
        name = _FORMATS.get(str(self.image_codec).lower().lstrip("."))
        if name is None:
            raise SchemaError(f"image codec: expected 'png', 'jpeg' or 'webp', got {self.image_codec!r}.")
        if not 1 <= self.quality <= 100:
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
        image = np.ascontiguousarray(value, dtype=field.dtype)  # also turns big-endian pixels round
        channels = _channels_of(image)
        if self.image_codec == "jpeg" and simplejpeg is not None:
            image = image.reshape(*image.shape[:2], channels)
            subsampling = "Gray" if channels == 1 else "420"
            return bytes(simplejpeg.encode_jpeg(image, self.quality, _JPEG_COLORS[channels], subsampling))
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

    def decode_into(self, field: CodedField, data: memoryview, out: np.ndarray) -> None:
        data = data.cast("B")  # an Arrow buffer has signed bytes, which the decoders refuse
        channels = _channels_of(out)
        fits_buffer = out.flags.c_contiguous and out.dtype == np.uint8 and channels in _JPEG_COLORS
        if bytes(data[:2]) == _JPEG_MAGIC and simplejpeg is not None and fits_buffer:
            image = simplejpeg.decode_jpeg(data, _JPEG_COLORS[channels], buffer=out)
            if image.shape[:2] != out.shape[:2]:
                raise ValueError(f"expected an image of shape {out.shape}, got {image.shape}")
            return
        if out.dtype == np.uint16 and channels > 1:
            image = _decode_with_imagecodecs(field, data)
        else:
            image = _decode_with_pillow(field, data, out.dtype, channels)
        if image.dtype != out.dtype:
            raise ValueError(f"expected an image of dtype {out.dtype}, got {image.dtype}")
        if image.size != out.size or image.shape[:2] != out.shape[:2]:
            raise ValueError(f"expected an image of shape {out.shape}, got {image.shape}")
        out[...] = image.reshape(out.shape)

    def decode_reduced_into(self, data: memoryview, factor: int, out: np.ndarray) -> bool:
        """Decodes a JPEG at ``1 / factor`` (2, 4 or 8) of its size, rounded up, in the DCT domain: much of the work is
        never done. False, and nothing done, where the image is no JPEG or ``out`` no plain uint8 buffer.
        """
        data = data.cast("B")
        channels = _channels_of(out)
        fits_buffer = out.flags.c_contiguous and out.dtype == np.uint8 and channels in _JPEG_COLORS
        if bytes(data[:2]) != _JPEG_MAGIC or simplejpeg is None or not fits_buffer:
            return False
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        if (-(-height // factor), -(-width // factor)) != out.shape[:2]:
            raise ValueError(f"expected an image of 1 / {factor} of {height} x {width}, got room for {out.shape}")
        least = {"min_height": out.shape[0], "min_width": out.shape[1], "min_factor": factor}
        image = simplejpeg.decode_jpeg(data, _JPEG_COLORS[channels], buffer=out, **least)
        if image.shape[:2] != out.shape[:2]:
            raise ValueError(f"expected a reduced image of shape {out.shape}, got {image.shape}")
        return True

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "image_codec": self.image_codec, "quality": self.quality}


def channel_count(shape: tuple[int | None, ...]) -> int | None:
    """The number of channels of an image shape; ``(H, W)`` has one."""
    return shape[2] if len(shape) == 3 else 1


def _channels_of(image: np.ndarray) -> int:
    return image.shape[2] if image.ndim == 3 else 1


def pillow(field: CodedField) -> ModuleType:
    """Pillow's ``Image`` module, or an error that says how to get it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise CodecUnavailableError(
            f"codec of field '{field.name}': images need Pillow, which is not installed. Run: pip install pillow"
        ) from error
    return Image


def imagecodecs(field: CodedField) -> ModuleType:
    """The imagecodecs module, or an error that says how to get it."""
    try:
        import imagecodecs
    except ImportError as error:
        raise CodecUnavailableError(
            f"codec of field '{field.name}': 16-bit images of several channels need imagecodecs, which is not "
            "installed. Run: pip install imagecodecs"
        ) from error
    return imagecodecs


def _image_size(field: CodedField, data: memoryview) -> tuple[int, int]:
    data = data.cast("B")
    if bytes(data[:8]) == _PNG_MAGIC and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        return height, width
    if bytes(data[:2]) == _JPEG_MAGIC and simplejpeg is not None:
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        return height, width
    with _opened(field, data) as image:
        return image.height, image.width


@contextlib.contextmanager
def _opened(field: CodedField, data: memoryview) -> Iterator[Any]:
    """The Pillow image; Pillow's errors for broken and truncated files become ``ValueError``."""
    module = pillow(field)
    try:
        with module.open(io.BytesIO(data)) as image:
            yield image
    except (OSError, EOFError, SyntaxError, struct.error, module.DecompressionBombError) as error:
        raise ValueError(str(error)) from error


def _decode_with_pillow(field: CodedField, data: memoryview, dtype: np.dtype[Any], channels: int) -> np.ndarray:
    with _opened(field, data) as image:
        if dtype == np.uint16:
            if not image.mode.startswith("I"):
                raise ValueError(f"expected a 16-bit grey image, got mode {image.mode}")
            return np.asarray(image).astype(np.uint16)
        mode = _MODES[channels]
        if _is_same_picture(image, mode):
            image = image.convert(mode)
        if image.mode != mode:
            raise ValueError(f"expected an image of mode {mode} ({channels} channels), got {image.mode}")
        return np.asarray(image)


def _is_same_picture(image: Any, mode: str) -> bool:
    """Whether ``mode`` is only another way to hold what is stored."""
    if image.format == "JPEG":
        return image.mode in ("L", "RGB")  # as libjpeg-turbo does: colours to grey and back on demand
    if image.format == "WEBP":
        return image.mode == "RGB" and mode == "RGBA"  # libwebp drops an alpha channel that hides nothing
    return image.mode == "P" and mode in ("RGB", "RGBA")


def _decode_with_imagecodecs(field: CodedField, data: memoryview) -> np.ndarray:
    try:
        result: np.ndarray = imagecodecs(field).png_decode(data)
        return result
    except RuntimeError as error:  # imagecodecs' own error for broken files
        raise ValueError(str(error)) from error
