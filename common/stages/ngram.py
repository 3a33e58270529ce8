"""``ngram``: makes windows of consecutive rows."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField, Path
from ..schema.field import match_names
from ..schema.plain import plain
from .base import Decision, FieldNames, Stage, is_integer, names_of, positive_integer
from .columns import Columns, ResolveFields
from .names import StoredName
from .steps import WindowStep


@dataclass(frozen=True)
class Ngram(Stage):
    """Makes windows of consecutive rows.

    Attributes:
        length: number of steps in a stacked window; ``None`` if ``offsets`` lists the fields of each step.
        offsets: ``((offset, patterns), ...)``, ascending.
        max_gap: a number in the timestamp's own unit, or ``(count, numpy unit)``.
    """

    verb: ClassVar[str] = "ngram"
    decides: ClassVar[Decision] = Decision.WINDOWS
    length: int | None = None
    offsets: tuple[tuple[int, tuple[str, ...]], ...] = ()
    timestamp: StoredName | None = None
    max_gap: Any = None
    group_by: tuple[StoredName, ...] = ()
    stride: int = 1
    overlap: bool = True
    span_row_groups: bool = True

    @classmethod
    def sample(cls) -> Stage:
        return cls(length=1)

    def check(self) -> None:
        if self.length is None and not self.offsets:
            raise PipelineError("ngram: expected fields={offset: [names]} or length=n, got neither.")
        if self.length is not None and self.offsets:
            raise PipelineError("ngram: expected fields={offset: [names]} or length=n, got both.")
        if self.length is not None:
            positive_integer("ngram", "length", self.length)
        positive_integer("ngram", "stride", self.stride)
        if self.max_gap is not None and self.timestamp is None:
            raise PipelineError("ngram: max_gap needs timestamp=, the field whose gaps are measured.")

    @property
    def changes_names(self) -> bool:
        return bool(self.offsets)

    def check_fields(self, resolve: ResolveFields) -> None:
        for name in self.reads:
            resolve([re.escape(name)])

    @property
    def steps(self) -> tuple[int, ...]:
        """The offsets of the steps, ascending."""
        return tuple(range(self.length)) if self.length is not None else tuple(offset for offset, _ in self.offsets)

    @property
    def span(self) -> int:
        """Rows from the first to the last step, inclusive."""
        return self.steps[-1] - self.steps[0] + 1

    def apply(self, columns: Columns) -> None:
        columns.open()
        leaves: list[tuple[Path, int, int | None]] = []
        outputs: list[OutputField] = []
        names = [output.name for output in columns.outputs]
        if self.length is not None:
            for number, output in enumerate(columns.outputs):
                leaves.append((output.path, number, None))
                outputs.append(replace(output, window=self.length))
        for offset, patterns in self.offsets:
            chosen = {name for pattern in patterns for name in match_names(pattern, names)}
            for number, output in enumerate(columns.outputs):
                if output.name in chosen:
                    leaves.append(((offset, output.name), number, offset))
                    outputs.append(replace(output, path=(offset, output.name)))
        columns.window = WindowStep(offsets=self.steps, leaves=tuple(leaves))
        columns.outputs = outputs


def offsets_of(fields: Mapping[Any, FieldNames]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """The fields of each step of a window as ``(offset, patterns)`` pairs, ascending by offset.

    Raises:
        PipelineError: an offset is not an integer, or a name is not a name.
    """
    refusal = PipelineError(f"ngram: expected fields={{offset: [names]}}, got {fields!r}.")
    try:
        offsets = [(plain(offset), names_of("ngram", names)) for offset, names in fields.items()]
    except (TypeError, PipelineError) as error:
        raise refusal from error
    if not all(is_integer(offset) for offset, _ in offsets):
        raise refusal
    return tuple(sorted(offsets))


def normalize_gap(max_gap: object) -> Any:
    """Converts ``max_gap`` to a form that JSON can hold: a number, or ``(count, unit)`` for time differences.

    Raises:
        PipelineError: the gap is negative, NaN, or of another type.
    """
    max_gap = plain(max_gap)
    if max_gap is None:
        return None
    if isinstance(max_gap, datetime.timedelta):
        rest = getattr(max_gap, "nanoseconds", 0)  # of pandas; numpy would cut them off
        max_gap = np.timedelta64(max_gap) + np.timedelta64(rest, "ns") if rest else np.timedelta64(max_gap)
    if isinstance(max_gap, np.timedelta64):
        count, unit = int(max_gap.astype(np.int64)), np.datetime_data(max_gap.dtype)[0]
        result: tuple[int, str] | float = (count, unit)
        negative = count < 0
    elif isinstance(max_gap, int | float) and not isinstance(max_gap, bool):
        result = max_gap
        negative = not result >= 0
    else:
        raise PipelineError(f"ngram: expected max_gap to be a number or a time difference, got {max_gap!r}.")
    if negative:
        raise PipelineError(f"ngram: expected max_gap >= 0, got {max_gap!r}.")
    return None if isinstance(result, float) and math.isinf(result) else result
