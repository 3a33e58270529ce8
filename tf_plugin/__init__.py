"""Parquet as a native tf.data source: `ParquetDataset`, and its stages as functions for ``dataset.apply(...)``.

Names are imported when they are first used, so that ``python -m parquetry.tf_plugin.build`` runs without the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataset import ParquetDataset, mix
    from .functional import (
        cache,
        decimals,
        fixed,
        hash_split,
        ngram,
        nulls,
        pad,
        permute,
        select,
        shard,
        shuffle,
        transform,
        where,
    )

__all__ = [
    "ParquetDataset",
    "cache",
    "decimals",
    "fixed",
    "hash_split",
    "mix",
    "ngram",
    "nulls",
    "pad",
    "permute",
    "select",
    "shard",
    "shuffle",
    "transform",
    "where",
]


def __getattr__(name: str) -> Any:
    if name in ("ParquetDataset", "mix"):
        return getattr(import_module(".dataset", __name__), name)
    from parquetry.common.pipeline.verbs import Verbs  # knows every verb without TensorFlow

    if name.startswith("_") or not hasattr(Verbs, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".functional", __name__), name)


def __dir__() -> list[str]:
    return __all__
