"""Caches and file systems by Petastorm's names, and what the package exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.fs as pafs
import pytest

import parquetry.common.petastorm as petastorm
from parquetry.common.petastorm.cache import NullCache
from parquetry.common.petastorm.fs_utils import (
    get_filesystem_and_path_or_paths,
    normalize_dataset_url_or_urls,
    normalize_dir_url,
)
from parquetry.common.petastorm.local_disk_cache import LocalDiskCache


def test_the_public_names_are_there() -> None:
    assert petastorm.__all__ == sorted(petastorm.__all__)
    assert all(hasattr(petastorm, name) for name in petastorm.__all__)


def test_a_null_cache_makes_every_value_anew() -> None:
    cache = NullCache()
    assert cache.get("key", lambda: 1) == 1
    assert cache.get("key", lambda: 2) == 2


def test_a_disk_cache_keeps_values_within_its_limit(tmp_path: Path) -> None:
    cache = LocalDiskCache(str(tmp_path / "cache"), 100_000, 4)
    assert cache.get("key", lambda: 42) == 42
    assert cache.get("key", lambda: 43) == 42
    assert LocalDiskCache(str(tmp_path / "cache"), 100_000, 4).get("key", lambda: 44) == 42
    for number in range(30):
        cache.get(f"key {number}", lambda: np.zeros(10_000, np.uint8))
    assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()) <= 100_000
    cache.cleanup()
    assert (tmp_path / "cache").exists()
    LocalDiskCache(str(tmp_path / "cache"), 1000, 4, cleanup=True).cleanup()
    assert not (tmp_path / "cache").exists()
    with pytest.raises(ValueError, match="expected size_limit_bytes >= 1"):
        LocalDiskCache(str(tmp_path), 0, 4)


def test_urls_are_resolved(tmp_path: Path) -> None:
    filesystem, path = get_filesystem_and_path_or_paths(f"file://{tmp_path}/a")
    assert isinstance(filesystem, pafs.LocalFileSystem)
    assert path == f"{tmp_path}/a"
    assert get_filesystem_and_path_or_paths([str(tmp_path), f"{tmp_path}/b"])[1] == [str(tmp_path), f"{tmp_path}/b"]
    assert normalize_dir_url("file:///a//") == "file:///a"
    assert normalize_dataset_url_or_urls(["a/", "b"]) == ["a", "b"]
    for url in (None, 5, ""):
        with pytest.raises(ValueError, match="must be a string"):
            normalize_dir_url(url)
    with pytest.raises(ValueError, match="must not be empty"):
        normalize_dataset_url_or_urls([])
