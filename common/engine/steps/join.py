"""Joining token lists: pieces of many rows laid end to end into items of one length, ``[B, length]``.

A batch takes only the tokens that it needs, so a row that many items share is never copied whole for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...schema.dtypes import delivered_dtype
from ...schema.field import UnischemaField
from ...stages.steps import JoinStep
from ..columns.arena import Arena
from ..columns.arrow_take import take_spans
from ..columns.batch import Column, Dense
from ..columns.columns import TokenColumn
from .source import Numbers, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pieces:
    """What a batch takes from one block, in the order of the batch.

    Attributes:
        rows, first, tokens: which rows of the block, from which of their tokens on, and how many.
        places: where the tokens belong in the flat batch: a slice, or a mask.
        separators: where separators belong there.
    """

    source: Source
    rows: np.ndarray
    first: np.ndarray
    tokens: np.ndarray
    places: Numbers
    separators: np.ndarray


def join_rows(
    step: JoinStep, fields: Sequence[UnischemaField], sources: Sequence[Source], count: int, arena: Arena
) -> list[Column]:
    """The fields of ``count`` items, ``[count, length]`` each, and after them the positions, if they are wanted."""
    shape = (count, step.length)
    starts, sizes = _laid_out(step, sources)
    full = int(sizes.sum()) == count * step.length
    pieces = [_pieces(step, source, count) for source in sources]
    columns: list[Column] = []
    for number, field in enumerate(fields):
        out = arena.allocate(delivered_dtype(field.dtype), shape)
        flat = out.reshape(-1)
        if not full:
            flat.fill(step.padding[number])
        for each in pieces:
            column = each.source.block.column(number)
            assert isinstance(column, TokenColumn)
            before, values = column.flat
            flat[each.places] = take_spans(values, before[each.rows] + each.first, each.tokens)
            if step.separators is not None:
                flat[each.separators] = step.separators[number]
        columns.append(Dense(out))
    if step.positions:
        segments, positions = (arena.allocate(np.dtype(np.int32), shape) for _ in range(2))
        _write_positions(step, starts, sizes, segments.reshape(-1), positions.reshape(-1))
        columns += [Dense(segments), Dense(positions)]
    return columns


def _write_positions(
    step: JoinStep, starts: np.ndarray, sizes: np.ndarray, segments: np.ndarray, positions: np.ndarray
) -> None:
    """The number of each token's piece in its item, from 1, and the token's place in the piece; both 0 in padding."""
    begins = np.flatnonzero(np.diff(starts // step.length, prepend=-1))  # the first piece of each item
    numbers = np.arange(1, len(starts) + 1) - np.repeat(begins, np.diff(begins, append=len(starts)))
    cuts = np.unique(np.concatenate([starts, starts + sizes]))  # where a piece begins, or padding
    cuts = cuts[cuts < len(segments)]
    piece = np.minimum(np.searchsorted(starts, cuts), len(starts) - 1)
    values = np.where(starts[piece] == cuts, numbers[piece], 0).astype(np.int32)
    lengths = np.diff(cuts, append=len(segments))
    segments[:] = np.repeat(values, lengths)
    places = np.arange(len(segments), dtype=np.int32)
    np.subtract(places, np.repeat(cuts.astype(np.int32), lengths), out=positions)
    if not values.all():
        positions *= segments > 0


def _laid_out(step: JoinStep, sources: Sequence[Source]) -> tuple[np.ndarray, np.ndarray]:
    """Where the pieces of all sources begin in the flat batch, ascending, and how long they are with separators."""
    parts = [_starts(step, source) for source in sources]
    starts = np.concatenate([np.zeros(0, np.int64), *parts])
    sizes = np.concatenate([np.zeros(0, np.int64), *(_spans_of(each)[:, [1, 3]].sum(axis=1) for each in sources)])
    order = np.argsort(starts)
    return starts[order], sizes[order]


def _starts(step: JoinStep, source: Source) -> np.ndarray:
    assert source.places is not None
    starts: np.ndarray = source.places * step.length + _spans_of(source)[:, 2]
    return starts


def _spans_of(source: Source) -> np.ndarray:
    assert source.spans is not None
    return source.spans


def _pieces(step: JoinStep, source: Source, count: int) -> _Pieces:
    starts, (first, tokens, _, separator) = _starts(step, source), _spans_of(source).T
    separators = (starts + tokens)[separator > 0]
    some = np.flatnonzero(tokens)
    order = some[np.argsort(starts[some])]
    starts, tokens = starts[order], tokens[order]
    if len(order) and (starts[1:] == (starts + tokens)[:-1]).all():
        places: Numbers = slice(int(starts[0]), int(starts[-1] + tokens[-1]))
    else:  # a mask is assigned run by run
        edges = np.zeros(count * step.length + 1, np.int8)
        edges[starts] += 1
        edges[starts + tokens] -= 1
        places = np.cumsum(edges[:-1], dtype=np.int8).view(np.bool_)
    return _Pieces(
        source=source,
        rows=source.cells[order, 0],
        first=first[order],
        tokens=tokens,
        places=places,
        separators=separators,
    )
