"""Casts a column from the type that its file stores, as ``cast`` does, where the files of a dataset differ.

The dataset's type for the column may not represent all of its values, such as times in microseconds beside others in
nanoseconds. The cast needs only the type that it is for.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...base.errors import DecodeError
from ...base.memory.arrow_views import as_arrow, as_numpy
from ...plan.selection.rows import RowNumbers
from ...schema.arrow_types import scalar_dtype
from ...schema.dtypes import convert_counts, counts_too_far, numbers_outside
from ...schema.field import UnischemaField
from .canonical import to_canonical


def cast_in_file(field: UnischemaField, column: pa.ChunkedArray, rows: RowNumbers) -> pa.Array:
    """Returns a file's column of numbers or times as values of the field's dtype; times are int64 counts of its unit.

    Args:
        rows: the number of each value's row.

    Raises:
        DecodeError: the dtype cannot hold a value; the message names its row.
    """
    dtype = np.dtype(field.dtype)
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.int64())
    stored = scalar_dtype(column.type, field=field.name)
    array = to_canonical(field.replace(dtype=stored), column, rows)
    valid = as_numpy(array.is_valid())
    values = as_numpy(array.fill_null(False if pa.types.is_boolean(array.type) else 0))
    times = dtype.kind in "mM"
    wrong = counts_too_far(values, str(stored), str(dtype)) if times else numbers_outside(values, dtype)
    if wrong is not None and (wrong & valid).any():
        place = int(np.argmax(wrong & valid))
        raise DecodeError(
            f"cast: field '{field.name}', row {rows[place]}: expected a number that {dtype} can hold, got "
            f"{values[place]} ({column.type}). Cast to a wider dtype, or filter or transform such rows."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        made = convert_counts(values, str(stored), str(dtype)) if times else values.astype(dtype)
    if made.dtype == np.bool_:
        return pa.array(made, mask=~valid)
    return as_arrow(made, None if valid.all() else valid)
