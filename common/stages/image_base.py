"""Shared base of the image stages: field checks, random seeds, and the step that runs several stages at once.

Images are columns of shape ``(H, W)`` or ``(H, W, C)``. Everything the schema reveals is checked here, before anything
is read. Consecutive image stages on one column are merged into one `ImageStep`, which processes an image in one pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from ..schema.plain import plain
from .base import SeededStage, Stage, is_integer, matches
from .columns import Columns
from .steps import Step

Size = tuple[int, int]
Interpolations = str | tuple[tuple[str, str], ...]
Key = tuple[int, ...]
"""Identifies a stream of random numbers by its purpose and seed."""

INTERPOLATIONS: tuple[str, ...] = ("nearest", "bilinear", "bicubic", "area")
RESIZABLE = (np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.float32))
CROPS = 1  # purposes of random numbers
FLIPS = 2  # plus the axis
AXES = ("H", "W", "C")
"""The axes of an image."""


class ImageOp:
    """One operation on one image; subclasses are frozen dataclasses.

    Attributes:
        cuts: whether it crops the image.
    """

    __slots__ = ()
    cuts: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The operation's name in `explain`."""
        raise NotImplementedError

    @property
    def key(self) -> Key | None:
        """Identifies its random numbers; ``None`` if it needs none."""
        return None

    @property
    def draws(self) -> int:
        """How many random numbers it needs per item."""
        return 0

    def size(self, height: int, width: int) -> Size:
        """The size of the image after the operation."""
        return height, width


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageStep(Step):
    """All operations on the images of column ``number``, in order.

    Attributes:
        axes: the axis order of the finished image, as for ``numpy.transpose``; ``None`` = unchanged.
        field: the column before the step.
        output: the column after the step.
        together: numbers of the calls that apply one crop to several fields, whose images must then have equal sizes.
    """

    changes_one_column: ClassVar[bool] = True
    reads_stored: ClassVar[bool] = True
    number: int
    ops: tuple[ImageOp, ...]
    axes: tuple[int, ...] | None
    field: OutputField
    output: OutputField
    together: tuple[int, ...] = ()

    def __str__(self) -> str:
        names = [*(op.name for op in self.ops), *(["permute"] if self.axes is not None else [])]
        return f"{self.field.name}: {', '.join(names)}, on the way into the batch"

    @property
    def draws_numbers(self) -> bool:
        return any(op.draws for op in self.ops)


class ImageStage(Stage):
    """Base of stages that change images; ``patterns`` selects the fields."""

    patterns: tuple[str, ...]

    def changes(self, name: str) -> bool:
        return matches(self.patterns, name)

    def operation(self, output: OutputField, key: Key | None) -> ImageOp:
        """Returns the operation for a column; ``key`` identifies the random numbers of this call."""
        raise NotImplementedError

    def dtype_after(self, output: OutputField) -> np.dtype[Any]:
        """The dtype of the images after the stage."""
        return output.dtype

    def shape_after(self, op: ImageOp, output: OutputField) -> tuple[int | None, ...]:
        """Height and width after the stage; ``None`` where they depend on the image."""
        height, width = output.shape[:2]
        return (None, None) if height is None or width is None else op.size(height, width)

    def check_columns(self, outputs: Sequence[OutputField]) -> None:
        """Raises `PipelineError` if the columns cannot be processed in one call."""

    def apply(self, columns: Columns) -> None:
        columns.open()
        columns.calls += 1
        numbers = columns.matching(self.patterns)
        self.check_columns([columns.outputs[number] for number in numbers])
        key = self._key(columns)
        for number in numbers:
            step = self._step(number, columns.outputs[number], key, columns.calls if len(numbers) > 1 else None)
            columns.outputs[number] = step.output
            place = last_image_step(columns.steps, number)
            before = None if place is None else columns.steps[place]
            if place is not None and isinstance(before, ImageStep) and before.axes is None:
                columns.steps[place] = _joined(before, step)
            else:
                columns.steps.append(step)

    def _key(self, columns: Columns) -> Key | None:
        return None

    def _step(self, number: int, output: OutputField, key: Key | None, call: int | None) -> ImageStep:
        """The step for one column; ``call`` identifies the call if it covers several columns."""
        self._check_image(output)
        op = self.operation(output, key)
        shape = (*self.shape_after(op, output), *output.shape[2:])
        dims = output.dims or AXES[: len(output.shape)]
        after = replace(output, shape=shape, dtype=self.dtype_after(output), dims=dims)
        together = (call,) if call is not None and op.cuts and op.draws else ()
        return ImageStep(number=number, ops=(op,), axes=None, field=output, output=after, together=together)

    def _check_image(self, output: OutputField) -> None:
        arrays = output.kind == "dense" and not output.levels
        if output.kind == "bytes" and not output.shape:
            raise PipelineError(
                f"{self.verb}: field '{output.name}': expected images of shape (H, W) or (H, W, C), got bytes. If they "
                f"are image files, say how to decode them: fields=[UnischemaField('{output.path[-1]}', 'uint8', "
                "(None, None, 3), CompressedImageCodec('jpeg'))]."
            )
        if not arrays or output.dtype.kind not in "buif" or len(output.shape) not in (2, 3):
            raise PipelineError(
                f"{self.verb}: field '{output.name}': expected images of shape (H, W) or (H, W, C), got {output.kind} "
                f"{output.dtype} {output.shape}. Name image fields only."
            )
        dims = tuple(name[:1].upper() for name in output.dims or AXES[: len(output.shape)])
        if "C" in dims and dims != AXES:
            raise PipelineError(
                f"{self.verb}: field '{output.name}': expected axes (H, W, C), got {output.dims}. Call {self.verb}() "
                "before permute(), or permute() the stored axes first in a separate pipeline."
            )
        if len(output.shape) == 3 and output.shape[2] is None:
            raise PipelineError(
                f"{self.verb}: field '{output.name}': expected a fixed number of channels, got shape {output.shape}. "
                "Declare it in the field's shape, or with fixed()."
            )


class RandomImageStage(SeededStage, ImageStage):
    """An image stage that draws random numbers."""

    def _key(self, columns: Columns) -> Key:
        return self.stream(columns)

    def __str__(self) -> str:
        return self.without_drawn_seed(super().__str__())


def last_image_step(steps: Sequence[Step], number: int) -> int | None:
    """The index of the `ImageStep` that a further step on column ``number`` can be merged into; ``None`` if none."""
    for place in range(len(steps) - 1, -1, -1):
        step = steps[place]
        if not step.changes_one_column or getattr(step, "number", None) is None:
            return None
        if step.number == number:
            return place if isinstance(step, ImageStep) else None
    return None


def _joined(first: ImageStep, second: ImageStep) -> ImageStep:
    """Merges two steps on the same column."""
    ops, together = (*first.ops, *second.ops), (*first.together, *second.together)
    return replace(first, ops=ops, axes=second.axes, output=second.output, together=together)


def check_alike(verb: str, outputs: Sequence[OutputField]) -> None:
    """Raises `PipelineError` if fields that share one random crop are known to differ in size."""
    sizes = {output.name: output.shape[:2] for output in outputs if len(output.shape) >= 2}
    if len({size for size in sizes.values() if None not in size}) > 1:
        raise PipelineError(
            f"{verb}: expected images of one size, because they share one crop, got {sizes}. Resize them first, or "
            "crop each field in a separate call."
        )


def check_room(verb: str, size: Size, output: OutputField) -> None:
    """Raises `PipelineError` if images are known to be smaller than ``size``."""
    if any(have is not None and have < want for have, want in zip(output.shape, size, strict=False)):
        raise PipelineError(
            f"{verb}: field '{output.name}': expected images of at least {size}, got {output.shape[:2]}. "
            "Call resize() first."
        )


def as_size(size: object) -> Size:
    """Converts an integer (a square) or a pair to ``(height, width)``."""
    sides = plain(size)
    return (sides, sides) if is_integer(sides) else sides


def check_size(verb: str, size: object) -> None:
    """Raises `PipelineError` unless ``size`` is a pair of integers of at least 1."""
    if not isinstance(size, tuple) or len(size) != 2 or not all(is_integer(side) and side >= 1 for side in size):
        raise PipelineError(f"{verb}: expected size to be (height, width), integers >= 1, got {size!r}.")


def is_number(value: object) -> bool:
    """Whether a plain value is a number and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_interpolation(value: Interpolations | Mapping[str, str]) -> Interpolations:
    """Converts an interpolation, or a mapping with one per field, to a form that JSON can hold."""
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else value


def check_interpolation(verb: str, value: Interpolations) -> None:
    """Raises `PipelineError` for an unknown interpolation."""
    values = value if isinstance(value, tuple) else (value,)
    names = [each[1] if isinstance(each, tuple) and len(each) == 2 else each for each in values]
    if not names or not all(isinstance(name, str) and name in INTERPOLATIONS for name in names):
        raise PipelineError(f"{verb}: expected interpolation in {INTERPOLATIONS}, got {value!r}.")


def check_antialias(verb: str, value: object) -> None:
    """Raises `PipelineError` unless ``value`` is a bool."""
    if not isinstance(value, bool):
        raise PipelineError(f"{verb}: expected antialias=True or False, got {value!r}.")


def check_interpolated_fields(verb: str, value: Interpolations, outputs: Sequence[OutputField]) -> None:
    """Raises `PipelineError` if an interpolation names a field that the stage does not process."""
    names = {str(output.path[-1]) for output in outputs}
    for name, _ in () if isinstance(value, str) else value:
        if name not in names:
            raise PipelineError(
                f"{verb}: expected interpolation= for fields among {sorted(names)}, got one for '{name}'. Add it to "
                "the fields of this call."
            )


def interpolation_of(verb: str, value: Interpolations, output: OutputField) -> str:
    """The interpolation for one field.

    Raises:
        PipelineError: the field's dtype does not support the interpolation.
    """
    name = value if isinstance(value, str) else dict(value).get(str(output.path[-1]), "bilinear")
    if name != "nearest" and output.dtype not in RESIZABLE:
        raise PipelineError(
            f"{verb}: field '{output.name}': expected dtype uint8, uint16 or float32 for interpolation='{name}', "
            f"got {output.dtype}. Use interpolation='nearest'."
        )
    return name
