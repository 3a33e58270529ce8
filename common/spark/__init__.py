"""Uses parquetry with Spark: write datasets, read them as DataFrames, and run large jobs.

pyspark (3.5 or newer) is imported on first use. Install it with ``pip install 'parquetry[spark]'``.
Install parquetry on the executors too, because they encode and decode with its codecs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..process.lazy_names import lazy_names

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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".converter": ("SparkConverter", "spark_converter"),
        ".copying": ("copy",),
        ".encoding": ("dict_to_spark_row", "encode_dataframe"),
        ".indexing": ("write_index",),
        ".materialize": ("materialize_dataset",),
        ".reading": ("dataset_as_dataframe", "dataset_as_rdd"),
        ".selecting": ("compute_selection",),
        ".writing": ("write_dataframe", "write_rows"),
    },
)
