"""The framework-independent part of parquetry: schema, layout, selection, order, engine, sidecar.

Names are imported on first use, so a decode worker loads only what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .counting.loader_stats import LoaderStats
    from .counting.recording import trace
    from .counting.watching import observe, watch
    from .display.batches import describe, plot
    from .engine.steps.join import cu_seqlens
    from .errors import ParquetryError
    from .pipeline.pipeline import Pipeline, mix
    from .predicates.column_predicates import contains, hash_split
    from .schema import (
        CompressedImageCodec,
        CompressedNdarrayCodec,
        ListCodec,
        NdarrayCodec,
        ScalarCodec,
        TensorCodec,
        Unischema,
        UnischemaField,
    )
    from .schema.ragged import NestedArray, RaggedArray
    from .write import DatasetWriter, write_dataset

__all__ = [
    "CompressedImageCodec",
    "CompressedNdarrayCodec",
    "DatasetWriter",
    "ListCodec",
    "LoaderStats",
    "NdarrayCodec",
    "NestedArray",
    "ParquetryError",
    "Pipeline",
    "RaggedArray",
    "ScalarCodec",
    "TensorCodec",
    "Unischema",
    "UnischemaField",
    "contains",
    "cu_seqlens",
    "describe",
    "hash_split",
    "mix",
    "observe",
    "plot",
    "trace",
    "watch",
    "write_dataset",
]

_HOMES = {
    "DatasetWriter": "write",
    "LoaderStats": "counting.loader_stats",
    "NestedArray": "schema.ragged",
    "ParquetryError": "errors",
    "Pipeline": "pipeline",
    "RaggedArray": "schema.ragged",
    "contains": "predicates.column_predicates",
    "cu_seqlens": "engine.steps.join",
    "describe": "display.batches",
    "hash_split": "predicates.column_predicates",
    "mix": "pipeline",
    "observe": "counting.watching",
    "plot": "display.batches",
    "trace": "counting.recording",
    "watch": "counting.watching",
    "write_dataset": "write",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_HOMES.get(name, 'schema')}", __name__)
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
