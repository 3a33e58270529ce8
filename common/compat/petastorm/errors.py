"""The errors that Petastorm users catch, as part of parquetry's error tree.

::

    ParquetryError
     ├─ NoDataAvailableError    (also an EmptySelectionError) fewer row groups than shards, or nothing to read
     ├─ NoFieldsError           (also a RuntimeError) no column matches ``schema_fields``
     ├─ PetastormMetadataError  (also a SchemaError) the dataset has no metadata of the requested kind
     ├─ PetastormLoadedError    (also an ImportError) ``install()`` came after the import of Petastorm itself
     ├─ ReaderStoppedError      (also a RuntimeError) a sample was requested from a stopped reader
     ├─ ResetError              (also a NotImplementedError) ``reset()`` before the last row
     ├─ IterationError          (also a RuntimeError) a loader is iterated twice at once, or again after a failure
     ├─ SchemelessUrlError      (also a DatasetError and a ValueError) nothing is at a path that has no scheme
     ├─ NotAUnischemaError      (also a SchemaError and an AssertionError) something else was given for a schema
     ├─ UnsupportedTypeError    (also a SchemaError and a TypeError) a value that the framework cannot represent
     └─ DecodeFieldError        (also a DecodeError and a RuntimeError) a stored value that cannot be decoded
"""

from __future__ import annotations

from ...base.errors import (
    DatasetError,
    DecodeError,
    EmptySelectionError,
    FieldNotFoundError,
    ParquetryError,
    SchemaError,
)


class NoDataAvailableError(EmptySelectionError):
    """There is no data to read, or there are fewer row groups than shards."""


class NoFieldsError(FieldNotFoundError, RuntimeError):
    """No field matches ``schema_fields``."""


class PetastormMetadataError(SchemaError):
    """The dataset has no metadata of the requested kind."""


class PetastormMetadataGenerationError(PetastormMetadataError):
    """The metadata could not be written."""


class PetastormLoadedError(ParquetryError, ImportError):
    """Petastorm itself is already imported."""


class ReaderStoppedError(ParquetryError, RuntimeError):
    """A sample was requested from a stopped reader."""


class ResetError(ParquetryError, NotImplementedError):
    """``reset()`` was called before all rows were read."""


class IterationError(ParquetryError, RuntimeError):
    """The loader is already being iterated, or failed before."""


class SchemelessUrlError(DatasetError, ValueError):
    """Nothing is at a path that has no scheme."""


class NotAUnischemaError(SchemaError, AssertionError):
    """Something else was given in place of a `Unischema`."""


class UnsupportedTypeError(SchemaError, TypeError):
    """The framework cannot represent a value."""


class DecodeFieldError(DecodeError, RuntimeError):
    """A stored value could not be decoded."""
