"""Files that appear complete or not at all, and cache directories of such files with a size limit.

Every file that parquetry keeps follows these rules:

- A file (or directory) is written under a hidden name next to its final one, ``.parquetry-<32 hex digits>``, and then
  moved. If the directory has a limit, the name ends in ``-<bytes>``, the space reserved for the file.
- On a local disk, the writer holds a lock on the hidden file. A killed writer loses its lock, so the next writer in the
  directory removes the leftovers. Without locks (object stores), they are removed after a day without writes.
- The directory of a `FileCache` has a lock file. Space is freed and reserved under that lock, so the limit holds across
  processes and includes unfinished files. If somebody holds the lock for too long, nothing is kept (`locks`).
- Directories in the user's cache are for this user only. Others get the permissions that the umask gives them, because
  users may share them. Only those who may write to a directory can open its lock files, and so hold them.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import math
import os
import posixpath
import re
import stat
import struct
import time
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import platformdirs
import pyarrow as pa
import pyarrow.fs as pafs

from ..process.locks import lock_file

Value = TypeVar("Value")

_LOGGER = logging.getLogger(__name__)
_UNFINISHED = re.compile(r"\.parquetry-[0-9a-f]{32}(?:-(?P<bytes>\d+))?")
_UNFINISHED_BEFORE = ".new-"  # the prefix that earlier versions used in directories of kept files
_LOCK = ".lock"
_ALONE = ".alone"
COPY = ".parquetry-copy"
"""The hidden directory of `copy` and `convert` in their target."""
MOVING = "moving"
"""A file in the hidden directory of a writer that moves its files one by one. Readers refuse the directory above."""
CLAIMS = ".claims"
"""The lock file by which readers agree on who makes a missing file."""
_SUFFIXES = {"selections": ".npz", "bad_rows": ".json", "vocabularies": ".arrow"}
_MOST_FILES = 256
_LOCKS = (_LOCK, _ALONE, CLAIMS)
_ATTEMPTS = 10
_MINUTE_NS = 60 * 10**9
_DAY_NS = 24 * 3_600 * 10**9
_CHECKSUM_BYTES = 16
_MORE_SHARE = 64  # removes 1/64 more files than necessary, so that not every new file needs a scan of the directory
_REFUSED = (OSError, NotImplementedError, pa.ArrowException)
UNREADABLE = (
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError, EOFError, RuntimeError, OSError),
    *(pa.ArrowException, struct.error, zipfile.BadZipFile, zlib.error),
)
"""The exceptions that parsers raise for damaged bytes. A damaged kept file is made again."""


def cache_root() -> Path:
    """The directory for data kept between runs: ``$PARQUETRY_CACHE_DIR``, or parquetry's folder in the user's cache."""
    chosen = os.environ.get("PARQUETRY_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("parquetry"))


def is_in_cache(path: str) -> bool:
    """Whether a path is in the `cache_root`, whose files and directories are for this user only."""
    return Path(os.path.abspath(cache_root())) in (Path(os.path.abspath(path)), *Path(os.path.abspath(path)).parents)


def make_directory(path: str) -> None:
    """Creates a directory and those above it, unless they exist. In the user's cache, only the user may enter them.

    Raises:
        OSError: it cannot be created.
    """
    mode = 0o700 if is_in_cache(path) else 0o777
    missing = [path]
    while (above := os.path.dirname(missing[-1])) and not os.path.isdir(above):
        missing.append(above)
    for each in reversed(missing):
        try:
            os.mkdir(each, mode)
        except FileExistsError:
            if not os.path.isdir(each):
                raise


def open_lock(directory: str, name: str) -> int:
    """Opens a lock file of a directory, which is created if missing.

    Those who may write to the directory may open it. Others, who could lock it and keep it, may not.

    Raises:
        OSError: it cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(os.path.join(directory, name), flags, 0o600)
    with contextlib.suppress(OSError):  # another user created it
        writers = os.stat(directory).st_mode & 0o222
        mode = 0o600 | writers | writers << 1
        if stat.S_IMODE(os.fstat(descriptor).st_mode) != mode:
            os.fchmod(descriptor, mode)
    return descriptor


def unfinished_name() -> str:
    """A new hidden name for a file or directory that is being written."""
    return f".parquetry-{uuid.uuid4().hex}"


@contextlib.contextmanager
def whole_file(path: str, filesystem: pafs.FileSystem | None = None) -> Iterator[str]:
    """Yields a hidden path to write to, and renames the file to ``path`` unless the block raises.

    An older file is replaced.

    Args:
        filesystem: the file system of the path; ``None`` for local files.
    """
    filesystem = filesystem or pafs.LocalFileSystem()
    remove_leftovers(filesystem, posixpath.dirname(path))
    with _moved(path, filesystem, unfinished_name(), mode=0o666) as hidden:
        yield hidden


def claim(descriptor: int) -> int:
    """Locks an open file or directory that is being written, until the descriptor is closed or the process ends."""
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def new_directory(root: str) -> tuple[str, int]:
    """Creates a hidden directory and claims it. Returns its path and the descriptor for `release`.

    Raises:
        OSError: it cannot be created.
    """
    for _ in range(_ATTEMPTS):
        path = os.path.join(root, unfinished_name())
        os.mkdir(path)
        try:
            owner = os.open(path, os.O_RDONLY)
        except FileNotFoundError:  # another writer took it for a leftover
            continue
        try:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # another writer is about to remove it
            os.close(owner)
            continue
        except OSError:  # a file system without locks
            return path, owner
        if os.path.exists(path):
            return path, owner
        os.close(owner)
    raise FileNotFoundError(errno.ENOENT, "other writers remove each new directory", root)


def release(descriptor: int) -> None:
    """Unlocks and closes a descriptor. Closing alone is not enough: a forked process would still hold the lock."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def remove_leftovers(filesystem: pafs.FileSystem, directory: str) -> None:
    """Removes what killed writers left in a directory. Ignores errors of the file system."""
    with contextlib.suppress(*_REFUSED):
        is_local = isinstance(filesystem, pafs.LocalFileSystem)
        for info in filesystem.get_file_info(pafs.FileSelector(directory, allow_not_found=True)):
            path = info.path.rstrip("/")
            if not _UNFINISHED.fullmatch(posixpath.basename(path)):
                continue
            is_directory = info.type == pafs.FileType.Directory
            if is_directory and filesystem.get_file_info(posixpath.join(path, MOVING)).type == pafs.FileType.File:
                continue  # otherwise readers would take what was moved for all
            quiet_ns = _quiet_ns(filesystem, info)
            with contextlib.ExitStack() as stack:
                is_left = quiet_ns > _DAY_NS
                if is_local:
                    is_left = stack.enter_context(_abandoned(path, quiet_ns, is_directory=is_directory))
                if is_left:
                    filesystem.delete_dir(path) if is_directory else filesystem.delete_file(path)


def user_cache(kind: str) -> FileCache:
    """Returns the cache of one kind of files in the user's cache directory, of which the oldest beyond 256 are removed.

    Args:
        kind: ``"selections"``, ``"bad_rows"`` or ``"vocabularies"``.
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
                hidden = stack.enter_context(_moved(path, pafs.LocalFileSystem(), name, mode=self._mode))
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
            _LOGGER.warning("%s: kept file is damaged (%s); making it again.", path, error)
            return None
        with contextlib.suppress(OSError):  # owned by another user, or removed in the meantime
            os.utime(path)
        return value

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Excludes other threads and processes from such blocks on this directory: for `load`, a change, and `save`.

        Yields whether it does. It does not if another process is in such a block for too long; a warning is logged.
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
        if not os.path.isdir(self._directory):
            return
        for name in os.listdir(self._directory):
            if name in _LOCKS or self._name.fullmatch(name) or _is_unfinished(name):
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
        found = []
        with os.scandir(self._directory) as entries:
            for entry in entries:
                is_unfinished = _is_unfinished(entry.name)
                if not is_unfinished and not self._name.fullmatch(entry.name):
                    continue
                with contextlib.suppress(OSError):  # removed in the meantime, or owned by another user
                    status = entry.stat()
                    size_bytes = status.st_size
                    if not is_unfinished:
                        used_ns = max(status.st_atime_ns, status.st_mtime_ns)
                        if used_ns > now_ns + _MINUTE_NS:
                            with contextlib.suppress(OSError):  # of another user
                                os.utime(entry.path)
                        used_ns = 0 if entry.path == replaced else min(used_ns, now_ns)
                        found.append((used_ns, size_bytes, entry.path))
                    else:
                        with _abandoned(entry.path, now_ns - status.st_mtime_ns) as is_left:
                            if is_left:
                                os.unlink(entry.path)
                        if is_left:
                            continue
                        size_bytes = _room_of(entry.name, size_bytes)
                    total, files = total + size_bytes, files + 1
        return total, files, found


def _read(path: str) -> bytes:
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a pipe would wait for somebody to write to it
            raise ValueError("not a file")
        return file.read()


def _checksum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_CHECKSUM_BYTES).digest()


@contextlib.contextmanager
def _moved(path: str, filesystem: pafs.FileSystem, name: str, *, mode: int) -> Iterator[str]:
    """Yields a hidden path. The file there is moved to ``path`` if the block succeeds, and removed otherwise."""
    hidden = posixpath.join(posixpath.dirname(path), name)
    owner = None
    if isinstance(filesystem, pafs.LocalFileSystem):
        owner = claim(os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
    try:
        yield hidden
        filesystem.move(hidden, path)
    except BaseException:
        with contextlib.suppress(*_REFUSED):
            filesystem.delete_file(hidden)
        raise
    finally:
        if owner is not None:
            release(owner)


def _is_unfinished(name: str) -> bool:
    return _UNFINISHED.fullmatch(name) is not None or name.startswith(_UNFINISHED_BEFORE)


def _room_of(name: str, size_bytes: int) -> int:
    """The space reserved for an unfinished file. Earlier versions did not count theirs."""
    ours = _UNFINISHED.fullmatch(name)
    return max(size_bytes, int(ours["bytes"] or 0)) if ours else 0


@contextlib.contextmanager
def _abandoned(path: str, quiet_ns: int, *, is_directory: bool = False) -> Iterator[bool]:
    """Yields whether the writer of an unfinished local file or directory is gone. Nobody can claim it meanwhile."""
    if quiet_ns < _MINUTE_NS and not is_directory:  # might not be locked yet
        yield False
        return
    try:
        owner = os.open(path, os.O_RDONLY if is_directory else os.O_RDWR)
    except OSError:  # removed, or owned by another user
        yield False
        return
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_left = True
    except BlockingIOError:
        is_left = False
    except OSError:  # a file system without locks
        is_left = quiet_ns > _DAY_NS
    try:
        yield is_left
    finally:
        release(owner)


def _quiet_ns(filesystem: pafs.FileSystem, info: pafs.FileInfo) -> int:
    """The time since a file, or anything below a directory, was last written; 0 if unknown."""
    found = [info]
    if info.type == pafs.FileType.Directory:
        found += filesystem.get_file_info(pafs.FileSelector(info.path, recursive=True))
    written = [each.mtime_ns for each in found if each.mtime_ns is not None]
    return time.time_ns() - max(written) if written else 0


def _noted_total(lock: int) -> int | None:
    with contextlib.suppress(ValueError):
        return int(os.pread(lock, 20, 0))
    return None
