"""All errors that parquetry raises deliberately, as one tree.

::

    ParquetryError
     ├─ SchemaError            a field, codec or type does not fit (also a ``ValueError``)
     │   ├─ FieldNotFoundError a name or regex matches no field (also a ``KeyError``)
     │   └─ CodecUnavailableError  the library for a codec is not installed (also an ``ImportError``)
     ├─ EncodeError            a value does not fit its field when it is written (also a ``ValueError``)
     ├─ DatasetError           files are missing, or are not what they claim to be (also an ``OSError``)
     ├─ DecodeError            stored bytes cannot be decoded to the field's value (also a ``ValueError``)
     ├─ NullValueError         a field without a policy for nulls holds a null (also a ``ValueError``)
     ├─ PipelineError          stages or arguments make no sense (also a ``ValueError``)
     │   └─ EmptySelectionError    nothing is left to read
     ├─ StateError             a saved state belongs to something else (also a ``ValueError``)
     ├─ TransformError         a user function failed or broke its declaration (also a ``RuntimeError``)
     ├─ SidecarError           a worker process or server died, or broke the protocol (also a ``RuntimeError``)
     └─ ResourceError          too little memory, too many open files or threads (also an ``OSError``)

A message names what failed and where, what was expected, what was found, and what to do. URLs in a message have no
user, password or query. An error holds only texts and numbers, so it can be pickled and crosses processes unchanged.

When an iterator raises `DecodeError`, `NullValueError` or `TransformError`, only one element (a row or a batch) has
failed, and the next call of ``next()`` returns the element after it. Any other error ends the iterator.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from .urls import without_secrets

_SPARE_BYTES = 64 << 20  # what a library may need beside the values that it decodes


class ParquetryError(Exception):
    """Root of the tree. Catch it to catch every error that parquetry raises deliberately.

    Attributes:
        frames: the traceback of your function that raised the error, as text. Other processes show it with the message.
        item: the row of the batch that the message is about, if it is about one.
    """

    frames = ""
    item: int | None = None
    ag_pass_through = True  # makes TensorFlow's AutoGraph re-raise these errors unchanged

    def __init__(self, *args: object) -> None:
        super().__init__(*(without_secrets(arg) if isinstance(arg, str) else arg for arg in args))

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class SchemaError(ParquetryError, ValueError):
    """A field, codec or type does not fit."""


class FieldNotFoundError(SchemaError, KeyError):
    """A field name or regular expression matches nothing."""


class CodecUnavailableError(SchemaError, ImportError):
    """The library for a codec is not installed."""


class EncodeError(ParquetryError, ValueError):
    """A value does not fit its field."""


class DatasetError(ParquetryError, OSError):
    """Files are missing, unreadable, or not what they claim to be."""


class DecodeError(ParquetryError, ValueError):
    """Stored bytes do not decode to the field's value."""


class NullValueError(ParquetryError, ValueError):
    """A field without a policy for nulls holds a null."""


class PipelineError(ParquetryError, ValueError):
    """Stages or arguments make no sense."""


class EmptySelectionError(PipelineError):
    """Nothing is left to read."""


class StateError(ParquetryError, ValueError):
    """A saved state belongs to another dataset, pipeline or version."""


class TransformError(ParquetryError, RuntimeError):
    """A user function raised an error, or its result differs from its declaration."""


class SidecarError(ParquetryError, RuntimeError):
    """A worker process died, or a message breaks the protocol."""


class ResourceError(ParquetryError, OSError):
    """This process or machine has reached a limit, such as its memory or the number of open files."""


ELEMENT_ERRORS = (DecodeError, NullValueError, TransformError)
"""Errors of a single element. The iterator that raised one continues with the next element."""


def error_class(name: str) -> type[ParquetryError]:
    """Returns the class ``name`` of this tree, or `ParquetryError` for an unknown name (from a newer version)."""
    value = globals().get(name)
    if isinstance(value, type) and issubclass(value, ParquetryError):
        return value
    return ParquetryError


def missing_package(error: ImportError, package: str, extra: str) -> str:
    """Returns the end of an error message: why a package cannot be imported, and how to install it.

    Args:
        error: the error from importing it. Its text is included, unless the package is not installed.
        extra: the extra of parquetry that includes the package.
    """
    absent = isinstance(error, ModuleNotFoundError) and _top(error) == package
    why = "which is not installed" if absent else f"which cannot be imported ({error})"
    return f"needs {package}, {why}. Run: pip install 'parquetry[{extra}]'"


@contextmanager
def needs_framework(what: str, package: str, *, extra: str) -> Iterator[None]:
    """Imports a framework. If it is not installed, the error names the extra. A broken one raises its own error.

    Raises:
        ModuleNotFoundError: the framework is not installed.
    """
    try:
        import_module(package)
        yield
    except ModuleNotFoundError as error:
        if error.name != package:  # a broken installation may lack a part of the framework
            raise
        raise ModuleNotFoundError(
            f"{what} needs {package}, which is not installed. Install it with: pip install 'parquetry[{extra}]'",
            name=package,
        ) from None


def _top(error: ImportError) -> str:
    return str(error.name).partition(".")[0]


_OF_CONTENT = (None, errno.EINVAL)
"""The ``errno`` of errors about what is in a file: none, or `EINVAL` from a read at an offset that cannot be."""


def limit_reached(error: BaseException | None) -> str:
    """Returns which limit of this process or machine caused an error or its cause, and how to raise it; an empty
    string for any other error.
    """
    while error is not None:
        number = getattr(error, "errno", None)
        if number == errno.EMFILE:
            return (
                f"This process may have {_limit(resource.RLIMIT_NOFILE)} files open (RLIMIT_NOFILE). Run ulimit -n "
                "65536 before you start Python, or use fewer workers."
            )
        if number == errno.ENFILE:
            return "The machine has reached its limit of open files (fs.file-max). Raise it, or end other programs."
        if isinstance(error, MemoryError) or number == errno.ENOMEM:
            return (
                f"There is not enough memory. This process may map {_limit(resource.RLIMIT_AS)} bytes (RLIMIT_AS, "
                "ulimit -v). Give it more, lower memory_limit=, or use fewer workers."
            )
        if number == errno.EAGAIN or (isinstance(error, RuntimeError) and "can't start new thread" in str(error)):
            return (
                f"This user may have {_limit(resource.RLIMIT_NPROC)} threads and processes (RLIMIT_NPROC, ulimit -u, "
                "or a container's pids limit), and this process may map "
                f"{_limit(resource.RLIMIT_AS)} bytes (RLIMIT_AS, ulimit -v). Raise the limit, or use fewer workers."
            )
        error = error.__cause__
    return ""


def access_failed(error: BaseException | None) -> str:
    """Returns what to do if the system did not let this process read a file, so that nothing is known about its
    bytes; an empty string for any other error, also for a file that does not exist.

    Arrow and the decoders raise `OSError` for damaged bytes, too, but without an ``errno``.
    """
    while error is not None and not isinstance(error, ParquetryError | FileNotFoundError):
        if isinstance(error, PermissionError):
            return (
                f"This process runs as user {os.geteuid()}, who may not read it. Give this user access to the file and "
                "to each directory above it (ls -l shows who has it), or run as a user who has."
            )
        number = getattr(error, "errno", None) if isinstance(error, OSError) else None
        if isinstance(error, TimeoutError | ConnectionError) or number not in _OF_CONTENT:
            return limit_reached(error) or (
                "The system could not read it; its content may be fine. Check the disk, the mount or the network, and "
                "try again."
            )
        error = error.__cause__
    return ""


def limit_met(error: BaseException, num_bytes: int) -> str:
    """As `limit_reached`, for work that needs about ``num_bytes`` of memory. Libraries do not always report a lack of
    memory, so this also checks whether that much is available.
    """
    limit = limit_reached(error)
    if limit:
        return limit
    try:
        mmap.mmap(-1, num_bytes + _SPARE_BYTES).close()
    except (OSError, ValueError) as short:
        return limit_reached(short)
    return ""


def _limit(which: int) -> str:
    soft = resource.getrlimit(which)[0]
    return "any number of" if soft == resource.RLIM_INFINITY else f"{soft:,}"
