"""Touches what a contender delivers, so that none gains by deferring work.

Takes a batch (a dict of arrays or tensors) and returns its row count. It reads the last value of every row for each
field with several values per row, and one flat field per batch, a different one each time. Which fields are flat is
found once for each set of names, so that a batch of 400 columns also costs microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np

_TURNS = count()
_LAYOUTS: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
_TRAINING: list[Callable[[Mapping[str, Any]], int]] = []


def train_instead(step: Callable[[Mapping[str, Any]], int]) -> None:
    """Makes this process train on batches instead of touching them. ``step`` returns the number of rows."""
    _TRAINING[:] = [step]


def training_step() -> Callable[[Mapping[str, Any]], int] | None:
    """Returns what `train_instead` was given."""
    return _TRAINING[0] if _TRAINING else None


def rows_of(batch: Mapping[str, Any]) -> int:
    """Reads parts of the batch, or trains on it, and counts its rows."""
    if _TRAINING:
        return _TRAINING[0](batch)
    names = tuple(batch)
    wide, flat = _LAYOUTS.get(names) or _layout(batch)
    for name in wide:
        field = batch[name]
        field[(slice(None), *((-1,) * (field.ndim - 1)))].sum()
    if flat:
        _touch_last(batch[flat[next(_TURNS) % len(flat)]])
    return len(batch[names[0]])


def _layout(batch: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Divides the names into fields with several values per row, and flat fields (or lists)."""
    wide = [name for name, field in batch.items() if getattr(field, "ndim", 1) > 1 and not _nested(field)]
    layout = wide, [name for name in batch if name not in wide]
    _LAYOUTS[tuple(batch)] = layout
    return layout


def _nested(field: Any) -> bool:
    return getattr(field, "is_nested", False)


def _touch_last(field: Any) -> Any:
    if _nested(field):
        return field._values[-1].item()  # asking a nested tensor for them takes a tenth of the time of a batch
    last = field[-1]
    return last[-1] if isinstance(last, np.ndarray) and last.ndim == 1 and len(last) else last
