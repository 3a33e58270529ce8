"""`PassedPages`: which pages of files passed their check, in memory that all workers of a loader share.

It is a table of hashes without a lock: a processor writes a word at once. If two processes write to one place, or the
table is full, an entry is lost, and its page is checked again.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...base.platform.memory_file import is_memory, memory_file, shared_path

_NAME = "pages"
_ROW_BITS = 17
_SHAPE = (1 << _ROW_BITS, 8)  # an entry may be anywhere in its row, which is one cache line
_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2**64 divided by the golden ratio: the pages of a chunk are far apart


class PassedPages:
    """A set of pages. Thread-safe. A forked process keeps the set, and shares it if the parent had called `share`."""

    def __init__(self) -> None:
        self._words = np.zeros(_SHAPE, np.uint64)  # 0 = free
        self._path: str | None = None

    def share(self) -> str | None:
        """Returns a path for `join` in other processes, while this one lives; ``None`` if the system forbids it."""
        if self._path is None:
            with contextlib.suppress(OSError):
                descriptor = memory_file(_NAME, self._words.nbytes)
                self._path = shared_path(descriptor)
                self._map(descriptor)
        return self._path

    def join(self, path: str | None) -> None:
        """Uses the set of another process from now on, if it is there."""
        if path in (None, self._path):
            return
        with contextlib.suppress(OSError, ValueError), open(path, "r+b") as file:
            if is_memory(shared_path(file.fileno()), _NAME):
                self._map(file.fileno())
                self._path = path

    def contains(self, keys: np.ndarray) -> np.ndarray:
        """Returns for each key of `page_keys` whether its page is in the set; bool."""
        matches: np.ndarray = np.any(self._words[_rows(keys)] == keys[:, None], axis=1)
        return matches

    def add(self, key: np.uint64) -> None:
        """Adds a page by its key."""
        row = self._words[_rows(key)]
        free = np.flatnonzero(row == 0)
        row[free[0] if len(free) else int(key) // 2 % len(row)] = key

    def _map(self, descriptor: int) -> None:
        known = self._words[self._words != 0]
        self._words = np.frombuffer(mmap.mmap(descriptor, self._words.nbytes), np.uint64).reshape(_SHAPE)
        for key in known:
            self.add(key)


def page_keys(version: str, chunk: int, begins: np.ndarray | Sequence[int]) -> np.ndarray:
    """Returns the key (uint64, never 0) of each page of a column chunk.

    Args:
        version: names the version of the file.
        chunk: the offset of the chunk in its file.
        begins: the offset of each page in the chunk.
    """
    digest = hashlib.blake2b(f"{version}\0{chunk}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    first = np.frombuffer(digest, np.uint64)
    return (first + np.asarray(begins, np.uint64) * _SPREAD) | np.uint64(1)


def _rows(keys: Any) -> Any:
    return keys >> np.uint64(64 - _ROW_BITS)


PASSED_PAGES = PassedPages()
"""Those of this process, of all datasets."""
