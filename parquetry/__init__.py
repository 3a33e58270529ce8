"""Training data straight from Parquet into TensorFlow and PyTorch, as native stages of each framework.

Every public name is here, and is loaded when you first use it: importing ``parquetry`` imports neither framework.

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
        NdarrayCodec,
        ParquetryError,
        Pipeline,
        RaggedArray,
        ScalarCodec,
        TensorCodec,
        Unischema,
        UnischemaField,
        contains,
        cu_seqlens,
        hash_split,
        mix,
        write_dataset,
    )
    from .tf_plugin import ParquetDataset
    from .torch_plugin import ParquetIterable, ParquetMap, ParquetNode, ParquetPipe

__all__ = [
    "CompressedImageCodec",
    "CompressedNdarrayCodec",
    "DatasetWriter",
    "ListCodec",
    "NdarrayCodec",
    "ParquetDataset",
    "ParquetIterable",
    "ParquetMap",
    "ParquetNode",
    "ParquetPipe",
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

_FACES = {
    "ParquetDataset": "tf_plugin",
    "ParquetIterable": "torch_plugin",
    "ParquetMap": "torch_plugin",
    "ParquetNode": "torch_plugin",
    "ParquetPipe": "torch_plugin",
}
_EXTRAS = {"tensorflow": "tensorflow", "torch": "torch", "torchdata": "torch"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Here, because it costs every process that starts a tenth of its imports.
        from importlib.metadata import version

        value: object = version("parquetry")
    elif name in __all__:
        value = _loaded(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def _loaded(name: str) -> Any:
    try:
        return getattr(import_module(f".{_FACES.get(name, 'common')}", __name__), name)
    except ModuleNotFoundError as error:
        framework = str(error.name).partition(".")[0]
        if framework not in _EXTRAS:
            raise
        raise ImportError(
            f"parquetry.{name} needs {framework}, which is not installed. "
            f"Install it with: pip install 'parquetry[{_EXTRAS[framework]}]'",
            name=framework,
        ) from error


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
