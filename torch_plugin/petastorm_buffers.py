"""Rows that wait as tensors, between a reader and the batches: in order (`RowQueue`), or drawn at random (`RowPool`).

Batches are parts of a block, which takes one operation for each field, whatever the batch size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch

_BLOCK_BYTES = 4 << 20  # a batch keeps its whole block in memory, so blocks stay small

Columns = dict[str, torch.Tensor]


class RowBuffer(Protocol):
    """Rows that wait: how many, and how large one is."""

    rows: int
    row_bytes: int

    def add(self, columns: Columns) -> None:
        """Takes rows in; the caller may overwrite them after the next `batches`."""

    def take(self, count: int) -> Columns:
        """Takes ``count`` rows out, in memory of their own."""

    def settle(self) -> None:
        """Copies what lies in memory of the caller."""


def batches(buffer: RowBuffer, size: int, *, kept: int = 0, last: bool = False) -> Iterator[Columns]:
    """Takes batches of ``size`` rows out while ``kept`` rows remain; with ``last`` the final one may be smaller."""
    while (left := buffer.rows - kept) >= (1 if last else size):
        most = max(_BLOCK_BYTES // max(buffer.row_bytes, 1) // size, 1) * size
        block = buffer.take(min(most, left if last else left // size * size))
        for parts in zip(*(column.split(size) for column in block.values()), strict=True):
            yield dict(zip(block, parts, strict=True))
    buffer.settle()


class RowQueue:
    """Rows that wait, taken in the order in which they came."""

    def __init__(self) -> None:
        self._chunks: deque[Columns] = deque()
        self.rows = self.row_bytes = 0

    def add(self, columns: Columns) -> None:
        self._chunks.append(columns)
        self.rows += rows_in(columns)
        self.row_bytes = _row_bytes(columns)

    def take(self, count: int) -> Columns:
        parts, wanted = [], count
        while wanted:
            chunk = self._chunks.popleft()
            used = min(rows_in(chunk), wanted)
            parts.append({key: column[:used] for key, column in chunk.items()})
            if used < rows_in(chunk):
                self._chunks.appendleft({key: column[used:] for key, column in chunk.items()})
            wanted -= used
        self.rows -= count
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}

    def settle(self) -> None:
        if self._chunks:  # only the newest one; the others have been copied before
            self._chunks[-1] = {key: column.clone() for key, column in self._chunks[-1].items()}


class RowPool:
    """Rows that wait, drawn at random; they lie in one tensor for each field, which grows only when it is full."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._stored: Columns = {}
        self.rows = self.row_bytes = 0

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
        self.row_bytes = _row_bytes(columns)

    def take(self, count: int) -> Columns:
        """Takes ``count`` random rows out; rows from the end fill the holes, so a large pool costs no more."""
        chosen = self._random.choice(self.rows, count, replace=False)
        self.rows -= count
        stays = np.ones(count, dtype=bool)
        stays[chosen[chosen >= self.rows] - self.rows] = False
        holes, fillers = chosen[chosen < self.rows], np.flatnonzero(stays) + self.rows
        moves = [torch.from_numpy(places) for places in (chosen, holes, fillers)]
        return {
            key: _drawn(column, *(rows.to(column.device) for rows in moves)) for key, column in self._stored.items()
        }

    def settle(self) -> None:
        pass  # `add` copies


def _drawn(column: torch.Tensor, chosen: torch.Tensor, holes: torch.Tensor, fillers: torch.Tensor) -> torch.Tensor:
    drawn = column.index_select(0, chosen)
    column.index_copy_(0, holes, column.index_select(0, fillers))
    return drawn


def rows_in(columns: Columns) -> int:
    """How many rows some columns have."""
    return len(next(iter(columns.values())))


def _row_bytes(columns: Columns) -> int:
    return sum(column.nbytes for column in columns.values()) // max(rows_in(columns), 1)
