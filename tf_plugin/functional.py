"""The stages as functions for ``dataset.apply(...)``. Each takes a `ParquetDataset` and returns one with that stage.

They exist because tf.data code is often written as ``dataset.apply(stage)``. Apply them before ``map``, ``prefetch``
and other stages of tf.data.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache as kept
from typing import Any

import tensorflow as tf

from parquetry.common.base.errors import PipelineError
from parquetry.common.pipeline.verbs import Verbs

from .dataset import ParquetDataset

DatasetFunction = Callable[[tf.data.Dataset], tf.data.Dataset]


def __getattr__(name: str) -> Callable[..., DatasetFunction]:
    """Returns the function for any verb: ``pad("points")`` for the method ``dataset.pad("points")``."""
    if name.startswith("_") or not hasattr(Verbs, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _function_of(name)


@kept
def _function_of(verb: str) -> Callable[..., DatasetFunction]:
    def made(*args: object, **options: object) -> DatasetFunction:
        return lambda dataset: getattr(_checked(dataset, verb), verb)(*args, **options)

    made.__name__ = made.__qualname__ = verb
    made.__doc__ = f"Like `ParquetDataset.{verb}`."
    return made


def cache(directory: str | os.PathLike[str], **options: Any) -> DatasetFunction:
    """Like `ParquetDataset.cache` with a directory."""
    return lambda dataset: _checked(dataset, "cache").cache(directory=directory, **options)


def _checked(dataset: tf.data.Dataset, verb: str) -> ParquetDataset:
    if not isinstance(dataset, ParquetDataset):
        raise PipelineError(
            f"{verb}: expected a ParquetDataset, got {type(dataset).__name__}. Apply it before map, prefetch and other "
            "stages of tf.data's own."
        )
    return dataset
