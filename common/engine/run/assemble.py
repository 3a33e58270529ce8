"""Makes the columns of one batch from loaded blocks: gathers, decodes into place, transforms, forms n-gram windows.

Apart from the arena that it allocates from, this is pure. It runs in threads and in worker processes.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...base.errors import ELEMENT_ERRORS, NullValueError, PipelineError
from ...base.memory.arena import Arena, Heap
from ...base.metrics.counters import Count, add, add_time, counter_value
from ...plan.program import ElementProgram, Input, MixedProgram
from ...stages.steps import Step, WindowLeaf, WindowStep
from ..columns.batch import (
    Column,
    Compound,
    Dense,
    Ragged,
    Strings,
    leaf_columns,
    take_column,
)
from ..steps.apply import BatchRows, apply_by_batch, apply_dropping, apply_step, gather_step
from ..steps.image_columns import SizeCheck
from ..steps.join import join_made_rows, join_rows
from ..steps.random_numbers import ItemKeys, concat_keys
from ..steps.source import BlockSlice, Taken
from .gather import gather, gather_together, places_of, reordered

_REPEATS_SHIFT = 32  # a row that is repeated in an epoch draws different numbers each time


def assemble(
    program: ElementProgram | MixedProgram,
    sources: Sequence[BlockSlice],
    count: int,
    arena: Arena,
) -> list[Column]:
    """Returns the columns of a batch of ``count`` items, one for each of the element's leaves.

    If a function may drop rows, there may be fewer rows. An extra column then holds the item number of each (int64).

    Raises:
        DecodeError, TransformError: a value failed; names file, row group and row, and often has the ``item``.
        NullValueError: a value is null, and nulls are errors (`ElementProgram.strict_nulls`).
    """
    with _timed(sources, count):
        return leaf_columns(_assembled(program, sources, count, arena))


def assemble_batches(
    program: ElementProgram | MixedProgram,
    sources: Sequence[BlockSlice],
    bounds: Sequence[int],
    arena: Arena,
) -> list[list[Column]]:
    """Returns the columns of several batches that may differ in size, made together; see `assemble`.

    Args:
        program: a program whose functions drop no rows.
        bounds: the item at which each batch begins, and at which the last one ends.
    """
    with _timed(sources, bounds[-1]):
        rows = _batch_rows(sources, bounds[-1])
        columns = _before_item_steps(program, sources, rows, arena)
        steps = program.item_steps
        together = next((number for number, step in enumerate(steps) if step.needs_whole_batch), len(steps))
        columns = _applied(steps[:together], columns, rows)

        def some(first: int, last: int) -> BatchRows:
            return _some_rows(rows, np.arange(first, last))

        begin = time.perf_counter()
        batches = apply_by_batch(steps[together:], columns, np.asarray(bounds), some)
        add_time(Count.TRANSFORM_S, begin)
        if program.strict_nulls:
            for batch, (first, last) in zip(batches, pairwise(bounds), strict=True):
                _refuse_nulls(program, batch, some(first, last).describe)
        return [leaf_columns(batch) for batch in batches]


@contextmanager
def _timed(sources: Sequence[BlockSlice], count: int) -> Iterator[None]:
    """Counts the time that the block takes, and notes the item of an error."""
    begin, busy, transformed = time.perf_counter(), time.thread_time(), counter_value(Count.TRANSFORM_S)
    try:
        yield
    except ELEMENT_ERRORS as error:
        error.item = _failing_item(sources, count)
        raise
    finally:
        add(Count.CPU_S, time.thread_time() - busy)
    add_time(Count.DECODE_S, begin, less=counter_value(Count.TRANSFORM_S) - transformed)


def _assembled(
    program: ElementProgram | MixedProgram,
    sources: Sequence[BlockSlice],
    count: int,
    arena: Arena,
) -> list[Column]:
    """Returns the columns of a batch, one for each of the program's outputs."""
    rows = _batch_rows(sources, count)
    columns = _before_item_steps(program, sources, rows, arena)
    if program.drops:
        return _dropping(program, columns, rows)
    columns = _applied(program.item_steps, columns, rows)
    if program.strict_nulls:
        _refuse_nulls(program, columns, rows.describe)
    return columns


def _before_item_steps(
    program: ElementProgram | MixedProgram, sources: Sequence[BlockSlice], rows: BatchRows, arena: Arena
) -> list[Column]:
    if isinstance(program, MixedProgram):
        return _mixed(program, sources, rows.count)
    if program.join is not None:
        if program.row_steps:
            return join_made_rows(program.join, *_counted_rows(program, sources), rows.count, arena)
        return join_rows(program.join, program.fields, sources, rows.count, arena)
    if program.row_steps:
        return _transformed_rows(program, sources, rows.count)
    return _inputs(program, sources, rows, arena)


def _applied(steps: Sequence[Step], columns: list[Column], rows: BatchRows) -> list[Column]:
    """Returns the columns after the steps."""
    if steps:
        begin = time.perf_counter()
        for step in steps:
            columns = apply_step(step, columns, rows)
        add_time(Count.TRANSFORM_S, begin)
    return columns


def _dropping(program: ElementProgram | MixedProgram, columns: list[Column], rows: BatchRows) -> list[Column]:
    """Applies steps, some of which drop rows. An extra column holds the numbers of the remaining rows."""
    kept, left, begin = np.arange(rows.count), rows, time.perf_counter()
    for step in program.item_steps:
        if step.drops_rows:
            columns, chosen = apply_dropping(step, columns, left)
            kept = kept[chosen]
            left = _some_rows(rows, kept)
        else:
            columns = apply_step(step, columns, left)
    add_time(Count.TRANSFORM_S, begin)
    add(Count.FILTERED_ROWS, rows.count - len(kept))
    if program.strict_nulls:
        _refuse_nulls(program, columns, left.describe)
    return [*columns, Dense(kept)]


def _some_rows(rows: BatchRows, kept: np.ndarray) -> BatchRows:

    def describe(row: int) -> str:
        return rows.describe(int(kept[row]))

    def lengths() -> np.ndarray | None:
        counted = rows.lengths()
        return None if counted is None else counted[kept]

    return BatchRows(
        count=len(kept),
        describe=describe,
        keys=lambda: rows.keys().take(kept),
        check=SizeCheck(describe),
        lengths=lengths,
    )


def _mixed(program: MixedProgram, sources: Sequence[BlockSlice], count: int) -> list[Column]:
    """Makes each pipeline's rows with its own program, then puts them in the order of the mix."""
    by_part: dict[int, list[BlockSlice]] = {}
    for source in sources:
        by_part.setdefault(bisect_right(program.first_leaves, source.source) - 1, []).append(source)
    made, order = [], []
    for part, own in sorted(by_part.items()):
        begin = program.first_leaves[part]
        places = np.unique(np.concatenate([places_of(source, count) for source in own]))  # joined rows share a place
        local = [
            replace(
                each,
                places=np.searchsorted(places, places_of(each, count)),
                source=each.source - begin,
                is_consecutive=False,
            )
            for each in own
        ]
        made.append(_assembled(program.sources[part], local, len(places), Heap()))
        order.append(places)
    return [reordered(parts, np.concatenate(order)) for parts in zip(*made, strict=True)]


def _inputs(
    program: ElementProgram,
    sources: Sequence[BlockSlice],
    rows: BatchRows,
    arena: Arena,
    *,
    before_windows: bool = False,
) -> list[Column]:
    """Returns the inputs of the first steps, straight from storage: of windows, or of rows with ``before_windows``."""
    window = None if before_windows else program.window
    ready = {} if window is not None else gather_together(sources, rows.count, arena)
    columns = []
    for each in program.inputs:
        column = ready.get(each.leaves[0]) if each.step is None else None
        columns.append(column or _input(program, window, each, sources, rows, arena))
    return columns


def _input(
    program: ElementProgram,
    window: WindowStep | None,
    input_item: Input,
    sources: Sequence[BlockSlice],
    rows: BatchRows,
    arena: Arena,
) -> Column:
    step, count = input_item.step, rows.count
    leaves = [WindowLeaf(number=number, offsets=0) for number in input_item.leaves]
    if window is not None:
        leaves = [window.leaves[number] for number in input_item.leaves]
    steps = [0] if window is None else window.steps_of(leaves[0])
    lead = (count,) if isinstance(leaves[0].offsets, int) else (count, len(steps))
    if step is not None:
        places = [places_of(source, count) for source in sources]
        assert leaves[0].number is not None  # steps read stored values
        taken = Taken(leaf=leaves[0].number, sources=sources, steps=steps, places=places, lead=lead)
        made = gather_step(step, taken, rows, arena)
        if made is not None:
            return made
    heap = arena if step is None else Heap()
    if window is None:
        columns = [gather(program.fields[number], number, sources, count, heap) for number in input_item.leaves]
    else:
        columns = [_window(program, leaf, steps, lead, sources, heap) for leaf in leaves]
    return columns[0] if step is None else apply_step(step.on_columns(step.taken or ()), columns, rows)[-1]


def _window(
    program: ElementProgram,
    leaf: WindowLeaf,
    steps: Sequence[int],
    lead: tuple[int, ...],
    sources: Sequence[BlockSlice],
    arena: Arena,
) -> Column:
    """Gathers windows straight from stored rows. A row that several windows share is decoded once."""
    if leaf.number is None:
        return _padding(sources, lead[0], steps)
    flat = [
        BlockSlice(
            block=source.block,
            item_rows=source.item_rows[:, steps].reshape(-1, 1),
            places=None if source.places is None else _step_places(source.places, len(steps)),
        )
        for source in sources
    ]
    column = gather(program.fields[leaf.number], leaf.number, flat, lead[0] * len(steps), arena)
    return column if len(lead) == 1 else _with_lead(column, lead)


def _padding(sources: Sequence[BlockSlice], count: int, steps: Sequence[int]) -> Column:
    """Returns which of the windows' steps repeat the row at an edge, bool ``[count, steps]``."""
    flags = np.zeros((count, len(steps)), dtype=np.bool_)
    for source in sources:
        if source.padding is not None:
            flags[places_of(source, count)] = source.padding[:, steps]
    return Dense(flags)


def _made_rows(program: ElementProgram, sources: Sequence[BlockSlice]) -> tuple[list[Column], list[BlockSlice]]:
    """Applies the row steps to each distinct row once. Returns the columns, and sources that number rows in them."""
    distinct: list[BlockSlice] = []
    numbered: list[BlockSlice] = []
    base = 0
    for source in sources:
        rows, first, inverse = np.unique(source.item_rows, return_index=True, return_inverse=True)
        places = np.arange(base, base + len(rows))
        lengths = None if source.lengths is None else source.lengths.reshape(-1)[first][:, None]
        once = replace(source, item_rows=rows[:, None], places=places, items=None, repeats=None, padding=None)
        distinct.append(replace(once, lengths=lengths, is_consecutive=False))
        numbered.append(replace(source, item_rows=inverse.reshape(source.item_rows.shape) + base))
        base += len(rows)
    rows_once = _batch_rows(distinct, base)
    columns = _inputs(program, distinct, rows_once, Heap(), before_windows=True)
    return _applied(program.row_steps, columns, rows_once), numbered


def _counted_rows(program: ElementProgram, sources: Sequence[BlockSlice]) -> tuple[list[Column], list[BlockSlice]]:
    """As `_made_rows`, for rows that are joined.

    Raises:
        PipelineError: a row fails. It cannot be left out, because items were formed with its length.
    """
    try:
        return _made_rows(program, sources)
    except ELEMENT_ERRORS as error:
        raise PipelineError(
            f"{error}\nThis row did not fail when lengths were counted, and the order follows from all lengths. Make "
            "the function deterministic."
        ) from error


def _transformed_rows(program: ElementProgram, sources: Sequence[BlockSlice], count: int) -> list[Column]:
    """Applies the row steps to each distinct row once, then arranges the results for the items."""
    columns, numbered = _made_rows(program, sources)
    index = [source.item_rows for source in numbered]
    item_rows = np.empty((count, index[0].shape[1]), dtype=np.int64)
    for source, numbers in zip(sources, index, strict=True):
        item_rows[places_of(source, count)] = numbers
    if program.window is None:
        return [take_column(column, item_rows[:, 0], (count,)) for column in columns]
    made = []
    for leaf in program.window.leaves:
        steps = program.window.steps_of(leaf)
        if leaf.number is None:
            made.append(_padding(sources, count, steps))
        else:
            lead = (count,) if isinstance(leaf.offsets, int) else (count, len(steps))
            made.append(take_column(columns[leaf.number], item_rows[:, steps].reshape(-1), lead))
    return made


def _with_lead(column: Column, lead: tuple[int, ...]) -> Column:
    """Returns the column with its first axis split in two."""
    if isinstance(column, Compound):
        return column.each(lambda part: _with_lead(part, lead))
    valid = None if column.valid is None else column.valid.reshape(lead)
    if isinstance(column, Dense):
        return Dense(column.values.reshape(*lead, *column.values.shape[1:]), valid)
    if isinstance(column, Strings):
        return Strings(column.offsets, column.data, (*lead, *column.shape[1:]), valid)
    return Ragged(column.shapes, column.values, lead, valid)


def _step_places(places: np.ndarray, steps: int) -> np.ndarray:
    return (places[:, None] * steps + np.arange(steps)).reshape(-1)


def _batch_rows(sources: Sequence[BlockSlice], count: int) -> BatchRows:
    describe = _describe(sources, count)
    return BatchRows(
        count=count,
        describe=describe,
        keys=_keys(sources, count),
        check=SizeCheck(describe),
        lengths=lambda: _lengths(sources, count),
    )


def _lengths(sources: Sequence[BlockSlice], count: int) -> np.ndarray | None:
    """Returns the counted length of the first row of each item, or ``None`` if none were counted."""
    lengths = np.zeros(count, np.int64)
    for source in sources:
        if source.lengths is None:
            return None
        lengths[places_of(source, count)] = source.lengths[:, 0]
    return lengths


def _keys(sources: Sequence[BlockSlice], count: int) -> Callable[[], ItemKeys]:
    """Returns a function that returns the keys of the items: where the first step of each is stored.

    The keys are made once, at the first call.
    """
    made: list[ItemKeys] = []

    def keys() -> ItemKeys:
        if not made:
            parts = []
            for source in sources:
                row_group, row = source.block.where.identify(source.item_rows[:, 0])
                row = row if source.repeats is None else row | source.repeats << _REPEATS_SHIFT
                passes = np.full_like(row_group, source.pass_number)
                parts.append(ItemKeys(passes, np.full_like(row_group, source.source), row_group, row))
            order = np.concatenate([places_of(source, count) for source in sources])
            made.append(concat_keys(parts).take(np.argsort(order)))
        return made[0]

    return keys


def _describe(sources: Sequence[BlockSlice], count: int) -> Callable[[int], str]:
    def describe(item: int) -> str:
        for source in sources:
            places = places_of(source, count)
            matches = np.flatnonzero(places == item)
            if len(matches):
                return source.block.where.describe(int(source.item_rows[matches[0], 0]))
        return f"row {item} of the batch"

    return describe


def _failing_item(sources: Sequence[BlockSlice], count: int) -> int | None:
    """Returns the first item that contains the row of this thread's latest error: the row that it described last."""
    for source in sources:
        row = source.block.where.last_described_row
        if row is None:
            continue
        matches = np.flatnonzero((source.item_rows == row).any(axis=1))
        if len(matches):
            return int(places_of(source, count)[matches[0]])
    return None


def _refuse_nulls(
    program: ElementProgram | MixedProgram, columns: Sequence[Column], describe: Callable[[int], str]
) -> None:
    masks = [(field.name, column.valid) for field, column in zip(program.outputs, columns, strict=True)]
    nulls = {name: valid for name, valid in masks if valid is not None}
    if nulls:
        name, valid = next(iter(nulls.items()))
        item = int(np.flatnonzero(~valid.reshape(len(valid), -1).all(axis=1))[0])
        names = ", ".join(f"'{each}'" for each in nulls)
        raise NullValueError(
            f"field '{name}', {describe(item)}: expected a value, found null, which a tensor cannot hold. Use "
            f"nulls('fill', '{name}', value=...), nulls('mask', '{name}') or nulls('drop', '{name}'), or select(...) "
            f"fields without nulls. Fields with nulls in this batch: {names}."
        )
