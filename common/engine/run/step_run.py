"""`StepRun`: consecutive steps that were made together, handed over one at a time.

A job or a message of the sidecar holds many small steps. Cutting its columns once, and making the arrays of a step when
it is taken, costs a fraction of doing both for each step: the arrays reuse memory that the previous step has just left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..columns.batch import Column, split_column

Form = Callable[[Sequence[Column], int], Iterable[Any]]
"""Converts the columns of several steps, and the number of steps, to one value for each step."""


def split_columns(columns: Sequence[Column], parts: int) -> list[list[Column]]:
    """Cuts columns into equal parts along their first axis. Returns the columns of each part: the simplest form."""
    return [list(part) for part in zip(*(split_column(column, parts) for column in columns), strict=True)]


class StepRun:
    """The steps in some columns, in order.

        >>> run = StepRun(split_columns, [Dense(np.arange(6))], steps=3, rows=2)
        >>> run.take(), run.left
        ([Dense(values=array([0, 1]), valid=None)], 2)

    Attributes:
        left: how many steps were not taken yet.
        rows: the number of rows of each step.

    Args:
        form: converts the columns; called once.
        columns: the rows of all steps, end to end.
        steps: the number of steps.
        rows: the number of rows of each.
    """

    __slots__ = ("_values", "left", "rows")

    def __init__(self, form: Form, columns: Sequence[Column], steps: int, rows: int) -> None:
        self._values: Iterator[Any] = iter(form(columns, steps))
        self.left = steps
        self.rows = rows

    def take(self) -> Any:
        """Returns the next step. There must be one.

        With the last one, the columns are let go, so that only the steps you hold keep their memory.
        """
        self.left -= 1
        value = next(self._values)
        if not self.left:
            self._values = iter(())
        return value


NO_STEPS = StepRun(lambda columns, steps: (), (), 0, 0)
"""A run that has ended."""
