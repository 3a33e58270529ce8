"""Puts one image through an `ImageStep`.

The functions here take an image ``(H, W)`` or ``(H, W, C)`` and the random numbers of its item, and write the finished
image to its place in the batch. Crops are views. Every operation writes where the next one reads, and the last one
writes into the batch, so there are no extra copies. The functions know neither batches nor codecs.
`base.native.pixels` does the work, except for ``"nearest"``, which takes any dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...base.memory.arena import SCRATCH
from ...base.native.kernels import copy_image, normalize, resize
from ...base.native.pixels import FILTERS, MIRRORED, UPSIDE_DOWN
from ...base.process.dataclass import dataclass
from ...stages.crop import CropOp
from ...stages.image_base import ImageStep
from ...stages.normalize import NormalizeOp
from ...stages.random_flip import FlipOp
from ...stages.random_resized_crop import TRIES, ResizedCropOp
from ...stages.resize import ResizeOp
from .random_numbers import ItemKeys, uniform

Box = tuple[int, int, int, int]
DrawnNumbers = Sequence[Sequence[float]]
"""The random numbers of one item, for each operation that needs some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePart:
    """The part of an image that a step's first operation needs.

    Attributes:
        factor: decode the image at ``1 / factor`` of its size, rounded up.
        box: the part, in pixels of that reduced image.
        size: the size to which the first operation resizes the part; ``None`` if it only crops.
    """

    factor: int
    box: Box
    size: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class _Action:
    """One operation on an image: ``run(image, out)`` makes an image of this size and dtype; ``None`` only crops.

    With ``planes``, ``out`` may have its channels first in memory.
    """

    run: Callable[[np.ndarray, np.ndarray], None] | None
    box: Box
    dtype: np.dtype
    planes: bool = False


def drawn_numbers(step: ImageStep, keys: Callable[[], ItemKeys]) -> Callable[[int], DrawnNumbers]:
    """Draws the numbers of all items at once. Returns a function that returns those of one item."""
    if not step.draws_numbers:
        return lambda item: ((),) * len(step.ops)
    items = keys()
    drawn = [None if op.key is None else uniform(op.key, items, op.draws).tolist() for op in step.ops]
    return lambda item: [() if numbers is None else numbers[item] for numbers in drawn]


def size_after(step: ImageStep, height: int, width: int) -> tuple[int, int]:
    """Returns the size (H, W) of the finished image, before ``axes`` permutes it.

    Raises:
        ValueError: a crop is larger than the image.
    """
    for op in step.ops:
        height, width = op.size(height, width)
    return height, width


def process(
    step: ImageStep, image: np.ndarray, numbers: DrawnNumbers, out: np.ndarray, *, part: ImagePart | None = None
) -> None:
    """Puts one image through the step into ``out``, whose axes are already in the step's order.

    Args:
        image: the decoded image, or only its ``part``.
        numbers: the random numbers of its item.
        out: where the finished image goes.
        part: what `needed_part` returned, if only that was decoded.

    Raises:
        ValueError: the image is smaller than a crop.
    """
    if step.axes is not None:
        out = out.transpose(np.argsort(step.axes))
    actions = _actions(step, image.shape[0], image.shape[1], image.dtype, numbers, part)
    made = 0
    for number, action in enumerate(actions):
        top, left, height, width = action.box
        if action.run is None:
            image = image[top : top + height, left : left + width]
            continue
        fits = step.axes is None or action.planes
        target = out
        if number < len(actions) - 1 or not fits:
            made += 1  # two buffers alternate, because one is read while the other is written
            target = SCRATCH.array(f"image {made % 2}", (height, width, *image.shape[2:]), action.dtype)
        action.run(image, target)
        image = target
    if image is not out:
        copy_into(image, out)


def needed_part(step: ImageStep, height: int, width: int, numbers: DrawnNumbers) -> ImagePart | None:
    """Returns which part of an image the step needs, and how far it may be reduced. ``None`` if it needs all of it.

    Only a part that is first shrunk with ``"area"`` is reduced, by a power of two that leaves at least the wanted size.
    A crop keeps at least twice the wanted size, because the reduction moves its edges by up to half a pixel.
    """
    op = step.ops[0] if step.ops else None
    whole: Box = (0, 0, height, width)
    if min(height, width) == 0:
        return None
    if isinstance(op, ResizedCropOp):
        box, size, least = _drawn_box(op, numbers[0], height, width), (op.height, op.width), 2
    elif isinstance(op, ResizeOp):
        box, size, least = whole, op.size(height, width), 1
    elif isinstance(op, CropOp) and op.height <= height and op.width <= width:
        return _proper_part(whole, ImagePart(factor=1, box=_middle_or_any(op, numbers[0], height, width), size=None))
    else:
        return None
    for factor in (8, 4, 2) if op.interpolation == "area" else ():
        if box[2] >= size[0] * factor * least and box[3] >= size[1] * factor * least:
            return ImagePart(factor=factor, box=_reduced_box(box, factor, height, width), size=size)
    return _proper_part(whole, ImagePart(factor=1, box=box, size=size))


def _proper_part(whole: Box, part: ImagePart) -> ImagePart | None:
    return None if part.box == whole else part


def _reduced_box(box: Box, factor: int, height: int, width: int) -> Box:
    """Returns the whole pixels of the reduced image that are nearest to ``box``, at least as many as it holds."""
    top, left = round(box[0] / factor), round(box[1] / factor)
    high, wide = round((box[0] + box[2]) / factor) - top, round((box[1] + box[3]) / factor) - left
    least_high, least_wide = box[2] // factor, box[3] // factor
    high, wide = max(high, least_high), max(wide, least_wide)
    whole_high, whole_wide = -(-height // factor), -(-width // factor)
    return min(top, whole_high - high), min(left, whole_wide - wide), high, wide


def _actions(
    step: ImageStep, height: int, width: int, dtype: np.dtype, numbers: DrawnNumbers, part: ImagePart | None
) -> list[_Action]:
    result: list[_Action] = []

    def crop(box: Box) -> None:
        nonlocal height, width
        if box != (0, 0, height, width):
            result.append(_Action(None, box, dtype))
        height, width = box[2:]

    def resize(size: tuple[int, int], op: ResizeOp | ResizedCropOp) -> None:
        nonlocal height, width
        if size != (height, width):
            run = partial(resize_into, interpolation=op.interpolation, antialias=op.antialias)
            result.append(_Action(run, (0, 0, *size), dtype))
        height, width = size

    for number, op in enumerate(step.ops):
        if part is not None and number == 0:  # already cropped
            if part.size is not None and isinstance(op, ResizeOp | ResizedCropOp):
                resize(part.size, op)
        elif isinstance(op, ResizeOp):
            resize(op.size(height, width), op)
        elif isinstance(op, ResizedCropOp):
            crop(_drawn_box(op, numbers[number], height, width))
            resize((op.height, op.width), op)
        elif isinstance(op, CropOp):
            crop(_middle_or_any(op, numbers[number], height, width))
        elif isinstance(op, FlipOp):
            if numbers[number][0] < op.probability:
                result.append(_Action(partial(flip_into, axis=op.axis), (0, 0, height, width), dtype))
        elif isinstance(op, NormalizeOp):
            dtype = np.dtype(op.dtype)
            factors = {"multiply": np.asarray(op.multiply, np.float32), "subtract": np.asarray(op.subtract, np.float32)}
            result.append(_Action(partial(normalize_into, **factors), (0, 0, height, width), dtype, True))
    return result


def _middle_or_any(op: CropOp, numbers: Sequence[float], height: int, width: int) -> Box:
    op.size(height, width)  # raises if the image is too small
    free_high, free_wide = height - op.height, width - op.width
    if op.seed is None or not numbers:
        return round(free_high / 2), round(free_wide / 2), op.height, op.width
    return int(numbers[0] * (free_high + 1)), int(numbers[1] * (free_wide + 1)), op.height, op.width


def _drawn_box(op: ResizedCropOp, numbers: Sequence[float], height: int, width: int) -> Box:
    """Returns a box of random area and proportions. After ten that do not fit, returns the largest centered one."""
    area, (low, high) = height * width, op.ratio
    for trial in range(TRIES):
        box_area = area * (op.scale[0] + (op.scale[1] - op.scale[0]) * numbers[2 + 2 * trial])
        ratio = math.exp(math.log(low) + (math.log(high) - math.log(low)) * numbers[3 + 2 * trial])
        wide, tall = round(math.sqrt(box_area * ratio)), round(math.sqrt(box_area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            return int(numbers[0] * (height - tall + 1)), int(numbers[1] * (width - wide + 1)), tall, wide
    wide, tall = width, height
    if width / height < low:
        tall = max(round(width / low), 1)
    elif width / height > high:
        wide = max(round(height * high), 1)
    return (height - tall) // 2, (width - wide) // 2, tall, wide


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
