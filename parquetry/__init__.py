"""Training data straight from Parquet into TensorFlow and PyTorch, as native stages of each framework.

The names that you use most are here. Each is loaded when you first use it, so ``import parquetry`` imports neither
framework. Neither does ``from parquetry import *``: it leaves out the names that need one. Import these by name, as in
``from parquetry import ParquetIterable``.

    >>> from parquetry import Pipeline
    >>> for batch in Pipeline("events.parquet").shuffle(10_000, seed=7).batch(64): ...
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .common import (
        CompressedImageCodec,
        CompressedNdarrayCodec,
        DatasetWriter,
        ListCodec,
        LoaderStats,
        NdarrayCodec,
        NestedArray,
        ParquetryError,
        Pipeline,
        Preprocessing,
        RaggedArray,
        RankStats,
        ScalarCodec,
        StatsCollector,
        TensorCodec,
        TrainingStatistics,
        Unischema,
        UnischemaField,
        VideoCodec,
        VideoReference,
        class_names,
        contains,
        cu_seqlens,
        describe,
        hash_split,
        log_stats,
        mix,
        plot,
        rank_from_environment,
        trace,
        watch,
        write_dataset,
    )
    from .common.compat.ray_data import ParquetrySource as ParquetrySource
    from .tf_plugin import ParquetDataset as ParquetDataset
    from .torch_plugin import NestedTensors as NestedTensors
    from .torch_plugin import ParquetIterable as ParquetIterable
    from .torch_plugin import ParquetMap as ParquetMap
    from .torch_plugin import ParquetNode as ParquetNode
    from .torch_plugin import ParquetPipe as ParquetPipe

    __version__: str

__all__ = [  # without the names in `_FACES`: `from parquetry import *` would import their frameworks
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

_FACES = {
    "NestedTensors": "torch_plugin",
    "ParquetDataset": "tf_plugin",
    "ParquetIterable": "torch_plugin",
    "ParquetMap": "torch_plugin",
    "ParquetNode": "torch_plugin",
    "ParquetPipe": "torch_plugin",
    "ParquetrySource": "common.compat.ray_data",
}
_FRAMEWORKS = {"common.compat.ray_data": "ray", "tf_plugin": "tensorflow", "torch_plugin": "torch"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Here, because it costs every process that starts a tenth of its imports.
        from importlib.metadata import version

        value: object = version("parquetry")
    elif name in __all__ or name in _FACES:
        value = _loaded(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _loaded(name: str) -> Any:
    face = _FACES.get(name)
    if face is None:
        return getattr(import_module(".common", __name__), name)
    from .common.base.errors import needs_framework

    framework = _FRAMEWORKS[face]
    with needs_framework(f"parquetry.{name}", framework, extra=framework):
        return getattr(import_module(f".{face}", __name__), name)


def __dir__() -> list[str]:
    return [*__all__, *_FACES, "__version__"]
