"""Kernels on the pixels of one image, compiled and by numpy: resize, flip, normalize, and put in another layout.

Both implementations write the same values. The compiled one leaves dtypes and layouts that it does not know to numpy.
"""

from __future__ import annotations

import numpy as np

from .library import CORE, address_of

FILTERS = {
    ("bilinear", True): 0,
    ("bicubic", True): 1,
    ("area", True): 2,
    ("area", False): 2,
    ("bilinear", False): 3,
    ("bicubic", False): 4,
}
"""The number of each interpolation, with and without antialiasing; ``Filter`` in resample.h."""
MIRRORED, UPSIDE_DOWN = 1, 2
_BICUBIC, _AREA, _PLAIN_BICUBIC = 1, 2, 4
_ONE = 1 << 14
_Factors = tuple[np.ndarray, np.ndarray]


def resize(image: np.ndarray, out: np.ndarray, filter_number: int) -> None:
    """Resizes an image.

    Args:
        image: uint8, uint16 or float32 ``[H, W, C]``.
        out: ``[new H, new W, C]``, of the same dtype, in any layout.
        filter_number: one of `FILTERS`.
    """
    if not _finish(image, out, filter_number=filter_number) and not _resize_numbers(image, out, filter_number):
        resize_by_numpy(image, out, filter_number)


def resize_by_numpy(image: np.ndarray, out: np.ndarray, filter_number: int) -> None:
    """Does what `resize` does, for any layouts."""
    overshoots = filter_number in (_BICUBIC, _PLAIN_BICUBIC)
    for axis in (0, 1) if out.shape[0] < image.shape[0] and not overshoots else (1, 0):
        image = _resampled(image, axis, out.shape[axis], filter_number)
    np.copyto(out, image)


def copy_image(image: np.ndarray, out: np.ndarray, flips: int = 0) -> None:
    """Copies an image ``[H, W, C]`` into another layout.

    Args:
        flips: the sum of `MIRRORED` (left and right are swapped) and `UPSIDE_DOWN`.
    """
    if not _finish(image, out, flips=flips):
        copy_image_by_numpy(image, out, flips)


def copy_image_by_numpy(image: np.ndarray, out: np.ndarray, flips: int = 0) -> None:
    """Does what `copy_image` does, for any dtypes and layouts."""
    down, across = -1 if flips & UPSIDE_DOWN else 1, -1 if flips & MIRRORED else 1
    for channel in range(image.shape[2]):  # the axes of one channel are copied in the order of its memory
        np.copyto(out[..., channel], image[::down, ::across, channel], casting="no")


def normalize(image: np.ndarray, out: np.ndarray, multiply: np.ndarray, subtract: np.ndarray) -> None:
    """Writes ``float32(image) * multiply - subtract`` into ``out``, each step rounded to float32.

    Args:
        image: numbers ``[H, W, C]``.
        out: float32 ``[H, W, C]``; the channels may come first in memory.
        multiply: float32 ``[C]``.
        subtract: float32 ``[C]``.
    """
    if not _finish(image, out, factors=(multiply, subtract)):
        normalize_by_numpy(image, out, multiply, subtract)


def normalize_by_numpy(image: np.ndarray, out: np.ndarray, multiply: np.ndarray, subtract: np.ndarray) -> None:
    """Does what `normalize` does, for any layouts."""
    height, width, channels = image.shape
    parts = [
        (image[..., channel], out[..., channel], multiply[channel], subtract[channel]) for channel in range(channels)
    ]
    if image[0].flags.c_contiguous and out[0].flags.c_contiguous:  # all channels at once
        whole, place = (each.reshape(height, width * channels) for each in (image, out))
        parts = [(whole, place, np.tile(multiply, width), np.tile(subtract, width))]
    for values, places, factor, offset in parts:
        np.multiply(values, factor, out=places, dtype=np.float32, casting="unsafe")
        places -= offset


def _finish(
    image: np.ndarray, out: np.ndarray, *, filter_number: int = 0, flips: int = 0, factors: _Factors | None = None
) -> bool:
    """Finishes an image with the compiled core. Returns false if it cannot."""
    target = np.dtype(np.uint8 if factors is None else np.float32)
    if image.dtype != np.uint8 or out.dtype != target or not out.flags.writeable or not (image.size and out.size):
        return False
    channels, size = image.shape[2], target.itemsize
    plain = image[0].flags.c_contiguous and not any(stride % size for stride in out.strides)
    if not plain or not out.flags.aligned or out.shape[2] != channels:
        return False
    pointers: tuple[int | None, int | None] = None, None
    if factors is not None:
        if any(each.dtype != target or len(each) != channels or not each.flags.c_contiguous for each in factors):
            return False
        pointers = address_of(factors[0]), address_of(factors[1])
    mirrored, upside_down = flips & MIRRORED, flips & UPSIDE_DOWN
    place = (address_of(out), *(stride // size for stride in out.strides))
    numbers = (address_of(image), image.strides[0], *image.shape, *out.shape[:2], filter_number, mirrored, upside_down)
    described = np.array((*numbers, *place), np.int64)  # `Image` in pixels.cc
    return bool(CORE.parquetry_finish_image(address_of(described), *pointers))


def _resize_numbers(image: np.ndarray, out: np.ndarray, filter_number: int) -> bool:
    """Resizes an image of uint16 or float32 with the compiled core. Returns false if it cannot."""
    if image.dtype not in (np.uint16, np.float32) or not image.dtype.isnative or not (image.size and out.size):
        return False
    whole = np.ascontiguousarray(image)
    target = out if out.flags.c_contiguous and out.flags.writeable else np.empty(out.shape, out.dtype)
    sizes = (address_of(whole), *image.shape, address_of(target), *out.shape[:2], filter_number)
    if not CORE.parquetry_resize_numbers(*sizes, image.dtype == np.float32):
        return False
    if target is not out:
        np.copyto(out, target)
    return True


def _resampled(image: np.ndarray, axis: int, length: int, filter_number: int) -> np.ndarray:
    """Returns the image with another length along one axis."""
    if image.shape[axis] == length:
        return image
    first, weights, whole = _weights(image.shape[axis], length, filter_number)
    exact = image.dtype == np.uint8
    sums = np.asarray(_ONE // 2 if exact else 0.0)
    for number in range(weights.shape[1]):
        places = np.minimum(first + number, image.shape[axis] - 1)
        factors = (whole if exact else weights)[:, number].reshape(-1, *(1,) * (image.ndim - 1 - axis))
        values = image.take(places, axis).astype(np.int32 if exact else np.float64)
        sums = sums + np.where(factors == 0, 0, values) * factors  # a weight of 0 hides NaN, too
    if exact:
        sums = np.clip(sums >> 14, 0, 255)
    elif image.dtype.kind == "u":
        sums = np.clip(np.rint(sums), 0, np.iinfo(image.dtype).max)
    return sums.astype(image.dtype)


def _weights(old: int, new: int, filter_number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the first pixel of each new one, and the weights ``[new, K]`` from there on: exact, and out of `_ONE`.

    It takes the steps of ``Axis`` in resample.h, so both round alike.
    """
    scale = old / new
    stretch = 1.0 if scale < 1 or filter_number >= 3 else scale
    to = np.arange(new, dtype=np.float64)
    if filter_number == _AREA and scale > 1:
        begin = to * scale
        end = begin + scale
        first, last = begin.astype(np.int64), np.minimum(np.ceil(end).astype(np.int64), old)
    else:
        radius = (2 if filter_number in (_BICUBIC, _PLAIN_BICUBIC) else 1) * stretch
        center = (to + 0.5) * scale
        first = np.maximum((center - radius + 0.5).astype(np.int64), 0)
        last = np.minimum((center + radius + 0.5).astype(np.int64), old)
    places = (first[:, None] + np.arange((last - first).max())).astype(np.float64)
    if filter_number == _AREA and scale > 1:
        exact = np.minimum(places + 1, end[:, None]) - np.maximum(places, begin[:, None])
    else:
        exact = _filtered(np.abs((places - center[:, None] + 0.5) / stretch), filter_number)
    exact[places >= last[:, None]] = 0
    sums = np.zeros(new)
    for column in exact.T:  # in order, as the compiled core adds them
        sums += column
    exact /= sums[:, None]
    until = np.rint(np.add.accumulate(exact, axis=1) * _ONE).astype(np.int32)
    return first, exact, np.diff(until, axis=1, prepend=0)


def _filtered(x: np.ndarray, filter_number: int) -> np.ndarray:
    """Returns the weight of a pixel at each distance from the center."""
    if filter_number not in (_BICUBIC, _PLAIN_BICUBIC):
        return np.maximum(1 - x, 0)  # type: ignore[no-any-return]  # of numpy
    a = -0.5 if filter_number == _BICUBIC else -0.75
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))
