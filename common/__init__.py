"""parquetry without a framework: schema, layout, selection, order, engine, sidecar.

Names are imported when they are first used, so that a decode worker loads only what it needs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from .schema.ragged import RaggedArray
    from .write import DatasetWriter, write_dataset

__all__ = [
    "CompressedImageCodec",
    "CompressedNdarrayCodec",
    "DatasetWriter",
    "ListCodec",
    "NdarrayCodec",
    "ParquetryError",
    "Pipeline",
    "RaggedArray",
    "ScalarCodec",
    "TensorCodec",
    "Unischema",
    "UnischemaField",
    "contains",
    "cu_seqlens",
    "hash_split",
    "mix",
    "write_dataset",
]

_HOMES = {
    "DatasetWriter": "write",
    "ParquetryError": "errors",
    "Pipeline": "pipeline",
    "RaggedArray": "schema.ragged",
    "contains": "predicates.column_predicates",
    "cu_seqlens": "engine.steps.join",
    "hash_split": "predicates.column_predicates",
    "mix": "pipeline",
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
    return sorted({*globals(), *__all__})
