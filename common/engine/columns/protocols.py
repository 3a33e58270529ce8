"""What every column of a loaded block can do, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from .batch import Column

Describe = Callable[[int], str]
"""Describes the location of a row, by its number in the block or batch, for error texts."""


class BlockColumn(Protocol):
    """One field of a loaded block."""

    def gather(self, rows: np.ndarray, out: np.ndarray | None) -> Column:
        """Returns the values of the given rows (int64, in any order, repeats allowed).

        A column of fixed-shape numbers writes its values to ``out``, ``[rows, *shape]``, and returns it as `Dense`.
        """


@runtime_checkable
class TokenColumn(Protocol):
    """One field of a loaded block whose values are lists of numbers."""

    @property
    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """The offsets of the rows (one more than there are rows), and the numbers of all rows, end to end."""
