"""N-gram windows: which stretches of consecutive rows form an item.

In: the wanted rows, their sequence boundaries, time stamps, and a `WindowRule`. Out: the positions of the windows'
first rows. A window is ``span`` consecutive wanted rows of one sequence; a sequence ends where the file, the
``group_by`` value or (on request) the row group changes.
"""

from __future__ import annotations

import decimal
from dataclasses import dataclass

import numpy as np

from .stamps import Stamps


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRule:
    """What makes a window.

    Attributes:
        span: rows from the first to the last offset, inclusive.
        max_gap: largest allowed difference of adjacent time stamps (inclusive), in the time stamp's own unit.
        stride: distance of the starts that are tried, in rows from the sequence's first row.
        overlap: whether windows may share rows.
    """

    span: int
    max_gap: float | decimal.Decimal | None = None
    stride: int = 1
    overlap: bool = True


def window_starts(sequence: np.ndarray, stamps: Stamps | None, rule: WindowRule) -> np.ndarray:
    """The first positions of all windows, ascending.

    Args:
        sequence: int64 ``[rows]``, ascending: which sequence each wanted row belongs to.
        stamps: of the rows, or ``None``; must not decrease inside a sequence (see `decreasing_stamp`).
    """
    rows = len(sequence)
    last = rows - rule.span
    if last < 0:
        return np.zeros(0, dtype=np.int64)
    starts = np.arange(last + 1)
    valid = sequence[: last + 1] == sequence[rule.span - 1 :]
    if stamps is not None and rule.max_gap is not None and rule.span > 1:
        wide = np.concatenate([[0], np.cumsum(stamps.gap_too_wide(rule.max_gap))])
        valid &= wide[rule.span - 1 : rows] == wide[: last + 1]
    if rule.stride > 1:
        first = np.searchsorted(sequence, sequence[: last + 1], side="left")
        valid &= (starts - first) % rule.stride == 0
    starts = starts[valid]
    return starts if rule.overlap else _without_overlap(starts, sequence, stamps, rule.span)


def decreasing_stamp(sequence: np.ndarray, stamps: Stamps) -> int | None:
    """The first position whose time stamp lies before that of the row before it in the same sequence (or is NaN)."""
    wrong = (sequence[1:] == sequence[:-1]) & ~stamps.ascends
    found = np.flatnonzero(wrong)
    return int(found[0]) + 1 if len(found) else None


def _without_overlap(starts: np.ndarray, sequence: np.ndarray, stamps: Stamps | None, span: int) -> np.ndarray:
    """Greedy: a start at or before the end of the last kept window of its sequence is skipped."""
    kept: list[int] = []
    ranks = None if stamps is None else stamps.ranks
    number = 0
    while number < len(starts):
        start = int(starts[number])
        kept.append(start)
        end = start + span - 1
        if ranks is not None:  # rows that share the last row's time stamp belong to the kept window as well
            stop = int(np.searchsorted(sequence, sequence[start], side="right"))
            end = end + int(np.searchsorted(ranks[end:stop], ranks[end], side="right")) - 1
        number = int(np.searchsorted(starts, end, side="right"))
    return np.asarray(kept, dtype=np.int64)
