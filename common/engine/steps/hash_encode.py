"""Encodes values by their hash."""

from __future__ import annotations

import numpy as np

from ...stages.hash_encode import HashEncodeStep
from ...stages.predicates.column_predicates import hash_column
from .encode import code_type, to_arrow
from .values import Computed, Values


def compute_hash_codes(step: HashEncodeStep, values: Values) -> Computed:
    """Returns ``hash % buckets`` of values, int64."""
    hashes = hash_column(to_arrow(values, code_type(step.field)), step.seed)
    return Computed((hashes % np.uint64(step.buckets)).astype(np.int64))
