"""Computes medians, ranges and ratios to the limit from measured pairs; pure functions over plain numbers.

Turns `Pair` values, each a contender and the limit measured back to back, into a `Summary`. Ratios are always taken
within one pair, so a temporary slowdown of the machine affects both sides.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_PAIR_FIELDS = ("rate", "limit", "rows", "cpu_s", "read_bytes", "memory_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median and range of some numbers."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """Returns the spread of the numbers; ``None`` if there are none."""
        known = list(values)
        if not known:
            return None
        return cls(median=statistics.median(known), low=min(known), high=max(known))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One measurement of a contender next to the limit.

    Attributes:
        rate: rows per second (for steps: seconds).
        limit: the limit's rate in the same pair; 0 if it was not measured.
        cpu_s: CPU seconds of all the contender's processes, for ``rows`` rows.
        read_bytes: bytes read for ``rows`` rows.
        memory_bytes: memory of all its processes after the measurement.
    """

    rate: float
    limit: float = 0.0
    rows: int = 0
    cpu_s: float = 0.0
    read_bytes: int = 0
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The figures of several pairs.

    Attributes:
        rate: rows per second, or seconds.
        ratio: rate divided by limit, pair by pair; ``None`` without a limit.
        cpu_s_per_1000: CPU seconds per 1,000 rows.
        read_bytes_per_row: bytes read through read calls.
        memory_bytes: largest value seen.
    """

    rate: Spread
    ratio: Spread | None
    cpu_s_per_1000: float | None
    read_bytes_per_row: float | None
    memory_bytes: int


def summary(pairs: Sequence[Pair]) -> Summary | None:
    """Returns the figures of a contender; ``None`` if nothing was measured."""
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


def summary_of(entry: Mapping[str, Any]) -> Summary | None:
    """Returns the figures of one contender in a table of results, if it was measured by rate."""
    return summary([Pair(**{name: pair[name] for name in _PAIR_FIELDS}) for pair in entry.get("pairs", ())])


def speed_up(figures: Sequence[tuple[int, float]]) -> list[tuple[int, float, float]]:
    """Turns ``(cores, rows/s)`` into ``(cores, speedup over the fewest cores, share of linear)``, sorted by cores."""
    if not figures:
        return []
    ordered = sorted(figures)
    fewest, base = ordered[0]
    return [(cores, rate / base, rate / base / (cores / fewest)) for cores, rate in ordered]
