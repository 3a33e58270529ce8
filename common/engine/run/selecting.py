"""`select_rows`: finds the rows and windows that a plan selects, or loads the result of an earlier run.

Predicates that are Python functions see rows in the form in which an iteration returns them (`tested_rows`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from ...base.errors import TransformError
from ...base.memory.arena import Heap
from ...base.process.forks import load_compute
from ...dataset.dataset import StoredDataset
from ...plan.block_reads import BlockRows
from ...plan.selection.refused import all_refused, refused_by
from ...plan.selection.select import evaluate, without_refused
from ...plan.selection.selection import Selection
from ...plan.selection.store import kept_key, load_selection, save_selection, selection_key
from ...schema.element import OutputField, about_row_bytes, nest, output_of
from ...schema.field import UnischemaField
from ...stages.base import Stage
from ...stages.columns import ResolveFields
from ...stages.functions import lock_of
from ...stages.measure import MadeLengths
from ...stages.where import WhereFunction
from ...storage.file_cache import user_cache
from ..columns.batch import Column, rows_of, to_numpy
from ..columns.protocols import Describe
from ..read.claims import Claims
from ..read.column_reader import ReadContext
from ..read.fetch import Fetcher, fetch_threads
from ..steps.returned_values import to_array
from ..steps.source import BlockSlice
from ..steps.transform import call_with
from .block import LoadedBlock
from .block_loader import BlockLoader
from .gather import gather

_THREADS = 8
_TESTED_AT_ONCE = 1 << 13  # rows
_COUNTING_S = 86_400.0  # how long to wait for another process that counts the same lengths
CountLengths = Callable[[StoredDataset, Selection, MadeLengths], tuple[Selection, bool]]
"""Counts the lengths of made fields in the selected rows. This runs functions, so the pipeline implements it."""


def select_rows(
    dataset: StoredDataset, stages: Sequence[Stage], resolve: ResolveFields, *, memory_limit: int, count: CountLengths
) -> Selection:
    """Returns exactly the rows that the stages select. Computed once for a dataset version, and stored on disk.

    Args:
        count: counts lengths that functions make.
        memory_limit: the bytes of memory for the columns that the stages read. Row groups that exceed their share are
            read in slices.

    Raises:
        ParquetryError: a file cannot be read, or a predicate failed; says where.
    """
    if stages and isinstance(stages[-1], MadeLengths):
        chosen = select_rows(dataset, stages[:-1], resolve, memory_limit=memory_limit, count=count)
        return _counted(dataset, chosen, stages[-1], count)
    key = selection_key(dataset, stages)
    selection = load_selection(key, dataset.row_groups.rows) if key is not None else None
    if selection is not None:
        return selection
    if stages:
        load_compute()
    threads = fetch_threads(dataset.remote, _THREADS)
    at_once = max(1, min(threads, len(dataset.row_groups)))
    context = ReadContext(room_bytes=memory_limit // (2 * at_once))  # evaluation takes as much again
    selection = evaluate(
        dataset,
        stages,
        read=partial(stored_slices, dataset, context),
        test=partial(tested_rows, dataset, context, resolve),
        threads=threads,
    )
    if key is not None:
        save_selection(key, selection)
    return selection


def _counted(dataset: StoredDataset, selection: Selection, measure: MadeLengths, count: CountLengths) -> Selection:
    """Returns the selection with the lengths of its rows, which are stored under these rows and the functions.

    The functions' results are checked against them, so they may be kept even if a function selected the rows. Processes
    that need the same lengths wait for the first one to count them.
    """
    hasher, rows = hashlib.blake2b(digest_size=16), selection.rows
    for part in (rows.before, rows.whole, rows.start, rows.values):
        hasher.update(np.ascontiguousarray(part).data)
    key = kept_key(dataset, [measure], hasher.hexdigest())
    if key is None:
        counted, _ = count(dataset, selection, measure.unlimited())
    else:
        with Claims(os.path.dirname(user_cache("selections").path(key))).claim(key, patience_s=_COUNTING_S):
            loaded = load_selection(key, dataset.row_groups.rows)
            counted, lasts = (loaded, False) if loaded else count(dataset, selection, measure.unlimited())
            if lasts:
                save_selection(key, counted)
    return _without_long(dataset, counted, measure)


def _without_long(dataset: StoredDataset, counted: Selection, measure: MadeLengths) -> Selection:
    """Returns the selection if no row is too long; otherwise without those that are.

    Raises:
        DecodeError: a row is too long, and such rows are not left out.
    """
    assert counted.measured is not None
    long = measure.too_long(counted.measured)
    if long is None:
        return counted

    place = counted.rows.place

    def describe(row: int) -> str:
        return dataset.describe_row(*place(row))

    if measure.leaves_out is None:
        raise long.error_of_first(describe)
    refused = [refused_by(place(row), long.error(long.told(row, describe))) for row in long.rows.tolist()]
    without = without_refused(counted, refused)
    in_order = sorted([*counted.refused.each(), *refused], key=lambda part: part.places.tolist())
    return replace(without, refused=all_refused(in_order))


def stored_slices(
    dataset: StoredDataset, context: ReadContext, row_group: int, fields: Sequence[UnischemaField]
) -> Iterator[pa.Table]:
    """Yields stored columns of a whole row group, in slices if they take more than their room; see `evaluate`."""
    return Fetcher(dataset, fields, context).stored_slices(row_group)


def tested_rows(
    dataset: StoredDataset,
    context: ReadContext,
    resolve: ResolveFields,
    stage: WhereFunction,
    row_group: int,
    rows: np.ndarray,
) -> np.ndarray:
    """Tests rows of a row group with a Python predicate. Returns a bool mask over ``rows``.

    A row group that takes more than its room goes to temporary files.

    Raises:
        TransformError: the predicate raised, or did not return a bool; says for which row.
    """
    fetcher = Fetcher(dataset, resolve(stage.fields), context)
    block = BlockLoader(fetcher).load(BlockRows(row_groups=(row_group,), rows=(rows,), item_rows=None))
    outputs = [output_of(field) for field in fetcher.fields]
    fitting = (fetcher.context.room_bytes or 0) // about_row_bytes(outputs)
    at_once = int(np.clip(fitting, 1, _TESTED_AT_ONCE))
    result = np.zeros(len(rows), dtype=bool)
    for first in range(0, len(rows), at_once):
        count = min(at_once, len(rows) - first)
        source = BlockSlice(block=block, item_rows=np.arange(first, first + count)[:, None], places=None)
        columns = [gather(field, number, [source], count, Heap()) for number, field in enumerate(fetcher.fields)]
        describe = partial(_described, block, first)
        test = _tested_batch if stage.batched else _tested_each
        result[first : first + count] = test(stage, outputs, columns, count, describe)
    return result


def _described(block: LoadedBlock, first: int, number: int) -> str:
    return block.where.describe(first + number)


def _tested_batch(
    step: WhereFunction, outputs: Sequence[OutputField], columns: Sequence[Column], rows: int, describe: Describe
) -> np.ndarray:
    """Returns a bool mask, from a predicate that takes arrays."""
    called = f"where({step.function.name})"
    batch = nest(outputs, [to_numpy(c, text=o.kind == "text") for o, c in zip(outputs, columns, strict=True)])
    with lock_of(step.function.function):
        answer = call_with(step.function, batch, called, lambda: describe(0))
        filled = np.ma.filled(answer, False) if isinstance(answer, np.ma.MaskedArray) else answer
        mask = np.array(to_array(filled, lambda: f"{called}, the batch that begins at {describe(0)}"))
    if mask.shape != (rows,) or mask.dtype != bool:
        raise TransformError(f"{called}: expected a bool array of shape ({rows},), got {mask.dtype} {mask.shape}.")
    return mask


def _tested_each(
    step: WhereFunction, outputs: Sequence[OutputField], columns: Sequence[Column], rows: int, describe: Describe
) -> np.ndarray:
    """Returns a bool mask, from a predicate that takes a row."""
    called, lock = f"where({step.function.name})", lock_of(step.function.function)
    values = [rows_of(c, text=o.kind == "text") for o, c in zip(outputs, columns, strict=True)]
    result = np.zeros(rows, dtype=bool)
    for number in range(rows):
        row = nest(outputs, [column[number] for column in values])
        with lock:
            answer = call_with(step.function, row, called, partial(describe, number))
        if not isinstance(answer, bool | np.bool_ | int):
            raise TransformError(f"{called}, {describe(number)}: expected True or False, got {type(answer).__name__}.")
        result[number] = bool(answer)
    return result
