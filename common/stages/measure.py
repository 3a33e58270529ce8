"""`Measure`: a number for each wanted row, such as a length or a weight, that must be known before the order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..base.errors import ParquetryError
from ..base.process.dataclass import dataclass
from .base import Decision, Stage
from .steps import Step

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Rows of a table that cannot be measured, and why.

    Attributes:
        error: the class of the error.
        field: the field that is wrong.
        rows: the numbers of the rows in the table, ascending, int64; at least one.
        problem: says for a row what was expected and found.
        remedy: what to do, as a sentence.
    """

    error: type[ParquetryError]
    field: str
    rows: np.ndarray
    problem: Callable[[int], str]
    remedy: str

    def told(self, row: int, describe: Callable[[int], str]) -> str:
        """Returns the error of a row as text, without the remedy."""
        return f"field '{self.field}', {describe(row)}: {self.problem(row)}."

    def error_of_first(self, describe: Callable[[int], str]) -> ParquetryError:
        return self.error(f"{self.told(int(self.rows[0]), describe)} {self.remedy}")


class Measure(Stage):
    """Base of what a stage measures (`Stage.measure`). It is part of the selection: computed once and stored with it.

    It is not a verb. Subclasses are frozen dataclasses, and their fields, including the names in ``reads``, must fully
    determine the numbers. Subclasses that implement `refusals` have a field ``leaves_out: tuple[str, ...] | None``.

    Attributes:
        leaves_out: ``None`` if a row that cannot be measured is an error. Otherwise such rows are left out of the
            selection, and so are rows with a null inside the lists of these fields.
    """

    leaves_out: tuple[str, ...] | None = None

    def leaving_out(self, strict: Sequence[str]) -> Self:
        """Returns a measure that leaves out rows that cannot be measured, if the class can tell which ones.

        ``strict`` are the list fields inside which nulls are errors.
        """
        known = any(item.name == "leaves_out" for item in fields(self))  # type: ignore[arg-type]  # a dataclass
        return replace(self, leaves_out=tuple(strict)) if known else self  # type: ignore[type-var]

    def refusals(self, table: pa.Table) -> list[Refusal]:
        """Returns the rows of a table that cannot be measured."""
        return []

    def too_long(self, lengths: np.ndarray) -> Refusal | None:
        """Returns the rows that are longer than ``most``, if there are any."""
        return None

    def unlimited(self) -> Self:
        """Returns a measure that allows every length."""
        return self

    @property
    def lists(self) -> tuple[str, ...]:
        """The fields whose lists, if they hold lists, have the measured lengths."""
        return ()

    def numbers(self, table: pa.Table, describe: Callable[[int], str]) -> Any:
        """Returns one number per row (int64 or float64), or the input from which `combine` computes them.

        Args:
            table: the fields in ``reads`` for wanted rows of one row group, with the dataset's types.
            describe: says where a row of the table is stored, for error messages.

        Raises:
            ParquetryError: a row cannot be measured, and such rows are not left out.
        """
        raise NotImplementedError

    def combine(self, parts: Sequence[Any]) -> np.ndarray:
        """Returns the numbers of all wanted rows, in storage order, from the results of `numbers`."""
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def at(self, positions: np.ndarray, total: int) -> np.ndarray:
        """Returns the numbers of rows without reading them; called if ``reads`` is empty.

        Args:
            positions: the rows' positions among the ``total`` rows of the dataset, in storage order, int64.
        """
        raise NotImplementedError

    @property
    def called(self) -> str:
        return type(self).__name__

    @property
    def identity(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True)

    def to_json(self) -> dict[str, object]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]  # subclasses are dataclasses
        if self.leaves_out is None:
            values.pop("leaves_out", None)
        return {"measure": type(self).__name__, **values}


@dataclass(frozen=True)
class MadeLengths(Measure):
    """Measures fields that functions make: the lengths of these are counted in a pass over the selected rows.

    Attributes:
        inner: what is measured, by the names of the fields after ``stages``.
        stages: the stages before the one that measures, which make the fields.
    """

    inner: Measure
    stages: tuple[Stage, ...]

    @property
    def leaves_out(self) -> tuple[str, ...] | None:  # type: ignore[override]  # follows from the measure
        return self.inner.leaves_out

    def leaving_out(self, strict: Sequence[str]) -> MadeLengths:
        return MadeLengths(self.inner.leaving_out(()), self.stages)

    @property
    def reads(self) -> tuple[str, ...]:
        return self.inner.reads

    def numbers(self, table: pa.Table, describe: Callable[[int], str]) -> Any:
        return self.inner.numbers(table, describe)

    def refusals(self, table: pa.Table) -> list[Refusal]:
        return self.inner.refusals(table)

    def combine(self, parts: Sequence[Any]) -> np.ndarray:
        return self.inner.combine(parts)

    def too_long(self, lengths: np.ndarray) -> Refusal | None:
        return self.inner.too_long(lengths)

    def unlimited(self) -> MadeLengths:
        return MadeLengths(self.inner.unlimited(), self.stages)

    @property
    def called(self) -> str:
        """The stages that make the fields, in words."""
        return " ".join(str(stage) for stage in self.stages if any(map(stage.counts, self.reads)))

    def to_json(self) -> dict[str, object]:
        made = [stage.identity for stage in making(self.stages, self.reads)]
        return {"measure": "MadeLengths", "fields": self.reads, "leaves_out": self.leaves_out, "made_by": made}


def making(stages: Sequence[Stage], names: Iterable[str]) -> list[Stage]:
    """Returns the stages on which the values of fields depend, in order."""
    left: set[str] | None = set(names)  # None = every field
    result = []
    for stage in reversed(stages):
        if stage.decides is not Decision.FIELDS:
            continue
        before = None if left is None else {stage.name_before(name) for name in left}
        declares = any(left is None or item.name in left for item in stage.declared)
        if left is None or before != left or declares or any(stage.changes(name) for name in left):
            result.append(stage)
        if left is not None and any(stage.counts(name) for name in left):
            sources = stage.made_from
            left = None if sources is None else {name for name in left if not stage.counts(name)} | {*sources}
        elif left is not None and stage.makes_values and any(stage.changes(name) for name in left):
            left = None
        else:
            left = before
    return result[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthStep(Step):
    """Checks that the values of columns have the lengths that were counted for their rows (`MadeLengths`)."""

    numbers: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def taken(self) -> tuple[int, ...]:
        return self.numbers

    def untouched(self, columns: Sequence[int | None]) -> list[int | None]:
        return list(columns)

    def on_columns(self, chosen: Sequence[int]) -> LengthStep:
        return replace(self, numbers=tuple(map(chosen.index, self.numbers)))
