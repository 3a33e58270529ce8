"""Makes the columns of one batch from loaded blocks: gathers, decodes into place, transforms, forms n-gram windows.

Apart from the arena that it allocates from, this is pure. It runs in threads and in worker processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np

from ...counting.counters import Count, add, add_time, counter_value
from ...errors import ELEMENT_ERRORS, NullValueError
from ...memory.arena import Arena, Heap
from ...native.gather import gather as gather_rows
from ...plan.draws import slice_of
from ...plan.program import ElementProgram, Input, MixedProgram, leaves_of
from ...schema.dtypes import delivered_dtype, is_string_like
from ...schema.field import UnischemaField
from ...stages.steps import Step, WindowStep
from ..columns.batch import (
    Column,
    Compound,
    Dense,
    Ragged,
    Strings,
    concat_columns,
    leaf_columns,
    take_column,
    take_rows,
)
from ..columns.coded_column import CodedColumn
from ..columns.like_columns import like_columns
from ..steps.apply import BatchRows, apply_by_batch, apply_dropping, apply_step, gather_step
from ..steps.image_columns import SizeCheck
from ..steps.join import join_rows
from ..steps.random_numbers import ItemKeys, concat_keys
from ..steps.source import BatchSource, Numbers, Taken, as_slice

_REPEATS_SHIFT = 32  # a row that is repeated in an epoch draws different numbers each time


def assemble(
    program: ElementProgram | MixedProgram,
    sources: Sequence[BatchSource],
    count: int,
    arena: Arena,
    *,
    strict_nulls: bool,
) -> list[Column]:
    """Returns the columns of a batch of ``count`` items, one for each of the element's leaves.

    If a function may drop rows, there may be fewer rows. One more column then holds the item number of each (int64).

    Raises:
        DecodeError, TransformError: a value failed; names file, row group and row, and often has the ``item``.
        NullValueError: a value is null and ``strict_nulls`` is set.
    """
    with _timed(sources, count):
        return leaf_columns(_assembled(program, sources, count, arena, strict_nulls=strict_nulls))


def assemble_batches(
    program: ElementProgram | MixedProgram,
    sources: Sequence[BatchSource],
    bounds: Sequence[int],
    arena: Arena,
    *,
    strict_nulls: bool,
) -> list[list[Column]]:
    """Returns the columns of several batches that may differ in size, made together; see `assemble`.

    Args:
        program: no function of it drops rows.
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
        if strict_nulls:
            for batch, (first, last) in zip(batches, pairwise(bounds), strict=True):
                _refuse_nulls(program, batch, some(first, last).describe)
        return [leaf_columns(batch) for batch in batches]


@contextmanager
def _timed(sources: Sequence[BatchSource], count: int) -> Iterator[None]:
    """Counts the time that the block takes, and notes the item of an error."""
    begin, busy, transformed = time.perf_counter(), time.thread_time(), counter_value(Count.TRANSFORM_S)
    try:
        yield
    except ELEMENT_ERRORS as error:
        error.item = _item_described(sources, count)
        raise
    finally:
        add(Count.CPU_S, time.thread_time() - busy)
    add_time(Count.DECODE_S, begin, less=counter_value(Count.TRANSFORM_S) - transformed)


def _assembled(
    program: ElementProgram | MixedProgram,
    sources: Sequence[BatchSource],
    count: int,
    arena: Arena,
    *,
    strict_nulls: bool,
) -> list[Column]:
    """Returns the columns of a batch, one for each of the program's outputs."""
    rows = _batch_rows(sources, count)
    columns = _before_item_steps(program, sources, rows, arena)
    if program.drops:
        return _dropping(program, columns, rows, strict_nulls=strict_nulls)
    columns = _applied(program.item_steps, columns, rows)
    if strict_nulls:
        _refuse_nulls(program, columns, rows.describe)
    return columns


def _before_item_steps(
    program: ElementProgram | MixedProgram, sources: Sequence[BatchSource], rows: BatchRows, arena: Arena
) -> list[Column]:
    """Returns the columns that the steps on items get."""
    if isinstance(program, MixedProgram):
        return _mixed(program, sources, rows.count)
    if program.join is not None:
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


def _dropping(
    program: ElementProgram | MixedProgram, columns: list[Column], rows: BatchRows, *, strict_nulls: bool
) -> list[Column]:
    """Applies steps of which some drop rows. One more column holds the numbers of the remaining rows."""
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
    if strict_nulls:
        _refuse_nulls(program, columns, left.describe)
    return [*columns, Dense(kept)]


def _some_rows(rows: BatchRows, kept: np.ndarray) -> BatchRows:
    """Returns the remaining rows of a batch."""

    def describe(row: int) -> str:
        return rows.describe(int(kept[row]))

    return BatchRows(count=len(kept), describe=describe, keys=lambda: rows.keys().take(kept), check=SizeCheck(describe))


def _mixed(program: MixedProgram, sources: Sequence[BatchSource], count: int) -> list[Column]:
    """Makes each pipeline's rows with its own program, then puts them in the order of the mix."""
    made, order, first = [], [], 0
    for part in program.sources:
        begin, first = first, first + len(leaves_of(part))
        own = [source for source in sources if begin <= source.source < first]
        if not own:
            continue
        places = np.unique(np.concatenate([_places(source, count) for source in own]))  # joined rows share a place
        local = [
            replace(
                each,
                places=np.searchsorted(places, _places(each, count)),
                source=each.source - begin,
                is_consecutive=False,
            )
            for each in own
        ]
        made.append(_assembled(part, local, len(places), Heap(), strict_nulls=False))
        order.append(places)
    return [_reordered(parts, np.concatenate(order)) for parts in zip(*made, strict=True)]


def gather(field: UnischemaField, number: int, sources: Sequence[BatchSource], count: int, arena: Arena) -> Column:
    """Gathers one field of all items of a batch, which have one step each. Numbers go straight into the arena."""
    out = _out(field, (count,), arena)
    if len(sources) == 1 and sources[0].places is None:
        return sources[0].block.column(number).gather(sources[0].item_rows[:, 0], out)
    parts = [_part(source, number, source.item_rows[:, 0], out) for source in sources]
    if out is None and _are_in_order(sources):
        return concat_columns(parts)
    order = np.concatenate([_places(source, count) for source in sources])
    if out is None:
        return _reordered(parts, order)
    if all(part.valid is None for part in parts):
        return Dense(out)
    valid = np.ones(count, dtype=bool)
    for source, part in zip(sources, parts, strict=True):
        if part.valid is not None:
            valid[_places(source, count)] = part.valid
    return Dense(out, valid)


def _are_in_order(sources: Sequence[BatchSource]) -> bool:
    """Returns whether each source gives the rows that follow those of the source before it."""
    end = 0
    for source in sources:
        if not source.is_consecutive or source.places is None or source.places[0] != end:
            return False
        end = int(source.places[-1]) + 1
    return True


def _part(source: BatchSource, number: int, rows: np.ndarray, out: np.ndarray | None) -> Column:
    """Gathers one block's part of a field, if possible straight into its scattered places in ``out``."""
    column = source.block.column(number)
    places = source.places
    if out is None or places is None:
        return column.gather(rows, out)
    if isinstance(column, CodedColumn):
        scattered = [out[place, ...] for place in places.tolist()]  # always a view, even of a scalar
        return column.gather(rows, scattered)  # type: ignore[arg-type]  # a list of views works, too
    following = as_slice(places)
    if isinstance(following, slice):
        return column.gather(rows, out[following])
    part = column.gather(rows, np.empty((len(rows), *out.shape[1:]), out.dtype))
    assert isinstance(part, Dense)
    out[places] = part.values
    return part


def _inputs(
    program: ElementProgram,
    sources: Sequence[BatchSource],
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
    wanted: Input,
    sources: Sequence[BatchSource],
    rows: BatchRows,
    arena: Arena,
) -> Column:
    step, count = wanted.step, rows.count
    lead: tuple[int, ...] = (count,)
    if window is None:
        leaf, steps = wanted.leaves[0], [0]
    else:
        _, leaf, offset = window.leaves[wanted.leaves[0]]
        steps = list(range(len(window.offsets))) if offset is None else [window.offsets.index(offset)]
        lead = (count, len(steps)) if offset is None else (count,)
    if step is not None:
        places = [_places(source, count) for source in sources]
        taken = Taken(leaf=leaf, sources=sources, steps=steps, places=places, lead=lead)
        made = gather_step(step, taken, rows, arena)
        if made is not None:
            return made
    heap = arena if step is None else Heap()
    if window is None:
        columns = [gather(program.fields[number], number, sources, count, heap) for number in wanted.leaves]
    else:
        columns = _windows(program, window, wanted.leaves, sources, count, heap)
    return columns[0] if step is None else apply_step(step.on_columns(step.taken or ()), columns, rows)[-1]


def _windows(
    program: ElementProgram,
    step: WindowStep,
    leaves: Sequence[int],
    sources: Sequence[BatchSource],
    count: int,
    arena: Arena,
) -> list[Column]:
    """Gathers windows straight from stored rows. A row that several windows share is decoded once."""
    columns: list[Column] = []
    for leaf in leaves:
        _, number, offset = step.leaves[leaf]
        field = program.fields[number]
        steps = list(range(len(step.offsets))) if offset is None else [step.offsets.index(offset)]
        lead = (count,) if offset is not None else (count, len(steps))
        flat = [
            BatchSource(
                block=source.block,
                item_rows=source.item_rows[:, steps].reshape(-1, 1),
                places=None if source.places is None else _cell_places(source.places, len(steps)),
            )
            for source in sources
        ]
        column = gather(field, number, flat, count * len(steps), arena)
        columns.append(column if offset is not None else _with_lead(column, lead))
    return columns


def _transformed_rows(program: ElementProgram, sources: Sequence[BatchSource], count: int) -> list[Column]:
    """Applies the row steps to each distinct row once, then arranges the results for the items."""
    distinct: list[BatchSource] = []
    index: list[np.ndarray] = []
    base = 0
    for source in sources:
        rows, inverse = np.unique(source.item_rows, return_inverse=True)
        places = np.arange(base, base + len(rows))
        once = replace(source, item_rows=rows[:, None], places=places, items=None, repeats=None)
        distinct.append(replace(once, is_consecutive=False))
        index.append(inverse.reshape(source.item_rows.shape) + base)
        base += len(rows)
    rows_once = _batch_rows(distinct, base)
    columns = _inputs(program, distinct, rows_once, Heap(), before_windows=True)
    columns = _applied(program.row_steps, columns, rows_once)
    steps = index[0].shape[1]
    item_rows = np.empty((count, steps), dtype=np.int64)
    for source, numbers in zip(sources, index, strict=True):
        item_rows[_places(source, count)] = numbers
    if program.window is None:
        return [take_column(column, item_rows[:, 0], (count,)) for column in columns]
    made = []
    for _, number, offset in program.window.leaves:
        if offset is None:
            made.append(take_column(columns[number], item_rows.reshape(-1), (count, steps)))
        else:
            made.append(take_column(columns[number], item_rows[:, program.window.offsets.index(offset)], (count,)))
    return made


def _out(field: UnischemaField, lead: tuple[int, ...], arena: Arena) -> np.ndarray | None:
    if not field.is_fixed or is_string_like(field.dtype) or field.storage.compound:
        return None
    return arena.allocate(delivered_dtype(field.dtype), (*lead, *field.shape))  # type: ignore[arg-type]


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


def _reordered(parts: Sequence[Column], order: np.ndarray) -> Column:
    joined = concat_columns(parts)
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return take_rows(joined, inverse)


def _places(source: BatchSource, count: int) -> np.ndarray:
    return np.arange(count) if source.places is None else source.places


def _cell_places(places: np.ndarray, steps: int) -> np.ndarray:
    return (places[:, None] * steps + np.arange(steps)).reshape(-1)


def _batch_rows(sources: Sequence[BatchSource], count: int) -> BatchRows:
    describe = _describe(sources, count)
    return BatchRows(count=count, describe=describe, keys=_keys(sources, count), check=SizeCheck(describe))


def _keys(sources: Sequence[BatchSource], count: int) -> Callable[[], ItemKeys]:
    """Returns a function that returns the keys of the items: where the first step of each is stored.

    The keys are made once, at the first call.
    """
    made: list[ItemKeys] = []

    def keys() -> ItemKeys:
        if not made:
            parts = []
            for source in sources:
                row_group, row = source.block.identify(source.item_rows[:, 0])
                row = row if source.repeats is None else row | source.repeats << _REPEATS_SHIFT
                passes = np.full_like(row_group, source.pass_number)
                parts.append(ItemKeys(passes, np.full_like(row_group, source.source), row_group, row))
            order = np.concatenate([_places(source, count) for source in sources])
            made.append(concat_keys(parts).take(np.argsort(order)))
        return made[0]

    return keys


def _describe(sources: Sequence[BatchSource], count: int) -> Callable[[int], str]:
    def describe(item: int) -> str:
        for source in sources:
            places = _places(source, count)
            found = np.flatnonzero(places == item)
            if len(found):
                return source.block.describe(int(source.item_rows[found[0], 0]))
        return f"row {item} of the batch"

    return describe


def _item_described(sources: Sequence[BatchSource], count: int) -> int | None:
    """Returns the first item with the row that this thread described last, which is that of its latest error."""
    for source in sources:
        row = source.block.described
        if row is None:
            continue
        found = np.flatnonzero((source.item_rows == row).any(axis=1))
        if len(found):
            return int(_places(source, count)[found[0]])
    return None


def _refuse_nulls(
    program: ElementProgram | MixedProgram, columns: Sequence[Column], describe: Callable[[int], str]
) -> None:
    found = [(field.name, column.valid) for field, column in zip(program.outputs, columns, strict=True)]
    nulls = {name: valid for name, valid in found if valid is not None}
    if nulls:
        name, valid = next(iter(nulls.items()))
        item = int(np.flatnonzero(~valid.reshape(len(valid), -1).all(axis=1))[0])
        names = ", ".join(f"'{each}'" for each in nulls)
        raise NullValueError(
            f"field '{name}', {describe(item)}: expected a value, found null, which a tensor cannot hold. Use "
            f"nulls('fill', '{name}', value=...), nulls('mask', '{name}') or nulls('drop', '{name}'), or select(...) "
            f"fields without nulls. Fields with nulls in this batch: {names}."
        )


def gather_together(sources: Sequence[BatchSource], count: int, arena: Arena) -> dict[int, Column]:
    """Gathers the small numbers of shuffled blocks, all columns at once. Returns them by field number.

    Such columns are put into item order once, when their block is loaded. At that point a whole column fits into the
    processor's cache, and each later batch is a contiguous slice of it. This takes a third of the time of gathering
    scattered rows for each batch. If other processes use most items, the columns stay as they are.
    """
    if not sources or any(source.items is None for source in sources):
        return {}
    blocks = [source.block.by_item or source.block.by_row for source in sources]
    shared = [number for number in blocks[0] if all(number in columns for columns in blocks)]
    if not shared:
        return {}
    kinds = {number: blocks[0][number].parts[0] for number in shared}
    groups = like_columns(kinds, count, arena)
    outs = {number: values for group in groups for number, values in zip(group.numbers, group.values, strict=True)}
    valid: dict[int, np.ndarray] = {}
    for source, columns in zip(sources, blocks, strict=True):
        numbers = source.items if source.block.by_item else source.item_rows[:, 0]
        assert numbers is not None
        rows, places = _rows_and_places(source, numbers, count)
        if not (isinstance(rows, slice) and isinstance(places, slice)):
            values = [columns[number].joined() for number in outs]
            gather_rows(values, numbers, list(outs.values()), None if source.places is None else _places(source, count))
        elif [group.numbers for group in groups] == [group.numbers for group in source.block.alike]:
            for group, stored in zip(groups, source.block.alike, strict=True):
                group.values[:, places] = stored.values[:, rows]
        else:
            for number, out in outs.items():
                out[places] = columns[number].joined()[rows]
        for number in shared:
            validity = columns[number].validity
            if validity is not None:
                valid.setdefault(number, np.ones(count, dtype=bool))[places] = validity[rows]
    nulls = {number: None if mask.all() else mask for number, mask in valid.items()}
    return {number: Dense(out, nulls.get(number)) for number, out in outs.items()}


def _rows_and_places(source: BatchSource, numbers: np.ndarray, count: int) -> tuple[Numbers, Numbers]:
    """Returns row numbers, and their places in the batch, as slices if they are consecutive."""
    if source.is_consecutive and source.block.by_item:
        return slice_of(numbers), slice(0, count) if source.places is None else slice_of(source.places)
    return as_slice(numbers), as_slice(_places(source, count))
