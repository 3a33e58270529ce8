"""A Spark DataFrame as a dataset of TensorFlow or PyTorch, under Petastorm's names."""

from .spark_dataset_converter import SparkDatasetConverter, make_spark_converter

__all__ = ["SparkDatasetConverter", "make_spark_converter"]
