"""Resizes, flips and normalizes one image, each into memory that the caller provides.

Images are ``(H, W)`` or ``(H, W, C)``. Each interpolation has one fixed implementation: numpy for ``"nearest"``, and
OpenCV for all others. For operations that only copy (flips, planes), numpy replaces a missing OpenCV with the same
result.
"""

from __future__ import annotations

import math
import os
from functools import lru_cache
from types import ModuleType

import numpy as np

from ...base.errors import CodecUnavailableError, missing_package
from ...base.memory.arena import SCRATCH
from ...base.native.kernels import normalize
from ...base.process.forks import importing
from ...stages.image_base import RESIZABLE


@lru_cache(maxsize=1)
def opencv() -> ModuleType:
    """Imports OpenCV, or raises an error that names the extra to install.

    The number of OpenCV's threads is left alone, because the trainer may use OpenCV itself. Only a forked child runs
    without them, because the threads of OpenCV's pool do not exist in it.
    """
    try:
        with importing():
            import cv2
    except ImportError as error:
        raise CodecUnavailableError(
            f"resizing images: {missing_package(error, 'cv2', 'images')} (OpenCV), or use interpolation='nearest'."
        ) from error
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: cv2.setNumThreads(0))
    return cv2


@lru_cache(maxsize=1)
def _opencv_if_installed() -> ModuleType | None:
    try:
        return opencv()
    except CodecUnavailableError:
        return None


def resize_into(image: np.ndarray, out: np.ndarray, interpolation: str) -> None:
    """Resizes ``image`` into ``out`` (C-contiguous, same dtype and channels).

    ``"area"`` averages pixels if both sides shrink. Otherwise, it equals ``"bilinear"``.
    """
    if image.shape == out.shape:
        np.copyto(out, image)
        return
    if image.ndim == 3 and image.shape[2] == 1:
        image, out = image[..., 0], out[..., 0]
    if interpolation == "nearest":
        _nearest(image, out)
        return
    cv2 = opencv()
    height, width = out.shape[:2]
    shrinks = image.shape[0] >= height and image.shape[1] >= width
    flag = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC, "area": cv2.INTER_LINEAR}[interpolation]
    if interpolation == "area" and shrinks:
        flag = cv2.INTER_AREA
    made = cv2.resize(image, (width, height), dst=out, interpolation=flag)
    if made is not out and not np.shares_memory(made, out):
        np.copyto(out, made.reshape(out.shape))


def _nearest(image: np.ndarray, out: np.ndarray) -> None:
    """Takes, for each new pixel, the old pixel that contains its center."""
    (height, width), (old_height, old_width) = out.shape[:2], image.shape[:2]
    rows = (2 * np.arange(height) + 1) * old_height // (2 * height)
    columns = (2 * np.arange(width) + 1) * old_width // (2 * width)
    taken = np.take(image, rows, axis=0)
    whole = np.dtype((np.void, taken.dtype.itemsize * math.prod(taken.shape[2:])))  # moves each pixel as one value
    pixels = np.take(taken.reshape(height, old_width, -1).view(whole)[..., 0], columns, axis=1)
    np.copyto(out, pixels.view(out.dtype).reshape(out.shape))


def flip_into(image: np.ndarray, out: np.ndarray, axis: int) -> None:
    """Writes ``image``, mirrored along ``axis`` (0: upside down, 1: left and right swapped), into ``out``."""
    cv2 = _opencv_if_installed() if out.flags.c_contiguous and image.dtype in RESIZABLE else None
    if cv2 is None or (image.ndim == 3 and image.shape[2] > 4):
        np.copyto(out, np.flip(image, axis))
        return
    if image.ndim == 3 and image.shape[2] == 1:
        image, out = image[..., 0], out[..., 0]
    made = cv2.flip(image, axis, dst=out)
    if made is not out and not np.shares_memory(made, out):
        np.copyto(out, made.reshape(out.shape))


def copy_into(image: np.ndarray, out: np.ndarray) -> None:
    """Copies an image. If ``out`` has its channels first in memory, splits them in one pass."""
    if _is_planar(out):
        for channel, plane in enumerate(_planes(image)):
            np.copyto(out[..., channel], plane, casting="no")
    else:
        np.copyto(out, image, casting="no")


def normalize_into(image: np.ndarray, out: np.ndarray, multiply: np.ndarray, subtract: np.ndarray) -> None:
    """Writes ``float32(image) * multiply - subtract`` into ``out``.

    ``multiply`` and ``subtract`` are float32 ``[C]``, and every step is rounded to float32. ``out`` is float32 or
    float16, and may have its channels first in memory.
    """
    if image.ndim == 2:
        image, out = image[..., None], out[..., None]
    to = _normalize_to_half if out.dtype == np.float16 else normalize
    to(image, out, multiply, subtract)


def _normalize_to_half(image: np.ndarray, out: np.ndarray, multiply: np.ndarray, subtract: np.ndarray) -> None:
    if image.dtype == np.uint8:  # uses a table, because numpy's conversion to half precision would dominate the cost
        values = np.arange(256, dtype=np.float32)
        with np.errstate(over="ignore"):
            tables = (values * multiply[:, None] - subtract[:, None]).astype(np.float16)
        for channel, plane in enumerate(_planes(image)):
            np.copyto(out[..., channel], tables[channel].take(plane))
        return
    single = np.empty(image.shape, np.float32)
    normalize(image, single, multiply, subtract)
    with np.errstate(over="ignore"):
        np.copyto(out, single, casting="same_kind")


def _is_planar(out: np.ndarray) -> bool:
    return out.ndim == 3 and out.shape[2] > 1 and abs(out.strides[2]) > abs(out.strides[1])


def _planes(image: np.ndarray) -> list[np.ndarray]:
    """Returns the channels of an image, contiguous if that is cheap."""
    cv2 = _opencv_if_installed() if image.dtype in RESIZABLE and image.shape[2] > 1 else None
    if cv2 is None:
        return [image[..., channel] for channel in range(image.shape[2])]
    height, width, channels = image.shape
    planes = SCRATCH.array("planes", (channels, height, width), image.dtype)
    return list(cv2.split(image, list(planes)))
