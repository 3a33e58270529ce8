"""Listing the data files of a dataset, and reading Hive partition values off their paths.

In: URLs. Out: `DataFile` values sorted by full path. Names that begin with ``_`` or ``.`` are never data.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pafs

from ..errors import DatasetError
from .filesystem import resolve

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_SUFFIXES = (".parquet", ".parq", ".pq")
_LISTINGS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFile:
    """One Parquet file.

    Attributes:
        path: full path on its filesystem.
        relative: path below the dataset's root; what identifies the file when the dataset moves.
        partition: ``(key, text)`` pairs of the ``key=text`` directories; text is ``None`` for Hive's null.
    """

    path: str
    relative: str
    size_bytes: int
    mtime_ns: int
    partition: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileListing:
    """The files of a dataset on one filesystem; ``roots`` are the directories (or files) that were named."""

    filesystem: pafs.FileSystem
    roots: tuple[str, ...]
    files: tuple[DataFile, ...]
    metadata_files: tuple[str, ...]


def list_files(
    urls: Sequence[str], *, filesystem: Any = None, storage_options: dict[str, Any] | None = None
) -> FileListing:
    """Lists every data file under the URLs (directories or files, of one filesystem), sorted by full path.

    Raises:
        DatasetError: a URL that does not exist, one without any Parquet file, or URLs of different filesystems.
    """
    if not urls:
        raise DatasetError("dataset: expected at least one URL or path, got none.")
    found: dict[str, DataFile] = {}
    metadata: list[str] = []
    roots: list[str] = []
    systems: list[pafs.FileSystem] = []
    for url in urls:
        fs, path = resolve(url, filesystem=filesystem, storage_options=storage_options)
        if systems and type(systems[0]) is not type(fs):
            raise DatasetError(f"dataset {url!r}: expected every URL on one filesystem, got {systems[0]!r} and {fs!r}.")
        systems.append(fs)
        roots.append(path.rstrip("/") or path)
    for files, extra in _list_each(urls, systems, roots):
        found.update((file.path, file) for file in files)
        metadata += extra
    ordered = tuple(found[path] for path in sorted(found))
    return FileListing(filesystem=systems[0], roots=tuple(roots), files=ordered, metadata_files=tuple(metadata))


def _list_each(
    urls: Sequence[str], systems: Sequence[pafs.FileSystem], roots: Sequence[str]
) -> Iterable[tuple[list[DataFile], list[str]]]:
    """What stands under each URL; many at once, where each is a wait for a store."""
    if len(urls) == 1 or systems[0].type_name == "local":
        return map(_list_one, urls, systems, roots)
    with ThreadPoolExecutor(max_workers=_LISTINGS, thread_name_prefix="parquetry-list") as pool:
        return list(pool.map(_list_one, urls, systems, roots))


def _list_one(url: str, fs: pafs.FileSystem, path: str) -> tuple[list[DataFile], list[str]]:
    try:
        info = fs.get_file_info(path)
    except OSError as error:
        raise DatasetError(f"dataset {url!r}: cannot be reached: {error}") from error
    if info.type == pafs.FileType.NotFound:
        raise DatasetError(
            f"dataset {url!r}: expected a directory or a Parquet file, found nothing there. Check the URL."
        )
    if info.type == pafs.FileType.File:
        return [_data_file(info, posixpath.dirname(path))], []
    infos = fs.get_file_info(pafs.FileSelector(path, recursive=True))
    files = [info for info in infos if info.type == pafs.FileType.File]
    metadata = [info.path for info in files if posixpath.basename(info.path) in ("_common_metadata", "_metadata")]
    visible = [info for info in files if not _is_hidden(_below(info.path, path))]
    named = [info for info in visible if info.path.lower().endswith(_SUFFIXES)]
    chosen = named or [info for info in visible if info.size]
    if not chosen:
        raise DatasetError(
            f"dataset {url!r}: expected Parquet files, found none among {len(files)} files. "
            "Names that begin with '_' or '.' are not data."
        )
    own = [item for item in metadata if posixpath.dirname(item) == path]
    return [_data_file(info, path) for info in chosen], own


def _data_file(info: pafs.FileInfo, root: str) -> DataFile:
    relative = _below(info.path, root)
    return DataFile(
        path=info.path,
        relative=relative,
        size_bytes=info.size,
        mtime_ns=info.mtime_ns or 0,
        partition=partition_of(posixpath.dirname(info.path)),
    )


def _below(path: str, root: str) -> str:
    return path[len(root) :].lstrip("/") if path.startswith(root) else path


def _is_hidden(relative: str) -> bool:
    return any(part.startswith(("_", ".")) and "=" not in part for part in relative.split("/"))


def partition_of(directory: str) -> tuple[tuple[str, str | None], ...]:
    """``(key, text)`` of each ``key=text`` in a directory's path, percent-decoded; text ``None`` is Hive's null."""
    pairs = []
    for part in directory.split("/"):
        key, equals, text = part.partition("=")
        if equals and key:
            pairs.append((unquote(key), None if text == HIVE_NULL else unquote(text)))
    return tuple(pairs)
