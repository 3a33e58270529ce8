"""`DiskCache`: fetched row groups on local disk, read back by mapping; shared by processes, kept between runs.

In: a key that names what was fetched in full (file version, row group, columns), and its table. Out: the same table,
or nothing. Always holds: an entry appears whole or not at all, and one that is damaged, truncated, foreign or of
another key counts as missing. Two processes that keep the same entry replace each other's equal file, and a file that
is evicted while mapped stays readable for its holders (POSIX `unlink`).

Two times of a file have a meaning: the modification time tells whether its content was verified, and the access time,
which `get` sets, tells when it was last used.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import time
from functools import partial
from typing import TypeVar

import pyarrow as pa

from ...errors import DatasetError
from ...layout.filesystem import local_path
from ...layout.kept import KeptFiles
from .cache_entry import entry_bytes, map_entry, open_entry, write_entry

_LOGGER = logging.getLogger(__name__)
_SUFFIX = ".table"
_TOUCH_NS = 60 * 10**9
_MOST_REMEMBERED = 200_000

_Version = tuple[int, int, int]
_Value = TypeVar("_Value")
_verified: dict[str, _Version] = {}
"""The version of each entry whose checksum this process has compared, by path."""
_warned: set[str] = set()
"""Directories that this process has warned about; a new cache object is made for every epoch."""


class DiskCache:
    """A directory of tables; thread-safe, and any number of objects and processes may use one directory.

    Args:
        directory: where the entries lie; made when it is first needed, and never removed. Other files in it are left
            alone.
        max_bytes: the entries of all processes together never grow larger, those that are being written included; the
            least recently used ones make room. ``None`` for no limit.
    """

    def __init__(self, directory: str, max_bytes: int | None) -> None:
        self._directory = local_path(directory)
        self._files = KeptFiles(self._directory, _SUFFIX, max_bytes=max_bytes, mode=0o666)
        self._touched: dict[str, int] = {}
        self._is_writable = True

    def get(self, key: str) -> pa.Table | None:
        """The table kept under the key, or ``None``; its columns point into the mapped file."""
        path = self._files.path(_digest(key))
        try:
            status = os.stat(path)
            mapped = map_entry(path)
        except FileNotFoundError:
            return None
        except (OSError, pa.ArrowException) as error:
            self._warn_once("cannot be read", error)
            return None
        version = (status.st_ino, status.st_size, status.st_mtime_ns)
        try:
            table = open_entry(mapped, key, verify=_verified.get(path) != version)
        except DatasetError as error:
            _LOGGER.warning("cache entry %s is damaged: %s It is removed and will be fetched again.", path, error)
            with contextlib.suppress(OSError):
                os.unlink(path)
            return None
        _remember(_verified, path, version)
        self._touch(path, status.st_mtime_ns)
        return table

    def put(self, key: str, table: pa.Table) -> None:
        """Keeps a table, unless there is no room for it; a disk that refuses only costs the speed of a cache."""
        if not self._is_writable:
            return
        try:
            self._files.keep(_digest(key), entry_bytes(key, table), partial(write_entry, key=key, table=table))
        except (OSError, pa.ArrowException) as error:
            self._is_writable = False
            self._warn_once("cannot be written", error)

    def _touch(self, path: str, mtime_ns: int) -> None:
        now = time.time_ns()
        if now - self._touched.get(path, 0) > _TOUCH_NS:
            _remember(self._touched, path, now)
            with contextlib.suppress(OSError):  # evicted meanwhile, or a disk mounted read-only
                os.utime(path, ns=(now, mtime_ns))

    def _warn_once(self, what: str, error: Exception) -> None:
        if self._directory not in _warned:
            _warned.add(self._directory)
            _LOGGER.warning("cache %s %s (%s); continuing without it.", self._directory, what, error)


def clear(directory: str) -> None:
    """Removes the entries of a directory, and the directory itself if nothing else is in it."""
    KeptFiles(local_path(directory), _SUFFIX).clear()


def _digest(key: str) -> str:
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _remember(memory: dict[str, _Value], key: str, value: _Value) -> None:
    """Adds to a memory that may forget everything, but must not grow for ever."""
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
    memory[key] = value
