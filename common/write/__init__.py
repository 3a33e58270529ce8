"""Writes rows or columns as self-describing Parquet datasets."""

from .writer import DatasetWriter, write_dataset

__all__ = ["DatasetWriter", "write_dataset"]
