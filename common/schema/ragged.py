"""`RaggedArray`, a batch of arrays that differ in shape, and `NestedArray`, lists of lists. Each stores one flat buffer
and acts as a sequence of ndarrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np


def ends_of(sizes: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns the start of each run when runs of these sizes are concatenated, and the end of the last one; int64."""
    ends = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=ends[1:])
    return ends


def object_array(items: Sequence[Any]) -> np.ndarray:
    """Returns an array of one axis that holds the items themselves, whatever they are."""
    result = np.empty(len(items), dtype=object)
    result[:] = items
    return result


def concat_ranges(begins: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenates the numbers ``begin .. begin + length - 1`` of each range; int64."""
    numbers = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths)
    numbers += np.arange(len(numbers))
    return numbers


def _absent(kind: str, name: str, instead: str) -> str:
    """Returns the error text for a missing attribute. For attributes of ndarray, it says what to write instead."""
    text = f"{kind!r} object has no attribute {name!r}."
    if not hasattr(np.ndarray, name) or name.startswith("_"):
        return text
    return (
        f"{text} Its rows differ in shape: {instead}, len() counts rows, and value[i] is row i, an array. For one "
        "rectangular array, write pad(field) or filter the shapes before batch()."
    )


class _Entries:
    """A sequence of entries. ``_entry(i)`` returns one entry; ``_entries`` describes them in errors."""

    __slots__ = ()
    _entries: ClassVar[str]

    def __len__(self) -> int:
        raise NotImplementedError

    def _entry(self, index: int) -> Any:
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return list(map(self._entry, range(*index.indices(len(self)))))
        if not -len(self) <= index < len(self):
            raise IndexError(self._entries.format(index=index, count=len(self)))
        return self._entry(int(index) % len(self))

    def __iter__(self) -> Iterator[Any]:
        return map(self._entry, range(len(self)))


class NestedArray(_Entries):
    """Lists of lists, nested to any depth, with varying lengths at every level, over one array of all values.

        >>> lists = NestedArray(np.array([1, 2, 3]), (np.array([0, 2, 3]), np.array([0, 2, 2, 3])))
        >>> lists.tolist(), lists[0].tolist(), lists[1][0]
        ([[[1, 2], []], [[3]]], [[1, 2], []], array([3]))

    Attributes:
        values: ``[N, *inner]``; the contents of the innermost lists, concatenated.
        offsets: one int64 array per level, outermost first. List ``i`` of a level holds the entries
            ``offsets[i] .. offsets[i + 1]`` of the level below. The last level points into ``values``.

    ``nested[i]`` is the i-th entry: a `NestedArray` with one level less, or an array (a view) at the last level.
    """

    __slots__ = ("offsets", "values")
    _entries = "entry {index} of {count} nested lists"

    def __init__(self, values: np.ndarray, offsets: tuple[np.ndarray, ...]) -> None:
        self.values = values
        self.offsets = offsets

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the values."""
        return self.values.dtype

    def __len__(self) -> int:
        return len(self.offsets[0]) - 1

    def _entry(self, index: int) -> Any:
        first, last = self.offsets[0][index], self.offsets[0][index + 1]
        inner = []
        for offsets in self.offsets[1:]:
            inner.append(offsets[first : last + 1] - offsets[first])
            first, last = offsets[first], offsets[last]
        values = self.values[first:last]
        return NestedArray(values, tuple(inner)) if inner else values

    def tolist(self) -> list[Any]:
        """Returns nested Python lists."""
        result: list[Any] = self.values.tolist()
        for offsets in reversed(self.offsets):
            ends = offsets.tolist()
            result = [result[first:last] for first, last in pairwise(ends)]
        return result

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(_absent("NestedArray", name, "offsets has the lengths at each level"), name=name)

    def __repr__(self) -> str:
        return f"NestedArray({len(self)} lists, levels={len(self.offsets)}, dtype={self.dtype})"


class RaggedArray(_Entries):
    """Arrays of different shapes, concatenated. All have the same dtype and number of axes.

    Attributes:
        values: all elements, flat, ``[sum of sizes]``.
        shapes: int64 ``[arrays, axes]``, the shape of each array.
        lead: the leading axes: ``(B,)``, or ``(B, T)`` for windows. ``arrays`` is their product.

    ``ragged[i]`` is the i-th array (a view), or, for windows, a `RaggedArray` of the ``T`` arrays in row i.
    """

    __slots__ = ("_offsets", "lead", "shapes", "values")
    _entries = "row {index} of a ragged batch of {count}"

    def __init__(self, values: np.ndarray, shapes: np.ndarray, lead: tuple[int, ...] | None = None) -> None:
        self.values = values
        self.shapes = shapes
        self.lead = (len(shapes),) if lead is None else tuple(lead)
        self._offsets: np.ndarray | None = None

    @property
    def offsets(self) -> np.ndarray:
        """Where each array begins in ``values``, and where the last one ends; int64 ``[arrays + 1]``."""
        if self._offsets is None:  # many consumers use only the values and shapes
            one_axis = self.shapes.shape[1] == 1
            self._offsets = ends_of(self.shapes[:, 0] if one_axis else np.prod(self.shapes, axis=1, dtype=np.int64))
        return self._offsets

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of every array."""
        return self.values.dtype

    def __len__(self) -> int:
        return self.lead[0]

    def _entry(self, index: int) -> Any:
        if len(self.lead) > 1:
            arrays = int(np.prod(self.lead[1:]))
            lo, hi = index * arrays, (index + 1) * arrays
            values = self.values[self.offsets[lo] : self.offsets[hi]]
            return RaggedArray(values, self.shapes[lo:hi], self.lead[1:])
        return self.values[self.offsets[index] : self.offsets[index + 1]].reshape(self.shapes[index])

    def row_splits(self) -> np.ndarray:
        """Returns the offsets of the arrays along their first axis, int64 ``[arrays + 1]``."""
        return ends_of(self.shapes[:, 0])

    def tolist(self) -> list[Any]:
        """Returns nested Python lists."""
        return [row.tolist() for row in self]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(_absent("RaggedArray", name, "shapes has the shape of each array"), name=name)

    def __repr__(self) -> str:
        return f"RaggedArray({len(self)} rows, dtype={self.dtype}, axes={self.shapes.shape[1]})"
