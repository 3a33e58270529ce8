"""What image stages and `pack` do to fields: from a stage and the fields before it to the engine's step and the fields
after it.

Pure. Everything that can be known from the schema is checked here, before anything is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..engine.steps.image_kernels import RESIZABLE
from ..engine.steps.images import CropOp, FlipOp, ImageOp, ImageStep, NormalizeOp, ResizedCropOp, ResizeOp
from ..engine.steps.pack import PackStep
from ..errors import PipelineError
from ..schema.element import OutputField
from ..stages.image_values import (
    CenterCrop,
    ImageStage,
    Interpolations,
    Normalize,
    Pack,
    RandomCrop,
    RandomFlip,
    RandomResizedCrop,
    Resize,
)

_AXES = ("H", "W", "C")


def image_step(
    stage: ImageStage, number: int, output: OutputField, seed: tuple[int, ...] | None, call: int | None
) -> ImageStep:
    """The step that a stage is for column ``number``, which holds ``output``.

    Args:
        seed: of its random numbers.
        call: names the call, if it cuts several fields alike.

    Raises:
        PipelineError: a field that holds no images, or none that the stage can take.
    """
    _check_image(stage, output)
    op, shape, dtype = _op(stage, output, seed)
    dims = output.dims or _AXES[: len(output.shape)]
    after = replace(output, shape=(*shape, *output.shape[2:]), dtype=dtype, dims=dims)
    random_cut = isinstance(op, ResizedCropOp) or (isinstance(op, CropOp) and op.seed is not None)
    together = (call,) if call is not None and random_cut else ()
    return ImageStep(number=number, ops=(op,), axes=None, field=output, output=after, together=together)


def joined(first: ImageStep, second: ImageStep) -> ImageStep | None:
    """Two steps of one column as one; ``None`` where the second wants another order of axes."""
    if first.axes is not None:
        return None
    ops, together = (*first.ops, *second.ops), (*first.together, *second.together)
    return replace(first, ops=ops, axes=second.axes, output=second.output, together=together)


def check_alike(stage: ImageStage, outputs: Sequence[OutputField]) -> None:
    """Raises `PipelineError` if fields that are to be cut alike are known to differ in size."""
    sizes = {output.name: output.shape[:2] for output in outputs if len(output.shape) >= 2}
    fixed = {size for size in sizes.values() if None not in size}
    if isinstance(stage, RandomResizedCrop | RandomCrop) and len(fixed) > 1:
        raise PipelineError(
            f"{stage.verb}: expected images of one size, because all are cut alike, got {sizes}. Resize them first, or "
            "give them calls of their own."
        )


def pack_step(stage: Pack, outputs: Sequence[OutputField], numbers: Sequence[int]) -> PackStep:
    """The step that puts columns ``numbers`` side by side.

    Raises:
        PipelineError: a field that is no number or vector of fixed length, or that ``dtype`` cannot hold.
    """
    chosen = [outputs[number] for number in numbers]
    for output in chosen:
        if output.kind != "dense" or len(output.shape) > 1 or None in output.shape:
            raise PipelineError(
                f"pack '{stage.name}': expected numbers or vectors of fixed length, got field '{output.name}', "
                f"{output.kind} {output.dtype} {output.shape}. Leave it out, or make it one with transform()."
            )
        if output.window != chosen[0].window:
            raise PipelineError(f"pack '{stage.name}': expected fields of equal windows, got '{output.name}'.")
    dtype = _packed_dtype(stage, chosen)
    width = sum(math.prod(axis or 0 for axis in output.shape) for output in chosen)
    keep = tuple(number for number in range(len(outputs)) if stage.keep or number not in set(numbers))
    path = (*chosen[0].path[:-1], stage.name)
    if any(outputs[number].path == path for number in keep):
        raise PipelineError(f"pack '{stage.name}': expected a new name, got that of a field which remains. Rename it.")
    output = OutputField(path=path, kind="dense", dtype=dtype, shape=(width,), window=chosen[0].window)
    return PackStep(numbers=tuple(numbers), fields=tuple(chosen), output=output, keep=keep)


def _packed_dtype(stage: Pack, chosen: Sequence[OutputField]) -> np.dtype[Any]:
    kinds = {output.dtype for output in chosen}
    if stage.dtype is None:
        dtype = np.result_type(*kinds)
        if dtype.kind == "f" and not any(kind.kind == "f" for kind in kinds):
            raise PipelineError(
                f"pack '{stage.name}': expected integers that one integer type can hold, got "
                f"{sorted(map(str, kinds))}, which only floats hold, and not exactly. Give dtype=."
            )
        return dtype
    dtype = np.dtype(stage.dtype)
    for output in chosen:
        floats = output.dtype.kind == "f" and dtype.kind != "f"
        if floats or (dtype.kind == "b" and output.dtype.kind != "b"):
            raise PipelineError(
                f"pack '{stage.name}': expected a dtype that can hold field '{output.name}', {output.dtype}, got "
                f"{dtype}. Give another dtype=, or leave the field out."
            )
    return dtype


def _check_image(stage: ImageStage, output: OutputField) -> None:
    if output.kind != "dense" or output.dtype.kind not in "buif" or len(output.shape) not in (2, 3):
        raise PipelineError(
            f"{stage.verb}: field '{output.name}': expected images of shape (H, W) or (H, W, C), got {output.kind} "
            f"{output.dtype} {output.shape}. Name fields of images only."
        )
    if len(output.shape) == 3 and output.shape[2] is None:
        raise PipelineError(
            f"{stage.verb}: field '{output.name}': expected a fixed number of channels, got shape {output.shape}. "
            "Declare it in the field's shape, or with fixed()."
        )
    dims = tuple(name[:1].upper() for name in output.dims or _AXES[: len(output.shape)])
    if "C" in dims and dims != _AXES:
        raise PipelineError(
            f"{stage.verb}: field '{output.name}': expected axes (H, W, C), got {output.dims}. Call {stage.verb}() "
            "before permute(), or permute() the stored axes first in a pipeline of its own."
        )


def _op(
    stage: ImageStage, output: OutputField, seed: tuple[int, ...] | None
) -> tuple[ImageOp, tuple[int | None, ...], np.dtype[Any]]:
    """The operation, the height and width after it, and the dtype."""
    height, width = output.shape[:2]
    if isinstance(stage, Normalize):
        return _normalize_op(stage, output), (height, width), np.dtype(stage.dtype)
    if isinstance(stage, RandomFlip):
        assert seed is not None
        axis = 1 if stage.axis == "horizontal" else 0
        return FlipOp(axis=axis, probability=float(stage.probability), seed=seed), (height, width), output.dtype
    if isinstance(stage, CenterCrop | RandomCrop):
        _check_room(stage, output)
        return CropOp(height=stage.size[0], width=stage.size[1], seed=seed), stage.size, output.dtype
    if isinstance(stage, RandomResizedCrop):
        assert seed is not None
        chosen = _interpolation(stage, stage.interpolation, output)
        crop = ResizedCropOp(
            height=stage.size[0],
            width=stage.size[1],
            scale=stage.scale,
            ratio=stage.ratio,
            interpolation=chosen,
            seed=seed,
        )
        return crop, stage.size, output.dtype
    assert isinstance(stage, Resize)
    chosen = _interpolation(stage, stage.interpolation, output)
    if isinstance(stage.size, tuple):
        op = ResizeOp(height=stage.size[0], width=stage.size[1], shorter=None, interpolation=chosen)
        return op, stage.size, output.dtype
    op = ResizeOp(height=None, width=None, shorter=stage.size, interpolation=chosen)
    known = height is not None and width is not None
    return op, op.size(height, width) if known else (None, None), output.dtype  # type: ignore[arg-type]  # known


def _normalize_op(stage: Normalize, output: OutputField) -> NormalizeOp:
    channels = output.shape[2] if len(output.shape) == 3 else 1
    assert channels is not None
    for name, values in (("mean", stage.mean), ("std", stage.std)):
        if len(values) not in (1, channels):
            raise PipelineError(
                f"normalize: field '{output.name}': expected {name} to be one number, or {channels} for its channels, "
                f"got {len(values)}."
            )
    mean = np.broadcast_to(np.asarray(stage.mean, np.float64), channels)
    std = np.broadcast_to(np.asarray(stage.std, np.float64), channels)
    return NormalizeOp(
        multiply=tuple((stage.scale / std).tolist()), subtract=tuple((mean / std).tolist()), dtype=stage.dtype
    )


def _check_room(stage: CenterCrop | RandomCrop, output: OutputField) -> None:
    if any(have is not None and have < want for have, want in zip(output.shape, stage.size, strict=False)):
        raise PipelineError(
            f"{stage.verb}: field '{output.name}': expected images of at least {stage.size}, got {output.shape[:2]}. "
            "Call resize() first."
        )


def _interpolation(stage: ImageStage, chosen: Interpolations, output: OutputField) -> str:
    """The interpolation for one field."""
    name = chosen if isinstance(chosen, str) else dict(chosen).get(str(output.path[-1]), "bilinear")
    if name != "nearest" and output.dtype not in RESIZABLE:
        raise PipelineError(
            f"{stage.verb}: field '{output.name}': expected dtype uint8, uint16 or float32 for interpolation='{name}', "
            f"got {output.dtype}. Use interpolation='nearest'."
        )
    return name


def named_interpolations(stage: ImageStage, outputs: Sequence[OutputField]) -> None:
    """Raises `PipelineError` for an interpolation that is given for a field which the stage has not."""
    chosen = getattr(stage, "interpolation", "")
    names = {str(output.path[-1]) for output in outputs}
    for name, _ in () if isinstance(chosen, str) else chosen:
        if name not in names:
            raise PipelineError(
                f"{stage.verb}: expected interpolation= for some of {sorted(names)}, got one for '{name}'. Name it as "
                "a field as well."
            )
