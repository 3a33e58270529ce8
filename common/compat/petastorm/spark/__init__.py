"""Reads a Spark DataFrame as a TensorFlow or PyTorch dataset, with Petastorm's names."""

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
