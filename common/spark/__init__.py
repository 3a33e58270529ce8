"""Uses parquetry with Spark: write datasets, read them as DataFrames, and run large jobs.

pyspark (3.5 or newer) is imported on first use. Install it with ``pip install 'parquetry[spark]'``.
Install parquetry on the executors too, because they encode and decode with its codecs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .converter import SparkConverter, spark_converter
    from .copying import copy
    from .encoding import dict_to_spark_row, encode_dataframe
    from .indexing import write_index
    from .materialize import materialize_dataset
    from .reading import dataset_as_dataframe, dataset_as_rdd
    from .selecting import compute_selection
    from .writing import write_dataframe, write_rows

__all__ = [
    "SparkConverter",
    "compute_selection",
    "copy",
    "dataset_as_dataframe",
    "dataset_as_rdd",
    "dict_to_spark_row",
    "encode_dataframe",
    "materialize_dataset",
    "spark_converter",
    "write_dataframe",
    "write_index",
    "write_rows",
]

_HOMES = {
    "SparkConverter": "converter",
    "compute_selection": "selecting",
    "copy": "copying",
    "dataset_as_dataframe": "reading",
    "dataset_as_rdd": "reading",
    "dict_to_spark_row": "encoding",
    "encode_dataframe": "encoding",
    "materialize_dataset": "materialize",
    "spark_converter": "converter",
    "write_dataframe": "writing",
    "write_index": "indexing",
    "write_rows": "writing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
