"""The framework-independent part of parquetry: schema, layout, selection, order, engine, sidecar.

Names are imported on first use, so a decode worker loads only what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .process.lazy_names import lazy_names

if TYPE_CHECKING:
    from .counting.loader_stats import LoaderStats
    from .counting.recording import trace
    from .counting.watching import watch
    from .display.batches import describe, plot
    from .engine.steps.join import cu_seqlens
    from .errors import ParquetryError
    from .pipeline.pipeline import Pipeline, mix
    from .predicates.column_predicates import contains, hash_split
    from .process.ranks import rank_from_environment
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
    "plot",
    "rank_from_environment",
    "trace",
    "watch",
    "write_dataset",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".counting.loader_stats": ("LoaderStats",),
        ".counting.recording": ("trace",),
        ".counting.watching": ("watch",),
        ".display.batches": ("describe", "plot"),
        ".engine.steps.join": ("cu_seqlens",),
        ".errors": ("ParquetryError",),
        ".pipeline": ("Pipeline", "mix"),
        ".predicates.column_predicates": ("contains", "hash_split"),
        ".process.ranks": ("rank_from_environment",),
        ".schema": (
            "CompressedImageCodec",
            "CompressedNdarrayCodec",
            "ListCodec",
            "NdarrayCodec",
            "ScalarCodec",
            "TensorCodec",
            "Unischema",
            "UnischemaField",
        ),
        ".schema.ragged": ("NestedArray", "RaggedArray"),
        ".write": ("DatasetWriter", "write_dataset"),
    },
)
