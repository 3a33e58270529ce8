"""`block_column` makes the column of a field in a loaded block. The stored values determine its class.

There are classes for fixed-size values (a numpy array, or a list of them), strings and lists, nested lists, lists with
flags, and coded values that are decoded one by one. Each gathers rows into a `batch.Column`. Values of fixed shape go
directly to their place in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from ...layout.row_groups import MAX_VALUE_BYTES
from ...memory.arrow_views import as_numpy, is_number
from ...schema.codecs import ReadListCodec
from ...schema.dtypes import is_string_like
from ...schema.field import UnischemaField
from ..read.file_cells import Part
from .coded_column import CodedColumn
from .fixed_column import FixedColumn
from .jpeg_files import IntactRows
from .list_column import ListColumn, joined
from .nested_column import NestedColumn
from .null_elements import FlaggedColumn, KeptColumn, filled, flagged
from .plain_numbers import as_arrays, fixed_parts, is_plain, numbers_of, plain_numbers, validity_of
from .protocols import BlockColumn, Describe


def block_column(
    field: UnischemaField,
    parts: Sequence[Part],
    describe: Describe,
    *,
    reuse: bool = False,
    max_value_bytes: int = MAX_VALUE_BYTES,
    intact: Callable[[], IntactRows] | None = None,
) -> BlockColumn:
    """Returns the column of a field, given its normalized parts (one per row group of the block).

    Args:
        describe: describes the location of a row of the block, for error texts.
        reuse: whether rows are requested several times, which makes it worth keeping decoded values.
        max_value_bytes: the size limit for a decoded value of variable shape.
        intact: returns what is known about the field's images; ``None`` if nothing is.
    """
    numbers = numbers_of(parts)
    if numbers is not None:  # most columns of a wide table
        return FixedColumn(numbers, None)
    codec = field.storage
    if isinstance(codec, ReadListCodec) and codec.nulls != "error":
        return _without_null_elements(field, codec, as_arrays(parts), describe, max_value_bytes)
    if field.shape == () and not codec.coded:
        arrays = as_arrays(parts)
        if all(is_number(part.type) and not part.null_count for part in arrays):
            return FixedColumn([as_numpy(part) for part in arrays], None)
    if codec.coded:
        fixed = fixed_parts(field, codec, parts)
        return (
            FixedColumn(fixed, validity_of(parts))
            if fixed is not None
            else CodedColumn(field, codec, parts, describe, reuse=reuse, max_value_bytes=max_value_bytes, intact=intact)
        )
    arrays = as_arrays(parts)
    if isinstance(codec, ReadListCodec) and codec.levels:
        return NestedColumn(field, joined(arrays), codec.levels, describe, max_value_bytes)
    if field.is_fixed and not is_string_like(field.dtype) and all(map(is_plain, arrays)):
        return FixedColumn([plain_numbers(field, array) for array in arrays], validity_of(arrays))
    return ListColumn(field, arrays, describe, max_value_bytes)


def _without_null_elements(
    field: UnischemaField, codec: ReadListCodec, arrays: Sequence[pa.Array], describe: Describe, max_value_bytes: int
) -> BlockColumn:
    """Returns the column of lists whose codec says what to do with nulls inside."""
    plain = field.replace(codec=replace(codec, nulls="error", value=None))
    column_of = partial(block_column, max_value_bytes=max_value_bytes)
    if codec.nulls == "fill":
        return column_of(plain, [filled(array, field.shape, codec.value) for array in arrays], describe)
    if codec.nulls == "keep":
        return KeptColumn(plain, joined(arrays), describe, column_of=column_of)
    values, flags = zip(*(flagged(array, field.shape) for array in arrays), strict=True)
    flag = plain.replace(dtype=np.uint8)
    return FlaggedColumn(plain, column_of(plain, values, describe), flag, column_of(flag, flags, describe))
