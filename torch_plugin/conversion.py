"""What a ``DataLoader`` does to each batch that it gets: nothing, or what torch does without a ``collate_fn``.

torch's `default_convert` makes tensors of arrays, and looks for them in every string of every batch. That takes longer
than making a batch of strings. `convert` gives the same result in less time.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch.utils.data import default_convert

Batch = TypeVar("Batch")
_LEAVES = {str, bytes, type(None)}


def as_is(batch: Batch) -> Batch:
    """Returns the batch unchanged: ``DataLoader(pipe, batch_size=None, collate_fn=as_is)``.

    Without it the loader looks for arrays to convert, and turns tuples into lists. There are no arrays: a pipe gives
    tensors, strings, and lists of them.
    """
    return batch


def convert(value: object) -> object:
    """Returns what ``default_convert(value)`` returns, without copying lists that hold nothing to convert."""
    kind = type(value)
    if kind is torch.Tensor or kind in _LEAVES:
        return value
    if type(value) is dict:
        return {key: convert(part) for key, part in value.items()}
    if type(value) is list:
        kinds = set(map(type, value))
        if kinds <= _LEAVES:
            return value
        if kinds == {list}:
            return list(map(convert, value))
    return default_convert(value)
