"""`apply_step`: applies a step of any kind to columns.

Each kind of step is implemented in its own module of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...stages.cast import CastStep
from ...stages.encode import EncodeStep
from ...stages.image_base import ImageStep
from ...stages.nulls import NullStep
from ...stages.pack import PackStep
from ...stages.pad import PadStep
from ...stages.permute import PermuteStep
from ...stages.select import Projection
from ...stages.steps import Step
from ...stages.transform import TransformStep
from ..columns.batch import Column
from .cast import apply_cast
from .chance import ItemKeys
from .encode import apply_encode
from .image_columns import SizeCheck, apply_images
from .pack import apply_pack
from .shaping import apply_nulls, apply_pad, apply_permute
from .transform import apply_transform


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRows:
    """What steps may need to know about the rows of a batch.

    Attributes:
        count: the number of rows.
        describe: describes where row ``i`` is stored, for errors.
        keys: returns the keys of the items, for random numbers.
        check: checks that images that are cropped together have the same size.
    """

    count: int
    describe: Callable[[int], str]
    keys: Callable[[], ItemKeys]
    check: SizeCheck


def apply_step(step: Step, columns: Sequence[Column], rows: BatchRows) -> list[Column]:
    """Returns the columns after a step.

    Raises:
        ParquetryError: the step cannot handle a value; names file and row.
    """
    return _WORK[type(step)](step, columns, rows)


_WORK: dict[type[Step], Callable[[Any, Sequence[Column], BatchRows], list[Column]]] = {
    Projection: lambda step, columns, rows: [columns[number] for number in step.keep],
    CastStep: lambda step, columns, rows: apply_cast(step, columns, rows.describe),
    EncodeStep: lambda step, columns, rows: apply_encode(step, columns, rows.describe),
    NullStep: lambda step, columns, rows: apply_nulls(step, columns, rows.describe),
    PadStep: lambda step, columns, rows: apply_pad(step, columns, rows.describe),
    PermuteStep: lambda step, columns, rows: apply_permute(step, columns),
    ImageStep: lambda step, columns, rows: apply_images(step, columns, rows.describe, rows.keys, rows.check),
    PackStep: lambda step, columns, rows: apply_pack(step, columns, rows.describe),
    TransformStep: lambda step, columns, rows: apply_transform(step, columns, rows.count, rows.describe),
}
