"""Replaces nulls inside lists for a whole block at once: with a value, or with zeros plus flags.

It takes a list column in canonical form (`read.canonical`) and returns lists without nulls inside. Null rows stay null,
and the values hidden beneath them do not matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ...memory.arrow_views import as_arrow, as_numpy, without_nulls
from ...process.forks import pc
from ...schema.field import Shape

Change = Callable[[pa.Array], pa.Array]


def filled(array: pa.Array, shape: Shape, value: Any) -> pa.Array:
    """Replaces null elements with ``value``. A null inner list stays null if its length is unknown."""
    return _rebuilt(array, shape, lambda flat: _filled(flat, value), emptied=False)


def flagged(array: pa.Array, shape: Shape) -> tuple[pa.Array, pa.Array]:
    """Replaces null elements with 0 (or empty values). Also returns flags in lists of the same lengths (uint8, 1 = not
    null). A null inner list gets the length that its field declares, or becomes empty.
    """
    values = _rebuilt(array, shape, lambda flat: _filled(flat, None), emptied=True)
    return values, _rebuilt(array, shape, _flags, emptied=True)


def _rebuilt(array: pa.Array, shape: Shape, change: Change, *, emptied: bool) -> pa.Array:
    """Applies ``change`` to the innermost values, after replacing null inner lists by lists of nulls where possible."""
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
    offsets = as_arrow(as_numpy(array.offsets))  # Arrow accepts a mask only with unsliced offsets
    return pa.LargeListArray.from_arrays(offsets, inner, mask=array.is_null() if array.null_count else None)


def _nothing(shape: Shape) -> Any:
    """Returns a nested list of nulls. Variable axes are empty."""
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
