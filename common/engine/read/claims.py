"""`Claims`: processes and threads agree on which of them fetches an entry that a shared cache is missing.

Without claims, loader workers that start an epoch together would each download the same row groups. With them, one
downloads while the others wait for the entry to appear in the cache.

A claim is a lock on one byte of a file, at an offset derived from the entry's name. For a cache on disk, the file is in
its directory. The lock belongs to an open file description (``F_OFD_SETLK``, see fcntl(2)), so it also excludes other
threads of the same process, and the kernel drops it when its holder is killed. Claims only save work: where such locks
are missing (macOS, some network file systems, read-only disks), everyone fetches.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator

from ...base.metrics.counters import waited_for_another
from ...base.platform.files import HAS_BYTE_LOCKS, UNLOCKED, WRITE_LOCKED, set_byte_lock
from ...base.process.locks import locked_within
from ...storage.file_cache import CLAIMS
from ...storage.whole_files import make_directory, open_lock

_LOGGER = logging.getLogger(__name__)
PATIENCE_S = 60.0
"""How long to wait for another reader's entry before fetching it as well, plus the time that a slow store needs."""
_SLOWEST_BYTES_PER_S = 1 << 20
_MOST_EXPIRED = 3
"""After this many waits without a result, a reader stops making claims."""


class Claims:
    """Claims on the entries of one cache. Thread-safe.

    Args:
        directory: the cache's directory, created when first needed; with ``file``, how warnings name the cache.
        file: the file whose bytes are locked, if it is not one in the directory. It must exist.
    """

    def __init__(self, directory: str, *, file: str | None = None) -> None:
        self._directory = directory
        self._file = file
        self._works = HAS_BYTE_LOCKS
        self._expired = 0

    @contextlib.contextmanager
    def claim(self, digest: str, size_bytes: int = 0, *, patience_s: float = PATIENCE_S) -> Iterator[bool]:
        """Claims an entry while the block runs, or waits until another reader has released its claim.

        Yields whether it waited. If so, the block holds no claim: look for the entry again, and if it is still missing
        (the other reader failed, or found no room for it), fetch it.

        Args:
            digest: the hexadecimal name of the entry.
            size_bytes: how much a reader fetches for it, which decides how much longer than ``patience_s`` to wait.
        """
        descriptor = self._opened()
        if descriptor is None:
            yield False
            return
        start = int(digest[:15], 16)
        is_held = False
        try:
            is_held = self._lock(descriptor, start)
            if not is_held:
                self._wait(descriptor, start, patience_s + size_bytes / _SLOWEST_BYTES_PER_S)
            yield self._works and not is_held
        finally:
            if is_held:  # closing is not enough: a process forked in the meantime has this description, too
                with contextlib.suppress(OSError):
                    set_byte_lock(descriptor, UNLOCKED, start)
            os.close(descriptor)

    def _opened(self) -> int | None:
        if not self._works:
            return None
        try:
            if self._file is not None:
                return os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
            make_directory(self._directory)
            return open_lock(self._directory, CLAIMS)
        except OSError:
            return None

    def _wait(self, descriptor: int, start: int, patience_s: float) -> None:
        begin = time.monotonic()
        if self._lock(descriptor, start, patience_s):
            with contextlib.suppress(OSError):
                set_byte_lock(descriptor, UNLOCKED, start)
            waited_for_another(time.monotonic() - begin)
            return
        self._expired += 1
        _LOGGER.warning(
            "cache %s: another process has been fetching an entry for %.0f s; fetching it here, too.",
            self._directory,
            patience_s,
        )
        if self._expired >= _MOST_EXPIRED:
            self._works = False

    def _lock(self, descriptor: int, start: int, patience_s: float = 0.0) -> bool:
        """Returns whether the byte could be locked in this time. Where locks do not work, it counts as locked."""
        try:
            return locked_within(lambda: set_byte_lock(descriptor, WRITE_LOCKED, start), patience_s)
        except OSError:
            self._works = False
            return True
