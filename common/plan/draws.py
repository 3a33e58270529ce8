"""Where the rows of an element come from: which block, and which of its items.

A block is what a shuffle permutes inside: consecutive row groups of a stream, fetched together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np


class BlockKey(NamedTuple):
    """Names a shuffle block: the epoch, the stream, the number of the block in it, and the source (of a mix).

    A tuple, because every step looks up blocks by it.
    """

    epoch: int
    stream: int
    block: int
    source: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRows:
    """The rows of one block.

    Attributes:
        row_groups: row groups, ascending.
        rows: for each of them, the wanted rows inside it, ascending int64.
        cells: int64 ``[items, T]``: for each item in order, the block row of each of its steps.
        repeats: where rows come several times in an epoch: how often the row of each item came before, int64
            ``[items]``.
    """

    row_groups: tuple[int, ...]
    rows: tuple[np.ndarray, ...]
    cells: np.ndarray
    repeats: np.ndarray | None = None

    def repeats_of(self, items: np.ndarray) -> np.ndarray | None:
        """The ``repeats`` of some items."""
        return None if self.repeats is None else self.repeats[items]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """What an element takes from one block: items by their number in it, to places in the element (``None`` = all).

    ``turn`` is the pass that they belong to, counted over all iterators; unlike the epoch it always goes up.

    Where rows are joined into items, ``items`` are rows instead, ``places`` (never ``None``) repeat, and ``spans`` says
    what is taken of each row: its first token, how many, where they begin in the item, and whether a separator follows
    (0 or 1); int64 ``[len(items), 4]``.
    """

    key: BlockKey
    items: np.ndarray
    places: np.ndarray | None
    turn: int
    spans: np.ndarray | None = None

    def some(self, chosen: np.ndarray, places: np.ndarray) -> Draw:
        """Only those of its items that are ``chosen`` (numbers or a mask), to other places."""
        spans = None if self.spans is None else self.spans[chosen]
        return replace(self, items=self.items[chosen], places=places, spans=spans)
