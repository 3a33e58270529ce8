"""From measured pairs to figures: medians, ranges, and ratios to the limit; pure functions over plain numbers.

In: `Pair` values, each one contender and the limit measured one right after the other. Out: `Summary`. Always holds: a
ratio is that of one pair, so a machine that is slower for a while is slower for both.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median of some numbers, and how far they reach."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Of the numbers; ``None`` if there are none."""
        known = list(values)
        if not known:
            return None
        return cls(median=statistics.median(known), low=min(known), high=max(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One contender beside the limit.

    Attributes:
        rate: rows per second (for steps: seconds).
        limit: of the limit, in the same row_group; 0 if it was not measured.
        cpu_s: processor seconds of all the contender's processes, for ``rows`` rows.
        read_bytes: for ``rows`` rows.
        memory_bytes: of all its processes, after the measurement.
    """

    rate: float
    limit: float = 0.0
    rows: int = 0
    cpu_s: float = 0.0
    read_bytes: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What several pairs say.

    Attributes:
        rate: rows per second, or seconds.
        ratio: rate by limit, pair by pair; ``None`` without a limit.
        cpu_s_per_1000: processor seconds for 1,000 rows.
        read_bytes_per_row: through read calls.
        memory_bytes: the largest seen.
    """

    rate: Spread
    ratio: Spread | None
    cpu_s_per_1000: float | None
    read_bytes_per_row: float | None
    memory_bytes: int


def summary(pairs: Sequence[Pair]) -> Summary | None:
    """The figures of a contender; ``None`` if nothing was measured."""
    rate = Spread.of(pair.rate for pair in pairs)
    if rate is None:
        return None
    counted = [pair for pair in pairs if pair.rows]
    return Summary(
        rate=rate,
        ratio=Spread.of(pair.rate / pair.limit for pair in pairs if pair.limit),
        cpu_s_per_1000=statistics.median(1_000 * pair.cpu_s / pair.rows for pair in counted) if counted else None,
        read_bytes_per_row=statistics.median(pair.read_bytes / pair.rows for pair in counted) if counted else None,
        memory_bytes=max(pair.memory_bytes for pair in pairs),
    )


def speed_up(figures: Sequence[tuple[int, float]]) -> list[tuple[int, float, float]]:
    """From ``(cores, rows/s)``: ``(cores, times the speed of the fewest, share of linear)``, by cores."""
    if not figures:
        return []
    ordered = sorted(figures)
    fewest, base = ordered[0]
    return [(cores, rate / base, rate / base / (cores / fewest)) for cores, rate in ordered]
