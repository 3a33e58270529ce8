"""Runs user functions on rows and batches, and checks their results against the declared fields."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from ...base.errors import ParquetryError, ResourceError, TransformError, limit_reached
from ...base.process.exit_watch import serves_a_trainer
from ...base.progress import check_cancelled
from ...base.tracebacks import missing_key, shorten
from ...schema.element import flatten, nest
from ...stages.functions import lock_of
from ...stages.transform import TransformStep
from ..columns.arrow_columns import from_arrow, to_arrow
from ..columns.batch import Column, rows_of, timed, to_numpy
from ..columns.protocols import Describe
from .random_numbers import ItemKeys, generators
from .returned_values import collector_for, column_of

_MOST_SHOWN = 3


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
    collectors = [collector_for(step, field, count, lambda row: describe(kept[row])) for field in step.outputs]
    function = step.function.function
    lock = lock_of(function)
    rngs = repeat(()) if step.key is None else zip(generators(step.key, keys()))
    for number, rng in zip(range(count), rngs, strict=False):
        check_cancelled()
        row = nest(step.inputs, [values[number] for values in inputs])
        with lock:
            result = call_with(function, row, f"transform {step.name}", partial(describe, number), *rng)
            if result is None and step.drops:
                continue
            kept.append(number)
            for collector, value in zip(collectors, _picked(step, result, partial(describe, number)), strict=True):
                collector.add(value)
    return [collector.column() for collector in collectors], np.array(kept, dtype=np.int64)


def _apply_to_batch(step: TransformStep, columns: Sequence[Column], count: int, describe: Describe) -> list[Column]:
    where = (lambda: f"the batch that begins at {describe(0)}") if count else (lambda: "an empty batch")
    pairs = zip(step.inputs, columns, strict=True)
    values = [to_numpy(timed(field, column), text=field.kind == "text") for field, column in pairs]
    argument = nest(step.inputs, values)
    references_before = {id(values[number]): sys.getrefcount(values[number]) for number in range(len(values))}
    function = step.function.function
    with lock_of(function):
        outputs = _picked(step, call_with(function, argument, f"transform {step.name}", where), where)
        made: list[Column] = []
        for number, field in enumerate(step.outputs):
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
    where = (lambda: f"the batch that begins at {describe(0)}") if count else (lambda: "an empty batch")
    names = [field.name for field in step.inputs]
    arrays = [to_arrow(field, column) for field, column in zip(step.inputs, columns, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    function = step.function.function
    with lock_of(function):
        result = call_with(function, batch, f"transform {step.name}", where)
        return _from_arrow(step, result, count, describe, where)


def _from_arrow(
    step: TransformStep, result: object, count: int, describe: Describe, where: Callable[[], str]
) -> list[Column]:
    if not isinstance(result, pa.RecordBatch | pa.Table):
        raise TransformError(
            f"transform {step.name} for {where()}: expected a pyarrow RecordBatch or Table, "
            f"got {type(result).__name__}."
        )
    if result.num_rows != count:
        raise TransformError(
            f"transform {step.name} for {where()}: expected {count} rows, as in its input, got {result.num_rows}."
        )
    missing = [field.name for field in step.outputs if field.name not in result.column_names]
    extra = [
        name for name in result.column_names if name not in {field.name for field in (*step.outputs, *step.inputs)}
    ]
    if missing or extra:
        raise TransformError(
            f"transform {step.name} for {where()}: expected the fields {[field.name for field in step.outputs]}, "
            f"got {result.column_names}. Declare new fields in output=[...], and name the others in remove=(...)."
        )
    return [from_arrow(field, result.column(field.name), f"transform {step.name}", describe) for field in step.outputs]


def call_with(
    function: Callable[..., Any], argument: object, called: str, where: Callable[[], str], *more: object
) -> Any:
    """Calls a user's function with an argument and perhaps ``more``; ``called`` and ``where`` are for its errors.

    Raises:
        TransformError: the function raised an error that is not ours, even one that would end a process (`SystemExit`).
        ResourceError: it ran out of memory, files or threads, which is not the fault of a row.
    """
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


def _whole(step: TransformStep, result: Mapping[Any, Any]) -> str:
    """Returns the expression for a result that has every field."""
    fields = [output.path[0] for output in step.outputs]
    names = fields[len(fields) - step.declared :] or [name for name in result if name in fields]
    names = names[:_MOST_SHOWN]
    return f"{{**{'row' if step.form == 'row' else 'batch'}, {', '.join(f'{name!r}: ...' for name in names) or '...'}}}"


def _picked(step: TransformStep, result: object, where: Callable[[], str]) -> list[Any]:
    if not isinstance(result, Mapping):
        raise TransformError(
            f"transform {step.name} for {where()}: expected a dict of fields, got {type(result).__name__}. "
            "Return the changed row (or batch). To drop rows, set drops=True."
        )
    try:
        picked = flatten(step.outputs, result)
    except (LookupError, TypeError) as error:
        raise TransformError(
            f"transform {step.name} for {where()}: expected the fields {[field.name for field in step.outputs]}, "
            f"got {list(result)}. Return every field: {_whole(step, result)}. Or name those that it leaves out in "
            "remove=(...)."
        ) from error
    extra = set(result) - {field.path[0] for field in (*step.outputs, *step.inputs)}
    if extra:
        raise TransformError(
            f"transform {step.name} for {where()}: expected only the fields {[field.name for field in step.outputs]}, "
            f"got also {sorted(map(str, extra))}. Declare them in output=[...]."
        )
    return picked
