"""`packed`: packs rows of different lengths into bins of one length, by best-fit or first-fit decreasing.

The input is the number of rows of each length, and the output the lengths in each bin. Bins with the same content are
handled together, so the time depends on the number of distinct lengths, not on the number of rows.

Source: Johnson et al., Worst-Case Performance Bounds for Simple One-Dimensional Packing Algorithms, 1974.
"""

from __future__ import annotations

import numpy as np

from ...schema.ragged import ends_of

_Filling = tuple[tuple[int, int], ...]
"""``(length, how many of them)``, longest first."""


def packed(counts: np.ndarray, length: int, *, best: bool) -> tuple[np.ndarray, np.ndarray]:
    """Puts rows into bins, the longest first.

    Args:
        counts: int64 ``[length + 1]``: rows of each length, from 0. Rows of length 0 are left out.
        length: the length of a bin.
        best: whether each row goes into the fullest bin that has room for it, instead of the first one.

    Returns:
        ``(sizes, ends)``: the lengths in all bins, int64, and the number of them before each bin and at the end.
    """
    room = np.zeros(0, np.int64)  # for each kind of bin, in the order in which they were opened
    kinds: list[tuple[_Filling, int]] = []
    for size in (np.flatnonzero(counts[1:])[::-1] + 1).tolist():
        left = int(counts[size])
        fits = np.flatnonzero(room >= size)
        if best:
            fits = fits[np.argsort(room[fits], kind="stable")]
        for place in fits.tolist():
            filling, bins = kinds[place]
            each = int(room[place]) // size
            made, left = _filled(filling, bins, size, each, left)
            kinds[place : place + 1] = made
            used = [room[place] - size * (_last(after, filling)) for after, _ in made]
            if len(made) == 1:
                room[place] = used[0]
            else:
                room = np.concatenate([room[:place], used, room[place + 1 :]])
            if not left:
                break
        if left:
            each = length // size
            made, _ = _filled((), -(-left // each), size, each, left)
            kinds += made
            room = np.concatenate([room, [length - size * _last(after, ()) for after, _ in made]])
    fillings = [filling for filling, bins in kinds for _ in range(bins)]
    pairs = np.array([pair for filling in fillings for pair in filling], np.int64).reshape(-1, 2)
    ends = ends_of(pairs[:, 1])
    pairs_before = np.cumsum([0, *(len(filling) for filling in fillings)])
    return np.repeat(pairs[:, 0], pairs[:, 1]), ends[pairs_before]


def _filled(filling: _Filling, bins: int, size: int, each: int, left: int) -> tuple[list[tuple[_Filling, int]], int]:
    """Fills ``bins`` equal bins one after the other, with up to ``each`` rows of a size.

    Returns the bins and the rows left.
    """
    full = min(bins, left // each)
    left -= full * each
    made = [((*filling, (size, each)), full)] if full else []
    if full < bins and left:
        made.append(((*filling, (size, left)), 1))
        full, left = full + 1, 0
    return [*made, (filling, bins - full)] if full < bins else made, left


def _last(after: _Filling, before: _Filling) -> int:
    """Returns how many rows were added last."""
    return after[-1][1] if len(after) > len(before) else 0
