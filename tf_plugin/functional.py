"""The stages as functions for ``dataset.apply(...)``: from a `ParquetDataset` to the one with the stage added.

They exist because tf.data code is often written as ``dataset.apply(stage)``. They must stand before ``map``,
``prefetch`` and everything else after which a dataset is tf.data's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

import tensorflow as tf

from parquetry.common.errors import PipelineError

from .dataset import ParquetDataset

Arguments = ParamSpec("Arguments")
Stage = Callable[[tf.data.Dataset], tf.data.Dataset]


def _stage(verb: Callable[Concatenate[ParquetDataset, Arguments], Any]) -> Callable[Arguments, Stage]:
    name = verb.__name__

    def made(*args: Arguments.args, **options: Arguments.kwargs) -> Stage:
        return lambda dataset: getattr(_checked(dataset, name), name)(*args, **options)

    made.__name__ = made.__qualname__ = name
    made.__doc__ = f"As `ParquetDataset.{name}`."
    return made


center_crop = _stage(ParquetDataset.center_crop)
decimals = _stage(ParquetDataset.decimals)
fixed = _stage(ParquetDataset.fixed)
hash_split = _stage(ParquetDataset.hash_split)
ngram = _stage(ParquetDataset.ngram)
normalize = _stage(ParquetDataset.normalize)
nulls = _stage(ParquetDataset.nulls)
pack = _stage(ParquetDataset.pack)
pad = _stage(ParquetDataset.pad)
permute = _stage(ParquetDataset.permute)
random_crop = _stage(ParquetDataset.random_crop)
random_flip = _stage(ParquetDataset.random_flip)
random_resized_crop = _stage(ParquetDataset.random_resized_crop)
resize = _stage(ParquetDataset.resize)
select = _stage(ParquetDataset.select)
shard = _stage(ParquetDataset.shard)
shuffle = _stage(ParquetDataset.shuffle)
transform = _stage(ParquetDataset.transform)
where = _stage(ParquetDataset.where)


def cache(directory: Any, **options: Any) -> Stage:
    """As `ParquetDataset.cache` with a directory."""
    return lambda dataset: _checked(dataset, "cache").cache(directory=directory, **options)


def _checked(dataset: tf.data.Dataset, verb: str) -> ParquetDataset:
    if not isinstance(dataset, ParquetDataset):
        raise PipelineError(
            f"{verb}: expected a ParquetDataset, got {type(dataset).__name__}. Apply it before map, prefetch and other "
            "stages of tf.data's own."
        )
    return dataset
