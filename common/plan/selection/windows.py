"""N-gram windows: finds the runs of consecutive rows that form an item.

Takes the selected rows, their sequence boundaries, timestamps, and a `WindowRule`, and returns the positions of the
windows' first rows. A window is ``span`` consecutive selected rows of one sequence. A sequence ends where the file, the
``group_by`` value or (on request) the row group changes.
"""

from __future__ import annotations

import decimal

import numpy as np

from ...base.process.dataclass import dataclass
from ...schema.ragged import ends_of
from .timestamps import Stamps


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRule:
    """The rule for forming windows.

    Attributes:
        span: the number of rows from the first to the last offset, inclusive.
        max_gap: the largest allowed difference between adjacent timestamps (inclusive), in the timestamp's own unit.
        stride: the distance between candidate starts, counted in rows from the start of the sequence.
        overlap: whether windows may share rows.
    """

    span: int
    max_gap: float | decimal.Decimal | None = None
    stride: int = 1
    overlap: bool = True


def window_starts(sequence: np.ndarray, stamps: Stamps | None, rule: WindowRule) -> np.ndarray:
    """Returns the first positions of all windows, ascending.

    Args:
        sequence: int64 ``[rows]``, ascending: the sequence that each selected row belongs to.
        stamps: the timestamps of the rows, or ``None``. They must not decrease in a sequence (see `decreasing_stamp`).
    """
    rows = len(sequence)
    last = rows - rule.span
    if last < 0:
        return np.zeros(0, dtype=np.int64)
    starts = np.arange(last + 1)
    valid = sequence[: last + 1] == sequence[rule.span - 1 :]
    if stamps is not None and rule.max_gap is not None and rule.span > 1:
        wide = ends_of(stamps.gap_too_wide(rule.max_gap))
        valid &= wide[rule.span - 1 : rows] == wide[: last + 1]
    if rule.stride > 1:
        first = np.searchsorted(sequence, sequence[: last + 1], side="left")
        valid &= (starts - first) % rule.stride == 0
    starts = starts[valid]
    return starts if rule.overlap else _without_overlap(starts, sequence, stamps, rule.span)


def decreasing_stamp(sequence: np.ndarray, stamps: Stamps) -> int | None:
    """Returns the first position whose timestamp is NaN or earlier than that of the previous row in its sequence."""
    wrong = (sequence[1:] == sequence[:-1]) & ~stamps.ascends
    places = np.flatnonzero(wrong)
    return int(places[0]) + 1 if len(places) else None


def _without_overlap(starts: np.ndarray, sequence: np.ndarray, stamps: Stamps | None, span: int) -> np.ndarray:
    """Drops overlapping windows greedily: skips each start at or before the end of the last window kept."""
    kept: list[int] = []
    ranks = None if stamps is None else stamps.ranks
    number = 0
    while number < len(starts):
        start = int(starts[number])
        kept.append(start)
        end = start + span - 1
        if ranks is not None:  # rows with the last row's timestamp also belong to the kept window
            stop = int(np.searchsorted(sequence, sequence[start], side="right"))
            end = end + int(np.searchsorted(ranks[end:stop], ranks[end], side="right")) - 1
        number = int(np.searchsorted(starts, end, side="right"))
    return np.asarray(kept, dtype=np.int64)
