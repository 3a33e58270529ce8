"""`DiskCache`: fetched row groups on local disk, read back by mapping; shared by processes, kept between runs.

In: a key that names what was fetched in full (file version, row group, columns), and its table. Out: the same table,
or nothing. Always holds: an entry appears whole or not at all, and one that is damaged, truncated, foreign or of
another key counts as missing. No locks are shared: two processes that keep the same entry replace each other's equal
file, and a file that is evicted while mapped stays readable for its holders (POSIX `unlink`).

Two times of a file have a meaning: the modification time tells whether its content was verified, and the access time,
which `get` sets, tells when it was last used.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import logging
import os
import re
import secrets
import threading
import time
from typing import TypeVar

import pyarrow as pa

from ...errors import DatasetError
from ...layout.filesystem import local_path
from .cache_entry import entry_bytes, map_entry, open_entry, write_entry

_LOGGER = logging.getLogger(__name__)
_ENTRY = re.compile(r"[0-9a-f]{32}\.table")
_TEMPORARY = ".new-"
_STALE_NS = 3_600 * 10**9  # no writer takes an hour over one row group
_TOUCH_NS = 60 * 10**9
_RESCAN_SHARE = 64  # look what other processes added each time this one has added 1/64 of the limit
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
        max_bytes: the entries together never grow larger, the least recently used ones make room; ``None`` for no
            limit. Entries that are being written, and for a moment those of other processes, come on top.
    """

    def __init__(self, directory: str, max_bytes: int | None) -> None:
        self._directory = local_path(directory)
        self._max_bytes = max_bytes
        self._residents = Residents(self._directory)
        self._touched: dict[str, int] = {}
        self._lock = threading.Lock()
        self._is_writable = True

    def get(self, key: str) -> pa.Table | None:
        """The table kept under the key, or ``None``; its columns point into the mapped file."""
        name = _entry_name(key)
        path = os.path.join(self._directory, name)
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
        self._touch(name, path, status.st_mtime_ns)
        return table

    def put(self, key: str, table: pa.Table) -> None:
        """Keeps a table, unless it alone exceeds the limit; a disk that refuses only costs the speed of a cache."""
        if not self._is_writable:
            return
        try:
            size_bytes = entry_bytes(key, table)
            if self._max_bytes is not None and size_bytes > self._max_bytes:
                _LOGGER.debug("a row group of %d bytes exceeds the whole cache %s", size_bytes, self._directory)
                return
            self._write(_entry_name(key), key, table, size_bytes)
        except (OSError, pa.ArrowException) as error:
            self._is_writable = False
            self._warn_once("cannot be written", error)

    def _write(self, name: str, key: str, table: pa.Table, size_bytes: int) -> None:
        os.makedirs(self._directory, exist_ok=True)
        temporary = os.path.join(self._directory, f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}")
        try:
            write_entry(temporary, key, table)
            now = time.time_ns()
            os.utime(temporary, ns=(now, now))  # the kernel's own stamps are too coarse to order entries by
            with self._lock:
                self._residents.make_room(name, size_bytes, self._max_bytes)
                os.replace(temporary, os.path.join(self._directory, name))
                self._residents.add(name, size_bytes, now)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def _touch(self, name: str, path: str, mtime_ns: int) -> None:
        now = time.time_ns()
        if now - self._touched.get(name, 0) > _TOUCH_NS:
            _remember(self._touched, name, now)
            with contextlib.suppress(OSError):  # evicted meanwhile, or a disk mounted read-only
                os.utime(path, ns=(now, mtime_ns))

    def _warn_once(self, what: str, error: Exception) -> None:
        if self._directory not in _warned:
            _warned.add(self._directory)
            _LOGGER.warning("cache %s %s (%s); continuing without it.", self._directory, what, error)


class Residents:
    """The entries of a cache directory as far as this process knows them, the least recently used first.

    Not thread-safe. What other processes do is learnt when the directory is scanned, and when an entry is about to go.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._sizes: dict[str, int] = {}
        self._queue: list[tuple[int, str]] = []
        self._total_bytes = 0
        self._added_bytes: int | None = None  # since the last scan; None before the first

    def add(self, name: str, size_bytes: int, used_ns: int) -> None:
        """Counts an entry that this process wrote."""
        self._forget(name)
        self._sizes[name] = size_bytes
        self._total_bytes += size_bytes
        self._added_bytes = (self._added_bytes or 0) + size_bytes
        heapq.heappush(self._queue, (used_ns, name))

    def make_room(self, name: str, size_bytes: int, max_bytes: int | None) -> None:
        """Removes entries until one of ``size_bytes`` fits in place of the entry ``name``.

        Raises:
            OSError: the directory cannot be read, or an entry cannot be removed.
        """
        if self._added_bytes is None or (max_bytes is not None and self._added_bytes > max_bytes // _RESCAN_SHARE):
            self._scan()
        self._forget(name)
        while max_bytes is not None and self._total_bytes + size_bytes > max_bytes and self._queue:
            used_ns, victim = heapq.heappop(self._queue)
            if victim not in self._sizes:
                continue
            path = os.path.join(self._directory, victim)
            with contextlib.suppress(FileNotFoundError):  # another process was faster
                last_use = _last_use(os.stat(path))
                if last_use > used_ns:
                    heapq.heappush(self._queue, (last_use, victim))
                    continue
                os.unlink(path)
            self._forget(victim)

    def _forget(self, name: str) -> None:
        self._total_bytes -= self._sizes.pop(name, 0)

    def _scan(self) -> None:
        self._sizes.clear()
        self._queue.clear()
        now = time.time_ns()
        with os.scandir(self._directory) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):  # gone meanwhile, or somebody else's
                    if _ENTRY.fullmatch(entry.name):
                        status = entry.stat()
                        self._sizes[entry.name] = status.st_size
                        self._queue.append((_last_use(status), entry.name))
                    elif entry.name.startswith(_TEMPORARY) and now - entry.stat().st_mtime_ns > _STALE_NS:
                        os.unlink(entry.path)
        heapq.heapify(self._queue)
        self._total_bytes = sum(self._sizes.values())
        self._added_bytes = 0


def clear(directory: str) -> None:
    """Removes the entries of a directory, and the directory itself if nothing else is in it."""
    path = local_path(directory)
    if not os.path.isdir(path):
        return
    for name in os.listdir(path):
        if _ENTRY.fullmatch(name) or name.startswith(_TEMPORARY):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(path, name))
    with contextlib.suppress(OSError):  # other files are left alone
        os.rmdir(path)


def _entry_name(key: str) -> str:
    return f"{hashlib.blake2b(key.encode('utf-8', 'surrogateescape'), digest_size=16).hexdigest()}.table"


def _last_use(status: os.stat_result) -> int:
    return max(status.st_atime_ns, status.st_mtime_ns)


def _remember(memory: dict[str, _Value], key: str, value: _Value) -> None:
    """Adds to a memory that may forget everything, but must not grow for ever."""
    if len(memory) >= _MOST_REMEMBERED:
        memory.clear()
    memory[key] = value
