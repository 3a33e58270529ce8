"""``bucketize``: replaces numbers by the number of the bucket that they fall in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField
from ..schema.plain import integer, plain
from ..schema.training_statistics import ElementStatistics, TrainingStatistics
from .base import FieldNames, required_names
from .number_base import Exact, NumberStage, check_lengths, fitted, inside, one_source
from .steps import ValueStep


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketizeStep(ValueStep):
    """Counts the boundaries, in the dtype of the field, that are not above a number."""

    verb: ClassVar[str] = "bucketize"
    boundaries: tuple[Exact, ...]


@dataclass(frozen=True)
class Bucketize(NumberStage):
    """Replaces the numbers of each field by int64 codes, with boundaries of its own."""

    verb: ClassVar[str] = "bucketize"
    sendable: ClassVar[bool] = True
    sample_arguments: ClassVar[tuple[object, ...]] = (("x",), ((0.0,),))
    patterns: tuple[str, ...]
    boundaries: tuple[tuple[Exact, ...], ...]

    @classmethod
    def of(
        cls,
        names: Iterable[FieldNames],
        stats: TrainingStatistics | None,
        buckets: int | None,
        boundaries: Sequence[float] | None,
    ) -> Bucketize:
        """Creates the stage from quantiles of what was fitted, or from the same boundaries for all names.

        Quantiles that are equal become one boundary.
        """
        one_source("bucketize", stats, "boundaries=", boundaries)
        if (stats is not None) != (buckets is not None):
            raise PipelineError("bucketize: expected buckets= with stats=, and only with it.")
        if stats is None:
            patterns = required_names("bucketize", names)
            return cls(patterns, (plain(boundaries),) * len(patterns))
        parts = integer(buckets, least=2)
        if parts is None:
            raise PipelineError(f"bucketize: expected buckets to be an integer >= 2, got {buckets!r}.")
        chosen = fitted("bucketize", names, stats)
        made = []
        for name, each in chosen:
            if isinstance(each, ElementStatistics):
                raise PipelineError(f"bucketize '{name}': expected statistics of all its numbers, got those by place.")
            made.append(tuple(sorted({each.quantile(n / parts) for n in range(1, parts)})))
        return cls(tuple(name for name, _ in chosen), tuple(made))

    def check(self) -> None:
        check_lengths(self, self.patterns, self.boundaries)
        for values in self.boundaries:
            listed = isinstance(values, tuple) and bool(values)
            numbers = listed and all(type(value) in (int, float) and math.isfinite(value) for value in values)
            if not numbers or any(first >= second for first, second in pairwise(values)):
                raise PipelineError(f"bucketize: expected boundaries to be ascending finite numbers, got {values!r}.")

    def step(self, place: int, number: int, output: OutputField) -> BucketizeStep:
        boundaries = self.boundaries[place]
        if output.dtype.kind in "iu":
            most = np.iinfo(output.dtype).max
            boundaries = tuple(inside(output.dtype, each, math.ceil) for each in boundaries if each <= most)
        return BucketizeStep(number=number, field=output, boundaries=boundaries)

    def dtype_after(self, output: OutputField) -> np.dtype:
        return np.dtype(np.int64)
