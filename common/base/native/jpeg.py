"""Decodes parts of JPEG images with the compiled core and libjpeg-turbo, the library that simplejpeg contains.

`decode_parts` takes many images in one call, without the interpreter lock, and finishes each: resizes it, mirrors it,
normalizes it and puts it in the layout of its target. The pixels are exactly those of simplejpeg and of `pixels`.
Trials confirm that simplejpeg's are when libjpeg-turbo is loaded, from Pillow's wheel or else from the system.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ..process.dataclass import dataclass
from ..process.forks import importing
from .library import CORE, address_of
from .pixels import MIRRORED, UPSIDE_DOWN

Box = tuple[int, int, int, int]
"""``(top, left, height, width)`` in pixels."""

_PART = np.dtype(
    [
        *((name, np.int64) for name in ("data", "bytes", "height", "width", "factor")),
        ("box", np.int64, 4),
        *((name, np.int64) for name in ("channels", "reads_all", "new_height", "new_width", "filter")),
        *((name, np.int64) for name in ("mirrored", "upside_down", "pixels", "row", "pixel", "channel", "decoded")),
    ]
)  # `Part` in jpeg.cc
_SUBSAMPLINGS = ("444", "422", "420", "440", "411")
_TRIAL_SIZE = (45, 61)
_TRIAL_BOXES = ((0, 0, 17, 9), (20, 33, 21, 17), (16, 16, 16, 16), (44, 60, 1, 1))


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of JPEG images to decode; one row for each image.

    Attributes:
        data: the address of each file; int64 ``[n]``.
        bytes: the size of each file; int64 ``[n]``.
        sizes: height and width of each whole image; int64 ``[n, 2]``.
        factors: 1, 2, 4 or 8, to decode each image at ``1 / factor`` of its size, rounded up; int64 ``[n]``.
        boxes: the parts, inside the reduced images, as `Box`; int64 ``[n, 4]``.
        flips: the sum of `MIRRORED` and `UPSIDE_DOWN`; int64 ``[n]``.
        reads_all: whether each file is read to its end, so that damage is noticed anywhere in it; bool ``[n]``.
    """

    data: np.ndarray
    bytes: np.ndarray
    sizes: np.ndarray
    factors: np.ndarray
    boxes: np.ndarray
    flips: np.ndarray
    reads_all: np.ndarray


def decode_parts(
    parts: Parts,
    out: np.ndarray,
    factors: tuple[np.ndarray, np.ndarray] | None = None,
    *,
    places: np.ndarray | None = None,
    filter_number: int = 0,
) -> np.ndarray:
    """Decodes parts and resizes them to the size of ``out``, as `pixels.resize` does.

    Args:
        out: the targets ``[n, H, W, C]`` with C 1 (gray) or 3 (RGB), in any layout; uint8, or float32 with ``factors``.
        factors: two arrays (float32 ``[C]``): each value becomes ``value * first - second``, rounded after each step.
        places: the target of each image, if they are not in order; int64 ``[n]``.
        filter_number: one of `pixels.FILTERS`.

    Returns:
        Which images were decoded; bool ``[n]``. The others are not JPEG images of this size and these channels, are
        damaged, or cannot be decoded on this machine. The content of their targets is undefined.
    """
    loaded, count = _loaded(), len(parts.data)
    if loaded is None or not count:
        return np.zeros(count, bool)
    described = np.zeros(count, _PART)
    described["data"], described["bytes"] = parts.data, parts.bytes
    described["height"], described["width"] = parts.sizes[:, 0], parts.sizes[:, 1]
    described["factor"], described["box"], described["reads_all"] = parts.factors, parts.boxes, parts.reads_all
    described["new_height"], described["new_width"], described["channels"] = out.shape[1:]
    described["filter"] = filter_number
    described["mirrored"], described["upside_down"] = parts.flips & MIRRORED, parts.flips & UPSIDE_DOWN
    each, *strides = (stride // out.itemsize for stride in out.strides)
    described["pixels"] = address_of(out) + each * out.itemsize * (np.arange(count) if places is None else places)
    described["row"], described["pixel"], described["channel"] = strides
    multiply, subtract = (None, None) if factors is None else factors
    loaded.run(described, multiply, subtract)
    return described["decoded"].astype(bool)


def decode_part(data: memoryview, size: tuple[int, int], factor: int, box: Box, out: np.ndarray) -> bool:
    """Decodes a part of one JPEG image into ``out``, without resizing it. The whole file is read.

    Args:
        data: the file, as unsigned bytes.
        size: height and width of the whole image.
        factor: 1, 2, 4 or 8, to decode the image at ``1 / factor`` of its size, rounded up.
        box: the part, inside the reduced image.
        out: uint8, C-contiguous, ``[box height, box width]`` (gray) or ``[box height, box width, C]`` with C 1 or 3.

    Returns:
        False if nothing was decoded, as for `decode_parts`. Then decode the whole image.
    """
    file = np.frombuffer(data, np.uint8)
    parts = Parts(
        data=np.array([address_of(file)]),
        bytes=np.array([len(file)]),
        sizes=np.array([size]),
        factors=np.array([factor]),
        boxes=np.array([box]),
        flips=np.zeros(1, np.int64),
        reads_all=np.ones(1, bool),
    )
    return bool(decode_parts(parts, out.reshape(1, *out.shape[:2], -1))[0])


def decodes_parts() -> bool:
    """Returns whether parts of JPEG images can be decoded here."""
    return _loaded() is not None


class _Loaded:
    """libjpeg-turbo, as the compiled core uses it."""

    def __init__(self, address: int) -> None:
        self._address = address

    def run(self, parts: np.ndarray, multiply: np.ndarray | None, subtract: np.ndarray | None) -> None:
        """Decodes parts (`_PART`)."""
        pointers = [None if array is None else address_of(array) for array in (multiply, subtract)]
        CORE.parquetry_jpeg_parts(self._address, address_of(parts), len(parts), *pointers)


@lru_cache(maxsize=1)
def _loaded() -> _Loaded | None:
    with importing():
        return _first_exact()


@lru_cache(maxsize=1)  # a thread that waited for another one's trials does not repeat them
def _first_exact() -> _Loaded | None:
    for path in _libraries():
        address = CORE.parquetry_jpeg_library(os.fsencode(path))
        if address is None:
            continue
        loaded = _Loaded(address)
        if _is_exact(loaded):
            return loaded
    return None


def _libraries() -> Iterator[str]:
    spec = find_spec("PIL")
    if spec is not None and spec.origin is not None:
        yield from map(str, sorted((Path(spec.origin).parents[1] / "pillow.libs").glob("libjpeg-*.so*")))
    yield "libjpeg.so.62"
    yield "libjpeg.so.8"


def _is_exact(loaded: _Loaded) -> bool:
    """Returns whether parts of a small image are what simplejpeg decodes. Other versions of the library have another
    memory layout, which they refuse, or interpolate the edges of a part differently.
    """
    try:
        import simplejpeg
    except ImportError:
        return False
    height, width = _TRIAL_SIZE
    for data, factor in itertools.product(_trial_files(), (1, 2, 4, 8)):
        least = {"min_height": -(-height // factor), "min_width": -(-width // factor), "min_factor": factor}
        whole = simplejpeg.decode_jpeg(data, "RGB", **least)
        for top, left, high, wide in ((0, 0, height, width), *_TRIAL_BOXES):
            box = (top // factor, left // factor, max(high // factor, 1), max(wide // factor, 1))
            part = whole[box[0] : box[0] + box[2], box[1] : box[1] + box[3]]
            reads_all = factor > 1 or high == height
            tried = _tried(loaded, data, factor, box, part.shape[:2], reads_all)
            if tried is None or not np.array_equal(tried, part):
                return False
    return True


@lru_cache(maxsize=1)
def _trial_files() -> Sequence[Any]:
    import simplejpeg

    pixels = np.random.default_rng(0).integers(0, 256, (*_TRIAL_SIZE, 3), np.uint8)
    return [np.frombuffer(simplejpeg.encode_jpeg(pixels, 90, "RGB", kind), np.uint8) for kind in _SUBSAMPLINGS]


def _tried(
    loaded: _Loaded, data: np.ndarray, factor: int, box: Box, size: tuple[int, ...], reads_all: bool
) -> np.ndarray | None:
    out = np.zeros((*size, 3), np.uint8)
    part = np.zeros(1, _PART)
    numbers = (data.ctypes.data, len(data), *_TRIAL_SIZE, factor, box, 3, reads_all, *size, 0, 0, 0, out.ctypes.data)
    part[0] = (*numbers, out.strides[0], 3, 1, 0)
    loaded.run(part, None, None)
    return out if part["decoded"][0] else None
