"""Directories in which parquetry keeps files, and their lock files.

Directories in the user's cache are for this user only. Others get the permissions of the umask, because users may share
them. Only users who may write to a directory can open its lock files, and so hold the locks.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import platformdirs


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
