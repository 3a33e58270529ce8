"""`StepRun`: consecutive steps that were made together, handed over one at a time.

A job or a message of the sidecar holds many small steps. Cutting its columns once, and making the arrays of a step when
it is taken, costs a fraction of doing both for each step: the arrays reuse memory that the previous step has just left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..columns.batch import Column, split_column

Converter = Callable[[Sequence[Column], int], Iterable[Any]]
"""Converts the columns of several steps, and the number of steps, to one value for each step."""


def split_columns(columns: Sequence[Column], parts: int) -> list[list[Column]]:
    """Cuts columns into equal parts along their first axis, and returns the columns of each: the simplest converter."""
    return [list(part) for part in zip(*(split_column(column, parts) for column in columns), strict=True)]


class StepRun:
    """The steps in some columns, in order.

        >>> run = StepRun(split_columns, [([Dense(np.arange(6))], 3, 2)])
        >>> run.take(), run.rows, run.left
        ([Dense(values=array([0, 1]), valid=None)], 2, 2)

    Attributes:
        left: how many steps were not taken yet.
        rows: the number of rows of the step taken last.

    Args:
        converter: converts columns; called once for each part.
        parts: what was made at once: the columns, how many steps of equal size they hold, and the rows of each step.
    """

    __slots__ = ("_here", "_parts", "_values", "left", "rows")

    def __init__(self, converter: Converter, parts: Iterable[tuple[Sequence[Column], int, int]]) -> None:
        self._parts = deque((iter(converter(columns, steps)), steps, rows) for columns, steps, rows in parts)
        self.left = sum(steps for _, steps, _ in self._parts)
        self._values: Iterator[Any] = iter(())
        self._here = self.rows = 0

    def take(self) -> Any:
        """Returns the next step. There must be one.

        After the last step of a part, its columns are released: only the steps you hold keep their memory.
        """
        if not self._here:
            self._values, self._here, self.rows = self._parts.popleft()
        self._here -= 1
        self.left -= 1
        value = next(self._values)
        if not self._here:
            self._values = iter(())
        return value


NO_STEPS = StepRun(lambda columns, steps: (), ())
"""A run that has ended."""
