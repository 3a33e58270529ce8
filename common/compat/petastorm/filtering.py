"""Applies a predicate to the rows of a row group.

`make_reader` calls predicates for each row. `make_batch_reader` passes whole columns (a DataFrame) to in_lambda and to
user-defined predicates, and calls the other predicates of `predicates` for each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...base.errors import PipelineError
from ...base.other_names import did_you_mean
from ...schema.field import Unischema, UnischemaField
from .frames import has_pandas, to_frame
from .predicates import PredicateBase, in_lambda, in_negate, in_reduce
from .values import column_array, row_tuples

if TYPE_CHECKING:
    import pandas as pd


def predicate_fields(predicate: PredicateBase, schema: Unischema) -> list[UnischemaField]:
    """Returns the stored fields that a predicate uses.

    Raises:
        PipelineError: the predicate names no fields, or fields that the dataset does not have.
    """
    names = list(dict.fromkeys(predicate.get_fields()))
    unknown = [name for name in names if name not in schema]
    if not names or unknown:
        raise PipelineError(
            f"predicate {type(predicate).__name__}: expected get_fields() to name fields of the dataset, "
            f"got {unknown or 'none'}. Fields are: {list(schema.fields)}."
            f"{did_you_mean(unknown[0], schema.fields) if unknown else ''}"
        )
    return [schema[name] for name in names]


def keep_rows(
    predicate: PredicateBase, fields: Sequence[UnischemaField], table: pa.Table, *, batched: bool
) -> np.ndarray:
    """Applies a predicate to stored columns; returns which rows it keeps, bool ``[rows]``.

    Args:
        batched: whether it is the predicate of a batched reader, which may get whole columns.
    """
    inputs = set(predicate.get_fields())
    if not batched or predicate.by_row:
        asked = [field for field in fields if field.name in inputs]
        names = [field.name for field in asked]
        rows = (dict(zip(names, row, strict=True)) for row in row_tuples(asked, table))
        return np.array([bool(predicate.do_include(row)) for row in rows], dtype=bool)
    if isinstance(predicate, in_reduce):
        return predicate.reduce_masks([keep_rows(part, fields, table, batched=True) for part in predicate.parts])
    if isinstance(predicate, in_negate):
        return ~keep_rows(predicate.inner, fields, table, batched=True)
    chosen = table.select([name for name in table.column_names if name in inputs])
    if isinstance(predicate, in_lambda) and not has_pandas():
        values: dict[str, np.ndarray] | pd.DataFrame = {
            name: column_array(chosen.column(name)) for name in chosen.column_names
        }
    else:
        values = to_frame(chosen, f"the predicate {type(predicate).__name__}")
    return _as_mask(predicate, predicate.do_include(values), table.num_rows)


def _as_mask(predicate: PredicateBase, answer: object, count: int) -> np.ndarray:
    if hasattr(answer, "fillna"):
        answer = answer.fillna(False)
    mask = np.ma.filled(answer, False) if isinstance(answer, np.ma.MaskedArray) else np.asarray(answer)
    if mask.shape != (count,):
        raise PipelineError(
            f"predicate {type(predicate).__name__}: expected {count} answers, because make_batch_reader gives it whole "
            f"columns, got {answer!r}."
        )
    return mask.astype(bool)
