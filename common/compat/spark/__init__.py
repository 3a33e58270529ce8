"""Uses parquetry with Spark: write datasets, read them in Spark, and pass DataFrames to the frameworks.

pyspark (3.5 or newer) is imported on first use. Install it with ``pip install 'parquetry[spark]'``.
Install parquetry on the executors too, because they encode and decode with its codecs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base.process.lazy_names import lazy_names

if TYPE_CHECKING:
    from .converter import SparkConverter, spark_converter
    from .encoding import dict_to_spark_row, encode_dataframe
    from .materialize import materialize_dataset
    from .reading import dataset_as_dataframe, dataset_as_rdd
    from .writing import write_dataframe, write_rows

__all__ = [
    "SparkConverter",
    "dataset_as_dataframe",
    "dataset_as_rdd",
    "dict_to_spark_row",
    "encode_dataframe",
    "materialize_dataset",
    "spark_converter",
    "write_dataframe",
    "write_rows",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        ".converter": ("SparkConverter", "spark_converter"),
        ".encoding": ("dict_to_spark_row", "encode_dataframe"),
        ".materialize": ("materialize_dataset",),
        ".reading": ("dataset_as_dataframe", "dataset_as_rdd"),
        ".writing": ("write_dataframe", "write_rows"),
    },
)
