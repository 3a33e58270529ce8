"""``cast``: numbers in another dtype."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from ..errors import PipelineError
from ..schema.element import OutputField
from .base import Stage, matches, numeric_dtype, required_names
from .columns import Columns
from .steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class CastStep(Step):
    """Gives the numbers of column ``number``, which holds ``field``, another dtype."""

    number: int
    dtype: np.dtype[Any]
    field: OutputField

    @property
    def changes_one_column(self) -> bool:
        return True


@dataclass(frozen=True)
class Cast(Stage):
    """Numeric and bool fields in another dtype."""

    verb: ClassVar[str] = "cast"
    sendable: ClassVar[bool] = True
    dtype: str
    patterns: tuple[str, ...]

    @classmethod
    def of(cls, dtype: DTypeLike, names: tuple[str, ...]) -> Cast:
        """The stage; ``dtype`` is what numpy takes for one."""
        return cls(numeric_dtype("cast", dtype), required_names("cast", names))

    @classmethod
    def sample(cls) -> Stage:
        return cls("int64", ("x",))

    def check(self) -> None:
        numeric_dtype("cast", self.dtype)

    def changes(self, name: str) -> bool:
        return matches(self.patterns, name)

    def apply(self, columns: Columns) -> None:
        columns.open()
        dtype = np.dtype(self.dtype)
        for number in columns.matching(self.patterns):
            output = columns.outputs[number]
            if output.kind != "dense" or output.dtype.kind not in "biuf":
                what = output.dtype if output.kind == "dense" else output.kind
                raise PipelineError(
                    f"cast: field '{output.name}': expected numbers or bools, got {what}. Name other fields, or make "
                    "numbers of it with transform(), of a decimal with decimals()."
                )
            if output.dtype != dtype:
                columns.steps.append(CastStep(number=number, dtype=dtype, field=output))
                columns.outputs[number] = replace(output, dtype=dtype)
