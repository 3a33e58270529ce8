"""Parquet as a native PyTorch source: `ParquetIterable` and `ParquetMap` (datasets), `ParquetPipe` (DataPipe),
`ParquetNode` (node).

`ParquetNode` needs torchdata, and `ParquetPipe` torch's DataPipes; each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from parquetry.common.base.errors import needs_framework
from parquetry.common.base.process.lazy_names import without_collections

with needs_framework("parquetry.torch_plugin", "torch", extra="torch"), without_collections():
    from parquetry.common.base.metrics.stats_log import log_stats

    from .collation import as_is
    from .functional import mix, read_parquet
    from .iterable import ParquetIterable
    from .loader_state import rank_state
    from .map import ParquetMap
    from .nested import NestedTensors
    from .pass_counters import gather_stats
    from .prefetch import prefetch_to_device
    from .tensors import cu_seqlens, to_list

if TYPE_CHECKING:
    from .node import ParquetNode
    from .pipe import ParquetPipe

__all__ = [
    "NestedTensors",
    "ParquetIterable",
    "ParquetMap",
    "ParquetNode",
    "ParquetPipe",
    "as_is",
    "cu_seqlens",
    "gather_stats",
    "log_stats",
    "mix",
    "prefetch_to_device",
    "rank_state",
    "read_parquet",
    "to_list",
]

_LAZY = {"ParquetNode": (".node", "torchdata"), "ParquetPipe": (".pipe", "torch")}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, package = _LAZY[name]
    try:
        with needs_framework(f"parquetry.torch_plugin.{name}", package, extra="torch"):
            return getattr(import_module(module, __name__), name)
    except ImportError as error:
        if name == "ParquetPipe" and not str(error.name).startswith("parquetry"):
            raise ImportError("ParquetPipe needs DataPipes, which this torch lacks. Use ParquetIterable.") from error
        raise


def __dir__() -> list[str]:
    return __all__
