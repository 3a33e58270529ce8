"""Writing datasets: rows or columns in, Parquet files that describe themselves out."""

from .writer import DatasetWriter, write_dataset

__all__ = ["DatasetWriter", "write_dataset"]
