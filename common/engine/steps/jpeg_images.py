"""Puts stored JPEG images through an image step with the compiled core: decodes only what a crop needs, resizes it,
flips it, normalizes it and writes it to its place in the batch, all in one pass over its rows.

This is a faster way to do what `images.process` does, and it gives the same values. `finish_jpegs` says which images it
has finished; the others are left to `images.process`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ...base.native.pixels import FILTERS, MIRRORED, UPSIDE_DOWN
from ...base.process.dataclass import dataclass
from ...stages.crop import CropOp
from ...stages.image_base import ImageOp, ImageStep
from ...stages.normalize import NormalizeOp
from ...stages.random_flip import FlipOp
from ...stages.random_resized_crop import ResizedCropOp
from ...stages.resize import ResizeOp
from ..columns.coded_column import CodedColumn
from .images import DrawnNumbers, ImagePart, needed_part

_Factors = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class _Chain:
    """What a step does, if the compiled core can do all of it.

    Attributes:
        first: the operation that crops or resizes the stored image, or both; ``None`` if there is none.
        filter_number: how it resizes, one of `base.native.pixels.FILTERS`.
        flips: the flips after it, with their places among the step's operations.
        factors: what values are multiplied by, and what is subtracted; ``None`` if they stay uint8.
    """

    first: ImageOp | None
    filter_number: int
    flips: tuple[tuple[int, FlipOp], ...]
    factors: _Factors | None


def finish_jpegs(
    step: ImageStep,
    column: CodedColumn,
    rows: np.ndarray,
    shapes: Sequence[Sequence[int]],
    numbers: Sequence[DrawnNumbers],
    out: np.ndarray,
    places: np.ndarray,
) -> np.ndarray:
    """Puts images through a step, as far as the compiled core can.

    Args:
        rows: numbers of rows in the block, none of them null; int64 ``[n]``.
        shapes: the shape of each stored image.
        numbers: the random numbers of each.
        out: the finished images of the batch.
        places: the place of each image in ``out``; int64 ``[n]``.

    Returns:
        Which images are finished; bool ``[n]``.
    """
    done = np.zeros(len(rows), bool)
    chain = None if column.reused or column.jpegs is None else _chain_of(step)
    if chain is None or column.jpegs is None or not len(rows):
        return done
    images = out if step.axes is None else out.transpose(0, *(1 + np.argsort(step.axes)))
    images = images if images.ndim == 4 else images[..., None]
    parts = [_part_of(step, chain, shape, drawn) for shape, drawn in zip(shapes, numbers, strict=True)]
    chosen = np.array([number for number, part in enumerate(parts) if part is not None], np.int64)
    if not len(chosen):
        return done
    decodable = [part for part in parts if part is not None]
    done[chosen] = column.jpegs.decode(
        rows[chosen],
        images,
        places[chosen],
        sizes=np.array([shapes[number][:2] for number in chosen], np.int64),
        boxes=np.array([part.box for part in decodable], np.int64),
        reductions=np.array([part.factor for part in decodable], np.int64),
        flips=np.array([_flips_of(chain, numbers[number]) for number in chosen], np.int64),
        factors=chain.factors,
        filter_number=chain.filter_number,
    )
    return done


@lru_cache(maxsize=64)
def _chain_of(step: ImageStep) -> _Chain | None:
    """Returns what the step does; ``None`` if the compiled core cannot do all of it, or not in this order."""
    ops = list(enumerate(step.ops))
    if step.field.dtype != np.uint8 or step.output.dtype not in (np.uint8, np.float32):
        return None
    first = ops.pop(0)[1] if ops and isinstance(ops[0][1], CropOp | ResizeOp | ResizedCropOp) else None
    filter_number: int | None = 0
    if isinstance(first, ResizeOp | ResizedCropOp):
        filter_number = FILTERS.get((first.interpolation, first.antialias))
    factors: _Factors | None = None
    if ops and isinstance(last := ops[-1][1], NormalizeOp):
        factors = np.asarray(last.multiply, np.float32), np.asarray(last.subtract, np.float32)
        ops.pop()
    flips = tuple((number, op) for number, op in ops if isinstance(op, FlipOp))
    if filter_number is None or len(flips) < len(ops):
        return None
    return _Chain(first, filter_number, flips, factors)


def _part_of(step: ImageStep, chain: _Chain, shape: Sequence[int], numbers: DrawnNumbers) -> ImagePart | None:
    """Returns the part of an image to decode; ``None`` if it is too small."""
    height, width = shape[:2]
    op = chain.first
    if min(height, width) == 0 or (isinstance(op, CropOp) and (op.height > height or op.width > width)):
        return None
    whole = ImagePart(factor=1, box=(0, 0, height, width), size=None)
    return needed_part(step, height, width, numbers) or whole


def _flips_of(chain: _Chain, numbers: DrawnNumbers) -> int:
    flips = 0
    for number, op in chain.flips:
        if numbers[number][0] < op.probability:
            flips ^= MIRRORED if op.axis == 1 else UPSIDE_DOWN
    return flips
