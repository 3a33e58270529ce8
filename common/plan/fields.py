"""Builds the engine's `ElementProgram`, which says what to read and how to process it, from the schema and the stages.

The functions are pure and use only the schema. Columns that no later step needs are not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from ..base.errors import SchemaError
from ..parquet.conforming import UNITS
from ..schema.dtypes import dtype_to_json, is_bytes
from ..schema.element import Form, OutputField
from ..schema.field import UnischemaField
from ..stages.as_tuple import numbered
from ..stages.base import Stage
from ..stages.columns import Columns, ResolveFields
from ..stages.select import Projection
from ..stages.steps import Step, WindowStep
from .program import ElementProgram, Input, MixedProgram


def build_program(
    stages: Sequence[Stage], resolve: ResolveFields, seed: int | None = None, *, lean: bool = False
) -> ElementProgram:
    """Returns the program of a pipeline. Random stages without a seed of their own derive it from ``seed``.

    Args:
        lean: whether to leave out work on single columns that no later step needs, with the errors that it would raise.

    Raises:
        FieldNotFoundError: a name or regex matches no field at its place in the pipeline.
        SchemaError: a selected column cannot become a tensor.
    """
    columns = Columns(resolve=resolve, seed=seed)
    for stage in stages:
        stage.apply(columns)
    fields = columns.open()
    drops = any(stage.hides_length for stage in stages)
    for step in (*columns.joined_steps, *columns.row_steps, *columns.item_steps):
        step.check_batches(batched=columns.batched, drops=drops)
    if columns.join is not None:
        return _joined_program(columns)
    if columns.window is None:  # without windows a row is an item
        columns.item_steps, columns.row_steps = [*columns.row_steps, *columns.item_steps], []
    program = ElementProgram(
        fields=tuple(fields),
        row_steps=tuple(columns.row_steps),
        window=columns.window,
        item_steps=tuple(columns.item_steps),
        outputs=tuple(columns.outputs),
        inputs=(),
        form=_form(columns),
    )
    return _with_inputs(_without_unused(program, lean=lean))


def _joined_program(columns: Columns) -> ElementProgram:
    """Returns the program of joined rows. If functions make them, it begins with the steps of a program for rows."""
    program = ElementProgram(
        fields=tuple(columns.open()),
        row_steps=(),
        window=None,
        item_steps=tuple(columns.joined_steps),
        outputs=(),
        inputs=(),
    )
    if columns.joined_steps:
        program = _with_inputs(_without_unused(program, lean=False))
    return replace(
        program,
        row_steps=program.item_steps,
        item_steps=(*columns.row_steps, *columns.item_steps),
        outputs=tuple(columns.outputs),
        form=_form(columns),
        join=columns.join,
    )


def mixed_program(
    stages: Sequence[Stage],
    sources: tuple[ElementProgram | MixedProgram, ...],
    outputs: tuple[OutputField, ...],
    seed: int | None,
) -> MixedProgram:
    """Returns the program of a mix, whose sources yield ``outputs``, and of the stages after it."""
    columns = Columns(resolve=lambda patterns: [], fields=[], outputs=list(outputs), mixed=len(outputs), seed=seed)
    for stage in stages:
        stage.apply(columns)
    return MixedProgram(
        sources=sources,
        item_steps=(*columns.row_steps, *columns.item_steps),
        outputs=tuple(columns.outputs),
        form=_form(columns),
    )


def _form(columns: Columns) -> Form:
    return None if columns.form is None else numbered(columns.form, columns.outputs)


def _with_inputs(program: ElementProgram) -> ElementProgram:
    """Fuses the first steps into the inputs, where steps can read stored columns directly."""
    window = None if program.row_steps else program.window
    inputs = [Input(leaves=(number,)) for number in range(len(program.fields if window is None else window.leaves))]
    inputs, steps = fused(inputs, program.row_steps or program.item_steps, window)
    if program.row_steps:
        steps = steps or [Projection(keep=tuple(range(len(inputs))))]  # not empty: windows are formed from made rows
        return replace(program, inputs=tuple(inputs), row_steps=tuple(steps))
    return replace(program, inputs=tuple(inputs), item_steps=tuple(steps))


def _without_unused(program: ElementProgram, *, lean: bool) -> ElementProgram:
    """Folds leading projections into the fields to read, so that unused columns are neither fetched nor decoded."""
    if not program.row_steps:
        count = len(program.fields if program.window is None else program.window.leaves)
        program = replace(program, item_steps=_projected_first(program.item_steps, count, lean=lean))
    while program.item_steps and program.item_steps[0].projects and not program.row_steps:
        keep = program.item_steps[0].kept or ()
        if program.window is None:
            program = replace(
                program, fields=tuple(program.fields[number] for number in keep), item_steps=program.item_steps[1:]
            )
        else:
            window = replace(program.window, leaves=tuple(program.window.leaves[number] for number in keep))
            program = replace(program, window=window, item_steps=program.item_steps[1:])
    if program.window is None or program.row_steps:
        return program
    used = sorted({leaf.number for leaf in program.window.leaves if leaf.number is not None})
    leaves = tuple(
        leaf if leaf.number is None else replace(leaf, number=used.index(leaf.number)) for leaf in program.window.leaves
    )
    return replace(
        program,
        fields=tuple(program.fields[number] for number in used),
        window=replace(program.window, leaves=leaves),
    )


def _projected_first(steps: tuple[Step, ...], count: int, *, lean: bool) -> tuple[Step, ...]:
    """Puts a projection before steps on ``count`` columns. It drops the columns that the first existing projection does
    not keep and no step before that one uses. If ``lean``, steps that only change a column that is dropped use none.
    """
    place = next((place for place, step in enumerate(steps) if step.projects), 0)
    before, last = steps[:place], steps[place:]
    if not before or any(step.taken is None for step in before):
        return steps
    origins: list[list[int | None]] = []  # for each column after a step, the one that it was before, if it is unchanged
    for step in before:
        origins.append(step.untouched(range(len(origins[-1]) if origins else count)))
    kept = last[0].kept or ()
    needed, idle = set(kept), set[int]()
    for place, (step, own) in reversed([*enumerate(zip(before, origins, strict=True))]):
        if lean and step.changes_one_column and step.number not in needed:
            idle.add(place)
            continue
        needed = {earlier for number in needed if (earlier := own[number]) is not None} | set(step.taken or ())
    if len(needed) == count:
        return steps
    first = left = sorted(needed)
    moved = []
    for place, (step, own) in enumerate(zip(before, origins, strict=True)):
        if place in idle:
            continue
        moved.append(step.on_columns(left))
        here = {None, *left}
        left = [number for number, earlier in enumerate(own) if earlier in here]
    keep = tuple(left.index(number) for number in kept)
    return (Projection(keep=tuple(first)), *moved, Projection(keep=keep), *last[1:])


def fused(inputs: Sequence[Input], steps: Sequence[Step], window: WindowStep | None) -> tuple[list[Input], list[Step]]:
    """Fuses the first steps into ``inputs``, to run while values are copied to the batch.

    The result is the same as when all steps are applied one after the other.

    Args:
        window: how the inputs become windows; ``None`` = they are those of rows.

    Returns:
        The new inputs, and the remaining steps.
    """
    columns = list(inputs)
    left: list[Step] = []
    touched: set[int] = set()
    for place, step in enumerate(steps):
        taken = step.taken or ()
        direct = step.reads_stored and _are_stored([columns[number] for number in taken], window)
        if direct and step.changes_one_column and step.number not in touched:
            columns[step.number] = replace(columns[step.number], step=step)
        elif step.kept is not None and (direct or step.projects) and not left:
            leaves = tuple(leaf for number in taken for leaf in columns[number].leaves)
            made = [Input(leaves=leaves, step=step)] if taken else []
            columns = [*(columns[number] for number in step.kept), *made]
        elif step.changes_one_column:
            left.append(step)
            touched.add(step.number)
        else:
            return columns, [*left, *steps[place:]]
    return columns, left


def _are_stored(inputs: Sequence[Input], window: WindowStep | None) -> bool:
    """Returns whether inputs are unchanged stored values, of the same rows."""
    if any(each.step is not None for each in inputs):
        return False
    leaves = [] if window is None else [window.leaves[each.leaves[0]] for each in inputs]
    return all(leaf.number is not None and leaf.offsets == leaves[0].offsets for leaf in leaves)


def casts_in_file(field: UnischemaField, dtype: np.dtype[Any]) -> bool:
    """Returns whether values can be cast to a dtype as they are read: numbers to numbers, and times to a unit."""
    if field.shape or field.storage.coded or not isinstance(field.dtype, np.dtype):
        return False
    if field.dtype.kind in "mM":
        return dtype.kind == field.dtype.kind and np.datetime_data(dtype)[0] != "generic"
    return field.dtype.kind in "biuf" and dtype.kind in "biuf"


def declared_as(stored: UnischemaField, arrow: pa.DataType, declared: UnischemaField) -> UnischemaField:
    """Returns the field with which to read a column: ``declared``, made nullable if the column is.

    Without a codec, ``declared`` is decoded with the codec of the stored field, into its own dtype and shape. If the
    column holds plain bytes and ``declared`` is an array, it is decoded with the default codec for such an array.

    Args:
        stored: the field in the dataset's schema.

    Raises:
        SchemaError: the codec cannot have written this column.
    """
    if declared.codec is None:
        if (declared.dtype, declared.shape) == (stored.dtype, stored.shape):
            return stored
        _check_unit(declared)
        holds_bytes = is_bytes(stored.dtype) and not stored.storage.coded
        if not (holds_bytes and declared.storage.coded):
            declared = _converted(stored, declared)
    if declared.storage == stored.storage:
        fits, rule = True, ""
    elif declared.storage.coded:
        fits = pa.types.is_binary(arrow) or pa.types.is_large_binary(arrow) or pa.types.is_fixed_size_binary(arrow)
        rule = "a binary column"
    else:
        fits = declared.storage.arrow_type(declared) == arrow
        rule = f"a column of {declared.storage.arrow_type(declared)}"
    if not fits:
        raise SchemaError(
            f"field '{declared.name}': expected {rule} for {declared.codec}, got {arrow}. "
            "Give the codec with which the column was written, or only the name."
        )
    return declared.replace(nullable=declared.nullable or stored.nullable)


def _check_unit(declared: UnischemaField) -> None:
    """Raises `SchemaError` for times in a unit that Arrow does not have."""
    if not isinstance(declared.dtype, np.dtype) or declared.dtype.kind not in "mM":
        return
    unit = np.datetime_data(declared.dtype)[0]
    if unit not in (*UNITS, "D"):
        dtype = dtype_to_json(declared.dtype)
        raise SchemaError(
            f"field '{declared.name}': expected times in one of the units {', '.join(UNITS)} or D, got {dtype}. "
            f"Declare one of these, or write cast('{dtype}', '{re.escape(declared.name)}')."
        )


def _converted(stored: UnischemaField, declared: UnischemaField) -> UnischemaField:
    """Returns ``declared``, which has no codec, with the codec of the stored field."""
    try:
        field = declared.replace(codec=stored.codec, dims=declared.dims or stored.dims)
    except SchemaError:
        field = declared
    if field.storage != stored.storage:
        remedy = "give the codec that decodes it, such as TensorCodec()"
        if not is_bytes(stored.dtype):
            remedy = "change the values with cast(), pad() or transform()"
        raise SchemaError(
            f"field '{declared.name}': expected {dtype_to_json(stored.dtype)} of shape {stored.shape}, as it is "
            f"stored, got {dtype_to_json(declared.dtype)} of shape {declared.shape}. Give only the name, or {remedy}."
        )
    return field
