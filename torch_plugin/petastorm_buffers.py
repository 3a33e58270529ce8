"""Buffers rows as tensors between a reader and its batches: in order (`RowQueue`), or drawn at random (`RowPool`).

Batches are slices of a block, which takes at most one operation per field, whatever the batch size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import torch

_BLOCK_BYTES = 4 << 20  # size of one draw; a batch keeps its whole block in memory
_RUN = 32  # batches split at once: enough to amortize the cost, few enough to stay in the processor's cache

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes; NumPy lacks bfloat16

Columns = dict[str, torch.Tensor]


class RowBuffer(Protocol):
    """Buffered rows, and their count."""

    rows: int

    def add(self, columns: Columns) -> None:
        """Adds rows."""

    def take(self, size: int, most: int) -> Columns:
        """Removes and returns whole batches of ``size`` rows, at most ``most`` rows; ``most`` rows if that is less."""


def batches(buffer: RowBuffer, size: int, *, kept: int = 0, last: bool = False) -> Iterator[Columns]:
    """Yields batches of ``size`` rows while ``kept`` rows remain; with ``last`` the final one may be smaller."""
    while (left := buffer.rows - kept) >= (1 if last else size):
        block = buffer.take(size, left)
        for run in _split(block.values(), _RUN * size):
            for parts in _split(run, size):
                yield dict(zip(block, parts, strict=True))


def _split(columns: Iterable[torch.Tensor], size: int) -> Iterator[tuple[torch.Tensor, ...]]:
    """Splits into parts of ``size`` rows. ``unsafe_split`` hides from autograd that they share memory; none overlap."""
    return zip(*(torch.unsafe_split(column, size) for column in columns), strict=True)


class RowQueue:
    """Buffers rows first in, first out. Batches share memory with the chunk they come from.

    Args:
        copies: whether `add` copies its rows, because their owner may write to them again.
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
        missing = whole or min(size, most)
        self.rows -= missing
        parts = []
        while missing:
            chunk = self._chunks.popleft()
            used = min(rows_in(chunk), missing)
            parts.append({key: column[:used] for key, column in chunk.items()})
            if used < rows_in(chunk):
                self._chunks.appendleft({key: column[used:] for key, column in chunk.items()})
            missing -= used
        return parts[0] if len(parts) == 1 else {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


class RowPool:
    """Buffers rows and draws them at random; stored in one tensor per field, which grows only when it is full."""

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
            _write(stored[self.rows : end], column)
        self.rows = end

    def take(self, size: int, most: int) -> Columns:
        """Removes and returns random rows; rows from the end fill the holes, so a large pool costs no more."""
        row_bytes = sum(column[:1].nbytes for column in self._stored.values())
        count = min(max(_BLOCK_BYTES // max(row_bytes, 1) // size, 1) * size, most // size * size or most)
        chosen = self._random.choice(self.rows, count, replace=False)
        self.rows -= count
        stays = np.ones(count, dtype=bool)
        stays[chosen[chosen >= self.rows] - self.rows] = False
        holes, fillers = chosen[chosen < self.rows], np.flatnonzero(stays) + self.rows
        return {key: _drawn(column, chosen, holes, fillers) for key, column in self._stored.items()}


def _drawn(column: torch.Tensor, chosen: np.ndarray, holes: np.ndarray, fillers: np.ndarray) -> torch.Tensor:
    if (array := _array(column)) is not None:
        drawn = torch.from_numpy(array.take(chosen, 0)).view(column.dtype)
        array[holes] = array.take(fillers, 0)
        return drawn
    places = [torch.from_numpy(rows).to(column.device) for rows in (chosen, holes, fillers)]
    drawn = column.index_select(0, places[0])
    column.index_copy_(0, places[1], column.index_select(0, places[2]))
    return drawn


def _write(place: torch.Tensor, column: torch.Tensor) -> None:
    target, source = _array(place), _array(column)
    if target is None or source is None:
        place.copy_(column)
    else:
        target[:] = source


def _array(column: torch.Tensor) -> np.ndarray | None:
    """Returns a NumPy view of a tensor's memory, or ``None`` if NumPy cannot view it.

    NumPy moves rows in the calling thread. torch uses several threads, which spin while they wait for each other and so
    take processors from the reading threads.
    """
    whole = _WHOLE.get(column.dtype.itemsize)
    if column.device.type != "cpu" or column.requires_grad or column.is_conj() or column.is_neg() or whole is None:
        return None
    return column.view(whole).numpy()


def rows_in(columns: Columns) -> int:
    """Returns the number of rows in ``columns``."""
    return len(next(iter(columns.values())))
