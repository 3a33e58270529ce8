"""What every column of a loaded block can do, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import numpy as np

from ...base.process.dataclass import dataclass
from ...dataset.row_groups import MAX_VALUE_BYTES
from .batch import Column

Describe = Callable[[int], str]
"""Describes the location of a row, by its number in the block or batch, for error texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeContext:
    """How the values of a block are decoded, for all its columns.

    Attributes:
        describe: describes the location of a row of the block.
        max_value_bytes: the size limit of a value of variable shape.
        reuse: whether rows are requested several times, which makes it worth keeping decoded values.
        kept_bytes: returns the memory for decoded frames of each field.
    """

    describe: Describe
    max_value_bytes: int = MAX_VALUE_BYTES
    reuse: bool = False
    kept_bytes: Callable[[], int] = int  # that is 0


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
