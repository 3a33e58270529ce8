"""`select_rows`: the rows and windows that a plan wants: read from storage, or taken from what an earlier run kept."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from ...layout.dataset import StoredDataset
from ...schema.field import UnischemaField
from ...selection.select import Selection, evaluate
from ...selection.store import load_selection, save_selection, selection_key
from ...stages.base import Stage
from ...stages.columns import ResolveFields
from ...stages.where import WhereFunction
from ..read.fetch import Fetcher, fetch_threads
from .where_function import test_rows

_THREADS = 8


def select_rows(dataset: StoredDataset, stages: Sequence[Stage], resolve: ResolveFields) -> Selection:
    """Exactly what the stages of a selection leave; computed once for a dataset version, and kept on disk.

    Raises:
        ParquetryError: files that cannot be read, or a predicate that fails; says where.
    """
    key = selection_key(dataset, stages)
    selection = load_selection(key) if key is not None else None
    if selection is not None:
        return selection
    selection = evaluate(
        dataset,
        stages,
        read=partial(stored_rows, dataset),
        test=partial(tested_rows, dataset, resolve),
        threads=fetch_threads(dataset.remote, _THREADS),
    )
    if key is not None:
        save_selection(key, selection)
    return selection


def stored_rows(dataset: StoredDataset, row_group: int, fields: Sequence[UnischemaField]) -> pa.Table:
    """Stored columns of a whole row group, as `selection.select` reads them."""
    return Fetcher(dataset, fields).stored(row_group)


def tested_rows(
    dataset: StoredDataset, resolve: ResolveFields, stage: WhereFunction, row_group: int, rows: np.ndarray
) -> np.ndarray:
    """The rows of a row group for which a Python predicate is true: a bool mask over ``rows``."""
    fields = resolve(stage.fields)
    return test_rows(Fetcher(dataset, fields), fields, stage, row_group, rows)
