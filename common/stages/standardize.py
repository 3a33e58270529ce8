"""``standardize``: subtracts the mean of a field and divides by its standard deviation."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import ClassVar, Literal

import numpy as np

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from ..schema.training_statistics import TrainingStatistics
from .base import FieldNames, required_names
from .number_base import NumberStage, check_lengths, fitted, one_source
from .steps import ValueStep

Float = Literal["float16", "float32", "float64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardizeStep(ValueStep):
    """Computes ``(value - mean) / std`` in float64, then rounds to ``dtype``."""

    verb: ClassVar[str] = "standardize"
    mean: float
    std: float
    dtype: str


@dataclass(frozen=True)
class Standardize(NumberStage):
    """Standardizes the numbers of each field with a mean and a deviation of its own."""

    verb: ClassVar[str] = "standardize"
    sendable: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",), (0.0,), (1.0,))
    patterns: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    dtype: Float = "float32"

    @classmethod
    def of(
        cls,
        names: Iterable[FieldNames],
        stats: TrainingStatistics | None,
        mean: float | None,
        std: float | None,
        dtype: object,
    ) -> Standardize:
        """Creates the stage from what was fitted, or from one mean and one deviation for all names.

        A fitted field whose numbers are all equal has a deviation of 0, and is divided by 1.
        """
        one_source("standardize", stats, "mean= and std=", mean, std)
        if stats is None:
            if mean is None or std is None:
                raise PipelineError("standardize: expected both mean= and std=, got only one of them.")
            patterns = required_names("standardize", names)
            return cls(patterns, (mean,) * len(patterns), (std,) * len(patterns), dtype)  # type: ignore[arg-type]
        chosen = fitted("standardize", names, stats)
        means = tuple(each.mean or 0.0 for _, each in chosen)
        stds = tuple(each.std or 1.0 for _, each in chosen)
        return cls(tuple(name for name, _ in chosen), means, stds, dtype)  # type: ignore[arg-type]  # checked there

    def check(self) -> None:
        check_lengths(self, self.patterns, self.mean, self.std)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not all(type(value) in (int, float) and math.isfinite(value) for value in values):
                raise PipelineError(f"standardize: expected {name} to be a finite number, got {values!r}.")
        if min(self.std) <= 0:
            raise PipelineError(f"standardize: expected std above 0, got {min(self.std)!r}.")

    def step(self, place: int, number: int, output: OutputField) -> StandardizeStep:
        return StandardizeStep(
            number=number, field=output, mean=self.mean[place], std=self.std[place], dtype=self.dtype
        )

    def dtype_after(self, output: OutputField) -> np.dtype:
        return np.dtype(self.dtype)
