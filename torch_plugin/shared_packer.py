"""`SharedPacker`: makes the tensors of a batch in one block of torch's shared memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from parquetry.common.engine.columns.batch import Dense, Ragged

from .tensors import JaggedPart, Part

_ALIGNMENT = 64


class SharedPacker:
    """Makes tensors from arrays, one after another in a block of shared memory.

    Args:
        columns: the batch whose arrays and ragged offsets will be packed.
    """

    def __init__(self, columns: Sequence[Part]) -> None:
        size = max(block_bytes(columns), 1)
        storage = torch.UntypedStorage._new_shared(size)  # the block that torch's own collate uses
        self._block = torch.empty(0, dtype=torch.uint8).set_(storage)
        self._used = 0

    def __call__(self, array: np.ndarray) -> torch.Tensor:
        """Returns a tensor with the array's values."""
        slot = self._block[self._used : self._used + array.nbytes]
        slot.numpy().view(array.dtype).reshape(array.shape)[...] = array
        self._used += _aligned(array.nbytes)
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        return slot.view(dtype).view(array.shape)


def block_bytes(parts: Sequence[Part]) -> int:
    """Returns the size of a batch's arrays, packed one after another."""
    return sum(_aligned(size) for part in parts for size in _sizes(part))


def _sizes(column: Part) -> list[int]:
    if isinstance(column, np.ndarray):
        return [column.nbytes]
    if isinstance(column, JaggedPart):
        return [column.values.nbytes, column.offsets.nbytes]
    if isinstance(column, Dense):
        return [column.values.nbytes]
    if isinstance(column, Ragged) and isinstance(column.values, np.ndarray):
        return [column.values.nbytes, 8 * (len(column.shapes) + 1)]
    return []


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
