"""Rows that wait as tensors, between a reader and the batches: in order (`RowQueue`), or drawn at random (`RowPool`).

Batches are parts of a block, which takes at most one operation for each field, whatever the batch size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch

_BLOCK_BYTES = 4 << 20  # what is drawn at once; a batch keeps its whole block in memory

Columns = dict[str, torch.Tensor]


class RowBuffer(Protocol):
    """Rows that wait, and how many they are."""

    rows: int

    def add(self, columns: Columns) -> None:
        """Takes rows in."""

    def take(self, size: int, most: int) -> Columns:
        """Takes one or more batches of ``size`` rows out, at most ``most`` rows; ``most`` itself if that is less."""


def batches(buffer: RowBuffer, size: int, *, kept: int = 0, last: bool = False) -> Iterator[Columns]:
    """Takes batches of ``size`` rows out while ``kept`` rows remain; with ``last`` the final one may be smaller."""
    while (left := buffer.rows - kept) >= (1 if last else size):
        block = buffer.take(size, left)
        for parts in zip(*(column.split(size) for column in block.values()), strict=True):
            yield dict(zip(block, parts, strict=True))


class RowQueue:
    """Rows that wait, taken in the order in which they came. Batches share memory with the chunk they come from.

    Args:
        copies: whether to copy what `add` takes in, because its owner may write to it again.
    """

    def __init__(self, *, copies: bool) -> None:
        self._copies = copies
        self._chunks: deque[Columns] = deque()
        self.rows = 0

    def add(self, columns: Columns) -> None:
        self._chunks.append({key: column.clone() for key, column in columns.items()} if self._copies else columns)
        self.rows += rows_in(columns)

    def take(self, size: int, most: int) -> Columns:
        whole = min(rows_in(self._chunks[0]), most) // size * size
        wanted = whole or min(size, most)
        self.rows -= wanted
        parts = []
        while wanted:
            chunk = self._chunks.popleft()
            used = min(rows_in(chunk), wanted)
            parts.append({key: column[:used] for key, column in chunk.items()})
            if used < rows_in(chunk):
                self._chunks.appendleft({key: column[used:] for key, column in chunk.items()})
            wanted -= used
        return parts[0] if len(parts) == 1 else {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


class RowPool:
    """Rows that wait, drawn at random; they lie in one tensor for each field, which grows only when it is full."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._stored: Columns = {}
        self.rows = 0

    def add(self, columns: Columns) -> None:
        end = self.rows + rows_in(columns)
        for key, column in columns.items():
            stored = self._stored.get(key)
            if stored is None or end > len(stored):
                larger = torch.empty((2 * end, *column.shape[1:]), dtype=column.dtype, device=column.device)
                if stored is not None:
                    larger[: self.rows] = stored[: self.rows]
                self._stored[key] = stored = larger
            stored[self.rows : end] = column
        self.rows = end

    def take(self, size: int, most: int) -> Columns:
        """Takes random rows out; rows from the end fill the holes, so a large pool costs no more."""
        row_bytes = sum(column[:1].nbytes for column in self._stored.values())
        count = min(max(_BLOCK_BYTES // max(row_bytes, 1) // size, 1) * size, most // size * size or most)
        chosen = self._random.choice(self.rows, count, replace=False)
        self.rows -= count
        stays = np.ones(count, dtype=bool)
        stays[chosen[chosen >= self.rows] - self.rows] = False
        holes, fillers = chosen[chosen < self.rows], np.flatnonzero(stays) + self.rows
        moves = [torch.from_numpy(places) for places in (chosen, holes, fillers)]
        return {
            key: _drawn(column, *(rows.to(column.device) for rows in moves)) for key, column in self._stored.items()
        }


def _drawn(column: torch.Tensor, chosen: torch.Tensor, holes: torch.Tensor, fillers: torch.Tensor) -> torch.Tensor:
    drawn = column.index_select(0, chosen)
    column.index_copy_(0, holes, column.index_select(0, fillers))
    return drawn


def rows_in(columns: Columns) -> int:
    """How many rows some columns have."""
    return len(next(iter(columns.values())))
