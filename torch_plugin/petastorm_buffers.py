"""Rows that wait as tensors, between a reader and the batches: in order (`RowQueue`), or drawn at random (`RowPool`).

Both hold one tensor for each field."""

from __future__ import annotations

import torch


class RowQueue:
    """Rows that wait, taken in the order in which they came."""

    def __init__(self) -> None:
        self._chunks: list[dict[str, torch.Tensor]] = []
        self.rows = 0

    def add(self, columns: dict[str, torch.Tensor]) -> None:
        """Takes rows in."""
        self._chunks.append(columns)
        self.rows += rows_in(columns)

    def take(self, count: int) -> dict[str, torch.Tensor]:
        """Takes ``count`` rows out."""
        parts, wanted = [], count
        while wanted:
            chunk = self._chunks.pop(0)
            size = rows_in(chunk)
            used = min(size, wanted)
            parts.append({key: column[:used] for key, column in chunk.items()})
            if used < size:
                self._chunks.insert(0, {key: column[used:] for key, column in chunk.items()})
            wanted -= used
        self.rows -= count
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


class RowPool:
    """Rows that wait, drawn at random; they lie in one tensor for each field, which grows only when it is full."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._stored: dict[str, torch.Tensor] = {}
        self.rows = 0

    def add(self, columns: dict[str, torch.Tensor]) -> None:
        """Takes rows in."""
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

    def take(self, count: int) -> dict[str, torch.Tensor]:
        """Takes ``count`` random rows out; rows from the end fill the holes, so this costs no more than a batch."""
        chosen = torch.randperm(self.rows, generator=self._generator)[:count]
        batch = {key: column[chosen] for key, column in self._stored.items()}
        self.rows -= count
        stays = torch.ones(count, dtype=torch.bool)
        stays[chosen[chosen >= self.rows] - self.rows] = False
        holes, fillers = chosen[chosen < self.rows], torch.nonzero(stays).squeeze(1) + self.rows
        for column in self._stored.values():
            column[holes] = column[fillers]
        return batch


def rows_in(columns: dict[str, torch.Tensor]) -> int:
    """How many rows some columns have."""
    return len(next(iter(columns.values())))
