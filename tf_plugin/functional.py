"""The stages as functions for ``dataset.apply(...)``: from a `ParquetDataset` to the one with the stage added.

They exist because tf.data code is often written as ``dataset.apply(stage)``. They must stand before ``map``,
``prefetch`` and everything else after which a dataset is tf.data's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from parquetry.common.errors import PipelineError
from parquetry.common.pipeline.image_verbs import Fields

from .dataset import ParquetDataset

Stage = Callable[[tf.data.Dataset], tf.data.Dataset]


def select(*names_or_regex: Any) -> Stage:
    """As `ParquetDataset.select`."""
    return lambda dataset: _checked(dataset, "select").select(*names_or_regex)


def where(predicate: Any, fields: Sequence[str] | None = None, *, batched: bool = False) -> Stage:
    """As `ParquetDataset.where`."""
    return lambda dataset: _checked(dataset, "where").where(predicate, fields=fields, batched=batched)


def hash_split(field: str, fractions: Sequence[float], index: int, seed: int | None = None) -> Stage:
    """As `ParquetDataset.hash_split`."""
    return lambda dataset: _checked(dataset, "hash_split").hash_split(field, fractions, index, seed)


def nulls(policy: str, *names: str, value: Any = None) -> Stage:
    """As `ParquetDataset.nulls`."""
    return lambda dataset: _checked(dataset, "nulls").nulls(policy, *names, value=value)


def pad(*names: str, shape: Sequence[int | None] | None = None, value: Any = None) -> Stage:
    """As `ParquetDataset.pad`."""
    return lambda dataset: _checked(dataset, "pad").pad(*names, shape=shape, value=value)


def fixed(*names: str, shape: Sequence[int]) -> Stage:
    """As `ParquetDataset.fixed`."""
    return lambda dataset: _checked(dataset, "fixed").fixed(*names, shape=shape)


def permute(*names: str, dims: Sequence[str]) -> Stage:
    """As `ParquetDataset.permute`."""
    return lambda dataset: _checked(dataset, "permute").permute(*names, dims=dims)


def decimals(form: str, *names: str) -> Stage:
    """As `ParquetDataset.decimals`."""
    return lambda dataset: _checked(dataset, "decimals").decimals(form, *names)


def resize(field: Fields, size: int | Sequence[int], **options: Any) -> Stage:
    """As `ParquetDataset.resize`."""
    return lambda dataset: _checked(dataset, "resize").resize(field, size, **options)


def random_resized_crop(field: Fields, size: int | Sequence[int], **options: Any) -> Stage:
    """As `ParquetDataset.random_resized_crop`."""
    return lambda dataset: _checked(dataset, "random_resized_crop").random_resized_crop(field, size, **options)


def center_crop(field: Fields, size: int | Sequence[int]) -> Stage:
    """As `ParquetDataset.center_crop`."""
    return lambda dataset: _checked(dataset, "center_crop").center_crop(field, size)


def random_crop(field: Fields, size: int | Sequence[int], *, seed: int | None = None) -> Stage:
    """As `ParquetDataset.random_crop`."""
    return lambda dataset: _checked(dataset, "random_crop").random_crop(field, size, seed=seed)


def random_flip(field: Fields, *args: Any, **options: Any) -> Stage:
    """As `ParquetDataset.random_flip`."""
    return lambda dataset: _checked(dataset, "random_flip").random_flip(field, *args, **options)


def normalize(field: Fields, *args: Any, **options: Any) -> Stage:
    """As `ParquetDataset.normalize`."""
    return lambda dataset: _checked(dataset, "normalize").normalize(field, *args, **options)


def pack(name: str, fields: Fields, dtype: Any = None, *, keep: bool = False) -> Stage:
    """As `ParquetDataset.pack`."""
    return lambda dataset: _checked(dataset, "pack").pack(name, fields, dtype, keep=keep)


def ngram(*args: Any, **options: Any) -> Stage:
    """As `ParquetDataset.ngram`."""
    return lambda dataset: _checked(dataset, "ngram").ngram(*args, **options)


def shard(num_shards: int | None = None, index: int | None = None, **options: Any) -> Stage:
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
