"""Checks that values that functions make have the lengths that were counted for their rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...base.errors import PipelineError
from ...stages.measure import LengthStep
from ..columns.batch import Column, Dense, Strings, leading, values_of
from ..columns.protocols import Describe


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
