"""Running a Python predicate: ``where(function, fields=[...])`` on the rows of one row group, only its fields
decoded.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ParquetryError, TransformError
from ...plan.draws import BlockRows
from ...schema.element import nest, output_of
from ...schema.field import UnischemaField
from ...selection.parallel import stop_if_cancelled
from ...stages.functions import lock_of
from ...stages.where import WhereFunction
from ..columns.arena import Heap
from ..columns.batch import rows_of, to_numpy
from ..read.fetch import Fetcher
from ..steps.source import Source
from .assemble import gather


def test_rows(
    fetcher: Fetcher, fields: Sequence[UnischemaField], step: WhereFunction, row_group: int, rows: np.ndarray
) -> np.ndarray:
    """The rows (a bool mask over ``rows``) for which the predicate is true.

    Raises:
        TransformError: the predicate raised, or returned something that is no bool; says for which row.
    """
    wanted = BlockRows(row_groups=(row_group,), rows=(rows,), cells=np.arange(len(rows))[:, None])
    block = fetcher.load(wanted)
    source = Source(block=block, cells=wanted.cells, places=None)
    outputs = [output_of(field) for field in fields]
    columns = [gather(field, number, [source], len(rows), Heap()) for number, field in enumerate(fields)]
    if step.batched:
        batch = nest(outputs, [to_numpy(c, text=o.kind == "text") for o, c in zip(outputs, columns, strict=True)])
        with lock_of(step.function.function):
            answer = _call(step, batch, block.describe(0) if len(rows) else "no rows")
            mask = np.array(np.ma.filled(answer, False) if isinstance(answer, np.ma.MaskedArray) else answer)
        if mask.shape != (len(rows),) or mask.dtype != bool:
            raise TransformError(
                f"where({step.function.name}): expected a bool array of shape ({len(rows)},), "
                f"got {mask.dtype} {mask.shape}."
            )
        return mask
    values = [rows_of(c, text=o.kind == "text") for o, c in zip(outputs, columns, strict=True)]
    result = np.zeros(len(rows), dtype=bool)
    lock = lock_of(step.function.function)
    for number in range(len(rows)):
        stop_if_cancelled()
        row = nest(outputs, [column[number] for column in values])
        with lock:
            answer = _call(step, row, block.describe(number))
        if not isinstance(answer, bool | np.bool_ | int):
            raise TransformError(
                f"where({step.function.name}), {block.describe(number)}: expected True or False, "
                f"got {type(answer).__name__}."
            )
        result[number] = bool(answer)
    return result


def _call(step: WhereFunction, argument: object, where: str) -> Any:
    try:
        return step.function(argument)
    except ParquetryError:
        raise
    except Exception as error:
        trace = "".join(traceback.format_exception(error)).rstrip()
        raise TransformError(f"where({step.function.name}) failed for {where}: {error!r}.\n{trace}") from error
