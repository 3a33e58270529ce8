"""`Measure`: a number for each wanted row, such as a length or a weight, that must be known before the order."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ..base.errors import ParquetryError
from ..base.process.dataclass import dataclass
from .base import Stage

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
        """Returns the error of the first row."""
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
