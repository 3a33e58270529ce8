"""``standardize``: subtracts the mean of a field and divides by its standard deviation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, Literal

import numpy as np

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from ..schema.training_statistics import TrainingStatistics
from .base import FieldNames, required_names
from .number_base import NumberStage, Places, by_place, check_lengths, fit_to, fitted, is_finite, one_source
from .steps import ValueStep

Float = Literal["float16", "float32", "float64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandardizeStep(ValueStep):
    """Computes ``(value - mean) / std`` in float64, then rounds to ``dtype``."""

    verb: ClassVar[str] = "standardize"
    mean: Places
    std: Places
    dtype: str


@dataclass(frozen=True)
class Standardize(NumberStage):
    """Standardizes the numbers of each field with a mean and a deviation of its own."""

    verb: ClassVar[str] = "standardize"
    sendable: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",), (0.0,), (1.0,))
    patterns: tuple[str, ...]
    mean: tuple[Places, ...]
    std: tuple[Places, ...]
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
        stds = tuple(_nonzero(each.std) for _, each in chosen)
        return cls(tuple(name for name, _ in chosen), means, stds, dtype)  # type: ignore[arg-type]  # checked there

    def check(self) -> None:
        check_lengths(self, self.patterns, self.mean, self.std)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if not all(is_finite(number) for value in values for number in by_place(value)):
                raise PipelineError(f"standardize: expected {name} to be a finite number, got {values!r}.")
        least = min(number for value in self.std for number in by_place(value) if is_finite(number))
        if least <= 0:
            raise PipelineError(f"standardize: expected std above 0, got {least!r}.")

    def step(self, place: int, number: int, output: OutputField) -> StandardizeStep:
        mean, std = (fit_to(self.verb, output, values[place]) for values in (self.mean, self.std))
        return StandardizeStep(number=number, field=output, mean=mean, std=std, dtype=self.dtype)

    def dtype_after(self, output: OutputField) -> np.dtype:
        return np.dtype(self.dtype)


def _nonzero(std: Places | None) -> Places:
    return tuple(each or 1.0 for each in std) if isinstance(std, tuple) else std or 1.0
