"""Runs user functions on rows and batches, and checks their results against the declared fields."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.errors import ParquetryError, ResourceError, TransformError, limit_reached
from ...base.process.exit_watch import serves_a_trainer
from ...base.progress import check_cancelled
from ...base.tracebacks import missing_key, shorten
from ...schema.element import nest
from ...stages.functions import lock_of
from ...stages.transform import TransformStep
from ..columns.arrow_columns import from_arrow, to_arrow
from ..columns.batch import Column, rows_of, timed, to_numpy
from ..columns.protocols import Describe
from .random_numbers import ItemKeys, generators
from .returned_fields import UNRETURNED, Picker, RowColumns
from .returned_values import column_of


def apply_transform(
    step: TransformStep,
    columns: Sequence[Column],
    count: int,
    describe: Describe,
    keys: Callable[[], ItemKeys],
) -> list[Column]:
    """Returns the columns after a user function.

    Args:
        step: the function, with its inputs and outputs.
        columns: one for each of ``step.inputs``.
        count: the number of rows.
        describe: describes where row ``i`` of the batch comes from, for errors.
        keys: returns the keys of the rows, for the generators that the function gets.

    Raises:
        TransformError: the function raised, or its fields, dtypes or shapes differ from the declared ones.
    """
    if step.form == "arrow":
        return _apply_to_arrow(step, columns, count, describe)
    if step.form == "batch":
        return _apply_to_batch(step, columns, count, describe)
    return apply_to_rows(step, columns, count, describe, keys)[0]


def apply_to_rows(
    step: TransformStep,
    columns: Sequence[Column],
    count: int,
    describe: Describe,
    keys: Callable[[], ItemKeys],
) -> tuple[list[Column], np.ndarray]:
    """Like `apply_transform`, for a function of rows, which may drop some. Also returns the numbers of the remaining
    rows.
    """
    pairs = zip(step.inputs, columns, strict=True)
    inputs = [rows_of(timed(field, column), text=field.kind == "text") for field, column in pairs]
    kept: list[int] = []
    picker = Picker(step)
    rows = RowColumns(step, columns, inputs, kept, count, describe)
    function = step.function.function
    lock = lock_of(function)
    rngs = repeat(()) if step.key is None else zip(generators(step.key, keys()))
    for number, rng in zip(range(count), rngs, strict=False):
        row = nest(step.inputs, [values[number] for values in inputs])
        with lock:
            result = call_with(function, row, f"transform {step.name}", partial(describe, number), *rng)
            if result is None and step.drops:
                continue
            kept.append(number)
            rows.add(picker.picked(row, result, partial(describe, number)))
    return rows.columns(), np.array(kept, dtype=np.int64)


def _apply_to_batch(step: TransformStep, columns: Sequence[Column], count: int, describe: Describe) -> list[Column]:
    where = (lambda: f"the batch that begins at {describe(0)}") if count else (lambda: "an empty batch")
    pairs = zip(step.inputs, columns, strict=True)
    values = [to_numpy(timed(field, column), text=field.kind == "text") for field, column in pairs]
    argument = nest(step.inputs, values)
    references_before = {id(values[number]): sys.getrefcount(values[number]) for number in range(len(values))}
    function = step.function.function
    with lock_of(function):
        outputs = Picker(step).picked(argument, call_with(function, argument, f"transform {step.name}", where), where)
        made: list[Column] = []
        for number, field in enumerate(step.outputs):
            if outputs[number] is UNRETURNED:
                made.append(columns[step.source_of(number)])
                continue
            length = _length(outputs[number])
            if length != count:
                raise TransformError(
                    f"transform {step.name}, field '{field.name}': expected {count} rows, as in its input, "
                    f"got {type(outputs[number]).__name__ if length is None else length}."
                )
            # One reference is held by the list and one by this call. If there are more, the user's function holds them
            # and may write to the array again.
            references = sys.getrefcount(outputs[number])
            own = id(outputs[number]) in references_before or getattr(outputs[number], "base", True) is None
            alone = own and references <= references_before.get(id(outputs[number]), 1) + 1
            made.append(column_of(step, field, outputs[number], describe, alone=alone))
    return made


def _length(value: Any) -> int | None:
    try:
        return len(value)
    except TypeError:
        return None


def _apply_to_arrow(step: TransformStep, columns: Sequence[Column], count: int, describe: Describe) -> list[Column]:
    def where() -> str:
        return f"the batch that begins at {describe(0)}" if count else "an empty batch"

    names = [field.name for field in step.inputs]
    arrays = [to_arrow(field, column) for field, column in zip(step.inputs, columns, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    function = step.function.function
    with lock_of(function):
        result = call_with(function, batch, f"transform {step.name}", where)
        if not isinstance(result, pa.RecordBatch | pa.Table):
            raise TransformError(
                f"transform {step.name} for {where()}: expected a pyarrow RecordBatch or Table, "
                f"got {type(result).__name__}."
            )
        if result.num_rows != count:
            raise TransformError(
                f"transform {step.name} for {where()}: expected {count} rows, as in its input, got {result.num_rows}."
            )
        returned = dict(zip(result.column_names, result.columns, strict=True))
        if len(returned) < len(result.column_names):
            raise TransformError(
                f"transform {step.name} for {where()}: expected each name once, got {result.column_names}."
            )
        outputs = Picker(step).picked(dict(zip(names, arrays, strict=True)), returned, where)
        return [
            columns[step.source_of(number)]
            if outputs[number] is UNRETURNED
            else from_arrow(field, outputs[number], f"transform {step.name}", describe)
            for number, field in enumerate(step.outputs)
        ]


def call_with(
    function: Callable[..., Any], argument: object, called: str, where: Callable[[], str], *more: object
) -> Any:
    """Calls a user's function with an argument and perhaps ``more``; ``called`` and ``where`` are for its errors.

    Raises:
        PipelineError: this thread's work is cancelled. It may have waited long for the lock of the function.
        TransformError: the function raised an error that is not ours, even one that would end a process (`SystemExit`).
        ResourceError: it ran out of memory, files or threads, which is not the fault of a row.
    """
    check_cancelled()
    try:
        return function(argument, *more)
    except ParquetryError as error:
        shorten(error)
        error.frames = "".join(traceback.format_exception(error)).rstrip()
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and _may_be_a_signal():
            raise
        near = missing_key(error, argument)
        shorten(error)
        trace = "".join(traceback.format_exception(error)).rstrip()
        failed = f"{called} failed for {where()}: {error!r}."
        if limit := limit_reached(error):
            raise ResourceError(f"{failed} {limit}\n{trace}") from error
        raise TransformError(f"{failed}{near}\n{trace}") from error


def _may_be_a_signal() -> bool:
    """Returns whether an error may come from a signal handler of yours. Python runs these in the main thread alone."""
    return not serves_a_trainer() and threading.current_thread() is threading.main_thread()
