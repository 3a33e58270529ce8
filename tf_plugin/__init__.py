"""Parquet as a native tf.data source: `ParquetDataset`, and its stages as functions for ``dataset.apply(...)``.

Names are imported when they are first used, so that ``python -m parquetry.tf_plugin.build`` runs without the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .build import load_ops
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
    "load_ops",
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
    from parquetry.common.errors import needs_framework
    from parquetry.common.pipeline.verbs import Verbs  # knows every verb without TensorFlow

    module = {"ParquetDataset": ".dataset", "mix": ".dataset", "load_ops": ".build"}.get(name, ".functional")
    if module == ".functional" and (name.startswith("_") or not hasattr(Verbs, name)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs_framework(f"parquetry.tf_plugin.{name}", "tensorflow", extra="tensorflow"):
        return getattr(import_module(module, __name__), name)


def __dir__() -> list[str]:
    return __all__
