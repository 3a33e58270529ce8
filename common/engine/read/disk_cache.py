"""`DiskCache`: a cache of fetched row groups on local disk, shared by processes and kept between runs.

It stores a table under a key that fully identifies what was fetched (file version, row group, columns), and maps it
into memory to return it. Entries appear completely or not at all. An entry that is damaged, truncated, foreign or of
another key counts as missing. One reader fetches a missing entry, and the others wait for it (`claims`). A file that
is evicted while mapped stays readable for its holders (POSIX `unlink`).

Two timestamps of a file matter. The modification time shows whether its content has been verified. The access time,
which `get` sets, is the time of last use.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import stat
import time
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

import pyarrow as pa

from ...errors import DatasetError
from ...layout.filesystem import local_path
from ...layout.kept import KeptFiles, is_in_cache
from .cache_entry import entry_bytes, map_entry, open_entry, write_entry
from .claims import Claims

_LOGGER = logging.getLogger(__name__)
_SUFFIX = ".table"
_TOUCH_NS = 60 * 10**9
_MOST_REMEMBERED = 200_000

_Version = tuple[int, int, int]
_Value = TypeVar("_Value")
_verified: dict[str, _Version] = {}
"""The version of each entry whose checksum this process has verified, by path."""
_MOST_REFUSED = 3
"""After so many entries without room, readers no longer wait for each other: they would wait in vain."""
_warned: set[str] = set()
"""Directories that this process has warned about. It outlives the cache objects, which are created for every epoch."""


class DiskCache:
    """A directory of tables. Thread-safe; any number of objects and processes may share one directory.

    Args:
        directory: the directory of the entries, created when first needed and never removed. Other files in it are left
            alone.
        max_bytes: a limit for the entries of all processes together, including unfinished ones. The least recently used
            entries are removed to make room. ``None`` for no limit.
    """

    def __init__(self, directory: str, max_bytes: int | None) -> None:
        self._directory = local_path(directory)
        mode = 0o600 if is_in_cache(self._directory) else 0o666  # users may share a directory
        self._files = KeptFiles(self._directory, _SUFFIX, max_bytes=max_bytes, mode=mode)
        self._claims = Claims(self._directory)
        self._touched: dict[str, int] = {}
        self._is_writable = True
        self._refused = 0  # the latest entries in a row for which there was no room

    def get(self, key: str) -> pa.Table | None:
        """Returns the table stored under the key, or ``None``. Its columns point into the mapped file."""
        path = self._files.path(_digest(key))
        try:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for somebody to write to it
                return None
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
            _LOGGER.warning("cache entry %s is damaged: %s It will be removed and fetched again.", path, error)
            with contextlib.suppress(OSError):
                os.unlink(path)
            return None
        _remember(_verified, path, version)
        self._touch(path, status.st_mtime_ns)
        return table

    def claim(self, key: str, size_bytes: int = 0) -> AbstractContextManager[bool]:
        """Claims a missing entry while the block runs. Yields whether another reader had claimed it; see `Claims`."""
        if not self._is_writable or self._refused >= _MOST_REFUSED:
            return contextlib.nullcontext(False)
        return self._claims.claim(_digest(key), size_bytes)

    def put(self, key: str, table: pa.Table) -> None:
        """Stores a table if there is room for it. If the disk fails, logs a warning and stops storing tables."""
        if not self._is_writable:
            return
        try:
            has_room = self._files.keep(
                _digest(key), entry_bytes(key, table), partial(write_entry, key=key, table=table)
            )
            self._refused = 0 if has_room else self._refused + 1
        except (OSError, pa.ArrowException) as error:
            self._is_writable = False
            self._warn_once("cannot be written", error)

    def _touch(self, path: str, mtime_ns: int) -> None:
        now = time.time_ns()
        if now - self._touched.get(path, 0) > _TOUCH_NS:
            _remember(self._touched, path, now)
            with contextlib.suppress(OSError):  # evicted in the meantime, or the disk is mounted read-only
                os.utime(path, ns=(now, mtime_ns))

    def _warn_once(self, what: str, error: Exception) -> None:
        if self._directory not in _warned:
            _warned.add(self._directory)
            _LOGGER.warning("cache %s %s (%s); continuing without it.", self._directory, what, error)


def clear(directory: str) -> None:
    """Removes the entries of a directory, and the directory if nothing else is in it."""
    KeptFiles(local_path(directory), _SUFFIX).clear()


def _digest(key: str) -> str:
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _remember(memory: dict[str, _Value], key: str, value: _Value) -> None:
    """Adds an entry to a dictionary, which is cleared first if it has reached its limit."""
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
    memory[key] = value
