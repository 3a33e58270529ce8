"""The errors that parquetry raises: one tree, whose root is `ParquetryError`."""

from __future__ import annotations

from .common.base.errors import (
    CodecUnavailableError,
    DatasetError,
    DecodeError,
    EmptySelectionError,
    EncodeError,
    FieldNotFoundError,
    NullValueError,
    ParquetryError,
    PipelineError,
    ResourceError,
    SchemaError,
    SidecarError,
    StateError,
    TransformError,
)

__all__ = [
    "CodecUnavailableError",
    "DatasetError",
    "DecodeError",
    "EmptySelectionError",
    "EncodeError",
    "FieldNotFoundError",
    "NullValueError",
    "ParquetryError",
    "PipelineError",
    "ResourceError",
    "SchemaError",
    "SidecarError",
    "StateError",
    "TransformError",
]
