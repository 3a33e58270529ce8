"""`MixView`: rows of several sources in one deterministic, weighted order.

Row ``k`` comes from the source that a keyed uniform draw number ``k`` picks by weight, and is that source's next row.
Draws come in blocks whose start counts are remembered, so any position is found from the nearest block.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from .keyed import raw_words
from .positions import RowView

Stop = Literal["first", "all"]
SOURCE_SHIFT = 48
_BLOCK = 1 << 14
_MIX_KEY = 4


class MixView:
    """The mixed rows of several views; `resolve` puts the source's number into the bits above `SOURCE_SHIFT`.

    Args:
        views: the sources' rows.
        weights: positive, one for each source.
        seed: of the draws.
        stop: ``"first"`` ends where a draw picks a source that has no more rows; ``"all"`` goes on with the others.
    """

    def __init__(self, views: Sequence[RowView], weights: Sequence[float], seed: int, stop: Stop) -> None:
        self._views = tuple(views)
        self._weights = np.asarray(weights, dtype=np.float64)
        self._seed = seed
        self._stop = stop
        self._lengths = [view.length for view in views]
        self._before: list[np.ndarray] = [np.zeros(len(views), dtype=np.int64)]
        self._end: int | None = None
        self._block = lru_cache(maxsize=64)(self._make_block)
        self.length = self._measure()

    @property
    def passes(self) -> int | None:
        """The most passes that any source makes in one pass of the mix."""
        counts = [view.passes for view in self._views]
        return max([count for count in counts if count is not None], default=1)

    def resolve(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `positions.RowView.resolve`."""
        source = np.empty(len(number), dtype=np.int64)
        local = np.empty(len(number), dtype=np.int64)
        block = number // _BLOCK
        for found in np.unique(block).tolist():
            chosen = block == found
            place = number[chosen] - found * _BLOCK
            sources, ordinals = self._block(found)
            source[chosen], local[chosen] = sources[place], ordinals[place]
        passes = np.empty_like(local)
        index = np.empty_like(local)
        for which in np.unique(source).tolist():
            mine = source == which
            passes[mine], index[mine] = self._views[which].resolve(local[mine])
        return passes, index | (source << SOURCE_SHIFT)

    def _measure(self) -> int | None:
        if self._stop == "all":
            known = [length for length in self._lengths if length is not None]
            return sum(known) if len(known) == len(self._lengths) else None
        if all(length is None for length in self._lengths):
            return None
        block = 0
        while self._end is None:
            self._block(block)
            block += 1
        return self._end

    def _make_block(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """``(source, which row of it)`` of every position of a block."""
        while len(self._before) <= block:
            self._block(len(self._before) - 1)
        counts = self._before[block].copy()
        draws = raw_words(_BLOCK, _MIX_KEY, self._seed, block).astype(np.float64) / 2.0**64
        source = np.zeros(_BLOCK, dtype=np.int64)
        ordinal = np.zeros(_BLOCK, dtype=np.int64)
        place = 0
        while place < _BLOCK:
            active = self._active(counts)
            if not len(active):
                break
            bounds = np.cumsum(self._weights[active] / self._weights[active].sum())
            picks = active[np.minimum(np.searchsorted(bounds, draws[place:], side="right"), len(active) - 1)]
            stop = self._first_exhausted(picks, counts)
            picks = picks[:stop]
            for which in active.tolist():
                mine = np.flatnonzero(picks == which)
                ordinal[place + mine] = counts[which] + np.arange(len(mine))
                counts[which] += len(mine)
            source[place : place + len(picks)] = picks
            place += len(picks)
            if self._stop == "first" and place < _BLOCK:
                self._end = block * _BLOCK + place if self._end is None else self._end
                break
        if len(self._before) == block + 1:
            self._before.append(counts)
        return source, ordinal

    def _active(self, counts: np.ndarray) -> np.ndarray:
        if self._stop == "first":
            return np.arange(len(counts))
        left = [length is None or counts[which] < length for which, length in enumerate(self._lengths)]
        return np.flatnonzero(left)

    def _first_exhausted(self, picks: np.ndarray, counts: np.ndarray) -> int:
        """How many picks are good before the set of sources changes (or the mix ends)."""
        good = len(picks)
        for which, length in enumerate(self._lengths):
            if length is None:
                continue
            mine = np.flatnonzero(picks == which)
            left = length - int(counts[which])
            if len(mine) > left:
                good = min(good, int(mine[left]))
            elif self._stop == "all" and len(mine) == left and left:
                good = min(good, int(mine[left - 1]) + 1)
        return good
