"""The stages as functions for ``dataset.apply(...)``: from a `ParquetDataset` to the one with the stage added.

They exist because tf.data code is often written as ``dataset.apply(stage)``. They must stand before ``map``,
``prefetch`` and everything else after which a dataset is tf.data's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from parquetry.common.errors import PipelineError

from .dataset import ParquetDataset

Stage = Callable[[tf.data.Dataset], tf.data.Dataset]


def where(predicate: Any, **options: Any) -> Stage:
    """As `ParquetDataset.where`."""
    return lambda dataset: _checked(dataset, "where").where(predicate, **options)


def ngram(*args: Any, **options: Any) -> Stage:
    """As `ParquetDataset.ngram`."""
    return lambda dataset: _checked(dataset, "ngram").ngram(*args, **options)


def shard(num_shards: int, index: int, **options: Any) -> Stage:
    """As `ParquetDataset.shard`."""
    return lambda dataset: _checked(dataset, "shard").shard(num_shards, index, **options)


def shuffle(buffer_size: int, **options: Any) -> Stage:
    """As `ParquetDataset.shuffle`."""
    return lambda dataset: _checked(dataset, "shuffle").shuffle(buffer_size, **options)


def cache(directory: Any, **options: Any) -> Stage:
    """As `ParquetDataset.cache` with a directory."""
    return lambda dataset: _checked(dataset, "cache").cache(directory=directory, **options)


def transform(function: Callable[..., Any], *args: Any, **options: Any) -> Stage:
    """As `ParquetDataset.transform`."""
    return lambda dataset: _checked(dataset, "transform").transform(function, *args, **options)


def _checked(dataset: tf.data.Dataset, verb: str) -> ParquetDataset:
    if not isinstance(dataset, ParquetDataset):
        raise PipelineError(
            f"{verb}: expected a ParquetDataset, got {type(dataset).__name__}. Apply it before map, prefetch and other "
            "stages of tf.data's own."
        )
    return dataset
