"""``clip``: replaces numbers below or above two bounds by these."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import Any, ClassVar

import numpy as np

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from ..schema.plain import plain
from ..schema.training_statistics import TrainingStatistics
from .base import FieldNames, required_names
from .number_base import Exact, NumberStage, by_place, check_lengths, fit_to, fitted, inside, is_finite, one_source
from .steps import ValueStep


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipStep(ValueStep):
    """Clips numbers to bounds of their own dtype; ``None`` = no bound."""

    verb: ClassVar[str] = "clip"
    low: Any
    high: Any


@dataclass(frozen=True)
class Clip(NumberStage):
    """Clips the numbers of each field to bounds of its own."""

    verb: ClassVar[str] = "clip"
    sendable: ClassVar[bool] = True
    kinds: ClassVar[str] = "iuf"
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",), (0.0,), (1.0,))
    patterns: tuple[str, ...]
    low: tuple[Exact | tuple[Exact, ...] | None, ...]
    high: tuple[Exact | tuple[Exact, ...] | None, ...]

    @classmethod
    def of(
        cls,
        names: Iterable[FieldNames],
        stats: TrainingStatistics | None,
        quantiles: Sequence[float],
        low: float | None,
        high: float | None,
    ) -> Clip:
        """Creates the stage from two quantiles of what was fitted, or from the same bounds for all names."""
        one_source("clip", stats, "low= or high=", low, high)
        if stats is None:
            patterns = required_names("clip", names)
            return cls(patterns, (low,) * len(patterns), (high,) * len(patterns))
        shares = plain(quantiles)
        if not isinstance(shares, tuple) or len(shares) != 2 or not all(type(s) in (int, float) for s in shares):
            raise PipelineError(f"clip: expected quantiles to be two numbers, got {quantiles!r}.")
        chosen = fitted("clip", names, stats)
        lows, highs = (tuple(each.quantile(share) for _, each in chosen) for share in shares)
        return cls(tuple(name for name, _ in chosen), lows, highs)

    def check(self) -> None:
        check_lengths(self, self.patterns, self.low, self.high)
        for low, high in zip(self.low, self.high, strict=True):
            pairs = [
                [bound for bound in pair if bound is not None] for pair in zip_longest(by_place(low), by_place(high))
            ]
            numbers = all(is_finite(bound) for pair in pairs for bound in pair)
            if not all(pairs) or not numbers or any(pair[0] > pair[-1] for pair in pairs):
                raise PipelineError(f"clip: expected finite numbers, low <= high, got low={low!r}, high={high!r}.")

    def step(self, place: int, number: int, output: OutputField) -> ClipStep:
        """Raises `PipelineError` if no number of the field's dtype lies within the bounds."""
        low, high = (fit_to(self.verb, output, bounds[place]) for bounds in (self.low, self.high))
        lows, highs = (
            tuple(_bound(output.dtype, bound, inwards) for bound in by_place(bounds))
            for bounds, inwards in ((low, math.ceil), (high, math.floor))
        )
        if any(None not in pair and pair[0] > pair[1] for pair in zip(lows, highs, strict=True)):
            raise PipelineError(
                f"clip: field '{output.name}': expected bounds with a number of {output.dtype} between them, got "
                f"{low!r} and {high!r}."
            )
        is_one = not isinstance(low, tuple) and not isinstance(high, tuple)
        return ClipStep(
            number=number, field=output, low=lows[0] if is_one else lows, high=highs[0] if is_one else highs
        )

    def dtype_after(self, output: OutputField) -> np.dtype:
        return output.dtype


def _bound(dtype: np.dtype, bound: Exact | None, inwards: Callable[[Exact], int]) -> Any:
    """A bound as a number of a dtype: of integers the next one inside, of floats the nearest finite one."""
    if bound is None:
        return None
    if dtype.kind != "f":
        return dtype.type(inside(dtype, bound, inwards))
    limits = np.finfo(dtype)
    return dtype.type(min(max(bound, limits.min), limits.max))
