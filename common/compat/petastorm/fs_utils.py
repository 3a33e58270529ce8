"""Resolves URLs to file systems."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import pyarrow.fs as pafs

from ...base.errors import DatasetError, PipelineError, missing_package
from ...storage.filesystem import resolve


class FilesystemResolver:
    """The file system of a dataset URL, and the path within it.

    Args:
        dataset_url: a URL, as text or as parsed by ``urlparse``.
        storage_options: arguments for fsspec.
        hadoop_configuration, connector, hdfs_driver, user: unused, because pyarrow finds the name node itself.

    Raises:
        PipelineError: the URL has no scheme, such as a plain path.
    """

    def __init__(
        self,
        dataset_url: str | urllib.parse.ParseResult,
        hadoop_configuration: object = None,
        connector: object = None,
        hdfs_driver: str = "libhdfs3",
        user: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._url = dataset_url if isinstance(dataset_url, str) else _url_of(dataset_url)
        if not urllib.parse.urlparse(self._url).scheme:
            raise PipelineError(
                f"dataset URL {self._url!r}: expected a scheme. Prepend file:// for the local file system: a "
                "scheme-less dataset url may be on any."
            )
        self._options = storage_options
        self._filesystem, self._path = get_filesystem_and_path_or_paths(self._url, storage_options=storage_options)

    def parsed_dataset_url(self) -> urllib.parse.ParseResult:
        """The parsed URL."""
        return urllib.parse.urlparse(self._url)

    def get_dataset_path(self) -> str:
        """The path within the file system."""
        return str(self._path)

    def filesystem(self) -> Any:
        """The file system, as an fsspec object."""
        return self._filesystem

    def filesystem_factory(self) -> Callable[[], Any]:
        """A picklable function that opens the file system again."""
        return _Factory(self._url, self._options)


def _url_of(parts: urllib.parse.ParseResult) -> str:
    """Joins what ``urlparse`` has split; ``urlunparse`` would make a path of ``hdfs:///path``, which names no host."""
    if not parts.scheme:
        return urllib.parse.urlunparse(parts)
    return f"{parts.scheme}://{parts.netloc}{urllib.parse.urlunparse(parts._replace(scheme='', netloc=''))}"


class _Factory:
    def __init__(self, url: str, options: Mapping[str, Any] | None) -> None:
        self._url, self._options = url, options

    def __call__(self) -> Any:
        return get_filesystem_and_path_or_paths(self._url, storage_options=self._options)[0]


def get_filesystem_and_path_or_paths(
    url_or_urls: str | Sequence[str],
    hdfs_driver: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: object = None,
) -> tuple[Any, str | list[str]]:
    """Returns the file system of a URL (or of a list of URLs) and the path within it; ``hdfs_driver`` is unused.

    The file system is an fsspec object, with ``exists`` and ``open``. A given ``filesystem`` is returned unchanged.

    Raises:
        PipelineError: the URLs are on different file systems.
        DatasetError: fsspec is not installed.
    """
    urls = [url_or_urls] if isinstance(url_or_urls, str) else list(url_or_urls)
    if len({urllib.parse.urlparse(url).scheme or "file" for url in urls}) != 1:
        raise PipelineError(f"dataset URLs: expected one file system for all, got {urls!r}.")
    options = None if filesystem is not None else storage_options
    resolved = [resolve(url, filesystem=filesystem, storage_options=options) for url in urls]
    paths = [path for _, path in resolved]
    shown = filesystem if filesystem is not None else _of_fsspec(resolved[0][0])
    return shown, paths[0] if isinstance(url_or_urls, str) else paths


def _of_fsspec(filesystem: pafs.FileSystem) -> Any:
    if isinstance(filesystem, pafs.PyFileSystem) and isinstance(filesystem.handler, pafs.FSSpecHandler):
        return filesystem.handler.fs
    try:
        if isinstance(filesystem, pafs.LocalFileSystem):
            return import_module("fsspec.implementations.local").LocalFileSystem()
        return import_module("fsspec.implementations.arrow").ArrowFSWrapper(filesystem)
    except ImportError as error:
        raise DatasetError("file system: petastorm.fs_utils " + missing_package(error, "fsspec", "remote")) from error


def normalize_dir_url(dataset_url: object) -> str:
    """Removes trailing slashes from a URL; raises `PipelineError` if it is not a string."""
    if not isinstance(dataset_url, str) or not dataset_url:
        raise PipelineError(f"directory url: must be a string, got {dataset_url!r}.")
    return dataset_url.rstrip("/") or dataset_url
