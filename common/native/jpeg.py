"""Decodes a part of a JPEG image with the compiled core and libjpeg-turbo, the library that simplejpeg contains.

The pixels are exactly those that simplejpeg decodes. A trial image confirms that when libjpeg-turbo is loaded, from
Pillow's wheel or else from the system. The whole file is read, so damage outside the part is noticed too, but only the
part is transformed and converted to colours.
"""

from __future__ import annotations

import ctypes
import itertools
import os
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ..forks import importing
from .build import library

Box = tuple[int, int, int, int]
"""``(top, left, height, width)`` in pixels."""

_SUBSAMPLINGS = ("444", "422", "420", "440", "411")
_TRIAL_SIZE = (45, 61)
_TRIAL_BOXES = ((0, 0, 17, 9), (20, 33, 21, 17), (16, 16, 16, 16), (44, 60, 1, 1))

_Decode = Callable[[np.ndarray, np.ndarray, np.ndarray], bool]


def decode_part(data: memoryview, size: tuple[int, int], factor: int, box: Box, out: np.ndarray) -> bool:
    """Decodes a part of a JPEG image into ``out``.

    Args:
        data: the file, as unsigned bytes.
        size: height and width of the whole image.
        factor: 1, 2, 4 or 8, to decode the image at ``1 / factor`` of its size, rounded up.
        box: the part, inside the reduced image.
        out: uint8, C-contiguous, ``[box height, box width]`` (grey) or ``[box height, box width, C]`` with C 1 or 3.

    Returns:
        False if nothing was decoded: there is no compiled core or no libjpeg-turbo, this is not a JPEG image of that
        size that it converts to these channels, or it is damaged. Then decode the whole image.
    """
    decode = _loaded()
    if decode is None:
        return False
    channels = out.shape[2] if out.ndim == 3 else 1
    part = np.array((*size, factor, *box, channels), np.int64)  # `Part` in jpeg.cc
    return decode(np.frombuffer(data, np.uint8), part, out)


def is_usable() -> bool:
    """Returns whether parts of JPEG images can be decoded here."""
    return _loaded() is not None


@lru_cache(maxsize=1)
def _loaded() -> _Decode | None:
    core = library()
    if core is None:
        return None
    core.parquetry_jpeg_library.argtypes = [ctypes.c_char_p]
    core.parquetry_jpeg_library.restype = ctypes.c_void_p
    address, number = ctypes.c_void_p, ctypes.c_int64
    core.parquetry_jpeg_part.argtypes = [address, address, number, address, address]
    core.parquetry_jpeg_part.restype = ctypes.c_int64
    with importing():
        for path in _libraries():
            loaded = core.parquetry_jpeg_library(os.fsencode(path))
            if loaded is not None and _is_exact(decode := partial(_decode, core, loaded)):
                return decode
    return None


def _decode(core: ctypes.CDLL, loaded: int, data: np.ndarray, part: np.ndarray, out: np.ndarray) -> bool:
    found = core.parquetry_jpeg_part(loaded, data.ctypes.data, len(data), part.ctypes.data, out.ctypes.data)
    return int(found) == 0


def _libraries() -> Iterator[str]:
    spec = find_spec("PIL")
    if spec is not None and spec.origin is not None:
        yield from map(str, sorted((Path(spec.origin).parents[1] / "pillow.libs").glob("libjpeg-*.so*")))
    yield "libjpeg.so.62"
    yield "libjpeg.so.8"


def _is_exact(decode: _Decode) -> bool:
    """Returns whether parts of a small image are what simplejpeg decodes. Other versions of the library have another
    memory layout, which they refuse, or interpolate the edges of a part differently.
    """
    try:
        import simplejpeg
    except ImportError:
        return False
    height, width = _TRIAL_SIZE
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    files = [np.frombuffer(simplejpeg.encode_jpeg(pixels, 90, "RGB", kind), np.uint8) for kind in _SUBSAMPLINGS]
    for data, factor, (top, left, high, wide) in itertools.product(files, (1, 2, 4, 8), _TRIAL_BOXES):
        least = {"min_height": -(-height // factor), "min_width": -(-width // factor), "min_factor": factor}
        whole = simplejpeg.decode_jpeg(data, "RGB", **least)
        box = (top // factor, left // factor, max(high // factor, 1), max(wide // factor, 1))
        part = whole[box[0] : box[0] + box[2], box[1] : box[1] + box[3]]
        out = np.zeros_like(part, order="C")
        if not decode(data, np.array((height, width, factor, *box, 3), np.int64), out) or not np.array_equal(out, part):
            return False
    return True
