"""Uses parquetry with Spark: write datasets, read them as DataFrames, and run large jobs. See ``docs/spark.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .common.base.process.lazy_names import lazy_names

if TYPE_CHECKING:
    from .common.compat.spark import (
        SparkConverter,
        dataset_as_dataframe,
        dataset_as_rdd,
        dict_to_spark_row,
        encode_dataframe,
        materialize_dataset,
        spark_converter,
        write_dataframe,
        write_rows,
    )

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

__getattr__, __dir__ = lazy_names(__name__, {"..common.compat.spark": tuple(__all__)})
