"""The numbers of a shuffled block, put into the order of its items once, when it is loaded.

A whole column fits the processor's cache while it is shuffled, and the batches that follow are stretches of it: that
costs a third of taking scattered rows for each of them. In: blocks that hold columns by item. Out: the same
values as from columns by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..columns.arena import Arena
from ..columns.batch import Column, Dense
from ..columns.columns import FixedColumn
from ..steps.source import Numbers, Source, as_slice


def gather_in_item_order(sources: Sequence[Source], count: int, arena: Arena) -> dict[int, Column]:
    """The columns of a batch that all of its blocks keep in item order, by number of the field."""
    parts = []
    for source in sources:
        if source.items is None:
            return {}
        places = slice(0, count) if source.places is None else as_slice(source.places)
        parts.append((source.block.by_item, as_slice(source.items), places))
    shared = [number for number in parts[0][0] if all(number in columns for columns, _, _ in parts)] if parts else []
    return {
        number: _gather([(columns[number], items, places) for columns, items, places in parts], count, arena)
        for number in shared
    }


def _gather(parts: Sequence[tuple[FixedColumn, Numbers, Numbers]], count: int, arena: Arena) -> Dense:
    values = parts[0][0].parts[0]
    out = arena.allocate(values.dtype, (count, *values.shape[1:]))
    valid: np.ndarray | None = None
    for column, items, places in parts:
        out[places] = column.parts[0][items]
        if column.validity is not None:
            valid = np.ones(count, dtype=bool) if valid is None else valid
            valid[places] = column.validity[items]
    return Dense(out, None if valid is None or valid.all() else valid)
