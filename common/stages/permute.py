"""``permute``: reorders the axes of values."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from ..schema.images import CompressedImageCodec
from ..schema.video import FrameCodec
from .base import Stage
from .columns import Columns, refuse_nested
from .image_base import AXES, ImageStep, last_image_step
from .steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class PermuteStep(Step):
    """Reorders the axes of column ``number``; ``axes`` applies to one value, as for ``numpy.transpose``."""

    changes_one_column: ClassVar[bool] = True
    number: int
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Permute(Stage):
    """Reorders the axes of some fields by the names in their ``dims``; stored images without names have H, W, C."""

    verb: ClassVar[str] = "permute"
    sendable: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",), ("x",))
    patterns: tuple[str, ...]
    dims: tuple[str, ...]

    def apply(self, columns: Columns) -> None:
        columns.open()
        chosen = columns.matching(self.patterns)
        refuse_nested("permute", columns, chosen)
        fields, stored = columns.open(), columns.stored
        for number in chosen:
            output, own = columns.outputs[number], stored[number]
            is_image = own is not None and isinstance(fields[own].storage, CompressedImageCodec | FrameCodec)
            axes = self._axes(output, output.dims or (AXES[: len(output.shape)] if is_image else None))
            shape = tuple(output.shape[axis] for axis in axes)
            columns.outputs[number] = replace(output, shape=shape, dims=tuple(self.dims))
            place = last_image_step(columns.steps, number)
            before = None if place is None else columns.steps[place]
            if place is not None and isinstance(before, ImageStep) and before.axes is None:
                columns.steps[place] = replace(before, axes=axes, output=columns.outputs[number])
            else:
                columns.steps.append(PermuteStep(number=number, axes=axes))

    def _axes(self, output: OutputField, names: tuple[str, ...] | None) -> tuple[int, ...]:
        if names is None:
            raise PipelineError(
                f"permute: field '{output.name}': expected a field with axis names, got one without. Declare them with "
                f"fields=[UnischemaField('{output.path[-1]}', ..., dims=...)] when you read the dataset."
            )
        if sorted(names) != sorted(self.dims):
            raise PipelineError(
                f"permute: field '{output.name}': expected dims= to be a permutation of its axis names {names}, got "
                f"{self.dims}."
            )
        return tuple(names.index(name) for name in self.dims)
