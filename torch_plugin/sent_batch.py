"""`SentBatch`: the tensors of a loader worker's batch, which travel to the trainer together.

In: in the worker, the arrays of a batch in one region of `loader_memory`. Out: in the trainer, tensors over the same
memory. Each tensor is pickled as its number in the batch, and the batch once for all of them: as a list of addresses,
and a layout that is the same for almost all batches, so both processes remember it. Pickling 41 tensors one by one
would take longer than making them. User code sees nothing of this: a tensor that it changes is pickled by itself.
"""

from __future__ import annotations

import math
import pickle
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from .loader_memory import Member, SharedRegion, region_at

_FEW = 4  # fewer tensors are pickled one by one, which is as fast
_MOST_LAYOUTS = 64

# --- in the loader worker ---


def over_region(arrays: Sequence[np.ndarray]) -> list[torch.Tensor] | None:
    """Returns tensors over writeable, C-contiguous arrays if all of them are in one region, otherwise ``None``."""
    tensors = list(map(torch.from_numpy, arrays))
    addresses = [tensor.data_ptr() for tensor in tensors]
    found = region_at(min(addresses, default=0))
    if found is None or max(addresses) not in found[0].addresses:
        return None
    region, _ = found
    if len(tensors) >= _FEW and not region.is_copied:
        batch = SentBatch(tensors, addresses, region)
        region.together.update(zip(addresses, batch.members(), strict=True))
    return tensors


class SentBatch:
    """Tensors of one region, pickled once for all of them.

    Args:
        addresses: where the tensors begin.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], addresses: Sequence[int], region: SharedRegion) -> None:
        self._dtypes = tuple([tensor.dtype for tensor in tensors])
        self._shapes = tuple([tensor.shape for tensor in tensors])
        self._addresses = addresses
        self._ticket, self._begin = region.ticket, region.addresses.start

    def members(self) -> list[Member]:
        """Returns what `SharedRegion.together` says of each tensor."""
        return [
            (self, number, dtype, shape)
            for number, (dtype, shape) in enumerate(zip(self._dtypes, self._shapes, strict=True))
        ]

    def __reduce__(self) -> Any:
        layout = _layout(self._dtypes, self._shapes)
        return _tensors_at, (self._ticket, layout, self._begin, array("q", self._addresses).tobytes())


@lru_cache(_MOST_LAYOUTS)
def _layout(dtypes: tuple[torch.dtype, ...], shapes: tuple[torch.Size, ...]) -> bytes:
    return pickle.dumps(
        [
            (dtype, math.prod(shape), None if len(shape) == 1 else tuple(shape))
            for dtype, shape in zip(dtypes, shapes, strict=True)
        ],
        protocol=5,
    )


# --- in the trainer ---


def _tensors_at(lease: object, layout: bytes, begin: int, addresses: bytes) -> list[torch.Tensor]:
    """Returns the tensors of a batch, given the worker's addresses of its region and of each tensor."""
    tensors = []
    for (dtype, count, shape), address in zip(_loaded(layout), array("q", addresses), strict=True):
        flat = torch.frombuffer(lease, dtype=dtype, count=count, offset=address - begin)
        tensors.append(flat if shape is None else flat.view(shape))
    return tensors


@lru_cache(_MOST_LAYOUTS)
def _loaded(layout: bytes) -> Any:
    return pickle.loads(layout)
