"""Resizes, flips and normalizes one image, each into memory that the caller provides.

Images are ``(H, W)`` or ``(H, W, C)``. `base.native.pixels` does the work, except for ``"nearest"``, which takes any
dtype.
"""

from __future__ import annotations

import math

import numpy as np

from ...base.native.kernels import copy_image, normalize, resize
from ...base.native.pixels import FILTERS, MIRRORED, UPSIDE_DOWN


def resize_into(image: np.ndarray, out: np.ndarray, interpolation: str, *, antialias: bool = True) -> None:
    """Resizes ``image`` into ``out`` (same dtype and channels), as `base.native.pixels.resize` does."""
    if image.shape == out.shape:
        np.copyto(out, image)
    elif interpolation == "nearest":
        _nearest(image, out)
    else:
        resize(_with_channels(image), _with_channels(out), FILTERS[interpolation, antialias])


def _with_channels(image: np.ndarray) -> np.ndarray:
    return image if image.ndim == 3 else image[..., None]


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
    copy_image(_with_channels(image), _with_channels(out), UPSIDE_DOWN if axis == 0 else MIRRORED)


def copy_into(image: np.ndarray, out: np.ndarray) -> None:
    """Copies an image, also into one with its channels first in memory."""
    copy_image(_with_channels(image), _with_channels(out))


def normalize_into(image: np.ndarray, out: np.ndarray, multiply: np.ndarray, subtract: np.ndarray) -> None:
    """Writes ``float32(image) * multiply - subtract`` into ``out``.

    ``multiply`` and ``subtract`` are float32 ``[C]``, and every step is rounded to float32. ``out`` is float32 or
    float16, and may have its channels first in memory.
    """
    to = _normalize_to_half if out.dtype == np.float16 else normalize
    to(_with_channels(image), _with_channels(out), multiply, subtract)


def _normalize_to_half(image: np.ndarray, out: np.ndarray, multiply: np.ndarray, subtract: np.ndarray) -> None:
    if image.dtype == np.uint8:  # uses a table, because numpy's conversion to half precision would dominate the cost
        values = np.arange(256, dtype=np.float32)
        with np.errstate(over="ignore"):
            tables = (values * multiply[:, None] - subtract[:, None]).astype(np.float16)
        for channel in range(image.shape[2]):
            np.copyto(out[..., channel], tables[channel].take(image[..., channel]))
        return
    single = np.empty(image.shape, np.float32)
    normalize(image, single, multiply, subtract)
    with np.errstate(over="ignore"):
        np.copyto(out, single, casting="same_kind")
