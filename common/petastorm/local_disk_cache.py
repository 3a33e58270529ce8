"""`LocalDiskCache`: any picklable values by key, in a directory of this user's own."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import PipelineError
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
        **settings: Any,
    ) -> None:
        if not isinstance(size_limit_bytes, int) or size_limit_bytes < 1:
            raise PipelineError(f"LocalDiskCache: expected size_limit_bytes >= 1, got {size_limit_bytes!r}.")
        self._directory = Path(path)
        self._size_limit_bytes = size_limit_bytes
        self._cleanup = cleanup

    def get(self, key: str, fill_cache_func: Callable[[], Any]) -> Any:
        path = self._directory / f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.pickle"
        try:
            value = pickle.loads(path.read_bytes())
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError):
            value = fill_cache_func()
            self._keep(path, value)
            return value
        with contextlib.suppress(OSError):
            os.utime(path)
        return value

    def cleanup(self) -> None:
        if self._cleanup:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _keep(self, path: Path, value: Any) -> None:
        data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
        if len(data) > self._size_limit_bytes:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        self._make_room(self._size_limit_bytes - len(data))
        handle, temporary = tempfile.mkstemp(dir=self._directory, prefix=".new-")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(temporary, path)

    def _make_room(self, limit_bytes: int) -> None:
        kept = sorted(self._directory.glob("*.pickle"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        total = 0
        for path in kept:
            total += path.stat().st_size
            if total > limit_bytes:
                path.unlink(missing_ok=True)
