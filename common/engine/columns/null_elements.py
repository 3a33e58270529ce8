"""Nulls inside lists, settled for a whole block at once: filled, or zero with flags beside them.

In: a list column in canonical form (`read.normalise`). Out: lists without nulls in them. What always holds: null rows
stay null, and what is hidden beneath them does not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...schema.field import Shape
from .arrow_views import as_arrow, as_numpy, without_nulls

Change = Callable[[pa.Array], pa.Array]


def filled(array: pa.Array, shape: Shape, value: Any) -> pa.Array:
    """Lists with ``value`` in the place of null elements. A null list stays if nobody knows how long it would be."""
    return _rebuilt(array, shape, lambda flat: _filled(flat, value), emptied=False)


def flagged(array: pa.Array, shape: Shape) -> tuple[pa.Array, pa.Array]:
    """Lists with 0 (or nothing) in the place of null elements, and lists of the same lengths that say which elements
    are there (uint8, 1 = there). A null list inside is as long as its field says, or empty.
    """
    values = _rebuilt(array, shape, lambda flat: _filled(flat, None), emptied=True)
    return values, _rebuilt(array, shape, _flags, emptied=True)


def _rebuilt(array: pa.Array, shape: Shape, change: Change, *, emptied: bool) -> pa.Array:
    """Lists whose innermost values are changed; null lists in lists become values first, where that can be."""
    if not shape:
        return change(array)
    fixed = pa.types.is_fixed_size_list(array.type)
    children = array.flatten() if fixed else array.values
    if children.null_count and len(shape) > 1 and (emptied or None not in shape[1:]):
        stand_in = pa.scalar(_nothing(shape[1:]), children.type)
        children = pc.if_else(children.is_valid(), children, stand_in)
    inner = _rebuilt(children, shape[1:], change, emptied=emptied)
    if fixed:
        size = array.type.list_size
        return pa.FixedSizeListArray.from_arrays(inner, size) if size else pa.array([[]] * len(array), array.type)
    offsets = as_arrow(as_numpy(array.offsets))  # Arrow takes a mask only beside offsets that are no slice themselves
    return pa.LargeListArray.from_arrays(offsets, inner, mask=array.is_null() if array.null_count else None)


def _nothing(shape: Shape) -> Any:
    """A value of nothing but nulls; variable axes are empty."""
    return [_nothing(shape[1:])] * (shape[0] or 0) if shape else None


def _filled(flat: pa.Array, value: Any) -> pa.Array:
    if not flat.null_count:
        return flat
    if pa.types.is_large_string(flat.type) or pa.types.is_large_binary(flat.type):
        return without_nulls(flat) if value is None else flat.fill_null(pa.scalar(value, flat.type))
    present = pa.Array.from_buffers(flat.type, len(flat), [None, flat.buffers()[1]], offset=flat.offset)
    numbers = as_numpy(present)
    return pa.array(np.where(as_numpy(flat.is_valid()), numbers, numbers.dtype.type(value or 0)), flat.type)


def _flags(flat: pa.Array) -> pa.Array:
    return as_arrow(as_numpy(flat.is_valid()).view(np.uint8))
