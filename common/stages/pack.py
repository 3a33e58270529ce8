"""``pack``: joins many numeric fields into one vector."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField, Path
from .base import FieldNames, Stage, numeric_dtype, required_names
from .columns import Columns
from .steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class PackStep(Step):
    """Concatenates columns ``numbers`` into a new column at the end.

    Attributes:
        fields: the fields in those columns, in the same order.
        output: the new column, whose values are the rows of a matrix.
        keep: which columns remain before the new one.
    """

    reads_stored: ClassVar[bool] = True
    numbers: tuple[int, ...]
    fields: tuple[OutputField, ...]
    output: OutputField
    keep: tuple[int, ...]

    def untouched(self, columns: Sequence[int | None]) -> list[int | None]:
        return [*(None if number in self.numbers else columns[number] for number in self.keep), None]

    @property
    def taken(self) -> tuple[int, ...]:
        return self.numbers

    @property
    def kept(self) -> tuple[int, ...]:
        return self.keep

    def on_columns(self, chosen: Sequence[int]) -> PackStep:
        new = {number: place for place, number in enumerate(chosen)}
        keep = tuple(new[number] for number in self.keep if number in new)
        return replace(self, numbers=tuple(new[number] for number in self.numbers), keep=keep)

    def __str__(self) -> str:
        names = ", ".join(field.name for field in self.fields[:4]) + (", ..." if len(self.fields) > 4 else "")
        return f"{self.output.name}: {len(self.fields)} fields side by side ({names})"

    @property
    def widths(self) -> tuple[int, ...]:
        """How many entries of the vector each field takes."""
        return tuple(math.prod(axis or 0 for axis in field.shape) for field in self.fields)


@dataclass(frozen=True)
class Pack(Stage):
    """Joins many numeric fields into one vector."""

    verb: ClassVar[str] = "pack"
    changes_names: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = ("x", ("x",))
    name: str
    patterns: tuple[str, ...]
    dtype: str | None = None
    keep: bool = False

    @classmethod
    def of(cls, name: str, fields: FieldNames, dtype: DTypeLike | None, *, keep: bool) -> Pack:
        """Creates the stage; ``dtype`` is anything numpy accepts as a dtype."""
        target = None if dtype is None else numeric_dtype(f"pack '{name}'", dtype)
        return cls(name, required_names("pack", fields), target, keep)

    def check(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise PipelineError(f"pack: expected a name for the new field, got {self.name!r}.")
        if not self.patterns:
            raise PipelineError(f"pack '{self.name}': expected at least one field, got none.")

    def changes(self, name: str) -> bool:
        return self.name == name

    def apply(self, columns: Columns) -> None:
        columns.open()
        names = columns.named(self.patterns)
        offsets: dict[str, list[Path]] = {}  # windows with fields per offset get one matrix for each offset
        for output in columns.outputs:
            offsets.setdefault(str(output.path[-1]), []).append(output.path[:-1])
        for prefix in dict.fromkeys(prefix for name in names for prefix in offsets[name]):
            numbers_of = {output.path: number for number, output in enumerate(columns.outputs)}
            paths: Iterator[Path] = ((*prefix, name) for name in names)
            numbers = [numbers_of[path] for path in paths if path in numbers_of]
            step = self._step(columns.outputs, numbers)
            columns.steps.append(step)
            columns.outputs = [columns.outputs[number] for number in step.keep]
            columns.add(step.output, verb=f"pack '{self.name}'")

    def _step(self, outputs: Sequence[OutputField], numbers: Sequence[int]) -> PackStep:
        """The step that concatenates columns ``numbers``.

        Raises:
            PipelineError: a field is not a number or a vector of fixed length, or ``dtype`` cannot hold it.
        """
        chosen = [outputs[number] for number in numbers]
        for output in chosen:
            if output.kind != "dense" or len(output.shape) > 1 or None in output.shape:
                raise PipelineError(
                    f"pack '{self.name}': expected numbers or vectors of fixed length, got field '{output.name}', "
                    f"{output.kind} {output.dtype} {output.shape}. Leave it out, or convert it with transform()."
                )
            if output.window != chosen[0].window:
                raise PipelineError(f"pack '{self.name}': expected fields of equal windows, got '{output.name}'.")
        width = sum(math.prod(axis or 0 for axis in output.shape) for output in chosen)
        packed = set(numbers)
        keep = tuple(number for number in range(len(outputs)) if self.keep or number not in packed)
        path = (*chosen[0].path[:-1], self.name)
        output = OutputField(
            path=path, kind="dense", dtype=self._dtype(chosen), shape=(width,), window=chosen[0].window
        )
        return PackStep(numbers=tuple(numbers), fields=tuple(chosen), output=output, keep=keep)

    def _dtype(self, chosen: Sequence[OutputField]) -> np.dtype[Any]:
        kinds = {output.dtype for output in chosen}
        if self.dtype is None:
            dtype = np.result_type(*kinds)
            if dtype.kind == "f" and not any(kind.kind == "f" for kind in kinds):
                raise PipelineError(
                    f"pack '{self.name}': expected integers that fit one integer type, got "
                    f"{sorted(map(str, kinds))}, which only floats can hold, and not exactly. Pass dtype=."
                )
            return dtype
        dtype = np.dtype(self.dtype)
        for output in chosen:
            floats = output.dtype.kind == "f" and dtype.kind != "f"
            if floats or (dtype.kind == "b" and output.dtype.kind != "b"):
                raise PipelineError(
                    f"pack '{self.name}': expected a dtype that can hold field '{output.name}', {output.dtype}, got "
                    f"{dtype}. Pass another dtype=, or leave the field out."
                )
        return dtype
