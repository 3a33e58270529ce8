"""Moves the tensors of a batch, whatever holds them: dicts, tuples, lists, nested and jagged tensors. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping
from typing import Any

import torch

from .nested import NestedTensors
from .tensors import Jagged, jagged

Move = Callable[[torch.Tensor], torch.Tensor]


def moved(value: Any, move: Move) -> Any:
    """Returns the value with ``move(tensor)`` in place of each plain tensor, in new containers.

        >>> moved({"x": torch.ones(2), "name": ["a", "b"]}, lambda tensor: tensor + 1)
        {'x': tensor([2., 2.]), 'name': ['a', 'b']}

    Dicts, named tuples and other sequences keep their types. A jagged tensor or `NestedTensors` is moved as its values
    and offsets. A list of strings, and any other object, is the same object as before.
    """
    if isinstance(value, torch.Tensor):
        return _moved_jagged(value, move) if Jagged is not None and isinstance(value, Jagged) else move(value)
    if isinstance(value, NestedTensors):
        values = move(value.values) if isinstance(value.values, torch.Tensor) else value.values
        return NestedTensors(values, [move(offsets) for offsets in value.offsets])
    if isinstance(value, MutableMapping):
        new = {name: moved(each, move) for name, each in value.items()}
        if type(value) is dict:
            return new
        result = copy.copy(value)
        result.update(new)
        return result
    if isinstance(value, tuple):
        parts = [moved(each, move) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list) and not _is_text(value):
        return type(value)(moved(each, move) for each in value)
    return value


def _is_text(value: list[Any]) -> bool:
    """Whether the first item is text: the items of one field are of one kind, and a batch may have many."""
    return bool(value) and isinstance(value[0], str | bytes)


def _moved_jagged(tensor: Any, move: Move) -> torch.Tensor:
    shortest, longest = tensor._maybe_min_seqlen, tensor._maybe_max_seqlen
    if tensor.lengths() is not None or tensor._ragged_idx != 1 or shortest is None or longest is None:
        return move(tensor)  # not one of this package
    return jagged(move(tensor._values), move(tensor._offsets), shortest, longest)
