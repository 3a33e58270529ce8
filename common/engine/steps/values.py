"""Steps that compute each value of a column from that value alone: numbers, codes of a vocabulary, and hashes.

`apply_to_values` calls a pure function with all values of the column of a batch, end to end, and puts the results back:
it deals with nulls, shapes, and rows in errors. Each function of numbers says what it makes of NaN and infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ...base.errors import DecodeError, PipelineError
from ...base.memory.arrow_views import as_arrow
from ...schema.dtypes import convert_counts, counts_too_far, numbers_outside
from ...schema.element import OutputField
from ...stages.bucketize import BucketizeStep
from ...stages.cast import CastStep
from ...stages.clip import ClipStep
from ...stages.encode import EncodeStep
from ...stages.hash_encode import HashEncodeStep
from ...stages.measure import LengthStep
from ...stages.predicates.column_predicates import hash_column
from ...stages.standardize import StandardizeStep
from ...stages.steps import ValueStep
from ..columns.batch import Column, Dense, Plain, Ragged, Strings, leading, values_of, with_values
from ..columns.protocols import Describe

_DIFFERENCE_OVERFLOWS = 1e290  # between float64 numbers, from such a mean on

Values = np.ndarray | Strings
"""All values of a column, end to end: numbers ``[n]``, or texts or byte strings."""


class Computed(NamedTuple):
    """What a step computed.

    Attributes:
        values: numbers ``[n]``; those under nulls do not matter.
        wrong: which values the step refuses, bool ``[n]``; ``None`` = none of them.
        refusal: says what was expected and what to do, given the place of a value that is refused.
    """

    values: np.ndarray
    wrong: np.ndarray | None = None
    refusal: Callable[[int], str] = str


def apply_to_values(
    step: ValueStep, columns: Sequence[Column], describe: Callable[[int], str], compute: Callable[[Values], Computed]
) -> list[Column]:
    """Returns the columns with the values of one of them computed anew. Nulls stay nulls, with 0 in their place.

    Raises:
        DecodeError: a value that is not null is refused; names file and row.
    """
    column = values_of(columns[step.number])
    inside = column.values if isinstance(column, Ragged) else column
    result, wrong, refusal = compute(inside.values.reshape(-1) if isinstance(inside, Dense) else inside)
    null = None if column.valid is None else under_nulls(column, len(result))
    if wrong is not None and null is not None:
        wrong = wrong & ~null
    if wrong is not None and wrong.any():
        place = int(np.argmax(wrong))
        row = _row_of(column, place, len(result))
        raise DecodeError(f"{step.verb}: field '{step.field.name}', {describe(row)}: {refusal(place)}")
    if null is not None:
        result[null] = 0
    made = list(columns)
    if isinstance(column, Ragged):
        made[step.number] = with_values(columns[step.number], replace(column, values=result))
    else:
        shape = column.shape if isinstance(column, Strings) else column.values.shape
        made[step.number] = with_values(columns[step.number], Dense(result.reshape(shape), column.valid))
    return made


def under_nulls(column: Plain, count: int) -> np.ndarray:
    """Returns a mask of the values that belong to a null."""
    assert column.valid is not None
    if isinstance(column, Ragged):
        return np.repeat(~column.valid.reshape(-1), np.prod(column.shapes, axis=1, dtype=np.int64))
    return np.repeat(~column.valid.reshape(-1), count // max(column.valid.size, 1))


def _row_of(column: Plain, place: int, count: int) -> int:
    """Returns the row to which a value belongs."""
    if not isinstance(column, Ragged):
        return place // (count // leading(column))
    ends = np.cumsum(np.prod(column.shapes, axis=1, dtype=np.int64))
    return int(np.searchsorted(ends, place, side="right")) // math.prod(column.lead[1:])


def compute_cast(step: CastStep, values: Values) -> Computed:
    """Returns numbers as another dtype, or counts of one unit of time in another. Those that do not fit are refused."""
    assert isinstance(values, np.ndarray)
    times = (step.field.time, step.time) if step.field.time is not None and step.time is not None else None
    wrong = numbers_outside(values, step.dtype) if times is None else counts_too_far(values, *times)
    with np.errstate(over="ignore", invalid="ignore"):
        cast = values.astype(step.dtype) if times is None else convert_counts(values, *times)
    return Computed(
        cast,
        wrong,
        lambda place: (
            f"expected a number that {step.time or step.dtype} can hold, got {values[place]}. Cast to a wider dtype, "
            "or filter or transform such rows."
        ),
    )


def compute_standardized(step: StandardizeStep, values: Values) -> Computed:
    """Returns ``(value - mean) / std`` in the step's dtype. What this cannot hold becomes infinite."""
    made = _by_place(np.array(values, np.float64), step.mean)
    with np.errstate(over="ignore", invalid="ignore"):
        if is_far := np.max(np.abs(step.mean)) > _DIFFERENCE_OVERFLOWS:
            made *= 0.5
        made -= np.multiply(step.mean, 0.5) if is_far else step.mean
        made /= step.std
        if is_far:
            made *= 2
        return Computed((made if step.dtype == "float64" else made.astype(step.dtype)).reshape(-1))


def compute_clipped(step: ClipStep, values: Values) -> Computed:
    """Returns numbers within the bounds, in their own dtype. NaN stays NaN; infinity becomes a bound."""
    assert isinstance(values, np.ndarray)
    return Computed(np.clip(_by_place(values, step.low), step.low, step.high).reshape(-1))


def _by_place(values: np.ndarray, parameter: object) -> np.ndarray:
    """Returns the numbers of a column, end to end, by the places along the last axis that a parameter is given for."""
    return values.reshape(-1, len(parameter)) if isinstance(parameter, tuple) else values


def compute_buckets(step: BucketizeStep, values: Values) -> Computed:
    """Returns how many boundaries are not above each number, int64. NaN is refused; infinity is in an outer bucket."""
    assert isinstance(values, np.ndarray)
    boundaries = np.array(step.boundaries, values.dtype if values.dtype.kind in "iu" else np.float64)
    codes = np.searchsorted(boundaries, values, side="right").astype(np.int64, copy=False)
    wrong = np.isnan(values) if values.dtype.kind == "f" else None
    return Computed(
        codes, wrong, lambda place: f"expected a number, got {values[place]}. Filter or transform such rows."
    )


def compute_codes(step: EncodeStep, values: Values) -> Computed:
    """Returns the codes of values, int64. Values that are not in the vocabulary are refused, or have one code."""
    assert step.vocabulary is not None, "a vocabulary is learned before any row is made"
    size = len(step.vocabulary)
    arrow = to_arrow(values, step.vocabulary.values.type)
    codes = step.vocabulary.codes(arrow)
    missing = codes < 0
    if step.unknown is not None:
        codes[missing] = step.unknown
        return Computed(codes)

    def refusal(place: int) -> str:
        return (
            f"expected one of the {size:,} values of the vocabulary, got {arrow[place].as_py()!r}. Set "
            "unknown= to a code for such values, or give a vocabulary that has all values."
        )

    return Computed(codes, missing, refusal)


def compute_hash_codes(step: HashEncodeStep, values: Values) -> Computed:
    """Returns ``hash % buckets`` of values, int64."""
    hashes = hash_column(to_arrow(values, code_type(step.field)), step.seed)
    return Computed((hashes % np.uint64(step.buckets)).astype(np.int64))


def code_type(field: OutputField) -> pa.DataType:
    """Returns the type of the values of a field that are encoded: texts, byte strings, or integers of 64 bits."""
    if field.kind != "dense":
        return pa.large_string() if field.kind == "text" else pa.large_binary()
    return pa.uint64() if field.dtype == np.uint64 else pa.int64()


def to_arrow(values: Values, kind: pa.DataType) -> pa.Array:
    """Returns values as an Arrow array of this type, see `code_type`."""
    if isinstance(values, Strings):
        buffers = [pa.py_buffer(np.ascontiguousarray(part)) for part in (values.offsets, values.data)]
        return pa.Array.from_buffers(kind, len(values.offsets) - 1, [None, *buffers])
    return as_arrow(values.astype(kind.to_pandas_dtype(), copy=False))


def check_lengths(
    step: LengthStep, columns: Sequence[Column], counted: np.ndarray | None, describe: Describe
) -> list[Column]:
    """Returns the columns.

    Args:
        counted: the length of each row; ``None`` if the rows are still being counted.

    Raises:
        PipelineError: a row has another length. It ends the iteration, because the order follows from all lengths.
    """
    for number, name in zip(step.numbers, step.names, strict=True):
        if counted is None or np.array_equal(lengths := lengths_of(columns[number]), counted):
            continue
        row = int(np.argmax(lengths != counted))
        raise PipelineError(
            f"field '{name}', {describe(row)}: expected the length that was counted before, {counted[row]}, got "
            f"{lengths[row]}. The function must return the same in every pass. If it was changed, give another "
            "version=, so that lengths are counted again."
        )
    return list(columns)


def lengths_of(column: Column) -> np.ndarray:
    """Returns the length of each row's value as `bucket` and `concat` count it; -1 for a null."""
    values = values_of(column)
    if isinstance(values, Dense):
        shape = values.values.shape
        lengths = np.full(shape[0], shape[1]) if len(shape) > 1 else values.values.astype(np.int64)
    elif isinstance(values, Strings):
        lengths = np.full(leading(values), values.shape[1]) if len(values.shape) > 1 else np.diff(values.offsets)
    else:
        lengths = values.shapes[:, 0]
    return lengths if column.valid is None else np.where(column.valid, lengths, -1)
