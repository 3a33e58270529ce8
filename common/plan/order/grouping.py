"""`equal_groups`: neighbors joined to groups of at least a minimum size, all about equally large.

It makes shuffle blocks, the groups of `bucket` and `pack_rows`, and the sections of weighted draws. The last group is
never a small rest, which would mix worse than the others.
"""

from __future__ import annotations

import numpy as np


def equal_groups(*axes: tuple[np.ndarray, int]) -> np.ndarray:
    """Joins neighbors to as many groups as possible that all have the minimum size, and makes these equally large.

    Sizes differ by about one of the joined parts. There is one group if everything together is below the minimum.

    Args:
        axes: pairs of what is before each part, with the total at the end (int64 ``[parts + 1]``, ascending), and the
            minimum size of a group (>= 1). A group must have the minimum of each axis. The first axis says which groups
            are equally large.

    Returns:
        The first part of each group, and the number of parts (int64 ``[groups + 1]``).

    Example:
        >>> equal_groups((np.arange(0, 11_000, 1_000), 3_000)).tolist()
        [0, 3, 7, 10]
    """
    position = axes[0][0]
    parts = len(position) - 1
    if any(2 * least > int(before[-1] - before[0]) for before, least in axes):
        return np.array([0, parts][-min(parts + 1, 2) :])
    if parts <= 1 or all(int(np.diff(before).min()) >= least for before, least in axes):
        return np.arange(parts + 1)
    starts = [np.searchsorted(before, before - least, side="right") - 1 for before, least in axes]
    start = np.minimum.reduce(starts).tolist()  # where a group begins at the latest that ends before this part
    latest = [parts]
    while (begin := start[latest[-1]]) >= 0:
        latest.append(begin)
    groups = max(len(latest) - 1, 1)
    latest.reverse()
    end = np.maximum.reduce([np.searchsorted(before, before + least) for before, least in axes]).tolist()
    bounds = [0]
    for number, equal in enumerate(_nearest(position, groups), 1):
        bounds.append(min(max(equal, end[bounds[-1]]), latest[number]))
    return np.array([*bounds, parts], np.int64)


def _nearest(position: np.ndarray, groups: int) -> list[int]:
    """Returns the parts that begin nearest to where groups of exactly equal size would begin, after the first group."""
    size, rest = divmod(int(position[-1] - position[0]), groups)
    number = np.arange(1, groups)
    begins = position[0] + number * size + number * rest // groups
    above = np.searchsorted(position, begins)
    below = np.maximum(above - 1, 0)
    nearest: list[int] = np.where(begins - position[below] < position[above] - begins, below, above).tolist()
    return nearest
