"""`DiskCache`: a cache of fetched row groups on local disk, shared by processes and kept between runs.

It stores a table under a key that fully identifies what was fetched (file version, row group, columns). Entries appear
completely or not at all. An entry that is damaged, truncated, foreign or of another key counts as missing. One reader
fetches a missing entry, and the others wait for it (`claims`). Entries are read into memory, so a table stays valid
whatever happens to its file.

The access time of a file, which `get` sets, is the time of last use. The other times, the size and the inode show
whether the content has been verified. Setting the access time changes one of them (``ctime``), so it is rarely set.
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

from ...base.errors import DatasetError
from ...storage.file_cache import FileCache
from ...storage.filesystem import local_path
from ...storage.whole_files import is_in_cache
from .cache_entry import entry_bytes, open_entry, read_entry, write_entry
from .claims import Claims

_LOGGER = logging.getLogger(__name__)
_SUFFIX = ".table"
_TOUCH_NS = 600 * 10**9
_MOST_REMEMBERED = 200_000
_Version = tuple[int, ...]
_Value = TypeVar("_Value")
_verified: dict[str, _Version] = {}
"""The version of each entry whose checksum this process has verified, by path."""
_MOST_REFUSED = 3
"""After this many entries that did not fit, readers stop waiting for each other: no entry would come."""
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
        self._files = FileCache(self._directory, _SUFFIX, max_bytes=max_bytes, mode=mode)
        self._claims = Claims(self._directory)
        self._is_writable = True
        self._refused = 0  # how many of the latest entries in a row did not fit

    def get(self, key: str) -> pa.Table | None:
        """Returns the table stored under the key, or ``None``."""
        path = self._files.path(_digest(key))
        try:
            with open(path, "rb", buffering=0, opener=_without_waiting) as file:
                return self._read(path, file.fileno(), key)
        except FileNotFoundError:
            return None
        except DatasetError as error:
            _LOGGER.warning("cache entry %s is damaged: %s It will be removed and fetched again.", path, error)
            with contextlib.suppress(OSError):
                os.unlink(path)
        except (OSError, MemoryError, pa.ArrowException) as error:
            self._warn_once("cannot be read", error)
        return None

    def _read(self, path: str, descriptor: int, key: str) -> pa.Table | None:
        """Returns the table of an open entry, or ``None`` if it is not a file. Raises `DatasetError` for damage."""
        before = _touched(descriptor)
        if not stat.S_ISREG(before.st_mode):
            return None
        content = read_entry(descriptor, before.st_size)
        is_verified = _version(before) == _version(os.fstat(descriptor))  # it did not change meanwhile
        table = open_entry(content, key, verify=not is_verified or _verified.get(path) != _version(before))
        if is_verified:
            _remember(_verified, path, _version(before))
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

    def _warn_once(self, what: str, error: Exception) -> None:
        if self._directory not in _warned:
            _warned.add(self._directory)
            _LOGGER.warning("cache %s %s (%s); continuing without it.", self._directory, what, error)


def clear(directory: str) -> None:
    """Removes the entries of a directory, and the directory if nothing else is in it."""
    FileCache(local_path(directory), _SUFFIX).clear()


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a pipe would wait for somebody to write to it


def _touched(descriptor: int) -> os.stat_result:
    """Marks an open entry as used, unless it was marked recently. Returns its status after that."""
    status, now = os.fstat(descriptor), time.time_ns()
    is_due = status.st_atime_ns <= status.st_mtime_ns or now - status.st_atime_ns > _TOUCH_NS
    if is_due and stat.S_ISREG(status.st_mode):
        with contextlib.suppress(OSError):  # evicted in the meantime, another user's, or the disk is read-only
            os.utime(descriptor, ns=(now, status.st_mtime_ns))
            return os.fstat(descriptor)
    return status


def _version(status: os.stat_result) -> _Version:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _digest(key: str) -> str:
    return hashlib.blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _remember(memory: dict[str, _Value], key: str, value: _Value) -> None:
    """Adds an entry to a dictionary, which is cleared first if it has reached its limit."""
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
    memory[key] = value
