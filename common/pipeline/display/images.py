"""Converts images of any dtype and channel count to RGB, scales them to fit squares, and arranges them in a grid.

The inputs are field values and the outputs are uint8 arrays ``(H, W, 3)``. Dtypes other than uint8 are scaled from the
range of their values to 0..255.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...schema.element import OutputField

GAP = 2
"""The gap in pixels between two images on a sheet."""
CHANNELS = (1, 3, 4)
_GREY = 48


def is_image(output: OutputField) -> bool:
    if output.kind != "dense" or output.dtype.kind not in "uif" or output.levels:
        return False
    is_gray = len(output.shape) == 2 and (output.dims is None or "C" not in output.dims) and output.dtype.kind == "u"
    return is_gray or (len(output.shape) == 3 and (output.shape[2] in CHANNELS or output.shape[0] in CHANNELS))


def images_of(value: Any, output: OutputField) -> list[np.ndarray]:
    """The images in a value: one, or one per step of a window. A null becomes a black pixel."""
    if value is None:
        return [np.zeros((1, 1, 3), np.uint8)]
    steps = [value] if output.window is None else [value[step] for step in range(len(value))]
    images = [np.asarray(step) for step in steps]
    is_planar = output.dims is not None and output.dims[0] == "C"
    return [as_rgb(image.transpose(1, 2, 0) if is_planar else image) for image in images]


def as_rgb(image: np.ndarray) -> np.ndarray:
    """Converts an image of any dtype and channel count to uint8 ``(H, W, 3)``."""
    if image.ndim == 3 and image.shape[2] not in CHANNELS:
        image = image.transpose(1, 2, 0)
    if image.dtype != np.uint8:
        values = np.nan_to_num(image.astype(np.float64))
        low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
        image = ((values - low) * (255 / (high - low) if high > low else 0)).astype(np.uint8)
    image = image[..., None] if image.ndim == 2 else image
    if image.shape[2] == 4:
        alpha = image[..., 3:].astype(np.uint16)
        image = ((image[..., :3] * alpha + 255 * (255 - alpha)) // 255).astype(np.uint8)
    return np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image


def fitted(image: np.ndarray, size: int) -> np.ndarray:
    """Scales an image to fit a square of ``size`` pixels, and centers it."""
    from PIL import Image

    height, width = image.shape[:2]
    scale = size / max(height, width, 1)
    new_size = max(1, round(width * scale)), max(1, round(height * scale))
    method = Image.Resampling.NEAREST if scale >= 2 else Image.Resampling.BILINEAR
    small = np.asarray(Image.fromarray(np.ascontiguousarray(image)).resize(new_size, method))
    result = np.full((size, size, 3), _GREY, np.uint8)
    top, left = (size - small.shape[0]) // 2, (size - small.shape[1]) // 2
    result[top : top + small.shape[0], left : left + small.shape[1]] = small
    return result


def laid_out(lines: Sequence[Sequence[np.ndarray]], tile: int) -> np.ndarray:
    across = max((len(line) for line in lines), default=1)
    step = tile + GAP
    sheet = np.full((max(len(lines), 1) * step - GAP, across * step - GAP, 3), _GREY // 2, np.uint8)
    for row, line in enumerate(lines):
        for column, image in enumerate(line):
            sheet[row * step : row * step + tile, column * step : column * step + tile] = image
    return sheet


def data_url(pixels: np.ndarray) -> str:
    """Encodes an image (uint8 ``(H, W, 3)``) as a PNG data URL, for self-contained pages."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format="png")
    return f"data:image/png;base64,{base64.b64encode(stream.getvalue()).decode()}"
