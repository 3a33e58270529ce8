"""Parquet as a native tf.data source: `ParquetDataset`, and its stages as functions for ``dataset.apply(...)``."""

from .dataset import ParquetDataset
from .functional import cache, ngram, shard, shuffle, transform, where

__all__ = ["ParquetDataset", "cache", "ngram", "shard", "shuffle", "transform", "where"]
