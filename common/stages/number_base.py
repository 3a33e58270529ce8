"""`NumberStage`: the base of verbs that compute each number of a field from itself, by what was fitted or given."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias, TypeGuard

import numpy as np

from ..base.errors import PipelineError
from ..schema.element import OutputField
from ..schema.field import match_names
from ..schema.training_statistics import ElementStatistics, NumberStatistics, TrainingStatistics
from .base import FieldNames, Stage, matches, required_names
from .columns import Columns
from .steps import ValueStep

Places: TypeAlias = float | tuple[float, ...]
"""A number for all numbers of a field, or one for each place along its last axis."""
Exact: TypeAlias = int | float
"""A number that is compared with others. As a float, an integer beyond 2**53 would be another number."""


class NumberStage(Stage):
    """Base of stages with parameters for each of their ``patterns``. A field follows the first pattern that fits.

    Attributes:
        kinds: the kinds of numpy dtypes that it takes.
    """

    kinds: ClassVar[str] = "biuf"
    patterns: tuple[str, ...]

    def step(self, place: int, number: int, output: OutputField) -> ValueStep:
        """The step on column ``number`` with the parameters of the pattern at ``place``."""
        raise NotImplementedError

    def dtype_after(self, output: OutputField) -> np.dtype:
        """The dtype of the numbers that it makes."""
        raise NotImplementedError

    def changes(self, name: str) -> bool:
        return matches(self.patterns, name)

    def apply(self, columns: Columns) -> None:
        columns.open()
        done = set[int]()
        for place, pattern in enumerate(self.patterns):
            for number in columns.matching((pattern,)):
                if number in done:
                    continue
                done.add(number)
                output = columns.outputs[number]
                if output.kind != "dense" or output.dtype.kind not in self.kinds:
                    what = output.dtype if output.kind == "dense" else output.kind
                    raise PipelineError(
                        f"{self.verb}: field '{output.name}': expected numbers, got {what}. Name other fields, or "
                        "convert it with cast(), decimals() or transform()."
                    )
                columns.steps.append(self.step(place, number, output))
                columns.outputs[number] = replace(output, dtype=self.dtype_after(output), time=None, as_time=False)


def check_lengths(stage: Stage, patterns: tuple[str, ...], *parameters: tuple[object, ...]) -> None:
    """Raises `PipelineError` unless there is one value of each parameter for each pattern, and for the same places."""
    if not patterns or any(len(values) != len(patterns) for values in parameters):
        raise PipelineError(f"{stage.verb}: expected one value of each parameter for each of {patterns!r}.")
    for values in zip(*parameters, strict=True):
        if len({len(value) if isinstance(value, tuple) else None for value in values}) > 1:
            raise PipelineError(f"{stage.verb}: expected parameters for the same places, got {values!r}.")


def one_source(verb: str, stats: object, numbers: str, *values: object) -> None:
    """Raises `PipelineError` unless either ``stats`` is given or at least one of the values, which are ``numbers``."""
    explicit = any(value is not None for value in values)
    if stats is not None and not isinstance(stats, TrainingStatistics):
        raise PipelineError(f"{verb}: expected stats= to be what fit() returned, got {stats!r:.80}.")
    if explicit == (stats is not None):
        raise PipelineError(f"{verb}: expected either stats= or {numbers}, got {'both' if explicit else 'neither'}.")


def by_place(value: Exact | tuple[Exact, ...] | None) -> tuple[Exact | None, ...]:
    """Returns the numbers that a parameter has for the places of a field, or the only one."""
    return value if isinstance(value, tuple) else (value,)


def is_finite(value: object) -> TypeGuard[float]:
    """Whether a parameter is a number, and neither infinite nor NaN."""
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]  # checked just now


def inside(dtype: np.dtype, number: Exact, inwards: Callable[[Exact], int]) -> Exact:
    """Returns the number of an integer dtype that is next to another one, ``math.ceil`` or ``math.floor`` of it."""
    limits = np.iinfo(dtype)
    return min(max(inwards(number), int(limits.min)), int(limits.max))


def fit_to(verb: str, output: OutputField, value: Any) -> Any:
    """Returns a parameter as the steps take it for a field: one number if the field has no axes.

    Raises:
        PipelineError: there is not one number for each place along the field's last axis.
    """
    if not isinstance(value, tuple):
        return value
    if len(value) == 1 and output.shape == ():
        return value[0]
    if not output.shape or output.shape[-1] != len(value) or output.levels:
        raise PipelineError(
            f"{verb}: field '{output.name}': expected an array whose last axis has {len(value)} places, as its "
            f"statistics have, got shape {output.shape}. Call {verb}() before verbs that change the shape."
        )
    return value


def fitted(
    verb: str, names: Iterable[FieldNames], stats: TrainingStatistics
) -> list[tuple[str, NumberStatistics | ElementStatistics]]:
    """The fields that names and regexes select among those that were fitted, with their statistics.

    Raises:
        FieldNotFoundError, PipelineError: a name selects none, or one that holds no numbers.
    """
    listed = dict.fromkeys(name for pattern in required_names(verb, names) for name in match_names(pattern, stats))
    return [(name, stats.number(verb, name)) for name in listed]
