"""Statistics of a table's column: those of the column that each file holds for it, in the table's type."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from .chunk_statistics import ChunkStatistics, bound_types, flat_columns, is_exact, raw_statistics, to_bounds

if TYPE_CHECKING:
    from .dataset import StoredDataset


def table_statistics(dataset: StoredDataset, name: str) -> ChunkStatistics:
    """The statistics of one column in all row groups; unknown where a file lacks it, or holds it as another kind."""
    footers = dataset.footers
    stored = [dataset.stored_name(file, name) for file in range(len(footers))]
    numbers = [
        None if path is None else flat_columns(footer).get(path) for footer, path in zip(footers, stored, strict=True)
    ]
    minimum, maximum, null_count = raw_statistics(footers, numbers)
    types = {
        dict(bound_types(footer)).get(path) for footer, path in zip(footers, stored, strict=True) if path is not None
    }
    arrow = types.pop() if len(types) == 1 else None  # bounds of another type would compare differently
    wanted = dataset.columns[name].arrow
    low, high = _cast(to_bounds(minimum, arrow), wanted), _cast(to_bounds(maximum, arrow), wanted)
    known = low is not None and high is not None
    return ChunkStatistics(
        minimum=low if known else None,
        maximum=high if known else None,
        null_count=np.asarray(null_count, dtype=np.int64),
        exact=bool(is_exact(minimum)),
    )


def _cast(bounds: pa.Array | None, wanted: pa.DataType) -> pa.Array | None:
    if bounds is None or bounds.type == wanted:
        return bounds
    try:
        return bounds.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
