"""``permute``: the axes of a value in another order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ..errors import PipelineError
from ..schema.element import OutputField
from .base import Stage
from .columns import Columns, refuse_nested
from .image_base import ImageStep, last_image_step
from .steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class PermuteStep(Step):
    """Puts the axes of column ``number`` into another order (``axes``, as for ``numpy.transpose`` of one value)."""

    number: int
    axes: tuple[int, ...]

    @property
    def changes_one_column(self) -> bool:
        return True


@dataclass(frozen=True)
class Permute(Stage):
    """The axes of some fields in another order, by the names of their ``dims``."""

    verb: ClassVar[str] = "permute"
    sendable: ClassVar[bool] = True
    patterns: tuple[str, ...]
    dims: tuple[str, ...]

    @classmethod
    def sample(cls) -> Stage:
        return cls(("x",), ("x",))

    def apply(self, columns: Columns) -> None:
        columns.open()
        chosen = columns.matching(self.patterns)
        refuse_nested("permute", columns, chosen)
        for number in chosen:
            output = columns.outputs[number]
            axes = self._axes(output)
            shape = tuple(output.shape[axis] for axis in axes)
            columns.outputs[number] = replace(output, shape=shape, dims=tuple(self.dims))
            place = last_image_step(columns.steps, number)
            before = None if place is None else columns.steps[place]
            if place is not None and isinstance(before, ImageStep) and before.axes is None:
                columns.steps[place] = replace(before, axes=axes, output=columns.outputs[number])
            else:
                columns.steps.append(PermuteStep(number=number, axes=axes))

    def _axes(self, output: OutputField) -> tuple[int, ...]:
        if output.dims is None or sorted(output.dims) != sorted(self.dims):
            raise PipelineError(
                f"permute: field '{output.name}': expected the names of its axes, {output.dims}, in another order, "
                f"got {self.dims}. Declare them with UnischemaField(dims=...)."
            )
        return tuple(output.dims.index(name) for name in self.dims)
