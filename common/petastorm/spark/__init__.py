"""A Spark DataFrame as a dataset of TensorFlow or PyTorch, under Petastorm's names."""

from .spark_dataset_converter import (
    SparkDatasetConverter,
    TFDatasetContextManager,
    TorchDatasetContextManager,
    make_spark_converter,
    register_delete_dir_handler,
)

__all__ = [
    "SparkDatasetConverter",
    "TFDatasetContextManager",
    "TorchDatasetContextManager",
    "make_spark_converter",
    "register_delete_dir_handler",
]
