"""`FileCache`: a directory of files with a size limit, which many processes write and read at once.

The files appear complete or not at all (`whole_files`). The directory has a lock file. Space is freed and reserved
under that lock, so the limit holds across processes and includes unfinished files. If somebody holds the lock for too
long, nothing is kept (`locks`).
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import re
import stat
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from ..base.errors import access_failed
from ..base.process.locks import lock_file
from .whole_files import (
    MINUTE_NS,
    abandoned,
    cache_root,
    is_unfinished,
    make_directory,
    moved_from,
    open_lock,
    release,
    room_of,
    unfinished_name,
)

Value = TypeVar("Value")
_LOGGER = logging.getLogger(__name__)
_LOCK = ".lock"
_ALONE = ".alone"
COPY = ".parquetry-copy"
"""The hidden directory of `copy` and `convert` in their target."""
CLAIMS = ".claims"
"""The lock file by which readers agree on who makes a missing file."""
_SUFFIXES = {
    "selections": ".npz",
    "bad_rows": ".json",
    "vocabularies": ".arrow",
    "statistics": ".json",
    "footers": ".arrow",
}
_MOST_FILES = 256
_LOCKS = (_LOCK, _ALONE, CLAIMS)
_CHECKSUM_BYTES = 16
_MORE_SHARE = 64  # removes 1/64 more files than necessary, so that not every new file needs a scan of the directory

UNREADABLE = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, EOFError, RuntimeError, OSError),
    *(pa.ArrowException, struct.error, zipfile.BadZipFile, zlib.error),
)
"""The exceptions that parsers raise for damaged bytes. A damaged kept file is made again."""


def user_cache(kind: str) -> FileCache:
    """Returns the cache of one kind of files in the user's cache directory. The oldest files beyond 256 are removed.

    Args:
        kind: one of `_SUFFIXES`.
    """
    return FileCache(cache_root() / kind, _SUFFIXES[kind], max_files=_MOST_FILES)


class FileCache:
    """A cache of files of one kind in one directory. Thread-safe; any number of processes may share the directory.

    Args:
        directory: created when first needed. Other files in it are left alone.
        suffix: the end of each file name, after 32 hex digits.
        max_bytes, max_files: limits for all files together. The least recently used files are removed to make room.
            ``None`` for no limit.
        spare_s: files used in the last ``spare_s`` seconds are never removed, even if a limit is exceeded.
        mode: the permissions of new files.
    """

    def __init__(
        self,
        directory: str | Path,
        suffix: str,
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
        spare_s: float = 0,
        mode: int = 0o600,
    ) -> None:
        self._directory = os.fspath(directory)
        self._suffix = suffix
        self._name = re.compile(rf"[0-9a-f]{{32}}{re.escape(suffix)}")
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._spare_ns = int(spare_s * 1e9)
        self._mode = mode
        self._has_looked = False

    def path(self, digest: str) -> str:
        """The path of the file with this name, whether or not it exists."""
        return os.path.join(self._directory, digest + self._suffix)

    def keep(self, digest: str, size_bytes: int, write: Callable[[str], object]) -> bool:
        """Adds a file, replacing an older one of this name. Returns whether there was room for it.

        Args:
            size_bytes: the most space that the file takes on disk.
            write: writes the file to the path that it is called with.

        Raises:
            OSError: the directory cannot be read or written, the disk is full, or another process holds the directory's
                lock for too long (``TimeoutError``). Nothing is left of the file.
        """
        path = self.path(digest)
        make_directory(self._directory)
        with contextlib.ExitStack() as stack:
            with self._locked() as lock:
                total = self._make_room(path, size_bytes, _noted_total(lock))
                if total is None:
                    return False
                os.pwrite(lock, b"%020d" % total, 0)
                name = f"{unfinished_name()}-{size_bytes}"
                hidden = stack.enter_context(moved_from(path, pafs.LocalFileSystem(), name, mode=self._mode))
            write(hidden)
            now = time.time_ns()
            os.utime(hidden, ns=(now, now))  # the kernel's own stamps are too coarse to order files by
            with self._locked():  # a concurrent directory scan could miss a file that is being moved
                stack.close()
        return True

    def save(self, digest: str, content: bytes) -> None:
        """Adds a file of bytes with their checksum, for `load`. If it cannot be kept (`keep`), only logs a warning."""
        content = _checksum(content) + content
        try:
            self.keep(digest, len(content), lambda path: Path(path).write_bytes(content))
        except OSError as error:
            _LOGGER.warning("%s could not be kept: %s", self.path(digest), error)

    def load(self, digest: str, read: Callable[[bytes], Value]) -> Value | None:
        """Returns ``read(bytes)`` for the bytes that were saved, and marks the file as used.

        Returns ``None`` if there is no such file, or if it is damaged: its checksum does not match, or ``read`` raises
        one of the errors that parsers raise (`UNREADABLE`).
        """
        path = self.path(digest)
        try:
            content = _read(path)
            if _checksum(content[_CHECKSUM_BYTES:]) != content[:_CHECKSUM_BYTES]:
                raise ValueError("checksum")
            value = read(content[_CHECKSUM_BYTES:])
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            what = "cannot be read" if access_failed(error) else "is damaged"
            _LOGGER.warning("%s: kept file %s (%s); making it again.", path, what, error)
            return None
        with contextlib.suppress(OSError):  # owned by another user, or removed in the meantime
            os.utime(path)
        return value

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Lets one thread at a time, in all processes, run such a block on this directory: `load`, change, `save`.

        Yields False, and logs a warning, if another process stays in its block for too long; otherwise yields True.
        """
        descriptor, is_alone = None, True
        try:
            with contextlib.suppress(OSError):  # a disk that is read-only: no other process changes anything
                make_directory(self._directory)
                descriptor = open_lock(self._directory, _ALONE)
            if descriptor is not None:
                try:
                    lock_file(descriptor, os.path.join(self._directory, _ALONE))
                except TimeoutError as error:
                    _LOGGER.warning("%s: nothing more is kept: %s.", self._directory, error)
                    is_alone = False
            yield is_alone
        finally:
            if descriptor is not None:
                release(descriptor)

    def clear(self) -> None:
        """Removes the files, and the directory if nothing else is in it."""
        try:
            names = os.listdir(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            return
        for name in names:
            if name in _LOCKS or self._name.fullmatch(name) or is_unfinished(name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(self._directory, name))
        with contextlib.suppress(OSError):  # other files are left alone
            os.rmdir(self._directory)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Locks the directory's lock file, which stores an upper bound on the total bytes of all files."""
        while True:
            lock = open_lock(self._directory, _LOCK)
            try:
                lock_file(lock, os.path.join(self._directory, _LOCK))  # without locks, limits hold approximately
                if not os.fstat(lock).st_nlink:  # `clear` removed it
                    continue
                yield lock
                return
            finally:
                release(lock)

    def _make_room(self, path: str, size_bytes: int, noted: int | None) -> int | None:
        """Removes files until one more fits. Returns the total bytes including it, or ``None`` if it cannot fit."""
        limit = math.inf if self._max_bytes is None else self._max_bytes
        most_files = math.inf if self._max_files is None else self._max_files
        if noted is not None and self._has_looked and self._max_files is None and noted + size_bytes <= limit:
            return noted + size_bytes
        total, files, found = self._look(path)
        self._has_looked = True
        total, files = total + size_bytes, files + 1
        if not self._spare_ns and total - sum(found_bytes for _, found_bytes, _ in found) > limit:
            return None
        more = len(found) // _MORE_SHARE if total > limit or files > most_files else 0
        newest_ns = time.time_ns() - self._spare_ns
        for used_ns, found_bytes, found_path in sorted(found):
            is_over = total > limit or files > most_files
            if used_ns > newest_ns or not (is_over or more):
                break
            more -= not is_over
            with contextlib.suppress(FileNotFoundError):
                os.unlink(found_path)
            total, files = total - found_bytes, files - 1
        return total

    def _look(self, replaced: str) -> tuple[int, int, list[tuple[int, int, str]]]:
        """Scans the directory. Returns total bytes, file count, and last use, bytes and path of each finished file.

        Removes what killed writers left. The file that is about to be replaced counts as the least recently used. If
        the time of a file is in the future, because the clock was set back since, it becomes the present.
        """
        total = files = 0
        now_ns = time.time_ns()
        copies = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                unfinished = is_unfinished(entry.name)
                if not unfinished and not self._name.fullmatch(entry.name):
                    continue
                with contextlib.suppress(OSError):  # removed in the meantime, or owned by another user
                    status = entry.stat()
                    size_bytes = status.st_size
                    if not unfinished:
                        used_ns = max(status.st_atime_ns, status.st_mtime_ns)
                        if used_ns > now_ns + MINUTE_NS:
                            with contextlib.suppress(OSError):  # of another user
                                os.utime(entry.path)
                        used_ns = 0 if entry.path == replaced else min(used_ns, now_ns)
                        copies.append((used_ns, size_bytes, entry.path))
                    else:
                        with abandoned(entry.path, now_ns - status.st_mtime_ns) as is_left:
                            if is_left:
                                os.unlink(entry.path)
                        if is_left:
                            continue
                        size_bytes = room_of(entry.name, size_bytes)
                    total, files = total + size_bytes, files + 1
        return total, files, copies


def _read(path: str) -> bytes:
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a pipe would wait for somebody to write to it
            raise ValueError("not a file")
        return file.read()


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_CHECKSUM_BYTES).digest()


def _noted_total(lock: int) -> int | None:
    with contextlib.suppress(ValueError):
        return int(os.pread(lock, 20, 0))
    return None
