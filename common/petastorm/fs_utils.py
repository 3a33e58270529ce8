"""From URLs to file systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.fs as pafs

from ..errors import PipelineError
from ..layout.filesystem import resolve


def get_filesystem_and_path_or_paths(
    url_or_urls: str | Sequence[str],
    hdfs_driver: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: Any = None,
) -> tuple[pafs.FileSystem, str | list[str]]:
    """The file system of a URL (or of a list of URLs), and the path within it; ``hdfs_driver`` is not used.

    Raises:
        PipelineError: URLs of different file systems.
    """
    urls = [url_or_urls] if isinstance(url_or_urls, str) else list(url_or_urls)
    options = None if filesystem is not None else storage_options
    found = [resolve(url, filesystem=filesystem, storage_options=options) for url in urls]
    if len({type(fs) for fs, _ in found}) != 1:
        raise PipelineError(f"dataset URLs: expected one file system for all, got {urls!r}.")
    paths = [path for _, path in found]
    return found[0][0], paths[0] if isinstance(url_or_urls, str) else paths


def normalize_dir_url(dataset_url: Any) -> str:
    """The URL without slashes at its end; raises `PipelineError` for anything but text."""
    if not isinstance(dataset_url, str) or not dataset_url:
        raise PipelineError(f"directory url: must be a string, got {dataset_url!r}.")
    return dataset_url.rstrip("/") or dataset_url


def normalize_dataset_url_or_urls(dataset_url_or_urls: Any) -> str | list[str]:
    """One URL or a list of them, each without slashes at its end."""
    if isinstance(dataset_url_or_urls, list | tuple):
        if not dataset_url_or_urls:
            raise PipelineError("dataset url list: must not be empty.")
        return [normalize_dir_url(url) for url in dataset_url_or_urls]
    return normalize_dir_url(dataset_url_or_urls)
