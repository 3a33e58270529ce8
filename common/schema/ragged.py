"""`RaggedArray`: a batch of arrays that differ in shape, as one flat buffer; a sequence of ndarrays for the user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, overload

import numpy as np


def ends_of(sizes: np.ndarray) -> np.ndarray:
    """Where each of some runs begins when they are laid end to end, and where the last one ends; int64."""
    ends = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


class RaggedArray:
    """Arrays of one dtype and number of axes, of different shapes, laid end to end.

    Attributes:
        values: all elements, flat, ``[sum of sizes]``.
        shapes: int64 ``[cells, axes]``: the shape of each array.
        lead: the leading axes; ``(B,)``, or ``(B, T)`` for windows. ``cells`` is their product.

    ``ragged[i]`` is the i-th array (a view), or a `RaggedArray` of one row's ``T`` cells.
    """

    __slots__ = ("lead", "offsets", "shapes", "values")

    def __init__(self, values: np.ndarray, shapes: np.ndarray, lead: tuple[int, ...] | None = None) -> None:
        self.values = values
        self.shapes = shapes
        self.lead = (len(shapes),) if lead is None else tuple(lead)
        self.offsets = ends_of(shapes[:, 0] if shapes.shape[1] == 1 else np.prod(shapes, axis=1, dtype=np.int64))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of every array."""
        return self.values.dtype

    def __len__(self) -> int:
        return self.lead[0]

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        index = int(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of a ragged batch of {len(self)}")
        index %= len(self)
        if len(self.lead) > 1:
            cells = int(np.prod(self.lead[1:]))
            lo, hi = index * cells, (index + 1) * cells
            values = self.values[self.offsets[lo] : self.offsets[hi]]
            return RaggedArray(values, self.shapes[lo:hi], self.lead[1:])
        return self.values[self.offsets[index] : self.offsets[index + 1]].reshape(self.shapes[index])

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self)))

    def row_splits(self) -> np.ndarray:
        """Offsets of the cells along their first axis, int64 ``[cells + 1]``."""
        return ends_of(self.shapes[:, 0])

    def tolist(self) -> list[Any]:
        """Nested Python lists."""
        return [row.tolist() for row in self]

    def __repr__(self) -> str:
        return f"RaggedArray({len(self)} rows, dtype={self.dtype}, axes={self.shapes.shape[1]})"
