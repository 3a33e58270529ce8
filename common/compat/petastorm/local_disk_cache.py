"""Caches of arbitrary values by key, with the interface of Petastorm's `CacheBase`. `LocalDiskCache` keeps picklable
values in a directory of this user.

Readers do not use these: with ``cache_type="local-disk"``, they cache stored row groups with `engine.disk_cache`.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...base.errors import PipelineError
from ...storage.file_cache import FileCache


class CacheBase:
    """Base class of caches."""

    def get(self, key: str, fill_cache_func: Callable[[], Any]) -> Any:
        """Returns the cached value for a key; calls the function to make it if there is none."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Removes the cached values."""


class NullCache(CacheBase):
    """Caches nothing."""

    def get(self, key: str, fill_cache_func: Callable[[], Any]) -> Any:
        return fill_cache_func()


_LOGGER = logging.getLogger(__name__)


class LocalDiskCache(CacheBase):
    """Caches values on disk; removes the least recently used ones to make room.

    Files are pickles. A file that another user owns or could write is never read; its value is made again. If the disk
    is full, values are made without being cached.

    Args:
        path: the directory.
        size_limit_bytes: total size of all values.
        expected_row_size_bytes: size of one value; a fifth of a shard's part of the total size at most.
        shards: number of shards; only for this check.
        cleanup: whether `cleanup` removes the directory.
        settings: ``eviction_policy="none"`` omits this check; others are unused.

    Raises:
        PipelineError: the total size is too small.
    """

    def __init__(
        self,
        path: str,
        size_limit_bytes: int,
        expected_row_size_bytes: int,
        shards: int = 6,
        cleanup: bool = True,
        **settings: object,
    ) -> None:
        if not isinstance(size_limit_bytes, int) or size_limit_bytes < 1:
            raise PipelineError(f"LocalDiskCache: expected size_limit_bytes >= 1, got {size_limit_bytes!r}.")
        is_small = size_limit_bytes / shards < 5 * expected_row_size_bytes
        if is_small and settings.get("eviction_policy") != "none":
            raise PipelineError(  # Petastorm's sentence, which says the opposite of its check
                "LocalDiskCache: Condition 'size_limit_bytes / shards < 5 * expected_row_size_bytes' needs to hold, or "
                f"new values might be evicted at once. Expected size_limit_bytes >= "
                f"{5 * expected_row_size_bytes * shards}, got {size_limit_bytes}."
            )
        self._directory = path
        self._kept = FileCache(path, ".pickle", max_bytes=size_limit_bytes)
        self._cleanup = cleanup

    def get(self, key: str, fill_cache_func: Callable[[], Any]) -> Any:
        digest = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        path = Path(self._kept.path(digest))
        try:
            with open(path, "rb") as file:
                _check_own(file.fileno())
                value = pickle.load(file)
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError):
            value = fill_cache_func()
            data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
            try:
                self._kept.keep(digest, len(data), lambda hidden: Path(hidden).write_bytes(data))
            except OSError as error:
                _LOGGER.warning("%s could not be kept: %s", path, error)
            return value
        with contextlib.suppress(OSError):
            os.utime(path)
        return value

    def cleanup(self) -> None:
        if self._cleanup:
            try:
                shutil.rmtree(self._directory)
            except FileNotFoundError:
                pass
            except OSError as error:
                print(f"Error during rmtree: {error}", flush=True)  # as Petastorm does


def _check_own(file: int) -> None:
    """Raises `PermissionError` if another user owns the file or can write it."""
    status = os.fstat(file)
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & 0o022:
        raise PermissionError("it belongs to another user, or others can write to it")
