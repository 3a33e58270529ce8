"""What Petastorm keeps beside the data: schemas and row-group indexes."""

from .rowgroup_indexers import RowGroupIndexerBase

__all__ = ["RowGroupIndexerBase"]
