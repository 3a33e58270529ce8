"""``pad`` and ``fixed``: make fields of variable shape dense."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from .base import Fill, Stage, check_fill, is_integer
from .columns import Columns, companion, refuse_nested
from .nulls import fill_value
from .steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class PadStep(Step):
    """Makes column ``number`` dense: pads to ``shape``, and ``None`` axes to the largest value of the batch.

    With ``lengths``, appends a column with the true lengths of the variable ``axes`` (int64 ``[rows]``, or ``[rows,
    axes]`` if there are several); without it, every value must have exactly ``shape``. Where the largest value
    decides, the first variable axis is rounded up to the next of ``sizes`` (ascending), if there is one.
    """

    number: int
    shape: tuple[int | None, ...]
    value: Any
    lengths: bool
    axes: tuple[int, ...]
    field: OutputField
    sizes: tuple[int, ...] = ()

    @property
    def changes_one_column(self) -> bool:
        return not self.lengths

    @property
    def adds_column(self) -> bool:
        return self.lengths

    @property
    def needs_whole_batch(self) -> bool:
        return None in self.shape

    def check_batches(self, *, batched: bool, drops: bool) -> None:
        if self.needs_whole_batch and (drops or not batched):
            why = "a function leaves rows out" if drops else "rows are not batched"
            remedy = "" if drops else ", or call batch()"
            raise PipelineError(
                f"pad: field '{self.field.name}': expected shape=, because {why}, so there is no batch from which to "
                f"take the largest value. Give the shape{remedy}."
            )


@dataclass(frozen=True)
class Pad(Stage):
    """Makes variable shapes dense: with ``lengths``, pads and adds the true lengths; without, requires one shape."""

    verb: ClassVar[str] = "pad"
    sendable: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",),)
    patterns: tuple[str, ...]
    shape: tuple[int | None, ...] | None = None
    value: Fill = None
    lengths: bool = True

    @property
    def called(self) -> str:
        """The method that made it."""
        return "pad" if self.lengths else "fixed"

    def check(self) -> None:
        check_fill("pad", "value", self.value)
        axes = self.shape if isinstance(self.shape, tuple) else (self.shape,)
        if not all(axis is None or (is_integer(axis) and axis >= 0) for axis in axes):
            raise PipelineError(f"{self.called}: expected shape to have integers >= 0 or None, got {self.shape!r}.")

    @property
    def changes_names(self) -> bool:
        return self.lengths

    def apply(self, columns: Columns) -> None:
        self.pad(columns, verb=self.called)

    def pad(self, columns: Columns, sizes: tuple[int, ...] = (), *, verb: str) -> None:
        """Pads the columns for the method ``verb``; ``sizes`` as in `PadStep`."""
        columns.open()
        chosen = columns.matching(self.patterns)
        refuse_nested(self.called, columns, chosen)
        lengths: list[OutputField] = []
        for number in chosen:
            output = columns.outputs[number]
            shape = self._target_shape(output)
            if not output.ragged and shape == output.shape:
                continue
            variable = tuple(axis for axis, size in enumerate(output.shape) if size is None) or (0,)
            step = PadStep(
                number=number,
                shape=shape,
                value=_pad_value(output, self.value),
                lengths=self.lengths,
                axes=variable,
                field=output,
                sizes=sizes,
            )
            columns.steps.append(step)
            columns.outputs[number] = replace(output, shape=shape, padded=None in shape)
            if self.lengths:
                axes = () if len(variable) == 1 else (len(variable),)
                lengths.append(companion(output, "__length", np.dtype(np.int64), axes))
        columns.add(*lengths, verb=verb)

    def _target_shape(self, output: OutputField) -> tuple[int | None, ...]:
        shape = output.shape if self.shape is None else self.shape
        if len(shape) != len(output.shape) or any(
            own is not None and own != size for own, size in zip(output.shape, shape, strict=True)
        ):
            rule = f"expected a shape that fits {output.shape}, got {shape}."
            raise PipelineError(f"{self.called}: field '{output.name}': {rule}")
        if not self.lengths and None in shape:
            raise PipelineError(f"fixed: field '{output.name}': expected a shape without None, got {shape}.")
        return shape


def _pad_value(output: OutputField, value: object) -> Any:
    if output.kind == "dense":
        return fill_value(output, 0 if value is None else value)
    if value is not None and not isinstance(value, str):
        raise PipelineError(f"field '{output.name}': expected a string to pad with, got {value!r}.")
    return value or ""
