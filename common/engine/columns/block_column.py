"""`block_column` makes the column of a field in a loaded block. The stored values determine its class.

There are classes for fixed-size values (a numpy array, or a list of them), strings and lists, nested lists, lists with
flags, and coded values that are decoded one by one. Each gathers rows into a `batch.Column`. Values of fixed shape go
directly to their place in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ...base.memory.arrow_views import as_numpy, is_number
from ...schema.codecs import ReadListCodec
from ...schema.dtypes import is_string_like
from ...schema.field import UnischemaField
from ...schema.video import FrameCodec
from ..read.file_cells import Part
from .coded_column import CodedColumn
from .fixed_column import FixedColumn
from .list_column import ListColumn, joined
from .nested_column import NestedColumn
from .null_elements import FlaggedColumn, KeptColumn, filled, flagged
from .plain_numbers import as_arrays, fixed_parts, is_plain, numbers_of, plain_numbers, validity_of
from .protocols import BlockColumn, DecodeContext
from .stored_values import IntactRows
from .video_column import VideoColumn


def block_column(
    field: UnischemaField,
    parts: Sequence[Part],
    context: DecodeContext,
    *,
    intact: Callable[[], IntactRows] | None = None,
) -> BlockColumn:
    """Returns the column of a field, given its normalized parts (one per row group of the block).

    Args:
        context: how the values are decoded.
        intact: returns what is known about the field's images; ``None`` if nothing is.
    """
    numbers = numbers_of(parts)
    if numbers is not None:  # most columns of a wide table
        return FixedColumn(numbers, None)
    codec = field.storage
    if isinstance(codec, FrameCodec):
        return VideoColumn(field, parts, context)
    if isinstance(codec, ReadListCodec) and codec.nulls != "error":
        return _without_null_elements(field, codec, as_arrays(parts), context)
    if field.shape == () and not codec.coded:
        arrays = as_arrays(parts)
        if all(is_number(part.type) and not part.null_count for part in arrays):
            return FixedColumn([as_numpy(part) for part in arrays], None)
    if codec.coded:
        fixed = fixed_parts(field, codec, parts)
        return (
            FixedColumn(fixed, validity_of(parts))
            if fixed is not None
            else CodedColumn(field, codec, parts, context, intact)
        )
    arrays = as_arrays(parts)
    if isinstance(codec, ReadListCodec) and codec.levels:
        return NestedColumn(field, joined(arrays), codec.levels, context)
    if field.is_fixed and not is_string_like(field.dtype) and all(map(is_plain, arrays)):
        return FixedColumn([plain_numbers(field, array) for array in arrays], validity_of(arrays))
    return ListColumn(field, arrays, context)


def _without_null_elements(
    field: UnischemaField, codec: ReadListCodec, arrays: Sequence[pa.Array], context: DecodeContext
) -> BlockColumn:
    """Returns the column of lists whose codec says what to do with nulls inside."""
    plain = field.replace(codec=replace(codec, nulls="error", value=None))
    if codec.nulls == "fill":
        return block_column(plain, [filled(array, field.shape, codec.value) for array in arrays], context)
    if codec.nulls == "keep":
        return KeptColumn(plain, joined(arrays), context, column_of=block_column)
    values, flags = zip(*(flagged(array, field.shape) for array in arrays), strict=True)
    flag = plain.replace(dtype=np.uint8)
    return FlaggedColumn(plain, block_column(plain, values, context), flag, block_column(flag, flags, context))
