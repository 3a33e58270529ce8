"""Which fields a user function returned. Those that it may leave out stay as they were."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.errors import TransformError
from ...schema.element import Path
from ...stages.transform import TransformStep
from ..columns.batch import Column, take_rows
from ..columns.protocols import Describe
from .returned_values import NestedCollector, ValueCollector, collector_for

UNRETURNED: Any = object()
"""Stands for the value of a field that a function left out."""
_MOST_SHOWN = 3


class Picker:
    """Picks the values of the outputs of a step from what its function returns."""

    def __init__(self, step: TransformStep) -> None:
        self._step = step
        self._kept = len(step.outputs) - step.declared
        self._required = self._kept if step.partial else 0
        self._paths = [output.path for output in step.outputs]
        self._known = {field.path[0] for field in (*step.outputs, *step.inputs)}
        self._added = {path[0] for path in self._paths[self._kept :]}

    def picked(self, argument: Mapping[Any, Any], result: object, where: Callable[[], str]) -> list[Any]:
        """Returns the value of each output, `UNRETURNED` for those that the function may leave out and did.

        Args:
            argument: what the function got.

        Raises:
            TransformError: the result is no dict, or its fields are not those that were declared.
        """
        step = self._step
        if not isinstance(result, Mapping):
            raise TransformError(
                f"transform {step.name} for {where()}: expected a dict of fields, got {type(result).__name__}. "
                "Return the changed row (or batch). To drop rows, set drops=True."
            )
        paths = self._paths
        values = [result.get(path[0], UNRETURNED) if len(path) == 1 else _inside(result, path) for path in paths]
        if any(value is UNRETURNED for value in values[self._required :]):
            raise missing_fields(step, result, where)
        unknown = set(result) - self._known
        if unknown:
            raise TransformError(
                f"transform {step.name} for {where()}: expected only the fields "
                f"{[field.name for field in step.outputs]}, got also {sorted(map(str, unknown))}. Declare them in "
                f"{'output=[...]' if step.declared and not step.adds else _adds(sorted(map(str, unknown)))}."
            )
        if step.adds:
            others = [name for name in result if name not in self._added]
            changed = [name for name in others if not _is_same(result[name], argument.get(name))]
            if changed:
                raise TransformError(
                    f"transform {step.name} for {where()}: expected values only for the fields in adds=, got other "
                    f"ones for {changed}. Name these in adds=[...], too."
                )
            values[: self._kept] = [UNRETURNED] * self._kept
        return values


def _inside(result: Mapping[Any, Any], path: Path) -> Any:
    value: Any = result
    for part in path:
        value = value.get(part, UNRETURNED) if isinstance(value, Mapping) else UNRETURNED
    return value


def missing_fields(step: TransformStep, names: Iterable[Any], where: Callable[[], str]) -> TransformError:
    """Returns the error for a result that has only the fields ``names``."""
    fields, names = [field.name for field in step.outputs], list(names)
    declared = [output.path[0] for output in step.outputs[len(fields) - step.declared :]]
    shown = ", ".join(f"{name!r}: ..." for name in (declared or [n for n in names if n in fields])[:_MOST_SHOWN])
    whole = f"{{**{'row' if step.form == 'row' else 'batch'}, {shown or '...'}}}"
    who = f"transform {step.name} for {where()}: expected the fields"
    if step.form == "arrow":
        remedy = "Declare new fields in output=[...], and name the others in remove=(...)."
        return TransformError(f"{who} {declared if step.partial else fields}, got {names}. {remedy}")
    if step.partial:
        return TransformError(f"{who} {declared}, got {names}. Return {{{shown}}}, or {whole}.")
    new = [name for name in names if name not in fields]
    if new and not step.declared:
        return TransformError(
            f"{who} {fields}, got {names}. Declare what it adds in {_adds(new)}: it may then return that alone."
        )
    return TransformError(
        f"{who} {fields}, got {names}. Return every field: {whole}. Or name those that it leaves out in remove=(...)."
    )


def _adds(names: Sequence[Any]) -> str:
    """Returns the argument that declares new fields, with an example."""
    return f"adds=[UnischemaField({names[0]!r}, np.float32), ...]"


def _is_same(value: object, before: object) -> bool:
    """Returns whether a value is the very one that the function got. Arrow makes new objects for the same memory."""
    if isinstance(value, pa.ChunkedArray) and value.num_chunks == 1:
        value = value.chunk(0)
    if not isinstance(value, pa.Array) or not isinstance(before, pa.Array):
        return value is before
    parts = [[0 if part is None else part.address for part in each.buffers()] for each in (value, before)]
    return (value.type, len(value), value.offset, parts[0]) == (before.type, len(before), before.offset, parts[1])


class RowColumns:
    """Collects what a function of rows returns. A field that no row returned keeps its column.

    Args:
        columns: the columns of the inputs.
        inputs: the values of the inputs, by row.
        kept: the numbers of the rows that the function kept so far; the caller appends to it.
        describe: describes where row ``i`` comes from, for errors.
    """

    def __init__(
        self,
        step: TransformStep,
        columns: Sequence[Column],
        inputs: Sequence[Sequence[Any]],
        kept: Sequence[int],
        count: int,
        describe: Describe,
    ) -> None:
        self._step = step
        self._columns = columns
        self._inputs = inputs
        self._kept = kept
        self._describe = describe
        self._rows = count
        stay = len(step.outputs) - step.declared if step.partial else 0
        begun = [self._collector(number) for number in range(stay, len(step.outputs))]
        self._collectors: list[ValueCollector | NestedCollector | None] = [*[None] * stay, *begun]

    def add(self, values: Sequence[Any]) -> None:
        """Adds the outputs of the last row in ``kept``."""
        for number, value in enumerate(values):
            collector = self._collectors[number]
            if value is UNRETURNED:
                if collector is not None:
                    collector.add(self._inputs[self._step.source_of(number)][self._kept[-1]])
                continue
            if collector is None:
                collector = self._collectors[number] = self._collector(number)
                source = self._inputs[self._step.source_of(number)]
                for row in self._kept[:-1]:
                    collector.add(source[row])
            collector.add(value)

    def columns(self) -> list[Column]:
        """Returns the columns of all rows that the function kept."""
        return [self._staying(n) if each is None else each.column() for n, each in enumerate(self._collectors)]

    def _staying(self, number: int) -> Column:
        column = self._columns[self._step.source_of(number)]
        return column if len(self._kept) == self._rows else take_rows(column, np.array(self._kept, np.int64))

    def _collector(self, number: int) -> ValueCollector | NestedCollector:
        kept = self._kept
        field = self._step.outputs[number]
        return collector_for(self._step, field, self._rows, lambda row: self._describe(kept[row]))
