"""Joins token lists: lays pieces of many rows end to end into items of equal length, ``[B, length]``.

A batch takes only the tokens that it needs, so a row that many items share is never copied as a whole for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...base.memory.arena import Arena
from ...base.native.kernels import copy_pieces
from ...base.process.dataclass import dataclass
from ...schema.dtypes import delivered_dtype
from ...schema.field import UnischemaField
from ...schema.ragged import ends_of
from ...stages.steps import JoinStep
from ..columns.batch import Column, Dense, Ragged
from ..columns.protocols import TokenColumn
from .source import BlockSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pieces:
    """The pieces that a batch takes from one block, in the order of the batch.

    Attributes:
        rows, first, tokens: for each piece, its row in the block, its first token, and its number of tokens.
        starts: where the pieces begin in the flat batch.
        separators: where separators go in the flat batch.
    """

    source: BlockSlice
    rows: np.ndarray
    first: np.ndarray
    tokens: np.ndarray
    starts: np.ndarray
    separators: np.ndarray


def join_rows(
    step: JoinStep, fields: Sequence[UnischemaField], sources: Sequence[BlockSlice], count: int, arena: Arena
) -> list[Column]:
    """Returns the fields of ``count`` items, ``[count, length]`` each, followed by the positions, if requested."""

    def flat(source: BlockSlice, number: int) -> tuple[np.ndarray, np.ndarray]:
        column = source.block.column(number)
        assert isinstance(column, TokenColumn)
        return column.flat

    return _joined(step, [delivered_dtype(field.dtype) for field in fields], sources, count, arena, flat)


def join_made_rows(
    step: JoinStep, columns: Sequence[Column], sources: Sequence[BlockSlice], count: int, arena: Arena
) -> list[Column]:
    """As `join_rows`, for rows that functions made: columns of lists, in which the sources number their rows."""
    lists = [_flat(column) for column in columns]
    dtypes = [values.dtype for _, values in lists]
    return _joined(step, dtypes, sources, count, arena, lambda source, number: lists[number])


def _flat(column: Column) -> tuple[np.ndarray, np.ndarray]:
    """Returns what `TokenColumn.flat` is for a column of lists, whose lengths may be fixed."""
    if isinstance(column, Dense):
        rows, length = column.values.shape
        return np.arange(rows + 1) * length, column.values.reshape(-1)
    assert isinstance(column, Ragged)
    assert isinstance(column.values, np.ndarray)
    return ends_of(column.shapes[:, 0]), column.values


def _joined(
    step: JoinStep,
    dtypes: Sequence[np.dtype[Any]],
    sources: Sequence[BlockSlice],
    count: int,
    arena: Arena,
    flat_of: Callable[[BlockSlice, int], tuple[np.ndarray, np.ndarray]],
) -> list[Column]:
    """Joins rows. ``flat_of`` returns what `TokenColumn.flat` is for a field of a source."""
    shape = (count, step.length)
    starts, sizes = _laid_out(step, sources)
    full = int(sizes.sum()) == count * step.length
    pieces = [_pieces(step, source) for source in sources]
    columns: list[Column] = []
    for number, dtype in enumerate(dtypes):
        out = arena.allocate(dtype, shape)
        flat = out.reshape(-1)
        if not full:
            flat.fill(step.padding[number])
        for each in pieces:
            before, values = flat_of(each.source, number)
            copy_pieces(values, before[each.rows] + each.first, each.tokens, flat, each.starts)
            if step.separators is not None:
                flat[each.separators] = step.separators[number]
        columns.append(Dense(out))
    if step.positions:
        segments, positions = (arena.allocate(np.dtype(np.int32), shape) for _ in range(2))
        _write_positions(step, starts, sizes, segments.reshape(-1), positions.reshape(-1))
        columns += [Dense(segments), Dense(positions)]
    return columns


def cu_seqlens(segment_ids: np.ndarray) -> tuple[np.ndarray, int]:
    """Returns the segments of joined items as ``cu_seqlens`` and ``max_seqlen`` for variable-length attention.

        >>> cu_seqlens(np.array([[1, 1, 2, 2, 2], [1, 1, 1, 0, 0]], np.int32))
        (array([0, 2, 5, 8, 10], dtype=int32), 3)

    Args:
        segment_ids: integers ``[B, length]`` or ``[length]`` from `Pipeline.concat` or `Pipeline.pack_rows`.

    Returns:
        int32 ``[segments + 1]`` with the start of each segment in the flat batch and the total number of tokens, and
        the length of the longest segment. The padding of an item is a separate segment, so segments cover all tokens.

    Raises:
        ValueError: the values are not integers, or have another shape.
    """
    ids = np.asarray(segment_ids)
    if ids.ndim not in (1, 2) or ids.dtype.kind not in "iu":
        raise ValueError(f"cu_seqlens: expected integers [B, length] or [length], got {ids.dtype} {ids.shape}.")
    begins = np.ones(ids.shape, np.bool_)
    np.not_equal(ids[..., 1:], ids[..., :-1], out=begins[..., 1:])
    offsets = np.append(np.flatnonzero(begins), ids.size).astype(np.int32)
    return offsets, int(np.diff(offsets).max(initial=0))


def _write_positions(
    step: JoinStep, starts: np.ndarray, sizes: np.ndarray, segments: np.ndarray, positions: np.ndarray
) -> None:
    """Writes the number of each token's piece in its item, from 1, and its place in the piece; both 0 in padding."""
    begins = np.flatnonzero(np.diff(starts // step.length, prepend=-1))  # the first piece of each item
    numbers = np.arange(1, len(starts) + 1) - np.repeat(begins, np.diff(begins, append=len(starts)))
    padding = np.diff(starts, append=len(segments)) - sizes  # after each piece
    if padding.any():
        positions.fill(0)
    copy_pieces(np.arange(step.length, dtype=np.int32), np.zeros_like(starts), sizes, positions, starts)
    values, lengths = (np.stack(pair, axis=1).reshape(-1) for pair in ((numbers, numbers * 0), (sizes, padding)))
    segments[:] = np.repeat(values.astype(np.int32), lengths)


def _laid_out(step: JoinStep, sources: Sequence[BlockSlice]) -> tuple[np.ndarray, np.ndarray]:
    """Returns where the pieces of all sources begin in the flat batch, ascending, and their sizes with separators."""
    parts = [_starts(step, source) for source in sources]
    starts = np.concatenate([np.zeros(0, np.int64), *parts])
    sizes = np.concatenate([np.zeros(0, np.int64), *(_spans_of(each)[:, [1, 3]].sum(axis=1) for each in sources)])
    order = np.lexsort((sizes, starts))  # an empty piece comes before the one that begins at the same place
    return starts[order], sizes[order]


def _starts(step: JoinStep, source: BlockSlice) -> np.ndarray:
    assert source.places is not None
    starts: np.ndarray = source.places * step.length + _spans_of(source)[:, 2]
    return starts


def _spans_of(source: BlockSlice) -> np.ndarray:
    assert source.spans is not None
    return source.spans


def _pieces(step: JoinStep, source: BlockSlice) -> _Pieces:
    starts, (first, tokens, _, separator) = _starts(step, source), _spans_of(source).T
    some = np.flatnonzero(tokens)
    order = some[np.argsort(starts[some])]
    return _Pieces(
        source=source,
        rows=source.item_rows[order, 0],
        first=first[order],
        tokens=tokens[order],
        starts=starts[order],
        separators=(starts + tokens)[separator > 0],
    )
