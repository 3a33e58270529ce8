"""The framework-independent part of parquetry: schema, storage, plan, engine, pipeline, sidecar.

Names are imported on first use, so a decode worker loads only what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base.process.lazy_names import lazy_names

if TYPE_CHECKING:
    from .base.errors import ParquetryError
    from .base.metrics.loader_stats import LoaderStats
    from .base.metrics.recording import trace
    from .base.metrics.stats_log import RankStats, StatsCollector, log_stats
    from .base.metrics.watching import watch
    from .base.process.ranks import rank_from_environment
    from .engine.steps.join import cu_seqlens
    from .pipeline.display.batches import class_names, describe, plot
    from .pipeline.pipeline import Pipeline, mix
    from .pipeline.preprocessing import Preprocessing
    from .schema import (
        CompressedImageCodec,
        CompressedNdarrayCodec,
        ListCodec,
        NdarrayCodec,
        ScalarCodec,
        TensorCodec,
        Unischema,
        UnischemaField,
        VideoCodec,
        VideoReference,
    )
    from .schema.ragged import NestedArray, RaggedArray
    from .schema.training_statistics import TrainingStatistics
    from .stages.predicates.column_predicates import contains, hash_split
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
    "Preprocessing",
    "RaggedArray",
    "RankStats",
    "ScalarCodec",
    "StatsCollector",
    "TensorCodec",
    "TrainingStatistics",
    "Unischema",
    "UnischemaField",
    "VideoCodec",
    "VideoReference",
    "class_names",
    "contains",
    "cu_seqlens",
    "describe",
    "hash_split",
    "log_stats",
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
        ".base.metrics.loader_stats": ("LoaderStats",),
        ".base.metrics.recording": ("trace",),
        ".base.metrics.stats_log": ("RankStats", "StatsCollector", "log_stats"),
        ".base.metrics.watching": ("watch",),
        ".pipeline.display.batches": ("class_names", "describe", "plot"),
        ".engine.steps.join": ("cu_seqlens",),
        ".base.errors": ("ParquetryError",),
        ".pipeline": ("Pipeline", "mix"),
        ".pipeline.preprocessing": ("Preprocessing",),
        ".stages.predicates.column_predicates": ("contains", "hash_split"),
        ".base.process.ranks": ("rank_from_environment",),
        ".schema": (
            "CompressedImageCodec",
            "CompressedNdarrayCodec",
            "ListCodec",
            "NdarrayCodec",
            "ScalarCodec",
            "TensorCodec",
            "Unischema",
            "UnischemaField",
            "VideoCodec",
            "VideoReference",
        ),
        ".schema.ragged": ("NestedArray", "RaggedArray"),
        ".schema.training_statistics": ("TrainingStatistics",),
        ".write": ("DatasetWriter", "write_dataset"),
    },
)
