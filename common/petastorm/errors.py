"""The errors that Petastorm's users catch, as branches of parquetry's own tree.

::

    ParquetryError
     ├─ NoDataAvailableError    (also an EmptySelectionError) fewer row groups than shards, or nothing to read
     ├─ NoFieldsError           (also a RuntimeError) no column matches ``schema_fields``
     ├─ PetastormMetadataError  (also a SchemaError) a dataset without the metadata that is asked for
     ├─ ReaderStoppedError      (also a RuntimeError) a sample is wanted from a reader that was stopped
     ├─ ResetError              (also a NotImplementedError) ``reset()`` before the last row
     ├─ IterationError          (also a RuntimeError) a loader is iterated twice at a time, or again after a failure
     ├─ UnsupportedTypeError    (also a SchemaError and a TypeError) a value that the framework has no form for
     └─ DecodeFieldError        (also a DecodeError and a RuntimeError) a value that does not decode
"""

from __future__ import annotations

from ..errors import DecodeError, EmptySelectionError, FieldNotFoundError, ParquetryError, SchemaError


class NoDataAvailableError(EmptySelectionError):
    """There is less data than the reader was asked for."""


class NoFieldsError(FieldNotFoundError, RuntimeError):
    """No field matches ``schema_fields``."""


class PetastormMetadataError(SchemaError):
    """The dataset has no metadata of the kind that is asked for."""


class PetastormMetadataGenerationError(PetastormMetadataError):
    """Metadata that could not be written."""


class ReaderStoppedError(ParquetryError, RuntimeError):
    """A reader that was stopped is asked for a sample."""


class ResetError(ParquetryError, NotImplementedError):
    """``reset()`` was called before all rows were read."""


class IterationError(ParquetryError, RuntimeError):
    """A loader that cannot be iterated now."""


class UnsupportedTypeError(SchemaError, TypeError):
    """A value that the framework has no form for."""


class DecodeFieldError(DecodeError, RuntimeError):
    """A stored value that does not decode."""
