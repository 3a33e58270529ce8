"""Forms the windows of an `NGram` over a dataset's wanted rows.

A window consists of consecutive wanted rows of one file. It may span several row groups, but not cross an excluded one
or a boundary where timestamps go back. Within a row group, timestamps must not decrease.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...base.errors import DatasetError
from ...base.progress import in_parallel
from ...plan.selection.rows import RowSet
from ...plan.selection.selection import Selection
from ...plan.selection.windows import Stamps, WindowRule, decreasing_stamp, stamps_of, window_starts
from .loading import RowGroupLoader
from .ngram import NGram
from .planning import ReaderRows
from .predicates import PredicateBase
from .values import stored_rows

_THREADS = 8


def form_windows(
    loader: RowGroupLoader, chosen: ReaderRows, predicate: PredicateBase | None, ngram: NGram
) -> Selection:
    """Returns the windows of all shards, over the rows that pass the filters, selector and predicate.

    Raises:
        DatasetError: a timestamp is null, or is less than the previous one in its row group.
    """
    rows = chosen.of_all_shards.rows
    row_groups = np.flatnonzero(rows.counts > 0)
    field = loader.dataset.schema[ngram._timestamp_field.name]

    def read(row_group: int) -> tuple[np.ndarray, pa.ChunkedArray]:
        kept = rows.of(row_group)
        if predicate is not None:
            kept = kept[loader.mask(predicate, row_group, kept)]
        return kept, stored_rows(loader.dataset, [field], row_group, kept).column(0)

    parts = in_parallel(read, row_groups.tolist(), "forming windows", _THREADS)
    rows = rows.replace({int(row_group): kept for row_group, (kept, _) in zip(row_groups, parts, strict=True)})
    stamps = _stamps(field.name, [chunk for _, column in parts for chunk in column.chunks])
    row_group_of_row = np.repeat(row_groups, [len(kept) for kept, _ in parts])
    sequence = _sequences(loader, chosen.selected, row_group_of_row, stamps)
    _check_order(loader, rows, sequence, stamps, field.name)
    rule = WindowRule(span=ngram.length, max_gap=ngram.delta_threshold, overlap=ngram.timestamp_overlap)
    starts = window_starts(sequence, stamps, rule)
    steps = np.arange(ngram.length, dtype=np.int64)
    return Selection(rows=rows, starts=starts, steps=steps, reports=(), matched=len(starts))


def _sequences(loader: RowGroupLoader, selected: np.ndarray, row_group: np.ndarray, stamps: Stamps) -> np.ndarray:
    """Returns, for each wanted row, the number of its unbroken sequence, ascending."""
    breaks = np.zeros(len(row_group), dtype=bool)
    if len(row_group):
        file = loader.dataset.row_groups.file[row_group]
        left_out = np.cumsum(~selected)[row_group]
        back = (row_group[1:] != row_group[:-1]) & stamps.descends & ~stamps.ascends
        breaks[1:] = (file[1:] != file[:-1]) | (left_out[1:] != left_out[:-1]) | back
    return np.cumsum(breaks)


def _check_order(loader: RowGroupLoader, rows: RowSet, sequence: np.ndarray, stamps: Stamps, name: str) -> None:
    wrong = decreasing_stamp(sequence, stamps)
    if wrong is None:
        return
    raise DatasetError(
        f"NGram: {loader.dataset.describe_row(*rows.place(wrong))}: expected timestamps in '{name}' that "
        f"do not decrease, got {stamps.text(wrong)} after {stamps.text(wrong - 1)}. Write the data sorted by '{name}'."
    )


def _stamps(name: str, chunks: list[pa.Array]) -> Stamps:
    if any(chunk.null_count for chunk in chunks):
        raise DatasetError(f"NGram: expected timestamps in '{name}', got null. Exclude such rows with a predicate.")
    return stamps_of(pa.chunked_array(chunks) if chunks else pa.chunked_array([], pa.int64()), name)
