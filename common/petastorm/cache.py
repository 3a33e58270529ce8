"""Caches of any value by key, as Petastorm's `CacheBase` describes them.

Readers do not use these: with ``cache_type="local-disk"`` they keep stored row groups in `engine.disk_cache`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class CacheBase:
    """Base of caches."""

    def get(self, key: str, fill_cache_func: Callable[[], Any]) -> Any:
        """The value kept under a key; the function makes it where there is none."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Removes what is kept."""


class NullCache(CacheBase):
    """Keeps nothing."""

    def get(self, key: str, fill_cache_func: Callable[[], Any]) -> Any:
        return fill_cache_func()
