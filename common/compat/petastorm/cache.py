"""Caches of arbitrary values by key, with the interface of Petastorm's `CacheBase`.

Readers do not use these: with ``cache_type="local-disk"``, they cache stored row groups with `engine.disk_cache`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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
