"""Image files: parses their headers and converts their pixels to the channels and dtype of a field.

Takes the bytes of a JPEG, PNG or WebP file (Pillow may support more formats) and returns sizes, modes and arrays. A
broken file raises ``ValueError``. EXIF orientation is ignored.
"""

from __future__ import annotations

import contextlib
import io
import struct
from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.errors import CodecUnavailableError, missing_package
from ..base.process.dataclass import dataclass
from ..base.process.forks import importing
from .codec import CodedField

if TYPE_CHECKING:
    from PIL.Image import Image

MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
JPEG_MAGIC = b"\xff\xd8"
PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_DEEP = ";16"
_WIDE = ("I", "F")  # int32 and float32, in TIFF files
_PHOTOGRAPHS = ("L", "RGB", "CMYK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    """The facts in the header of an image file.

    Attributes:
        format: ``"jpeg"``, ``"png"``, ``"webp"``, or another format that Pillow supports.
        mode: Pillow's name for the channels: ``"L"`` is grayscale, ``"P"`` a palette, ``"RGB;16"`` has 16 bits each.
    """

    format: str
    height: int
    width: int
    mode: str

    def is_same_picture(self, mode: str) -> bool:
        """Whether decoders deliver this file in ``mode`` without an explicit conversion."""
        if self.format == "jpeg":  # libjpeg-turbo converts these while it decodes
            return self.mode in _PHOTOGRAPHS and mode in ("L", "RGB")
        if self.format == "webp":  # libwebp drops an alpha channel that is fully opaque
            return self.mode == "RGB" and mode == "RGBA"
        return (self.mode == "P" and mode in ("RGB", "RGBA")) or (self.mode != "L;16" and self.mode == f"{mode}{_DEEP}")


def is_image_file(data: memoryview) -> bool:
    """Whether bytes begin like a JPEG, PNG or WebP file."""
    head = bytes(data[:12])
    return head.startswith((JPEG_MAGIC, PNG_MAGIC)) or head[8:] == b"WEBP"


def wanted_mode(dtype: np.dtype[Any], channels: int) -> str:
    """Returns the `ImageHeader.mode` of a file that has this dtype and number of channels."""
    return MODES[channels] + (_DEEP if dtype == np.uint16 else "")


def check_mode(header: ImageHeader, dtype: np.dtype[Any], channels: int, convert: bool | None) -> None:
    """Raises ``ValueError`` if the image's mode must not be converted; see `CompressedImageCodec`."""
    mode = wanted_mode(dtype, channels)
    if convert or header.mode == mode or (convert is None and header.is_same_picture(mode)):
        return
    if mode == "L;16":
        expected = f"expected a 16-bit grayscale image, got mode {header.mode}"
    else:
        expected = f"expected an image of mode {mode} ({channels} channels), got {header.mode}"
    raise ValueError(f"{expected}. Declare the field with convert=True in its codec to convert such images")


def read_header(field: CodedField, data: memoryview) -> ImageHeader:
    """Reads the header of an image file.

    Raises:
        ValueError: the bytes are not an image.
    """
    with opened(field, data) as image:
        return _header_of(image, data)


def _header_of(image: Image, data: memoryview) -> ImageHeader:
    mode = image.mode
    if image.format == "PNG" and data[24] == 16:
        mode = ("L" if mode.startswith("I") else mode) + _DEEP
    elif mode.startswith("I;16"):  # TIFF, in either byte order
        mode = "L" + _DEEP
    name = "jpeg" if image.format == "MPO" else str(image.format).lower()  # cameras write several JPEGs in one file
    return ImageHeader(format=name, height=image.height, width=image.width, mode=mode)


def pixels(
    field: CodedField,
    data: memoryview,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    channels: int,
    convert: bool | None,
) -> np.ndarray:
    """Decodes the image as ``(H, W)`` or ``(H, W, channels)`` of ``dtype`` (uint8 or uint16).

    Args:
        shape: begins with the expected height and width. An image of another size is not decoded.

    Raises:
        ValueError: the bytes do not decode, the size differs, or the mode must not be converted.
    """
    with opened(field, data) as image:
        header = _header_of(image, data)
        check_mode(header, dtype, channels, convert)
        if (header.height, header.width) != shape[:2]:
            raise ValueError(f"expected an image of shape {shape}, got {(header.height, header.width, *shape[2:])}")
        if header.mode.endswith(_DEEP) and dtype == np.uint16:
            stored = np.asarray(image).astype(np.uint16) if header.mode == "L;16" else _deep(field, data)
            return _with_channels(stored, channels)
        if header.mode in _WIDE:
            return _with_channels(_exact(np.asarray(image), dtype), channels)
        if header.mode == "L;16":
            image = pillow(field).fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode != MODES[channels]:
            image = image.convert(MODES[channels])
        array = np.asarray(image)
    return array.astype(np.uint16) * 257 if dtype == np.uint16 else array


def _with_channels(image: np.ndarray, channels: int) -> np.ndarray:
    """Converts colors to gray by luma (ITU-R 601) and gray to colors. Alpha is dropped, or added as opaque."""
    image = image.reshape(*image.shape[:2], -1)
    if image.shape[2] == channels:
        return image
    has_alpha = image.shape[2] in (2, 4)
    colors = image[..., :-1] if has_alpha else image
    if channels < 3 and colors.shape[2] == 3:
        mixed = (colors.astype(np.uint32) * np.array([299, 587, 114], np.uint32)).sum(axis=2, keepdims=True)
        colors = ((mixed + 500) // 1000).astype(image.dtype)
    elif channels >= 3 and colors.shape[2] == 1:
        colors = colors.repeat(3, axis=2)
    if channels in (1, 3):
        return colors
    opaque = np.full((*image.shape[:2], 1), np.iinfo(image.dtype).max, image.dtype)
    return np.concatenate([colors, image[..., -1:] if has_alpha else opaque], axis=2)


def _exact(values: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Casts 32-bit values, such as class numbers, which have no range to scale by."""
    with np.errstate(invalid="ignore"):  # NaN, which is refused below
        result = values.astype(dtype)
    if not np.array_equal(result, values):
        raise ValueError(
            f"expected values of {dtype} in an image of {values.dtype}, got {values.min()} to {values.max()}. Read the "
            "field as bytes and decode it in transform()"
        )
    return result


def pillow(field: CodedField) -> ModuleType:
    """Returns Pillow's ``Image`` module, or raises an error that says how to install it."""
    try:
        return _pillow()
    except ImportError as error:
        raise CodecUnavailableError(
            f"codec of field '{field.name}': images need Pillow, which is not installed. Run: pip install pillow"
        ) from error


def pixel_limit() -> int | None:
    """Returns how many pixels Pillow accepts in an image (``PIL.Image.MAX_IMAGE_PIXELS``); ``None`` = any number."""
    try:
        limit: int | None = _pillow().MAX_IMAGE_PIXELS
    except ImportError:
        return None
    return limit


@lru_cache(maxsize=1)
def _pillow() -> ModuleType:
    with importing():
        from PIL import Image, WebPImagePlugin  # noqa: F401  # `preinit` loads the other formats

        Image.preinit()
    return Image


def imagecodecs(field: CodedField) -> ModuleType:
    """Returns the imagecodecs module, or raises an error that says how to install it."""
    try:
        return _imagecodecs()
    except ImportError as error:
        raise CodecUnavailableError(
            f"codec of field '{field.name}', 16-bit images of several channels: "
            + missing_package(error, "imagecodecs", "image16")
        ) from error


@lru_cache(maxsize=1)
def _imagecodecs() -> ModuleType:
    with importing():
        import imagecodecs
    return imagecodecs


@contextlib.contextmanager
def opened(field: CodedField, data: memoryview) -> Iterator[Any]:
    """Opens an image with Pillow. Pillow's errors for broken and truncated files become ``ValueError``."""
    module = pillow(field)
    try:
        with module.open(io.BytesIO(data)) as image:
            yield image
    except module.UnidentifiedImageError as error:  # its own message holds the address of a stream
        raise ValueError(f"cannot identify image file that begins with {bytes(data[:8])!r}") from error
    except (OSError, EOFError, SyntaxError, struct.error, module.DecompressionBombError) as error:
        raise ValueError(str(error)) from error


def _deep(field: CodedField, data: memoryview) -> np.ndarray:
    """Decodes a 16-bit PNG without loss. Pillow would read it with 8 bits."""
    try:
        result: np.ndarray = imagecodecs(field).png_decode(data)
        return result
    except RuntimeError as error:  # imagecodecs' own error for broken files
        raise ValueError(str(error)) from error
