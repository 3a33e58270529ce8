"""Where parquetry keeps files between runs."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

_ENVIRONMENT = "PARQUETRY_CACHE_DIR"


def cache_root() -> Path:
    """The directory for what parquetry keeps between runs: ``$PARQUETRY_CACHE_DIR``, or the user's cache directory."""
    chosen = os.environ.get(_ENVIRONMENT)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("parquetry"))
