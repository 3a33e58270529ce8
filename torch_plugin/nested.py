"""`NestedTensors`: lists of lists (of lists ...) as tensors: the values, and one offsets tensor per level."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch

from .torch_internals import register_pytree_node

Values = torch.Tensor | list[Any]


class NestedTensors:
    """Lists of lists that differ in length at every level, over one tensor of all their values.

        >>> boxes = NestedTensors(torch.tensor([1, 2, 3]), (torch.tensor([0, 2, 3]), torch.tensor([0, 2, 2, 3])))
        >>> boxes.tolist(), boxes[0].tolist(), boxes[1][0]
        ([[[1, 2], []], [[3]]], [[1, 2], []], tensor([3]))

    Attributes:
        values: tensor ``[N, *inner]``: the items of the innermost lists, end to end; a list of ``str`` or ``bytes`` for
            texts.
        offsets: one int64 tensor per level, outermost first: list ``i`` of a level has the entries
            ``offsets[i] .. offsets[i + 1]`` of the level below; the entries of the last level are in ``values``.

    ``nested[i]`` is the i-th entry: a `NestedTensors` with one level less, or a tensor (a view) if there is one level;
    a slice gives a list of entries. It supports `to` and `pin_memory`, passes through loaders, and is registered as a
    pytree node (``torch.utils._pytree``).
    """

    __slots__ = ("offsets", "values")

    def __init__(self, values: Values, offsets: Sequence[torch.Tensor]) -> None:
        self.values = values
        self.offsets = tuple(offsets)

    def __len__(self) -> int:
        return len(self.offsets[0]) - 1

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = int(index)
        if not -len(self) <= number < len(self):
            raise IndexError(f"entry {number} of {len(self)} nested lists")
        number %= len(self)
        first, last = self.offsets[0][number : number + 2].tolist()
        inner = []
        for offsets in self.offsets[1:]:
            own = offsets[first : last + 1]
            first, last = int(own[0]), int(own[-1])
            inner.append(own - first)
        return NestedTensors(self.values[first:last], inner) if inner else self.values[first:last]

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def tolist(self) -> list[Any]:
        """Returns nested Python lists."""
        result = self.values.tolist() if isinstance(self.values, torch.Tensor) else self.values
        for offsets in reversed(self.offsets):
            ends = offsets.tolist()
            result = [result[first:last] for first, last in pairwise(ends)]
        return result

    def to(self, *args: Any, **kwargs: Any) -> NestedTensors:
        """Moves it to another device; a dtype applies only to the values. Same arguments as ``Tensor.to``."""
        texts = not isinstance(self.values, torch.Tensor)
        moved = (self.offsets[0] if texts else self.values).to(*args, **kwargs)  # type: ignore[union-attr]
        wait = kwargs.get("non_blocking", False)
        offsets = [offsets.to(moved.device, non_blocking=wait) for offsets in self.offsets]
        return NestedTensors(self.values if texts else moved, offsets)

    def pin_memory(self) -> NestedTensors:
        """Copies it to page-locked memory; called by ``DataLoader(pin_memory=True)``."""
        values = self.values.pin_memory() if isinstance(self.values, torch.Tensor) else self.values
        return NestedTensors(values, [offsets.pin_memory() for offsets in self.offsets])

    def __repr__(self) -> str:
        kind = self.values.dtype if isinstance(self.values, torch.Tensor) else "texts"
        return f"NestedTensors({len(self)} lists, levels={len(self.offsets)}, {kind})"


def _flattened(nested: NestedTensors) -> tuple[list[Any], None]:
    return [nested.values, *nested.offsets], None


def _unflattened(parts: Iterable[Any], _: object) -> NestedTensors:
    values, *offsets = parts
    return NestedTensors(values, offsets)


register_pytree_node(NestedTensors, _flattened, _unflattened)
