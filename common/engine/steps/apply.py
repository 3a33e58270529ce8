"""`apply_step` applies a step of any kind to columns; `gather_step` applies it to values on their way into the batch.

Each kind of step is implemented in its own module of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from ...base.memory.arena import Arena
from ...base.process.dataclass import dataclass
from ...stages.bucketize import BucketizeStep
from ...stages.cast import CastStep
from ...stages.clip import ClipStep
from ...stages.encode import EncodeStep
from ...stages.hash_encode import HashEncodeStep
from ...stages.image_base import ImageStep
from ...stages.measure import LengthStep
from ...stages.nulls import NullStep
from ...stages.pack import PackStep
from ...stages.pad import PadStep
from ...stages.permute import PermuteStep
from ...stages.select import Projection
from ...stages.standardize import StandardizeStep
from ...stages.steps import Step, ValueStep
from ...stages.tokenize import TokenizeStep
from ...stages.transform import TransformStep
from ..columns.batch import Column, cut_column
from .image_columns import SizeCheck, apply_images, gather_images
from .pack import apply_pack, gather_packed
from .random_numbers import ItemKeys
from .shaping import apply_nulls, apply_pad, apply_permute, pad_batches
from .source import Taken
from .tokenize import apply_tokenize
from .transform import apply_to_rows, apply_transform
from .values import (
    Computed,
    Values,
    apply_to_values,
    check_lengths,
    compute_buckets,
    compute_cast,
    compute_clipped,
    compute_codes,
    compute_hash_codes,
    compute_standardized,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRows:
    """What steps may need to know about the rows of a batch.

    Attributes:
        describe: describes where row ``i`` is stored, for errors.
        keys: returns the keys of the items, for random numbers.
        check: checks that images that are cropped together have the same size.
        lengths: returns the lengths of the rows that were counted before (int64); ``None`` if none were.
    """

    count: int
    describe: Callable[[int], str]
    keys: Callable[[], ItemKeys]
    check: SizeCheck
    lengths: Callable[[], np.ndarray | None] = lambda: None


def apply_step(step: Step, columns: Sequence[Column], rows: BatchRows) -> list[Column]:
    """Returns the columns after a step.

    Raises:
        ParquetryError: the step cannot handle a value; names file and row.
    """
    if isinstance(step, ValueStep):
        return apply_to_values(step, columns, rows.describe, partial(_COMPUTING[type(step)], step))
    return _WORK[type(step)](step, columns, rows)


def apply_dropping(step: Step, columns: Sequence[Column], rows: BatchRows) -> tuple[list[Column], np.ndarray]:
    """Like `apply_step`, for a step that may drop rows. Also returns the numbers of the remaining rows."""
    return _DROPPING[type(step)](step, columns, rows)


def apply_by_batch(
    steps: Sequence[Step], columns: Sequence[Column], bounds: np.ndarray, rows: Callable[[int, int], BatchRows]
) -> list[list[Column]]:
    """Applies steps that need each batch as a whole. Returns the columns of each batch.

    Args:
        columns: the columns of the rows of all batches.
        bounds: int64 ``[batches + 1]``: where each batch begins, and the last one ends.
        rows: returns the `BatchRows` from one row number to another.
    """
    whole, padded, done = list(columns), dict[int, list[Column]](), 0
    for step in steps:
        if not isinstance(step, PadStep) or step.number in padded:
            break
        result = pad_batches(step, whole[step.number], bounds)
        if result is None:
            break
        padded[step.number], lengths = result
        whole.append(lengths)
        done += 1
    parts = [padded[number] if number in padded else cut_column(each, bounds) for number, each in enumerate(whole)]
    batches = [list(batch) for batch in zip(*parts, strict=True)]
    if done == len(steps):
        return batches
    for number, (first, last) in enumerate(pairwise(bounds.tolist())):
        for step in steps[done:]:
            batches[number] = apply_step(step, batches[number], rows(first, last))
    return batches


def gather_step(step: Step, taken: Taken, rows: BatchRows, arena: Arena) -> Column | None:
    """Returns what a step makes of stored values, or ``None`` if it cannot read these directly."""
    return _GATHERING[type(step)](step, taken, rows, arena)


_WORK: dict[type[Step], Callable[[Any, Sequence[Column], BatchRows], list[Column]]] = {
    Projection: lambda step, columns, rows: [columns[number] for number in step.keep],
    NullStep: lambda step, columns, rows: apply_nulls(step, columns, rows.describe),
    PadStep: lambda step, columns, rows: apply_pad(step, columns, rows.describe),
    PermuteStep: lambda step, columns, rows: apply_permute(step, columns),
    ImageStep: lambda step, columns, rows: apply_images(step, columns, rows.describe, rows.keys, rows.check),
    PackStep: lambda step, columns, rows: apply_pack(step, columns, rows.describe),
    LengthStep: lambda step, columns, rows: check_lengths(step, columns, rows.lengths(), rows.describe),
    TokenizeStep: lambda step, columns, rows: apply_tokenize(step, columns, rows.describe),
    TransformStep: lambda step, columns, rows: apply_transform(step, columns, rows.count, rows.describe, rows.keys),
}
_COMPUTING: dict[type[ValueStep], Callable[[Any, Values], Computed]] = {
    CastStep: compute_cast,
    EncodeStep: compute_codes,
    StandardizeStep: compute_standardized,
    ClipStep: compute_clipped,
    BucketizeStep: compute_buckets,
    HashEncodeStep: compute_hash_codes,
}
_DROPPING: dict[type[Step], Callable[[Any, Sequence[Column], BatchRows], tuple[list[Column], np.ndarray]]] = {
    TransformStep: lambda step, columns, rows: apply_to_rows(step, columns, rows.count, rows.describe, rows.keys),
}
_GATHERING: dict[type[Step], Callable[[Any, Taken, BatchRows, Arena], Column | None]] = {
    ImageStep: lambda step, taken, rows, arena: gather_images(step, taken, arena, rows.keys, rows.check),
    PackStep: lambda step, taken, rows, arena: gather_packed(step, taken, arena),
}
