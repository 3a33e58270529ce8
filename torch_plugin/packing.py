"""`SharedPacker`: the arrays of one batch in one block of shared memory, on their way out of a loader worker.

For systems without memory files; see `loader_memory`.

A loader sends every block of memory by a file descriptor of its own, which costs more than the bytes of a small column.
It would copy each tensor into shared memory anyway, so packing them costs nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from parquetry.common.engine.columns.batch import Column, Dense, Ragged

_ALIGNMENT = 64


class SharedPacker:
    """Makes tensors of arrays, one behind the other in a block of shared memory.

    Args:
        columns: the batch whose arrays, and the offsets of whose ragged fields, are going to be packed.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        size = max(block_bytes(columns), 1)
        storage = torch.UntypedStorage._new_shared(size)  # the block that torch's own collate uses
        self._block = torch.empty(0, dtype=torch.uint8).set_(storage)
        self._used = 0

    def __call__(self, array: np.ndarray) -> torch.Tensor:
        """A tensor with the array's values."""
        slot = self._block[self._used : self._used + array.nbytes]
        slot.numpy().view(array.dtype).reshape(array.shape)[...] = array
        self._used += _aligned(array.nbytes)
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        return slot.view(dtype).view(array.shape)


def block_bytes(columns: Sequence[Column]) -> int:
    """What the arrays of a batch take, one behind the other."""
    return sum(_aligned(size) for column in columns for size in _sizes(column))


def _sizes(column: Column) -> list[int]:
    if isinstance(column, Dense):
        return [column.values.nbytes]
    if isinstance(column, Ragged) and isinstance(column.values, np.ndarray):
        return [column.values.nbytes, 8 * (len(column.shapes) + 1)]
    return []


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
