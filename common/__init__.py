"""parquetry without a framework: schema, layout, selection, order, engine, sidecar."""

from .errors import ParquetryError
from .pipeline import Pipeline, mix
from .ragged import RaggedArray
from .schema import (
    CompressedImageCodec,
    CompressedNdarrayCodec,
    ListCodec,
    NdarrayCodec,
    ScalarCodec,
    TensorCodec,
    Unischema,
    UnischemaField,
)
from .selection.column_predicates import contains, hash_split
from .write import DatasetWriter, write_dataset

__all__ = [
    "CompressedImageCodec",
    "CompressedNdarrayCodec",
    "DatasetWriter",
    "ListCodec",
    "NdarrayCodec",
    "ParquetryError",
    "Pipeline",
    "RaggedArray",
    "ScalarCodec",
    "TensorCodec",
    "Unischema",
    "UnischemaField",
    "contains",
    "hash_split",
    "mix",
    "write_dataset",
]
