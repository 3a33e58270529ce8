"""``ngram``: makes windows of consecutive rows."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from ..base.errors import PipelineError
from ..base.process.dataclass import dataclass
from ..schema.element import OutputField, Path
from ..schema.field import match_names
from ..schema.plain import plain
from .base import Decision, FieldNames, Stage, is_integer, names_of, positive_integer
from .columns import Columns, ResolveFields, companion
from .names import StoredName
from .steps import WindowLeaf, WindowStep

Edges = Literal["drop", "clamp"]


@dataclass(frozen=True)
class Ngram(Stage):
    """Makes windows of consecutive rows.

    Attributes:
        length: number of steps in a stacked window; ``None`` if ``offsets`` lists the fields of each step, or
            ``field_offsets`` the steps of each field.
        offsets: ``((offset, patterns), ...)``, ascending.
        max_gap: a number in the timestamp's own unit, or ``(count, numpy unit)``.
        last: patterns of the fields of which a window of ``length`` has only the last step.
        field_offsets: ``((pattern, offsets), ...)``; one offset without a tuple is not stacked.
        edges: whether there is no window that reaches beyond the ends of a run of rows, or it repeats the row there.
        single: the fields of ``field_offsets`` that have no time axis although they have a list, of one offset.
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
    last: tuple[str, ...] = ()
    field_offsets: tuple[tuple[str, int | tuple[int, ...]], ...] = ()
    edges: Edges = "drop"
    single: tuple[str, ...] = ()

    @classmethod
    def sample(cls) -> Stage:
        return cls(length=1)

    def check(self) -> None:
        forms = {"fields={offset: [names]}": self.offsets, "offsets={name: offsets}": self.field_offsets}
        chosen = [form for form, value in forms.items() if value] + (["length="] if self.length is not None else [])
        if len(chosen) != 1:
            got = " and ".join(chosen) or "none"
            raise PipelineError(f"ngram: expected one of length=n, {', '.join(forms)}, got {got}.")
        if self.length is not None:
            positive_integer("ngram", "length", self.length)
        elif self.last:
            raise PipelineError(f"ngram: last= needs length=, got {chosen[0]}. Give those fields one offset there.")
        positive_integer("ngram", "stride", self.stride)
        if self.max_gap is not None and self.timestamp is None:
            raise PipelineError("ngram: max_gap needs timestamp=, the field whose gaps are measured.")

    @property
    def changes_names(self) -> bool:
        return self.length is None or self.edges == "clamp"

    def check_fields(self, resolve: ResolveFields) -> None:
        for name in self.reads:
            resolve([re.escape(name)])

    @property
    def _used(self) -> tuple[int, ...]:
        """The offsets of the rows that a window has, ascending."""
        if self.length is not None:
            return tuple(range(self.length))
        if self.offsets:
            return tuple(offset for offset, _ in self.offsets)
        listed = (offsets if isinstance(offsets, tuple) else (offsets,) for _, offsets in self.field_offsets)
        return tuple(sorted({offset for offsets in listed for offset in offsets}))

    @property
    def steps(self) -> tuple[int, ...]:
        """The offsets of the steps; the first is that of the row that identifies a window: the window's first row, or
        its own row if there is a window for every row.
        """
        used = self._used
        return used if self.edges == "drop" else (0, *(offset for offset in used if offset))

    @property
    def lowest(self) -> int:
        """The smallest offset."""
        return self._used[0]

    @property
    def span(self) -> int:
        """Rows from the first to the last step, inclusive."""
        used = self._used
        return used[-1] - used[0] + 1

    def apply(self, columns: Columns) -> None:
        columns.open()
        leaves: list[WindowLeaf] = []
        outputs: list[OutputField] = []
        flags: list[tuple[WindowLeaf, OutputField]] = []
        for number, path, offsets in self._taken([output.name for output in columns.outputs]):
            own = offsets[0] if isinstance(offsets, tuple) and path[-1] in self.single else offsets
            leaves.append(WindowLeaf(number=number, offsets=own))
            window = len(own) if isinstance(own, tuple) else None
            outputs.append(replace(columns.outputs[number], path=path, window=window))
            if isinstance(offsets, tuple):
                flag = companion(outputs[-1], "__is_pad", np.dtype(np.bool_), ())
                flags.append((WindowLeaf(number=None, offsets=offsets), replace(flag, window=len(offsets))))
        columns.outputs = outputs
        if self.edges == "clamp":
            leaves += [leaf for leaf, _ in flags]
            columns.add(*(flag for _, flag in flags), verb="ngram")
        columns.window = WindowStep(offsets=self.steps, leaves=tuple(leaves))

    def _taken(self, names: Sequence[str]) -> Iterator[tuple[int, Path, int | tuple[int, ...]]]:
        """Yields the number of a field, the path that it gets, and its offsets, for each value of a window."""
        for offset, patterns in self.offsets:
            chosen = _matching(patterns, names)
            yield from ((number, (offset, name), offset) for number, name in enumerate(names) if name in chosen)
        if self.offsets:
            return
        of_name: dict[str, int | tuple[int, ...]] = {}
        if self.length is not None:
            last = _matching(self.last, names)
            every = tuple(range(self.length))
            of_name = {name: every[-1] if name in last else every for name in names}
        for pattern, offsets in self.field_offsets:
            for name in match_names(pattern, names):
                of_name.setdefault(name, offsets)
        yield from ((number, (name,), of_name[name]) for number, name in enumerate(names) if name in of_name)


def _matching(patterns: Sequence[str], names: Sequence[str]) -> set[str]:
    return {name for pattern in patterns for name in match_names(pattern, names)}


def field_offsets_of(offsets: Mapping[Any, Any]) -> tuple[tuple[str, int | tuple[int, ...]], ...]:
    """The steps of each field as ``(pattern, offsets)`` pairs: one offset, or several as a tuple.

    Raises:
        PipelineError: a name is not a name, or an offset is not an integer.
    """
    refusal = (
        f"ngram: expected offsets={{name: offset, or a list of offsets}}, got {offsets!r}. Offsets count rows: for "
        "seconds, multiply by the number of rows per second."
    )
    if not isinstance(offsets, Mapping) or not offsets:
        raise PipelineError(refusal)
    pairs = [(name, plain(value)) for name, value in offsets.items()]
    for name, value in pairs:
        listed = value if isinstance(value, tuple) else (value,)
        if not isinstance(name, str) or not listed or not all(map(is_integer, listed)):
            raise PipelineError(refusal)
    return tuple(pairs)


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
