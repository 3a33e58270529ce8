"""``cast``: converts numbers to another dtype."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.dtypes import NO_DTYPE, UNITS_NS, has_fixed_unit
from ..schema.element import OutputField
from .base import FieldNames, Stage, matches, numeric_dtype, required_names
from .columns import Columns
from .steps import ValueStep


@dataclass(frozen=True, slots=True, kw_only=True)
class CastStep(ValueStep):
    """Converts numbers to another dtype.

    Attributes:
        time: the time unit to convert to from ``field.time``, such as ``"datetime64[s]"``; ``None`` = no conversion.
    """

    verb: ClassVar[str] = "cast"
    dtype: np.dtype[Any]
    time: str | None = None


@dataclass(frozen=True)
class Cast(Stage):
    """Converts numeric and bool fields to another dtype, and times to another unit."""

    verb: ClassVar[str] = "cast"
    sendable: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = ("int64", ("x",))
    dtype: str
    patterns: tuple[str, ...]

    @classmethod
    def of(cls, dtype: DTypeLike, names: Iterable[FieldNames]) -> Cast:
        """Creates the stage; ``dtype`` is anything numpy accepts as a dtype."""
        return cls(_dtype_of(dtype), required_names("cast", names))

    def check(self) -> None:
        _dtype_of(self.dtype)

    def changes(self, name: str) -> bool:
        return matches(self.patterns, name)

    @property
    def casts_to(self) -> str:
        return self.dtype

    def apply(self, columns: Columns) -> None:
        columns.open()
        dtype = np.dtype(self.dtype)
        for number in columns.matching(self.patterns):
            output = columns.outputs[number]
            if output.kind != "dense" or output.dtype.kind not in "biuf":
                what = output.dtype if output.kind == "dense" else output.kind
                raise PipelineError(
                    f"cast: field '{output.name}': expected numbers or bools, got {what}. Name other fields, or "
                    "convert it with transform(), or with decimals() if it is a decimal."
                )
            if dtype.kind in "mM":
                self._apply_time(columns, number, output)
                continue
            columns.outputs[number] = replace(output, as_time=False)
            if output.dtype != dtype:
                columns.steps.append(CastStep(number=number, dtype=dtype, field=output))
                columns.outputs[number] = replace(output, dtype=dtype, as_time=False)

    def _apply_time(self, columns: Columns, number: int, output: OutputField) -> None:
        """Converts times to the wanted unit, or keeps their own if none is given; integers become times in the unit."""
        counted = output.time if output.dtype == np.int64 else None
        unit = np.datetime_data(self.dtype)[0] if counted is None else np.datetime_data(counted)[0]
        same_kind = counted is None or np.dtype(counted).kind == np.dtype(self.dtype).kind
        if output.dtype.kind not in "iu" or unit == "generic" or not same_kind:
            what = counted or f"{output.dtype} without a unit"
            raise PipelineError(
                f"cast: field '{output.name}': expected a type that converts to {self.dtype}, got {what}."
            )
        target = self.dtype if np.datetime_data(self.dtype)[0] != "generic" else f"{self.dtype}[{unit}]"
        whole = np.dtype(np.int64)
        if output.dtype != whole or (counted is not None and counted != target):
            time = None if counted is None else target
            columns.steps.append(CastStep(number=number, dtype=whole, field=output, time=time))
        columns.outputs[number] = replace(output, dtype=whole, time=target, as_time=True)


def _dtype_of(dtype: DTypeLike) -> str:
    """The name of a numeric, bool or time dtype; raises `PipelineError` for anything else."""
    try:
        result = None if dtype is None else np.dtype(dtype)
    except NO_DTYPE:
        result = None
    if result is None or result.kind not in "mM":
        return numeric_dtype("cast", dtype)
    if np.datetime_data(str(result))[0] != "generic" and not has_fixed_unit(result):
        raise PipelineError(f"cast: expected one of the units {', '.join(UNITS_NS)}, got {result}.")
    return str(result)
