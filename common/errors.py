"""Every error that parquetry raises on purpose, as one tree.

::

    ParquetryError
     ├─ SchemaError            a field, codec or type does not fit (also a ``ValueError``)
     │   ├─ FieldNotFoundError a name or regex matches no field (also a ``KeyError``)
     │   └─ CodecUnavailableError  the library that a codec needs is not installed (also an ``ImportError``)
     ├─ EncodeError            a value cannot be written as its field says (also a ``ValueError``)
     ├─ DatasetError           the files are not there, or are not what they claim (also an ``OSError``)
     ├─ DecodeError            stored bytes cannot be turned into the field's value (also a ``ValueError``)
     ├─ NullValueError         a null met a field that has no policy for it (also a ``ValueError``)
     ├─ PipelineError          stages that make no sense together, or an argument out of range (also a ``ValueError``)
     │   └─ EmptySelectionError    nothing is left to read
     ├─ StateError             a saved state belongs to something else (also a ``ValueError``)
     ├─ TransformError         a user function failed or broke its declaration (also a ``RuntimeError``)
     └─ SidecarError           a process of ours died or broke the protocol (also a ``RuntimeError``)

A message says what failed and where, what was expected, what was found, and what to do. Every error holds only its
message, so it pickles and crosses processes unchanged.

`DecodeError`, `NullValueError` and `TransformError` that an iterator raises are those of one element (a row, or a
batch): the next call of ``next()`` gives the element after it. After any other error an iterator has ended.
"""

from __future__ import annotations


class ParquetryError(Exception):
    """Root of the tree; catch it to catch everything that parquetry raises on purpose."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class SchemaError(ParquetryError, ValueError):
    """A field, codec or type that does not fit."""


class FieldNotFoundError(SchemaError, KeyError):
    """A field name or regular expression that matches nothing."""


class CodecUnavailableError(SchemaError, ImportError):
    """A codec whose library is not installed."""


class EncodeError(ParquetryError, ValueError):
    """A value that does not fit its field."""


class DatasetError(ParquetryError, OSError):
    """Files that are missing, unreadable, or not what they claim to be."""


class DecodeError(ParquetryError, ValueError):
    """Stored bytes that do not decode to the field's value."""


class NullValueError(ParquetryError, ValueError):
    """A null in a field that has no policy for nulls."""


class PipelineError(ParquetryError, ValueError):
    """Stages or arguments that make no sense."""


class EmptySelectionError(PipelineError):
    """Nothing is left to read."""


class StateError(ParquetryError, ValueError):
    """A state that belongs to another dataset, pipeline or version."""


class TransformError(ParquetryError, RuntimeError):
    """A user function that raised, or returned something other than it declared."""


class SidecarError(ParquetryError, RuntimeError):
    """A process of ours that died, or a message that breaks the protocol."""


ELEMENT_ERRORS = (DecodeError, NullValueError, TransformError)
"""What fails for one element alone: the iterator that raised it goes on with the next one."""


def error_class(name: str) -> type[ParquetryError]:
    """The class called ``name`` in this tree; `ParquetryError` for an unknown name (an error from a newer version)."""
    found = globals().get(name)
    if isinstance(found, type) and issubclass(found, ParquetryError):
        return found
    return ParquetryError
