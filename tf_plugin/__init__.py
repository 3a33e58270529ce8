"""Reads Parquet as a native tf.data source.

`ParquetDataset` is the dataset. Its stages are also available as functions that you pass to
``dataset.apply(...)``.

Names are imported on first use, so ``python -m parquetry.tf_plugin.build`` does not import the
rest of the package.
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
    from .rank_stats import gather_stats

__all__ = [
    "ParquetDataset",
    "cache",
    "decimals",
    "fixed",
    "gather_stats",
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


_MODULES = {"ParquetDataset": ".dataset", "gather_stats": ".rank_stats", "load_ops": ".build", "mix": ".dataset"}


def __getattr__(name: str) -> Any:
    from parquetry.common.base.errors import needs_framework
    from parquetry.common.base.process.lazy_names import without_collections

    with without_collections():
        from parquetry.common.pipeline.verbs import Verbs  # lists the verbs, needs no TensorFlow

        module = _MODULES.get(name, ".functional")
        if module == ".functional" and (name.startswith("_") or not hasattr(Verbs, name)):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        with needs_framework(f"parquetry.tf_plugin.{name}", "tensorflow", extra="tensorflow"):
            return getattr(import_module(module, __name__), name)


def __dir__() -> list[str]:
    return __all__
