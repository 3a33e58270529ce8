"""Files and directories that appear complete or not at all.

- A file (or directory) is written under a hidden name next to its final one, ``.parquetry-<32 hex digits>``, and then
  moved. If the directory has a limit, the name ends in ``-<bytes>``, the space reserved for the file.
- On a local disk, the writer holds a lock on the hidden file. A killed writer loses its lock, so the next writer in the
  directory removes the leftovers. Without locks (object stores), they are removed after a day without writes.
- Directories of kept files in the user's cache are for this user only. Others get the permissions of the umask, because
  users may share them. Only users who may write to a directory can open its lock files, and so hold the locks.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import posixpath
import re
import stat
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import platformdirs
import pyarrow as pa
import pyarrow.fs as pafs

_UNFINISHED = re.compile(r"\.parquetry-[0-9a-f]{32}(?:-(?P<bytes>\d+))?")
MOVING = "moving"
"""A file in the hidden directory of a copy that moves its files one by one. Readers refuse the directory above."""
_ATTEMPTS = 10
MINUTE_NS = 60 * 10**9
_DAY_NS = 24 * 3_600 * 10**9
_REFUSED = (OSError, NotImplementedError, pa.ArrowException)


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
    with moved_from(path, filesystem, unfinished_name(), mode=0o666) as hidden:
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
            quiet_ns = _quiet_ns(filesystem, info)
            with contextlib.ExitStack() as stack:
                is_left = quiet_ns > _DAY_NS
                if is_local:
                    is_left = stack.enter_context(abandoned(path, quiet_ns, is_directory=is_directory))
                if is_left:
                    filesystem.delete_dir(path) if is_directory else filesystem.delete_file(path)


@contextlib.contextmanager
def moved_from(path: str, filesystem: pafs.FileSystem, name: str, *, mode: int) -> Iterator[str]:
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


def is_unfinished(name: str) -> bool:
    return _UNFINISHED.fullmatch(name) is not None


def room_of(name: str, size_bytes: int) -> int:
    """The space reserved for an unfinished file."""
    ours = _UNFINISHED.fullmatch(name)
    return max(size_bytes, int(ours["bytes"] or 0)) if ours else 0


@contextlib.contextmanager
def abandoned(path: str, quiet_ns: int, *, is_directory: bool = False) -> Iterator[bool]:
    """Yields whether the writer of an unfinished local file or directory is gone. Nobody can claim it meanwhile."""
    if quiet_ns < MINUTE_NS and not is_directory:  # might not be locked yet
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
    infos = [info]
    if info.type == pafs.FileType.Directory:
        infos += filesystem.get_file_info(pafs.FileSelector(info.path, recursive=True))
    written = [each.mtime_ns for each in infos if each.mtime_ns is not None]
    return time.time_ns() - max(written) if written else 0


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

    Only users who may write to the directory can open it. Anyone else could take the lock and never release it.

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
