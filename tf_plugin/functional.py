"""The stages as functions for ``dataset.apply(...)``: from a `ParquetDataset` to the one with the stage added.

They exist because tf.data code is often written as ``dataset.apply(stage)``. They must stand before ``map``,
``prefetch`` and everything else after which a dataset is tf.data's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache as kept
from typing import Any

import tensorflow as tf

from parquetry.common.errors import PipelineError
from parquetry.common.pipeline.verbs import Verbs

from .dataset import ParquetDataset

Stage = Callable[[tf.data.Dataset], tf.data.Dataset]


def __getattr__(name: str) -> Callable[..., Stage]:
    """The function of any verb, as of the method of that name: ``pad("points")`` for ``dataset.pad("points")``."""
    if name.startswith("_") or not hasattr(Verbs, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _function_of(name)


@kept
def _function_of(verb: str) -> Callable[..., Stage]:
    def made(*args: object, **options: object) -> Stage:
        return lambda dataset: getattr(_checked(dataset, verb), verb)(*args, **options)

    made.__name__ = made.__qualname__ = verb
    made.__doc__ = f"As `ParquetDataset.{verb}`."
    return made


def cache(directory: str | os.PathLike[str], **options: Any) -> Stage:
    """As `ParquetDataset.cache` with a directory."""
    return lambda dataset: _checked(dataset, "cache").cache(directory=directory, **options)


def _checked(dataset: tf.data.Dataset, verb: str) -> ParquetDataset:
    if not isinstance(dataset, ParquetDataset):
        raise PipelineError(
            f"{verb}: expected a ParquetDataset, got {type(dataset).__name__}. Apply it before map, prefetch and other "
            "stages of tf.data's own."
        )
    return dataset
