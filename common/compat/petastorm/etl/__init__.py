"""The metadata that Petastorm stores with the data: schemas and row-group indexes."""

from .rowgroup_indexers import RowGroupIndexerBase

__all__ = ["RowGroupIndexerBase"]
