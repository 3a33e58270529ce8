"""Image steps: what is done to one image field, as values, and how one image goes through it.

In: an image ``(H, W)`` or ``(H, W, C)`` and the random numbers of its item. Out: the finished image in its place in the
batch. Crops are views, and every operation writes where the next one reads, the last one into the batch, so that an
image is never copied for its own sake. The functions here know neither batches nor codecs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ...schema.element import OutputField
from ..columns.scratch import SCRATCH
from .chance import ItemKeys, Key, uniform
from .image_kernels import copy_into, flip_into, normalise_into, resize_into

_TRIES = 10
_PURPOSES = {"crop": 1, "flip0": 2, "flip1": 3}
Box = tuple[int, int, int, int]
Numbers = Sequence[Sequence[float]]
"""The random numbers of one item, for each operation that wants some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeOp:
    """To ``height`` x ``width``; where those are ``None``, the shorter side to ``shorter``, keeping proportions."""

    height: int | None
    width: int | None
    shorter: int | None
    interpolation: str

    def size(self, height: int, width: int) -> tuple[int, int]:
        """The new size of an image of this size."""
        if self.shorter is None:
            assert self.height is not None
            assert self.width is not None
            return self.height, self.width
        if height <= width:
            return self.shorter, max(self.shorter * width // height, 1)
        return max(self.shorter * height // width, 1), self.shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class CropOp:
    """A part of this size: the middle, or (with a seed) any."""

    height: int
    width: int
    seed: Key | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizedCropOp:
    """A part of random area and proportions, resized."""

    height: int
    width: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    interpolation: str
    seed: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipOp:
    """Mirrored along ``axis`` with some probability."""

    axis: int
    probability: float
    seed: Key


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizeOp:
    """``value * multiply - subtract``, for each channel, in float32; then as ``dtype``."""

    multiply: tuple[float, ...]
    subtract: tuple[float, ...]
    dtype: str


ImageOp = ResizeOp | CropOp | ResizedCropOp | FlipOp | NormalizeOp


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageStep:
    """Everything that is done to the images of column ``number``, one after the other.

    Attributes:
        axes: the order of the finished image's axes, as for ``numpy.transpose``; ``None`` = as they are.
        field: what the column held before.
        output: what it holds afterwards.
        together: numbers of the calls that crop several fields alike, which must then be equally large.
    """

    number: int
    ops: tuple[ImageOp, ...]
    axes: tuple[int, ...] | None
    field: OutputField
    output: OutputField
    together: tuple[int, ...] = ()

    @property
    def names(self) -> list[str]:
        """The operations by name, in order."""
        return [_name(op) for op in self.ops]

    @property
    def random(self) -> bool:
        """Whether items of equal images may come out different."""
        return any(_wanted(op) for op in self.ops)

    def numbers(self, keys: Callable[[], ItemKeys]) -> Callable[[int], Numbers]:
        """Draws for all items at once; gives the numbers of one."""
        if not self.random:
            return lambda item: ((),) * len(self.ops)
        items = keys()
        drawn = [uniform(_key(op), items, _wanted(op)).tolist() if _wanted(op) else None for op in self.ops]
        return lambda item: [() if numbers is None else numbers[item] for numbers in drawn]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """An image that may be decoded at ``1 / factor`` of its size, the part of that wanted, and its size at last."""

    factor: int
    box: Box
    size: tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Action:
    """One thing to do now: ``run(image, out)`` makes an image of this size and dtype; ``None`` takes a part only.

    ``planes`` says that ``out`` may have its channels first in memory.
    """

    run: Callable[[np.ndarray, np.ndarray], None] | None
    box: Box
    dtype: np.dtype
    planes: bool = False


def size_after(step: ImageStep, height: int, width: int) -> tuple[int, int]:
    """The size (H, W) of the finished image (before ``axes``); raises ``ValueError`` if a part is larger than it."""
    for op in step.ops:
        if isinstance(op, ResizeOp):
            height, width = op.size(height, width)
        elif isinstance(op, CropOp | ResizedCropOp):
            if isinstance(op, CropOp):
                _middle_or_any(op, (), height, width)
            height, width = op.height, op.width
    return height, width


def process(
    step: ImageStep, image: np.ndarray, numbers: Numbers, out: np.ndarray, *, reduced: Reduction | None = None
) -> None:
    """Puts one image through the step, into ``out`` (whose axes are already in the step's order).

    Args:
        reduced: if the image was decoded smaller than it is: how.

    Raises:
        ValueError: an image that is smaller than the part wanted.
    """
    if step.axes is not None:
        out = out.transpose(np.argsort(step.axes))
    actions = _actions(step, image.shape[0], image.shape[1], image.dtype, numbers, reduced)
    made = 0
    for number, action in enumerate(actions):
        top, left, height, width = action.box
        if action.run is None:
            image = image[top : top + height, left : left + width]
            continue
        fits = step.axes is None or action.planes
        target = out
        if number < len(actions) - 1 or not fits:
            made += 1  # the last one made is read while this one is written
            target = SCRATCH.array(f"image {made % 2}", (height, width, *image.shape[2:]), action.dtype)
        action.run(image, target)
        image = target
    if image is not out:
        copy_into(image, out)


def reduction(step: ImageStep, height: int, width: int, numbers: Numbers) -> Reduction | None:
    """How far an image may be reduced while it is decoded: where it is first shrunk with ``"area"``, by a power of
    two that leaves at least the size wanted; of a part twice that, because its edges then move by half a pixel.
    """
    op = step.ops[0] if step.ops else None
    box: Box
    if isinstance(op, ResizedCropOp) and op.interpolation == "area":
        box, size, least = _part(op, numbers[0], height, width), (op.height, op.width), 2
    elif isinstance(op, ResizeOp) and op.interpolation == "area":
        box, size, least = (0, 0, height, width), op.size(height, width), 1
    else:
        return None
    for factor in (8, 4, 2):
        if box[2] >= size[0] * factor * least and box[3] >= size[1] * factor * least:
            return Reduction(factor=factor, box=_reduced_box(box, factor, height, width), size=size)
    return None


def _reduced_box(box: Box, factor: int, height: int, width: int) -> Box:
    """The nearest whole pixels of the reduced image, at least as many as ``box`` holds of them."""
    top, left = round(box[0] / factor), round(box[1] / factor)
    high, wide = round((box[0] + box[2]) / factor) - top, round((box[1] + box[3]) / factor) - left
    least_high, least_wide = box[2] // factor, box[3] // factor
    high, wide = max(high, least_high), max(wide, least_wide)
    whole_high, whole_wide = -(-height // factor), -(-width // factor)
    return min(top, whole_high - high), min(left, whole_wide - wide), high, wide


def _actions(
    step: ImageStep, height: int, width: int, dtype: np.dtype, numbers: Numbers, reduced: Reduction | None
) -> list[_Action]:
    result: list[_Action] = []

    def crop(box: Box) -> None:
        nonlocal height, width
        if box != (0, 0, height, width):
            result.append(_Action(None, box, dtype))
        height, width = box[2:]

    def resize(size: tuple[int, int], interpolation: str) -> None:
        nonlocal height, width
        if size != (height, width):
            result.append(_Action(partial(resize_into, interpolation=interpolation), (0, 0, *size), dtype))
        height, width = size

    for number, op in enumerate(step.ops):
        if reduced is not None and number == 0 and isinstance(op, ResizeOp | ResizedCropOp):
            crop(reduced.box)
            resize(reduced.size, op.interpolation)
        elif isinstance(op, ResizeOp):
            resize(op.size(height, width), op.interpolation)
        elif isinstance(op, ResizedCropOp):
            crop(_part(op, numbers[number], height, width))
            resize((op.height, op.width), op.interpolation)
        elif isinstance(op, CropOp):
            crop(_middle_or_any(op, numbers[number], height, width))
        elif isinstance(op, FlipOp):
            if numbers[number][0] < op.probability:
                result.append(_Action(partial(flip_into, axis=op.axis), (0, 0, height, width), dtype))
        else:
            dtype = np.dtype(op.dtype)
            factors = {"multiply": np.asarray(op.multiply, np.float32), "subtract": np.asarray(op.subtract, np.float32)}
            result.append(_Action(partial(normalise_into, **factors), (0, 0, height, width), dtype, True))
    return result


def _middle_or_any(op: CropOp, numbers: Sequence[float], height: int, width: int) -> Box:
    if height < op.height or width < op.width:
        raise ValueError(f"expected an image of at least {op.height} x {op.width} pixels, got {height} x {width}")
    free_high, free_wide = height - op.height, width - op.width
    if op.seed is None or not numbers:
        return round(free_high / 2), round(free_wide / 2), op.height, op.width
    return int(numbers[0] * (free_high + 1)), int(numbers[1] * (free_wide + 1)), op.height, op.width


def _part(op: ResizedCropOp, numbers: Sequence[float], height: int, width: int) -> Box:
    """A part of random area and proportions; after ten that do not fit, the largest in the middle that does."""
    area, (low, high) = height * width, op.ratio
    for trial in range(_TRIES):
        wanted = area * (op.scale[0] + (op.scale[1] - op.scale[0]) * numbers[2 + 2 * trial])
        ratio = math.exp(math.log(low) + (math.log(high) - math.log(low)) * numbers[3 + 2 * trial])
        wide, tall = round(math.sqrt(wanted * ratio)), round(math.sqrt(wanted / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            return int(numbers[0] * (height - tall + 1)), int(numbers[1] * (width - wide + 1)), tall, wide
    wide, tall = width, height
    if width / height < low:
        tall = max(round(width / low), 1)
    elif width / height > high:
        wide = max(round(height * high), 1)
    return (height - tall) // 2, (width - wide) // 2, tall, wide


def _name(op: ImageOp) -> str:
    if isinstance(op, ResizeOp | ResizedCropOp):
        return f"{'resize' if isinstance(op, ResizeOp) else 'random_resized_crop'} ({op.interpolation})"
    if isinstance(op, CropOp):
        return "center_crop" if op.seed is None else "random_crop"
    return "random_flip" if isinstance(op, FlipOp) else "normalize"


def _wanted(op: ImageOp) -> int:
    """How many random numbers an operation needs for each item."""
    if isinstance(op, ResizedCropOp):
        return 2 + 2 * _TRIES
    if isinstance(op, CropOp):
        return 0 if op.seed is None else 2
    return 1 if isinstance(op, FlipOp) else 0


def _key(op: ImageOp) -> Key:
    assert isinstance(op, ResizedCropOp | CropOp | FlipOp)
    assert op.seed is not None
    purpose = f"flip{op.axis}" if isinstance(op, FlipOp) else "crop"
    return (_PURPOSES[purpose], *op.seed)
