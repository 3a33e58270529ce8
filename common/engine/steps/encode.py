"""Encodes values as their codes in a vocabulary, or by their hash."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...base.memory.arrow_views import as_arrow
from ...schema.element import OutputField
from ...stages.encode import EncodeStep
from ...stages.hash_encode import HashEncodeStep
from ...stages.predicates.column_predicates import hash_column
from ..columns.batch import Strings
from .values import Computed, Values


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
