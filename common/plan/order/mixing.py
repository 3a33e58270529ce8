"""`MixView`: rows of several sources in one deterministic, weighted order.

A keyed uniform draw picks the source of row ``k`` by the weights that apply at ``k``, and the row is that source's next
one. Draws are made in blocks. The counts at the start of each block are kept, so any position is found from the nearest
block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from ...base.errors import PipelineError
from ...schema.plain import conformed, plain
from .permutations import raw_words
from .positions import RowView

Stop = Literal["first", "all"]
Weights: TypeAlias = Sequence[float] | Sequence[tuple[int, Sequence[float]]]
"""How often each source is drawn, relative to the others; or a schedule, as in ``[(0, [1, 1]), (10_000, [3, 1])]``."""
SOURCE_SHIFT = 48
_BLOCK = 1 << 14
_MIX_KEY = 4


class Phase(NamedTuple):
    """The weights that apply from row ``start`` of a mix until the next phase."""

    start: int
    weights: tuple[float, ...]


def phases_of(weights: Weights | None, sources: int) -> tuple[Phase, ...]:
    """Checks the weights that a user gives. Constant weights are one phase; ``None`` means equal weights.

    Raises:
        PipelineError: not one positive weight for each source; a schedule that does not begin at row 0, does not
            ascend, or never draws a source.
    """
    try:
        items = plain([1.0] * sources if weights is None else None if isinstance(weights, Mapping) else list(weights))
    except TypeError:
        items = None
    if items is None:
        raise _wrong_weights(weights, sources)
    if not any(isinstance(item, tuple) for item in items):
        phase = _phase((0, items), items, sources)
        if not all(weight > 0 for weight in phase.weights):
            raise _wrong_weights(items, sources)
        return (phase,)
    phases = tuple(_phase(item, items, sources) for item in items)
    starts = [phase.start for phase in phases]
    if starts[0] != 0 or any(last >= following for last, following in pairwise(starts)):
        raise PipelineError(
            f"mix: expected a schedule whose first row is 0 and whose rows ascend, got the rows {starts}. Write "
            "weights=[(0, [1, 1]), (10_000, [3, 1])]."
        )
    never = [number for number in range(sources) if not any(phase.weights[number] for phase in phases)]
    if never:
        raise PipelineError(
            f"mix: expected a schedule that draws each of {sources} pipelines at some time, got only weights of 0 for "
            f"{never}. Leave these pipelines out."
        )
    return phases


def _phase(item: object, given: object, sources: int) -> Phase:
    try:
        start, weights = conformed(item, tuple[int, tuple[float, ...]])
    except TypeError:
        raise _wrong_weights(given, sources) from None
    if len(weights) != sources or not any(weights) or not all(0 <= weight < float("inf") for weight in weights):
        raise _wrong_weights(given, sources)
    return Phase(start, weights)


def _wrong_weights(given: object, sources: int) -> PipelineError:
    return PipelineError(
        f"mix: expected one positive weight for each of {sources} pipelines, or a schedule of them such as "
        f"[(0, [1, 1]), (10_000, [3, 1])], in which a weight may be 0 for a while, got {given}."
    )


class MixView:
    """The mixed rows of several views. `resolve` stores the source's number in the bits above `SOURCE_SHIFT`.

    Args:
        first: the number of each source. A view that is itself a mix counts up from there.
        phases: the weights, one for each source, from row 0 on.
        seed: the seed of the draws.
        stop: ``"first"`` ends when a draw picks a source that has no more rows. ``"all"`` continues with the other
            sources, with equal weights if all their weights are 0.

    Attributes:
        length, depth: see `positions.View`.
        first: as given.
        passes: the largest number of passes that a source makes; ``None`` if a source repeats until the others end.
    """

    def __init__(
        self, views: Sequence[RowView], first: Sequence[int], phases: Sequence[Phase], seed: int, stop: Stop
    ) -> None:
        self._views = tuple(views)
        self.first = np.asarray(first, np.int64)
        self._starts = [phase.start for phase in phases]
        self._weights = np.array([phase.weights for phase in phases])
        self._seed = seed
        self._stop = stop
        self._lengths = [view.length for view in views]
        passes = [view.passes for view in views if view.passes is not None]
        self.passes = max(passes) if len(passes) == len(views) else None
        self.depth = max(view.depth for view in views)
        self._before: list[np.ndarray] = [np.zeros(len(views), dtype=np.int64)]
        self._end: int | None = None
        self._block = lru_cache(maxsize=64)(self._make_block)
        self.length = self._measure()

    def resolve(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `positions.RowView.resolve`."""
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
            of_source = source == which
            passes[of_source], index[of_source] = self._views[which].resolve(local[of_source])
        return passes, index + (self.first[source] << SOURCE_SHIFT)

    def _measure(self) -> int | None:
        if self._stop == "all":
            known = [length for length in self._lengths if length is not None]
            return sum(known) if len(known) == len(self._lengths) else None
        block = 0
        while self._end is None:
            if block * _BLOCK >= self._starts[-1] and not self._ends_by(self._weights[-1]):
                return None
            self._block(block)
            block += 1
        return self._end

    def _ends_by(self, weights: np.ndarray) -> bool:
        """Returns whether a source that ends has a weight above 0 in some phase."""
        return any(w > 0 and length is not None for w, length in zip(weights, self._lengths, strict=True))

    def _make_block(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns ``(source, row of that source)`` for every position of a block."""
        while len(self._before) <= block:
            self._block(len(self._before) - 1)
        counts = self._before[block].copy()
        draws = raw_words(_BLOCK, _MIX_KEY, self._seed, block).astype(np.float64) / 2.0**64
        source = np.zeros(_BLOCK, dtype=np.int64)
        ordinal = np.zeros(_BLOCK, dtype=np.int64)
        place = 0
        while place < _BLOCK:
            phase = bisect_right(self._starts, block * _BLOCK + place) - 1
            until = min([_BLOCK, *(start - block * _BLOCK for start in self._starts[phase + 1 : phase + 2])])
            active, weights = self._active(counts, self._weights[phase])
            if not len(active):
                break
            bounds = np.cumsum(weights / weights.sum())
            picks = active[np.minimum(np.searchsorted(bounds, draws[place:until], side="right"), len(active) - 1)]
            stop = self._first_exhausted(picks, counts)
            ends = self._stop == "first" and stop < len(picks)
            picks = picks[:stop]
            for which in active.tolist():
                of_source = np.flatnonzero(picks == which)
                ordinal[place + of_source] = counts[which] + np.arange(len(of_source))
                counts[which] += len(of_source)
            source[place : place + len(picks)] = picks
            place += len(picks)
            if ends:
                self._end = block * _BLOCK + place if self._end is None else self._end
                break
        if len(self._before) == block + 1:
            self._before.append(counts)
        return source, ordinal

    def _active(self, counts: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the sources that can be drawn, and their weights."""
        left = np.ones(len(counts), dtype=bool)
        if self._stop == "all":
            left = np.array([length is None or n < length for n, length in zip(counts, self._lengths, strict=True)])
            if not (weights[left] > 0).any():
                weights = np.ones_like(weights)
        active = np.flatnonzero(left & (weights > 0))
        return active, weights[active]

    def _first_exhausted(self, picks: np.ndarray, counts: np.ndarray) -> int:
        """Returns how many draws are valid before the set of sources changes, or the mix ends."""
        good = len(picks)
        for which, length in enumerate(self._lengths):
            if length is None:
                continue
            of_source = np.flatnonzero(picks == which)
            left = length - int(counts[which])
            if len(of_source) > left:
                good = min(good, int(of_source[left]))
            elif self._stop == "all" and len(of_source) == left and left:
                good = min(good, int(of_source[left - 1]) + 1)
        return good
