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

import errno
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


class ParquetryError(Exception):
    """Root of the tree; catch it to catch everything that parquetry raises on purpose.

    Attributes:
        frames: the traceback of your own function that raised it, as text; another process shows it with the message.
    """

    frames = ""
    ag_pass_through = True  # TensorFlow's autograph raises such errors as they are, and needs no frames of theirs

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


def missing_package(error: ImportError, package: str, extra: str) -> str:
    """The end of a message: that a package cannot be imported, and what installs it.

    Args:
        error: what importing it raised; told as it is, unless the package is simply not there.
        extra: the extra of parquetry that has the package.
    """
    absent = isinstance(error, ModuleNotFoundError) and _top(error) == package
    why = "which is not installed" if absent else f"which cannot be imported ({error})"
    return f"needs {package}, {why}. Run: pip install 'parquetry[{extra}]'"


@contextmanager
def needs_framework(what: str, package: str, *, extra: str) -> Iterator[None]:
    """Imports a framework; says which extra to install where it is missing. A broken one shows its own error.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        import_module(package)
        yield
    except ModuleNotFoundError as error:
        if error.name != package:  # also a part of the framework, which a broken installation lacks
            raise
        raise ModuleNotFoundError(
            f"{what} needs {package}, which is not installed. Install it with: pip install 'parquetry[{extra}]'",
            name=package,
        ) from None


def _top(error: ImportError) -> str:
    return str(error.name).partition(".")[0]


def limit_reached(error: BaseException | None) -> str:
    """Which limit of this process or machine an error, or the one that caused it, ran into, and what to do about it;
    empty for any other error.
    """
    while error is not None:
        number = getattr(error, "errno", None)
        if number == errno.EMFILE:
            return (
                f"This process may have {_limit(resource.RLIMIT_NOFILE)} files open (RLIMIT_NOFILE). Run ulimit -n "
                "65536 before you start Python, or use fewer workers."
            )
        if number == errno.ENFILE:
            return "The machine has as many files open as it may (fs.file-max). Raise that, or end other programs."
        if isinstance(error, MemoryError) or number == errno.ENOMEM:
            return (
                f"There is too little memory; this process may map {_limit(resource.RLIMIT_AS)} bytes (RLIMIT_AS, "
                "ulimit -v). Give it more, lower memory_limit=, or use fewer workers."
            )
        if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
            return (
                f"No further thread could be started; this user may have {_limit(resource.RLIMIT_NPROC)} (RLIMIT_NPROC,"
                " ulimit -u; in a container its pids limit), and this process may map "
                f"{_limit(resource.RLIMIT_AS)} bytes (RLIMIT_AS, ulimit -v). Raise the limit, or use fewer workers."
            )
        error = error.__cause__ or error.__context__
    return ""


def _limit(which: int) -> str:
    soft = resource.getrlimit(which)[0]
    return "any number of" if soft == resource.RLIM_INFINITY else f"{soft:,}"
