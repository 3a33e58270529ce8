"""Gathers the rows of a batch from the columns of loaded blocks, each into its place: one field, or many together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...base.memory.arena import Arena
from ...base.native.kernels import gather as gather_rows
from ...plan.block_reads import slice_of
from ...schema.dtypes import delivered_dtype, is_string_like
from ...schema.field import UnischemaField
from ..columns.batch import (
    Column,
    Dense,
    concat_columns,
    take_rows,
)
from ..columns.coded_column import CodedColumn
from ..columns.video_column import VideoColumn
from ..read.block_layout import allocate_stacked
from ..steps.source import BlockSlice, RowIndex, as_slice


def gather(field: UnischemaField, number: int, sources: Sequence[BlockSlice], count: int, arena: Arena) -> Column:
    """Gathers one field of all items of a batch, which have one step each. Numbers go straight into the arena."""
    out = _out(field, (count,), arena)
    if len(sources) == 1 and sources[0].places is None:
        return sources[0].block.column(number).gather(sources[0].item_rows[:, 0], out)
    parts = [_part(source, number, source.item_rows[:, 0], out) for source in sources]
    if out is None and _are_in_order(sources):
        return concat_columns(parts)
    order = np.concatenate([places_of(source, count) for source in sources])
    if out is None:
        return reordered(parts, order)
    if all(part.valid is None for part in parts):
        return Dense(out)
    valid = np.ones(count, dtype=bool)
    for source, part in zip(sources, parts, strict=True):
        if part.valid is not None:
            valid[places_of(source, count)] = part.valid
    return Dense(out, valid)


def _are_in_order(sources: Sequence[BlockSlice]) -> bool:
    """Returns whether each source gives the rows that follow those of the source before it."""
    end = 0
    for source in sources:
        if not source.is_consecutive or source.places is None or source.places[0] != end:
            return False
        end = int(source.places[-1]) + 1
    return True


def _part(source: BlockSlice, number: int, rows: np.ndarray, out: np.ndarray | None) -> Column:
    """Gathers one block's part of a field, if possible straight into its scattered places in ``out``."""
    column = source.block.column(number)
    places = source.places
    if out is None or places is None:
        return column.gather(rows, out)
    if isinstance(column, CodedColumn | VideoColumn):
        scattered = [out[place, ...] for place in places.tolist()]  # always a view, even of a scalar
        return column.gather(rows, scattered)  # type: ignore[arg-type]  # a list of views works, too
    following = as_slice(places)
    if isinstance(following, slice):
        return column.gather(rows, out[following])
    part = column.gather(rows, np.empty((len(rows), *out.shape[1:]), out.dtype))
    assert isinstance(part, Dense)
    out[places] = part.values
    return part


def _out(field: UnischemaField, lead: tuple[int, ...], arena: Arena) -> np.ndarray | None:
    if not field.is_fixed or is_string_like(field.dtype) or field.storage.compound:
        return None
    return arena.allocate(delivered_dtype(field.dtype), (*lead, *field.shape))  # type: ignore[arg-type]


def reordered(parts: Sequence[Column], order: np.ndarray) -> Column:
    joined = concat_columns(parts)
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return take_rows(joined, inverse)


def places_of(source: BlockSlice, count: int) -> np.ndarray:
    return np.arange(count) if source.places is None else source.places


def gather_together(sources: Sequence[BlockSlice], count: int, arena: Arena) -> dict[int, Column]:
    """Gathers the small numbers of shuffled blocks, all columns at once. Returns them by field number.

    Such columns are put into item order once, when their block is loaded. At that point a whole column fits into the
    processor's cache, and each later batch is a contiguous slice of it. This takes a third of the time of gathering
    scattered rows for each batch. If other processes use most items, the columns stay as they are.
    """
    if not sources or any(source.items is None for source in sources):
        return {}
    blocks = [source.block.by_item or source.block.by_row for source in sources]
    shared = [number for number in blocks[0] if all(number in columns for columns in blocks)]
    if not shared:
        return {}
    kinds = {number: blocks[0][number].parts[0] for number in shared}
    # Laid out as in the first block, so that one copy takes the rows of several columns.
    stacked = [group.numbers for group in sources[0].block.stacked]
    groups = [
        group
        for numbers in (stacked if sum(map(len, stacked)) == len(shared) else [shared])
        for group in allocate_stacked({number: kinds[number] for number in numbers}, count, arena)
    ]
    outs = {number: values for group in groups for number, values in zip(group.numbers, group.values, strict=True)}
    valid: dict[int, np.ndarray] = {}
    for source, columns in zip(sources, blocks, strict=True):
        numbers = source.items if source.block.by_item else source.item_rows[:, 0]
        assert numbers is not None
        rows, places = _rows_and_places(source, numbers, count)
        if not (isinstance(rows, slice) and isinstance(places, slice)):
            values = [columns[number].joined() for number in outs]
            gather_rows(
                values, numbers, list(outs.values()), None if source.places is None else places_of(source, count)
            )
        elif [group.numbers for group in groups] == [group.numbers for group in source.block.stacked]:
            for group, stored in zip(groups, source.block.stacked, strict=True):
                group.values[:, places] = stored.values[:, rows]
        else:
            for number, out in outs.items():
                out[places] = columns[number].joined()[rows]
        for number in shared:
            validity = columns[number].validity
            if validity is not None:
                valid.setdefault(number, np.ones(count, dtype=bool))[places] = validity[rows]
    nulls = {number: None if mask.all() else mask for number, mask in valid.items()}
    return {number: Dense(out, nulls.get(number)) for number, out in outs.items()}


def _rows_and_places(source: BlockSlice, numbers: np.ndarray, count: int) -> tuple[RowIndex, RowIndex]:
    """Returns row numbers, and their places in the batch, as slices if they are consecutive."""
    if source.is_consecutive and source.block.by_item:
        return slice_of(numbers), slice(0, count) if source.places is None else slice_of(source.places)
    return as_slice(numbers), as_slice(places_of(source, count))
