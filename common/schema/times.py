"""Times as int64 counts of a unit: converts counts to another unit, and finds those that do not fit.

numpy converts times through the calendar, which silently wraps around near the ends of int64. Units of fixed
length need only a multiplication or a division. ``NaT``, the smallest int64, stays ``NaT``.
"""

from __future__ import annotations

import numpy as np

UNITS_NS = {
    "ns": 1,
    "us": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3_600 * 10**9,
    "D": 86_400 * 10**9,
    "W": 7 * 86_400 * 10**9,
}
"""Time units of fixed length, in nanoseconds."""
_LIMITS = np.iinfo(np.int64)


def has_fixed_unit(kind: str | np.dtype) -> bool:
    """Whether a time type such as ``"datetime64[us]"`` counts one of `UNITS_NS`."""
    unit, count = np.datetime_data(np.dtype(kind))
    return unit in UNITS_NS and count == 1


def convert_counts(counts: np.ndarray, source: str | np.dtype, target: str | np.dtype) -> np.ndarray:
    """Converts counts of the unit of ``source``, a time type, to that of ``target``. A coarser unit rounds down.

    >>> convert_counts(np.array([1_999, -1]), "datetime64[ms]", "datetime64[s]")
    array([ 1, -1])
    """
    finer, coarser = _factors(source, target)
    if finer == coarser:
        return counts
    with np.errstate(over="ignore"):  # counts that are not values, such as NaT, may wrap around
        made = counts * finer if finer > 1 else counts // coarser
    return np.where(counts == _LIMITS.min, _LIMITS.min, made)


def counts_too_far(counts: np.ndarray, source: str | np.dtype, target: str | np.dtype) -> np.ndarray | None:
    """Returns a mask of the counts that the unit of ``target`` cannot hold, or ``None`` if it holds all of them.

    >>> counts_too_far(np.array([1, 10**10]), "datetime64[s]", "datetime64[ns]")
    array([False,  True])
    """
    finer, _ = _factors(source, target)
    most = int(_LIMITS.max) // finer
    if finer == 1 or not counts.size or (int(counts.min()) >= -most and int(counts.max()) <= most):
        return None
    too_far: np.ndarray = ((counts < -most) | (counts > most)) & (counts != _LIMITS.min)
    return too_far


def _factors(source: str | np.dtype, target: str | np.dtype) -> tuple[int, int]:
    """Returns what to multiply counts by, and what to divide them by; one of the two is 1."""
    from_ns, to_ns = (UNITS_NS[np.datetime_data(np.dtype(kind))[0]] for kind in (source, target))
    return max(from_ns // to_ns, 1), max(to_ns // from_ns, 1)
