"""Statistics that cannot be true are unknown, whoever wrote them.

Takes the statistics that partitions, footers or a row-group index state for a column, and holds them against each
other: a minimum above the maximum, bounds of NaN or of a wrong length, or more nulls than rows. If one part of a row
group's statistics cannot be true, none of them is believed.
Source of the rules: Statistics of parquet.thrift, and the Parquet format's notes on NaN.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.memory.arrow_views import as_arrow, as_numpy
from ...base.process.forks import pc
from ...parquet.chunk_statistics import UNKNOWN
from .pruning import ColumnStatistics


def impossible(stated: ColumnStatistics) -> np.ndarray:
    """Returns the row groups whose statistics cannot be true, bool ``(row groups,)``."""
    result: np.ndarray = (stated.null_count < UNKNOWN) | (stated.null_count > stated.num_rows)
    low, high = comparable(stated.minimum), comparable(stated.maximum)
    for bound in (low, high):
        if bound is not None and pa.types.is_floating(bound.type):
            result = result | _is_true(pc.is_nan(bound))
    if low is not None and high is not None:
        with suppress(pa.ArrowNotImplementedError):  # values without an order, whose bounds no filter uses
            result = result | _is_true(pc.greater(low, high))
    return result


def believed(stated: ColumnStatistics) -> ColumnStatistics:
    """Returns the statistics without those that cannot be true."""
    wrong = impossible(stated)
    if not wrong.any():
        return stated
    return replace(
        stated,
        minimum=_without(stated.minimum, wrong),
        maximum=_without(stated.maximum, wrong),
        null_count=np.where(wrong, UNKNOWN, stated.null_count),
    )


def contradiction(stated: ColumnStatistics, row_group: int) -> str:
    """Says what about the statistics of a row group cannot be true, given that it is `impossible`."""
    nulls, rows = int(stated.null_count[row_group]), int(stated.num_rows[row_group])
    if nulls < UNKNOWN:
        return "bounds that the column's type holds, and a possible null count, got others"
    if nulls > rows:
        return f"at most {rows} nulls, got {nulls}"
    bounds = [None if array is None else _shown(array[row_group]) for array in (stated.minimum, stated.maximum)]
    return f"a minimum that is not above the maximum, got {bounds[0]} and {bounds[1]}"


def comparable(bounds: pa.Array | None) -> pa.Array | None:
    """Returns bounds in a type that Arrow compares."""
    if bounds is None:
        return None
    if isinstance(bounds, pa.DictionaryArray):
        bounds = bounds.dictionary_decode()
    return bounds.cast(pa.float32()) if pa.types.is_float16(bounds.type) else bounds


def _is_true(flags: pa.Array) -> np.ndarray:
    return np.asarray(as_numpy(flags.fill_null(False)))


def _without(bounds: pa.Array | None, wrong: np.ndarray) -> pa.Array | None:
    if bounds is None:
        return None
    return bounds.take(as_arrow(np.arange(len(bounds)), ~wrong))  # a null place gives a null


def _shown(bound: pa.Scalar) -> Any:
    return str(bound.cast(pa.string())) if pa.types.is_temporal(bound.type) else repr(bound.as_py())
