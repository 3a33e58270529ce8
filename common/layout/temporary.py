"""Temporary files without a name, for data that does not fit into memory. Nothing is left when a process is killed.

They are in ``$TMPDIR`` if it is set, else in ``/var/tmp``, because ``/tmp`` is often in memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ..errors import ParquetryError

_MOST_AT_ONCE = 1 << 30  # Linux writes at most 2 GiB per call


class NoRoomError(ParquetryError):
    """Data cannot be kept in temporary files: the disk is full, or the directory is not writable."""


@contextlib.contextmanager
def telling_of_room() -> Iterator[None]:
    """Raises errors of temporary files that the block uses as `NoRoomError`."""
    try:
        yield
    except ParquetryError:  # such as a damaged file of the dataset, which is an `OSError`, too
        raise
    except OSError as error:
        raise NoRoomError(
            f"expected room for temporary files in {temporary_directory()}, got: {error}. Set TMPDIR to a directory on "
            "a disk with more room, or write smaller row groups with 'parquetry rewrite'."
        ) from error


def temporary_directory() -> str:
    """Returns the directory of temporary files."""
    chosen = os.environ.get("TMPDIR")
    if chosen and os.access(chosen, os.W_OK | os.X_OK):
        return chosen
    return "/var/tmp" if os.access("/var/tmp", os.W_OK | os.X_OK) else tempfile.gettempdir()


def temporary_file() -> int:
    """Returns the descriptor of a new file that has no name and is closed on exec.

    Raises:
        NoRoomError: the directory is not writable, or too many files are open.
    """
    directory = temporary_directory()
    with telling_of_room():
        if hasattr(os, "O_TMPFILE"):
            with contextlib.suppress(OSError):  # not every file system can
                return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
        descriptor, path = tempfile.mkstemp(prefix="parquetry-", dir=directory)
        os.unlink(path)
        return descriptor


class TemporaryBuffer:
    """Bytes that are appended to a temporary file, and then mapped into memory.

    Raises:
        NoRoomError: the file cannot be created.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._descriptor: int | None = temporary_file()

    def append(self, content: memoryview | bytes) -> None:
        """Appends bytes.

        Raises:
            NoRoomError: the disk is full, or fails.
        """
        assert self._descriptor is not None
        view = memoryview(content).cast("B")
        self.num_bytes += len(view)
        with telling_of_room():
            while len(view):
                view = view[os.write(self._descriptor, view[:_MOST_AT_ONCE]) :]

    def mapped(self) -> pa.Buffer | None:
        """Returns all bytes, or ``None`` if there are none, and closes the file.

        The buffer keeps the disk space until it is dropped.

        Raises:
            NoRoomError: there is no address space for it.
        """
        assert self._descriptor is not None
        try:
            with telling_of_room():
                return _mapped(self._descriptor, self.num_bytes) if self.num_bytes else None
        finally:
            self.close()

    def close(self) -> None:
        """Drops the file. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def forget(mapped: pa.Buffer) -> None:
    """Takes the pages of a mapped file out of this process's memory. They are mapped again when they are used."""
    advise = _madvise()
    if advise is not None and mapped.size:
        advise(mapped.address, mapped.size, mmap.MADV_DONTNEED)


def _mapped(descriptor: int, size: int) -> pa.Buffer:
    path = f"/proc/self/fd/{descriptor}"
    if not os.path.exists(path):
        return pa.py_buffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
    with pa.memory_map(path) as file:  # unlike `mmap`, it keeps no descriptor
        return file.read_buffer()


@lru_cache(maxsize=1)
def _madvise() -> Any:
    """Returns the C library's ``madvise`` on Linux; ``None`` elsewhere."""
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
