"""Parquet as a native PyTorch source: `ParquetPipe` (a DataPipe), `ParquetNode` (a node), ``.read_parquet()``.

`ParquetNode` needs torchdata, and is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .collate import as_is
from .functional import mix, read_parquet
from .loader_state import rank_state
from .pipe import ParquetPipe
from .tensors import to_list

if TYPE_CHECKING:
    from .node import ParquetNode

__all__ = ["ParquetNode", "ParquetPipe", "as_is", "mix", "rank_state", "read_parquet", "to_list"]


def __getattr__(name: str) -> Any:
    if name != "ParquetNode":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(".node", __name__).ParquetNode


def __dir__() -> list[str]:
    return __all__
