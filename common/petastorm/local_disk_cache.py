"""`LocalDiskCache`: any picklable values by key, in a directory of this user's own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import PipelineError
from ..layout.kept import KeptFiles
from .cache import CacheBase


class LocalDiskCache(CacheBase):
    """Keeps what its `get` was given to make; the least recently used values make room.

    Its files are pickles, so the directory must not be writable for others.

    Args:
        path: the directory.
        size_limit_bytes: of all values together.
        expected_row_size_bytes: not used.
        shards: not used.
        cleanup: whether `cleanup` removes the directory.
    """

    def __init__(
        self,
        path: str,
        size_limit_bytes: int,
        expected_row_size_bytes: int,
        shards: int = 6,
        cleanup: bool = False,
        **settings: object,
    ) -> None:
        if not isinstance(size_limit_bytes, int) or size_limit_bytes < 1:
            raise PipelineError(f"LocalDiskCache: expected size_limit_bytes >= 1, got {size_limit_bytes!r}.")
        self._directory = path
        self._kept = KeptFiles(path, ".pickle", max_bytes=size_limit_bytes)
        self._cleanup = cleanup

    def get(self, key: str, fill_cache_func: Callable[[], Any]) -> Any:
        digest = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        path = Path(self._kept.path(digest))
        try:
            value = pickle.loads(path.read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError):
            value = fill_cache_func()
            data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
            self._kept.keep(digest, len(data), lambda hidden: Path(hidden).write_bytes(data))
            return value
        with contextlib.suppress(OSError):
            os.utime(path)
        return value

    def cleanup(self) -> None:
        if self._cleanup:
            shutil.rmtree(self._directory, ignore_errors=True)
