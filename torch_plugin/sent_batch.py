"""`SentBatch`: a loader worker's batch of numbers that is pickled as a whole, not tensor by tensor.

In: in the worker, a dict of tensors over one region of `loader_memory`. Out: in the trainer, a plain dict of tensors
over the same memory. User code may change the dict before it is sent; it is then pickled like any other dict.

Pickling 41 tensors one by one takes longer than making their batch. As a whole, they are a list of addresses, and a
layout that is the same for almost all batches, so both processes remember it.
"""

from __future__ import annotations

import math
import operator
import pickle
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch

from .loader_memory import SharedRegion, region_at

_FEW = 4  # fewer tensors are pickled one by one, which is as fast
_MOST_LAYOUTS = 64
_address: Callable[[torch.Tensor], int] = torch.Tensor.data_ptr
_is_contiguous: Callable[[torch.Tensor], bool] = torch.Tensor.is_contiguous

# --- in the loader worker ---


def over_region(arrays: Sequence[np.ndarray]) -> tuple[list[torch.Tensor], SharedRegion] | None:
    """Returns tensors over writeable, C-contiguous arrays, and the region that contains all of them, if one does."""
    tensors = list(map(torch.from_numpy, arrays))
    addresses = list(map(_address, tensors))
    found = region_at(min(addresses, default=0))
    if found is None or max(addresses) not in found[0].addresses:
        return None
    return tensors, found[0]


class SentBatch(dict[str, Any]):
    """A batch on its way to the trainer. To user code, it is a dict. In a file, it becomes a plain one.

    Attributes:
        tensors: the values that it had at first.
        region: the region that contains them; ``None`` for a batch that user code made.
    """

    tensors: Sequence[torch.Tensor] = ()
    region: SharedRegion | None = None

    def __copy__(self) -> SentBatch:  # torch's default_convert copies each batch
        return _sent(self, self.tensors, self.region)

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


def to_be_sent(batch: Any, region: SharedRegion) -> Any:
    """Returns a batch of tensors in one region, in a form that is pickled as a whole if that pays."""
    if type(batch) is not dict or len(batch) < _FEW or region.is_copied:
        return batch
    return _sent(batch, list(batch.values()), region)


def _sent(batch: Mapping[str, Any], tensors: Sequence[torch.Tensor], region: SharedRegion | None) -> SentBatch:
    result = SentBatch(batch)
    result.tensors, result.region = tensors, region
    return result


def _reduce(batch: SentBatch) -> Any:
    """Pickles a batch for another process."""
    tensors, region = batch.tensors, batch.region
    unchanged = len(batch) == len(tensors) and all(map(operator.is_, batch.values(), tensors))
    if region is None or not unchanged or {*map(type, batch)} != {str}:
        return batch.__reduce__()
    addresses = array("q", map(_address, tensors))
    inside = min(addresses) in region.addresses and max(addresses) in region.addresses
    if not inside or not all(map(_is_contiguous, tensors)) or any(tensor.requires_grad for tensor in tensors):
        return batch.__reduce__()
    dtypes, shapes = tuple([tensor.dtype for tensor in tensors]), tuple([tensor.shape for tensor in tensors])
    layout = _layout(tuple(batch), dtypes, shapes)
    return _batch_at, (region.ticket, layout, region.addresses.start, addresses.tobytes())


@lru_cache(_MOST_LAYOUTS)
def _layout(keys: tuple[str, ...], dtypes: tuple[torch.dtype, ...], shapes: tuple[torch.Size, ...]) -> bytes:
    parts = [
        (dtype, math.prod(shape), None if len(shape) == 1 else tuple(shape))
        for dtype, shape in zip(dtypes, shapes, strict=True)
    ]
    return pickle.dumps((keys, parts), protocol=5)


ForkingPickler.register(SentBatch, _reduce)


# --- in the trainer ---


def _batch_at(lease: object, layout: bytes, begin: int, addresses: bytes) -> dict[str, torch.Tensor]:
    """Returns the tensors of a batch by name, given the worker's address of the region and those of the tensors."""
    keys, parts = _loaded(layout)
    batch = {}
    for key, (dtype, count, shape), address in zip(keys, parts, array("q", addresses), strict=True):
        flat = torch.frombuffer(lease, dtype=dtype, count=count, offset=address - begin)
        batch[key] = flat if shape is None else flat.view(shape)
    return batch


@lru_cache(_MOST_LAYOUTS)
def _loaded(layout: bytes) -> Any:
    return pickle.loads(layout)
