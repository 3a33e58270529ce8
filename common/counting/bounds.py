"""Which stage of loading bounds it, and what to change: one answer for `LoaderStats` and for the command's `bench`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

STORE, PARQUET, DECODE, WORK, HAND_OVER = "store", "parquet", "decode", "work on values", "hand-over"
UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What is known about a chain of verbs.

    Attributes:
        verbs: their names.
        remote: whether its files lie beyond a network.
        costly: whether fields are costly to decode, as images are.
    """

    verbs: frozenset[str] = frozenset()
    remote: bool = False
    costly: bool = False


def bound_of(parts: Mapping[str, float]) -> str:
    """The stage with the largest part of the time.

    >>> bound_of({"store": 0.2, "parquet": 1.0, "decode": 3.5})
    'decode'
    """
    return max(parts, key=lambda stage: parts[stage])


def advice(bound: str, chain: Chain) -> list[str]:
    """What makes the stage faster that bounds a chain; the most useful first."""
    if bound == STORE:
        cache = ["Keep what was read on a local disk: cache(directory)."]
        faster = "Read fewer columns (select), or put the files on a faster disk or nearer store."
        return [*(cache if chain.remote and "cache" not in chain.verbs else []), faster]
    if bound == PARQUET:
        return ["Read fewer columns (select), and see what parquetry lint says about row groups and compression."]
    if bound == DECODE:
        found = ["Most of it is copying: read fewer columns (select), or make larger batches."]
        if chain.costly:
            found = ["Decode fewer or smaller values: images are best stored at the size that training needs."]
        if chain.verbs & {"resize", "random_resized_crop"}:
            found.append('interpolation="area" lets JPEGs be decoded no larger than needed.')
        return found
    if bound == UNEXPLAINED:
        return ["A server, a busy processor or Python's interpreter lock may hold batches up: compare parquetry bench."]
    if bound == HAND_OVER:
        return ["Hand over less, and less often: fewer columns (select), smaller dtypes (cast), larger batches."]
    return ["Store what the chain computes the same way each time: resized images, casts, encoded labels."]
