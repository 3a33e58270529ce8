"""Touches what a contender delivers, so that none gains by deferring work.

Takes a batch (a dict of arrays or tensors) and returns its row count. It reads the last value of every row for each
field with several values per row, and one flat field per batch, a different one each time. That costs microseconds,
even where a table has many columns and its batches take little more.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import numpy as np

_TURNS = count()


def rows_of(batch: Mapping[str, Any]) -> int:
    """Reads parts of the batch and counts its rows."""
    fields = list(batch.values())
    flat = [field for field in fields if not _touch_wide(field)]
    if flat:
        _touch_last(flat[next(_TURNS) % len(flat)])
    return len(fields[0])


def _touch_wide(field: Any) -> bool:
    """Reads the last value of every row; returns ``False`` for a flat field (or a list)."""
    dimensions = getattr(field, "ndim", 1)
    if dimensions == 1 or getattr(field, "is_nested", False):
        return False
    field[(slice(None), *((-1,) * (dimensions - 1)))].sum()
    return True


def _touch_last(field: Any) -> Any:
    if getattr(field, "is_nested", False):
        return field.values()[-1].item()
    last = field[-1]
    return last[-1] if isinstance(last, np.ndarray) and last.ndim == 1 and len(last) else last
