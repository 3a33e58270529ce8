"""`opened` opens a data file and raises `DatasetError` if the version read is not the planned one.

What it compares and what that costs depends on the file system:

==========================  =========================================  ==============================================
local                       size, time, change time, inode             a ``stat`` after each read: a microsecond
S3, GCS, Azure of pyarrow   size, time (and ETag, if both report it)   nothing as the file is opened, then one request
                                                                       at most every 30 seconds and at an epoch's end
s3fs                        size, time, ETag                           nothing: each read requires the ETag
HTTP servers                size, time, ETag                           nothing: each answer tells them
fsspec, others (HDFS)       size, time, ETag or generation             one request at most every 30 seconds and at an
                                                                       epoch's end
==========================  =========================================  ==============================================

If a store reports neither times nor tags, footers are compared instead (`StoredDataset.open`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from ..base.process.dataclass import dataclass
from ..base.progress import thread_pool
from ..base.urls import clean_cause
from .checked_files import is_fresh, keep_open, note_check, open_file, used_since_check
from .file_versions import (
    FileVersion,
    changed,
    check_version,
    current_version,
    pairs_of,
    version_of,
    versions_below,
)
from .http_ranges import HttpFile, answers_http
from .retries import FEW_ATTEMPTS, is_local, with_retries
from .stores import fsspec_of, has_plain_handler, store_of, without_subtrees

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_TELLS_ON_OPENING = frozenset({"s3", "gcs", "abfs"})
_CHECKS_AT_ONCE = 16
_FILES_PER_LISTING = 1000  # in one request
_refused_options: dict[tuple[type, bool], int] = {}  # by file system, how many choices of options its `open` refuses


@contextmanager
def opened(filesystem: pafs.FileSystem, version: FileVersion, *, ranges: bool = False) -> Iterator[pa.NativeFile]:
    """Opens a data file for reading and checks that the block reads this version of it.

    Args:
        ranges: the block only calls ``size`` and ``read_at``, so it may share the file with other threads. On a remote
            store, a version that was checked a short time ago is trusted (see `checked_files`), until `check_used`.

    Raises:
        DatasetError: the file changed since it was listed. Raised at the end of the block, or in place of an error
            inside it.
    """
    trusts = ranges and version.has_version_metadata and not is_local(filesystem)
    with _explaining(filesystem, version), _open(filesystem, version, trusts=trusts) as opening:
        if opening.version is not None:
            check_version(version, opening.version)
        yield opening.source
    if opening.version is None and not opening.is_held:
        _check_now(filesystem, version)


def read_whole(filesystem: pafs.FileSystem, path: str, most_bytes: int) -> bytes | None:
    """Returns the content of a small file; ``None`` if there is none. Tries again if the store fails for a moment.

    Raises:
        OSError, pa.ArrowException: it cannot be read.
        ValueError: it has more than ``most_bytes``.
    """

    def read() -> bytes | None:
        version = current_version(filesystem, path)
        if version is None:
            return None
        if version.size_bytes > most_bytes:
            raise ValueError(f"{version.size_bytes} bytes")
        with filesystem.open_input_stream(path, compression=None) as stream:
            return bytes(stream.read())

    return with_retries(filesystem, read, f"file {path}")


def check_used(filesystem: pafs.FileSystem, versions: Iterable[FileVersion], *, directories: Sequence[str]) -> None:
    """Checks the files from which `opened` has read since their last check.

    Args:
        directories: what to list if that takes fewer requests; empty if the files are not all in directories.

    Raises:
        DatasetError: one of them has changed.
        OSError: the store cannot be reached.
    """
    versions = list(versions)
    used = used_since_check(filesystem, versions)
    if not used:
        return
    if directories and len(used) > _requests_of_listing(filesystem, versions, directories):
        _check_listed(filesystem, used, directories)
        return
    with thread_pool(min(len(used), _CHECKS_AT_ONCE), "parquetry-check") as pool:
        list(pool.map(lambda version: _check_again(filesystem, version), used))


def _requests_of_listing(
    filesystem: pafs.FileSystem, versions: Sequence[FileVersion], directories: Sequence[str]
) -> int:
    """Returns about how many requests it takes to list the directories of these files."""
    if without_subtrees(filesystem, "")[0].type_name in _TELLS_ON_OPENING:  # lists directories with all below them
        lists = len(directories)
    else:
        lists = len({version.path.rpartition("/")[0] for version in versions})
    return lists + len(versions) // _FILES_PER_LISTING


def _check_listed(filesystem: pafs.FileSystem, used: Sequence[FileVersion], directories: Sequence[str]) -> None:
    def listed() -> dict[str, FileVersion]:
        listings = (versions_below(filesystem, directory) for directory in directories)
        return {version.path: version for each in listings for version in each}

    now = with_retries(filesystem, listed, "files of the epoch", most=FEW_ATTEMPTS, is_listing=True)
    for version in used:
        check_version(version, now.get(version.path))
        note_check(filesystem, version)


def _check_again(filesystem: pafs.FileSystem, version: FileVersion) -> None:
    with_retries(filesystem, lambda: _check_now(filesystem, version), f"file {version.shown_path}", is_question=True)


def _check_now(filesystem: pafs.FileSystem, version: FileVersion) -> None:
    current = current_version(filesystem, version.path)
    check_version(version, current)
    if not is_local(filesystem):
        note_check(filesystem, version)


@contextmanager
def _explaining(filesystem: pafs.FileSystem, version: FileVersion) -> Iterator[None]:
    """Replaces a read error with the error for a changed file, if the file did change."""
    try:
        yield
    except CancelledError:  # nobody waits for this read any more
        raise
    except Exception as error:
        current = None
        with suppress(Exception):  # the first error is more useful
            current = current_version(filesystem, version.path)
        if current is not None and version.became(current):
            raise changed(version, current) from clean_cause(error)
        raise


@dataclass(slots=True)
class _Opening:
    """An open file.

    Attributes:
        version: its version, if opening the file reports it.
        is_held: whether nothing is left to check: each read requires the version of the store, or it is trusted.
    """

    source: pa.NativeFile
    version: FileVersion | None = None
    is_held: bool = False


@contextmanager
def _open(filesystem: pafs.FileSystem, version: FileVersion, *, trusts: bool) -> Iterator[_Opening]:
    base, inside = without_subtrees(filesystem, version.path)
    fs = fsspec_of(base)
    if fs is not None and has_plain_handler(base):  # whose open would first check the type
        if answers_http(fs) and version.has_version_metadata and version.size_bytes:
            yield from _http_file(filesystem, version, fs, inside, trusts=trusts)
            return
        with (
            _fsspec_file(filesystem, version, fs, inside, trusts=trusts) as (raw, is_held),
            pa.PythonFile(raw, mode="r") as source,
        ):
            yield _Opening(source, is_held=is_held)
        return
    tells = base.type_name in _TELLS_ON_OPENING
    if trusts and is_fresh(filesystem, version):
        source = open_file(filesystem, version) if tells else filesystem.open_input_file(version.path)
        if source is not None:
            yield _Opening(source, is_held=True)
            return
    if is_local(base):
        _check_kind(version, inside)
    source = filesystem.open_input_file(version.path)
    metadata = source.metadata() if tells else None
    opening = _Opening(source)
    if metadata:
        current = version_of(store_of(filesystem), version.path, {**metadata, "size": source.size()})
        opening = _Opening(source, current)
    if opening.version is None or not trusts:
        with source:
            yield opening
        return
    yield opening
    if not version.became(opening.version):
        note_check(filesystem, version)
        keep_open(filesystem, version, source)


def _check_kind(version: FileVersion, path: str) -> None:
    """Raises `DatasetError` for a pipe or a socket, which may have replaced the file. Opening a pipe would wait."""
    try:
        mode = os.stat(path).st_mode
    except OSError:  # opening it raises a better error
        return
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        raise changed(version, None)


def _http_file(
    filesystem: pafs.FileSystem, version: FileVersion, fs: AbstractFileSystem, url: str, *, trusts: bool
) -> Iterator[_Opening]:
    """Yields a file of an HTTP server. Nothing is left to check if its answers told the version."""

    def check(headers: Mapping[str, str], size_bytes: int) -> bool:
        validators = {name: headers[name] for name in ("ETag", "Last-Modified") if name in headers}
        current = version_of(version.store, version.path, {**validators, "size": size_bytes})
        check_version(version, current)
        return version.can_tell(current)

    raw = HttpFile(fs, url, version.size_bytes, check)
    with pa.PythonFile(raw, mode="r") as source:
        opening = _Opening(source)
        yield opening
        opening.is_held = raw.is_checked or (trusts and is_fresh(filesystem, version))


@contextmanager
def _fsspec_file(
    filesystem: pafs.FileSystem, version: FileVersion, fs: AbstractFileSystem, path: str, *, trusts: bool
) -> Iterator[tuple[Any, bool]]:
    """Opens a file of an fsspec file system. Yields it, and whether nothing is left to check; see `_Opening`."""
    etag = pairs_of(version.tag).get("etag", "")
    if etag and _takes_etags(fs):  # s3fs
        with _unbuffered(fs, path, size=version.size_bytes) as raw:
            name = "read_kw" if hasattr(raw, "read_kw") else "req_kw"  # before s3fs 2026
            setattr(raw, name, {**getattr(raw, name, {}), "IfMatch": f'"{etag}"'})
            raw.details = {"name": path, "size": version.size_bytes, "ETag": f'"{etag}"', "type": "file"}  # or it asks
            yield raw, True
        return
    if not trusts or not is_fresh(filesystem, version):
        with _unbuffered(fs, path) as raw:
            yield raw, False
        return
    with _unbuffered(fs, path, size=version.size_bytes) as raw:
        yield raw, True


def _takes_etags(fs: AbstractFileSystem) -> bool:
    """Whether the file system is s3fs with a server that compares the ETags of its requests."""
    names = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    others = getattr(fs, "local_expiry_check", False) or getattr(fs, "version_aware", False)
    return "s3" in names and not others


def _unbuffered(fs: AbstractFileSystem, path: str, **known: int) -> Any:
    """Opens a file of an fsspec file system without read-ahead, so that it fetches only the requested bytes."""
    choices: list[dict[str, Any]] = [{"cache_type": "none", **known}, {"cache_type": "none"}, {}]
    refused = _refused_options.setdefault((type(fs), bool(known)), 0)
    for number in range(refused, len(choices) - 1):
        with suppress(TypeError):  # this file system has no such option
            return fs.open(path, "rb", **choices[number])
        _refused_options[type(fs), bool(known)] = number + 1
    return fs.open(path, "rb")
