"""Temporary files without a name, for data that does not fit into memory. Nothing is left when a process is killed.

They are in ``$TMPDIR`` if it is set, else in ``/var/tmp``, because ``/tmp`` is often in memory. A file that outgrows
the first moves to the second.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterator

import pyarrow as pa

from ..base.errors import ParquetryError
from ..base.platform.files import mapped, nameless_file

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_PIECE_BYTES = 1 << 24
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
            f"expected room for temporary files in {' or '.join(temporary_directories())}, got: {error}. Set TMPDIR to "
            "a directory on a disk with more room, or write smaller row groups with 'parquetry rewrite'."
        ) from error


def temporary_directories() -> list[str]:
    """Returns the writable directories for temporary files, the preferred one first."""
    candidates = [os.environ.get("TMPDIR"), "/var/tmp"]
    usable = [each for each in candidates if each and os.access(each, os.W_OK | os.X_OK)]
    return list(dict.fromkeys(usable)) or [tempfile.gettempdir()]


def temporary_directory(size_bytes: int = 0) -> str | None:
    """Returns the first directory with room for ``size_bytes`` bytes; ``None`` if there is none."""
    return next((each for each in temporary_directories() if _free_bytes(each) >= size_bytes), None)


def _free_bytes(directory: str) -> int:
    try:
        status = os.statvfs(directory)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize


def temporary_file(directory: str | None = None) -> int:
    """Returns the descriptor of a new file that has no name and is closed on exec.

    Args:
        directory: where it takes room; ``None`` = the preferred directory.

    Raises:
        NoRoomError: the directory is not writable, or too many files are open.
    """
    directory = directory or temporary_directories()[0]
    with telling_of_room():
        return nameless_file(directory)


class TemporaryBuffer:
    """Bytes that are appended to a temporary file, and then mapped into memory. The file goes with the object.

    Raises:
        NoRoomError: the file cannot be created.
    """

    def __init__(self) -> None:
        self.num_bytes = 0
        self._others = temporary_directories()
        self._descriptor: int | None = temporary_file(self._others.pop(0))

    def append(self, content: memoryview | bytes) -> None:
        """Appends bytes.

        Raises:
            NoRoomError: every directory is full, or fails.
        """
        assert self._descriptor is not None
        view = memoryview(content).cast("B")
        with telling_of_room():
            while len(view):
                try:
                    written = os.write(self._descriptor, view[:_MOST_AT_ONCE])
                except OSError as error:
                    if error.errno not in _FULL or not self._others:
                        raise
                    self._move(self._others.pop(0))
                else:
                    self.num_bytes += written
                    view = view[written:]

    def _move(self, directory: str) -> None:
        """Copies the file to a directory with more room."""
        assert self._descriptor is not None
        new = temporary_file(directory)
        try:
            place = 0
            while place < self.num_bytes:
                piece = os.pread(self._descriptor, min(_PIECE_BYTES, self.num_bytes - place), place)
                place += os.write(new, piece)
        except BaseException:
            os.close(new)
            raise
        os.close(self._descriptor)
        self._descriptor = new

    def read(self, begin: int, size: int) -> bytes:
        """Returns some of the bytes. Any thread may call it, and a forked child may, for what was there before.

        Raises:
            OSError: the file cannot be read.
        """
        assert self._descriptor is not None
        content = os.pread(self._descriptor, size, begin)
        if len(content) != size:
            raise OSError(f"expected {size} bytes at {begin} of a temporary file, got {len(content)}")
        return content

    def mapped(self) -> pa.Buffer | None:
        """Returns all bytes, or ``None`` if there are none, and closes the file.

        The buffer keeps the disk space until it is dropped.

        Raises:
            NoRoomError: there is no address space for it.
        """
        assert self._descriptor is not None
        try:
            with telling_of_room():
                return mapped(self._descriptor, self.num_bytes) if self.num_bytes else None
        finally:
            self.close()

    def close(self) -> None:
        """Drops the file. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # it was not created, or the interpreter ends
            self.close()
