"""Finds the stage that limits loading speed and what to change. Used by `LoaderStats` and the command's `bench`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

STORE, PARQUET, DECODE, WORK, HAND_OVER = "store", "parquet", "decode", "work on values", "hand-over"
UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What is known about a chain of verbs.

    Attributes:
        verbs: the names of the verbs.
        remote: whether the files are on a remote store.
        costly: whether fields are costly to decode, as images are.
    """

    verbs: frozenset[str] = frozenset()
    remote: bool = False
    costly: bool = False


def bound_of(parts: Mapping[str, float]) -> str:
    """Returns the stage that takes most of the time.

    >>> bound_of({"store": 0.2, "parquet": 1.0, "decode": 3.5})
    'decode'
    """
    return max(parts, key=lambda stage: parts[stage])


def advice(bound: str, chain: Chain) -> list[str]:
    """Returns ways to speed up the stage that limits a chain, the most useful first."""
    if bound == STORE:
        cache = ["Cache what is read on a local disk: cache(directory)."]
        faster = "Read fewer columns (select), or move the files to a faster disk or a nearer store."
        return [*(cache if chain.remote and "cache" not in chain.verbs else []), faster]
    if bound == PARQUET:
        return ["Read fewer columns (select), and run parquetry lint to check row groups and compression."]
    if bound == DECODE:
        found = ["Most of this is copying: read fewer columns (select), or make larger batches."]
        if chain.costly:
            found = ["Decode fewer or smaller values: store images at the size that you train on."]
        if chain.verbs & {"resize", "random_resized_crop"}:
            found.append('With interpolation="area", JPEGs are decoded no larger than needed.')
        return found
    if bound == UNEXPLAINED:
        return ["A server, a busy processor or Python's GIL may delay batches. Compare with parquetry bench."]
    if bound == HAND_OVER:
        return ["Hand over less data, less often: fewer columns (select), smaller dtypes (cast), larger batches."]
    return ["Store what the chain computes to the same result each time: resized images, casts, encoded labels."]
