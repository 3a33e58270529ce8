"""`LikeColumns`: numbers of one dtype and shape in one array, so that one copy takes rows of all of them.

A wide table has hundreds of such columns. Copying each of them alone would give up the interpreter lock as often, and
wait for it as often.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...memory.arena import ALIGNMENT, SMALL_BYTES, Arena


@dataclass(frozen=True, slots=True)
class LikeColumns:
    """Columns of one dtype and shape, laid out one after the other, so that one copy takes rows of all of them.

    Attributes:
        numbers: the numbers of the columns.
        values: their values ``[columns, rows, *shape]``; the rows of each column are contiguous.
    """

    numbers: tuple[int, ...]
    values: np.ndarray


def like_columns(kinds: Mapping[int, np.ndarray], rows: int, arena: Arena) -> list[LikeColumns]:
    """Allocates ``rows`` rows for columns with these numbers, which have the dtype and the row shape of these arrays.

    Each column begins at a multiple of `ALIGNMENT` where its dtype allows that. Small columns stay apart: each has
    memory of its own (`Region.small_bytes`), so that a label you keep does not keep the others.
    """
    alike: dict[tuple[np.dtype[Any], tuple[int, ...], int], list[int]] = {}
    for number, kind in kinds.items():
        is_small = rows * math.prod(kind.shape[1:]) * kind.dtype.itemsize <= SMALL_BYTES
        alike.setdefault((kind.dtype, kind.shape[1:], number if is_small else -1), []).append(number)
    made = []
    for (dtype, shape, _), numbers in alike.items():
        items = rows * math.prod(shape)
        padded = -(-items * dtype.itemsize // ALIGNMENT) * ALIGNMENT // max(dtype.itemsize, 1)
        length = items if len(numbers) == 1 else max(padded, items)
        values = arena.allocate(dtype, (len(numbers), length))
        made.append(LikeColumns(tuple(numbers), values[:, :items].reshape(len(numbers), rows, *shape)))
    return made
