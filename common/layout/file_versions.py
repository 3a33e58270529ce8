"""`FileVersion` identifies one version of one file on one store. Everything cached about a file is keyed by it.

Every data file is opened with `opened`, which raises `DatasetError` if the version read is not the planned one.
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

If a store reports neither times nor tags, footers are compared instead (`StoredDataset.open`), and nothing about the
file is cached for other plans.
"""

from __future__ import annotations

import datetime
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pafs

from ..errors import DatasetError
from ..native.parquet import FileStatus
from ..progress import thread_pool
from ..urls import clean_cause, url_without_secrets
from .checked_files import is_fresh, keep_open, note_check, open_file, used_since_check
from .http_ranges import HttpFile, answers_http
from .retries import is_transient, with_retries
from .signatures import without_signature
from .store_answers import is_absence
from .stores import fsspec_of, has_plain_handler, store_of, without_subtrees

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# Names, in lower case, under which stores report content tags and modification times.
_TAGS = (
    *(
        "etag",
        "e_tag",
        "generation",
        "versionid",
        "version_id",
        "content-md5",
        "content_md5",
        "md5hash",
        "md5",
        "crc32c",
    ),
    *("sha", "sha1", "sha256", "hex", "oid", "blob_id", "checksum", "ino"),
)
_TIMES = (
    *("mtime", "modified", "last-modified", "last_modified", "lastmodified", "updated", "timemodified", "modify"),
    *("modificationtime", "created", "timecreated"),
)
_TELLS_ON_OPENING = frozenset({"s3", "gcs", "abfs"})
_CHECKS_AT_ONCE = 16
_MOST_CHECKED_APART = 64  # a listing of a thousand files is one request
_SECOND_NS = 10**9
_MOST_SECONDS = 10**11  # larger numbers are milliseconds
_TOO_EXACT = re.compile(r"(\.\d{6})\d+")  # more digits than Python parses
_refused_options: dict[tuple[type, bool], int] = {}  # by file system, how many choices of options its `open` refuses
_ROUNDING_NS = 1_000  # rounding error of seconds since 1970 in a float


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVersion:
    """One version of a file on a store.

    Attributes:
        path: the full path on the store.
        store: see `stores.store_of`.
        mtime_ns: modification time; 0 if the store has no times.
        tag: other things that change with the content, as ``name=value`` pairs: ETag or generation; for a local file
            the change time.
        inode: for a local file, its inode number, then its permissions, link count and owners, which also affect the
            change time.
        plan: a random ID for one plan, if nothing else would tell this version from the next one.
    """

    path: str
    size_bytes: int
    store: str = ""
    mtime_ns: int = 0
    tag: str = ""
    inode: tuple[int, ...] = ()
    plan: str = ""

    @property
    def shown_path(self) -> str:
        """The path for people, logs and reports. On an HTTP server, it is a URL, whose query may be a signature."""
        return url_without_secrets(self.path)

    @property
    def identity(self) -> str:
        """The path without the signature of an HTTP URL, which may be renewed while the file stays the same."""
        return without_signature(self.path)

    @property
    def has_version_metadata(self) -> bool:
        """Whether the store's own metadata can tell another version of the file from this one."""
        return bool(self.mtime_ns or self.tag)

    @property
    def is_cacheable(self) -> bool:
        """Whether other plans may use what is cached about it."""
        return not self.plan

    @property
    def key(self) -> str:
        """The unique key of this version: equal for equal content, different for any other file or version."""
        return f"{self.shared_key}\0{self.plan}"

    @property
    def shared_key(self) -> str:
        """The key without the plan, which is the same in every process that lists the file."""
        return f"{self.store}\0{self.identity}\0{self.size_bytes}\0{self.mtime_ns}\0{self.tag}"

    @property
    def portable_tag(self) -> str:
        """The tag, if copying the file with its times preserves it; otherwise empty."""
        return "" if self.inode else self.tag

    def can_tell(self, found: FileVersion) -> bool:
        """Whether `became` can compare more than sizes."""
        return bool(self.mtime_ns and found.mtime_ns) or not _pairs(self.tag).keys().isdisjoint(_pairs(found.tag))

    def became(self, found: FileVersion) -> bool:
        """Whether the file that was found is no longer this version."""
        if self.size_bytes != found.size_bytes:
            return True
        if self.inode and found.inode:
            return self.mtime_ns != found.mtime_ns or (self.tag != found.tag and not self._explains(found))
        mine, theirs = _pairs(self.tag), _pairs(found.tag)
        return not _same_time(self.mtime_ns, found.mtime_ns) or any(
            mine[name] != theirs[name] for name in mine.keys() & theirs.keys()
        )

    def _explains(self, found: FileVersion) -> bool:
        """Whether changed permissions, links or owners explain the new change time, so that the content is the same."""
        return self.inode[0] == found.inode[0] and self.inode[1:] != found.inode[1:]

    def to_json(self) -> list[Any]:
        """Returns a JSON list, which is compact, because there may be many."""
        return [self.path, self.size_bytes, self.store, self.mtime_ns, self.tag, list(self.inode), self.plan]

    @classmethod
    def from_json(cls, value: list[Any]) -> FileVersion:
        """The inverse of `to_json`."""
        path, size_bytes, store, mtime_ns, tag, inode, plan = value
        return cls(
            path=path,
            size_bytes=size_bytes,
            store=store,
            mtime_ns=mtime_ns,
            tag=tag,
            inode=tuple(inode),
            plan=plan,
        )

    def __str__(self) -> str:
        said = [f"{self.size_bytes} bytes"]
        if self.mtime_ns:
            time = datetime.datetime.fromtimestamp(self.mtime_ns / _SECOND_NS, datetime.timezone.utc)
            said.append(f"written {time:%Y-%m-%dT%H:%M:%S.%fZ}")
        said += self.tag.split()
        if self.inode:
            said.append(f"inode {self.inode[0]}")
        return ", ".join(said)


def drawn_plan() -> str:
    """Draws a unique `FileVersion.plan`."""
    return secrets.token_hex(8)


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
    trusts = ranges and version.has_version_metadata and not _is_local(without_subtrees(filesystem, "")[0])
    with _explaining(filesystem, version), _open(filesystem, version, trusts=trusts) as opening:
        if opening.told is not None:
            check_version(version, opening.told)
        yield opening.source
    if opening.told is None and not opening.is_held:
        _check_now(filesystem, version)


def check_used(filesystem: pafs.FileSystem, versions: Iterable[FileVersion], *, directories: Sequence[str]) -> None:
    """Checks the files from which `opened` has read since their last check.

    Args:
        directories: what to list if these are many files; empty if they are not all in directories.

    Raises:
        DatasetError: one of them has changed.
        OSError: the store cannot be reached.
    """
    used = used_since_check(filesystem, versions)
    if not used:
        return
    if directories and len(used) > _MOST_CHECKED_APART:
        _check_listed(filesystem, used, directories)
        return
    with thread_pool(min(len(used), _CHECKS_AT_ONCE), "parquetry-check") as pool:
        list(pool.map(lambda version: _check_again(filesystem, version), used))


def _check_listed(filesystem: pafs.FileSystem, used: Sequence[FileVersion], directories: Sequence[str]) -> None:
    def listed() -> dict[str, FileVersion]:
        found = (versions_below(filesystem, directory) for directory in directories)
        return {version.path: version for each in found for version in each}

    now = with_retries(filesystem, listed, "files of the epoch", is_listing=True)
    for version in used:
        check_version(version, now.get(version.path))
        note_check(filesystem, version)


def _check_again(filesystem: pafs.FileSystem, version: FileVersion) -> None:
    with_retries(filesystem, lambda: _check_now(filesystem, version), f"file {version.shown_path}")


def _check_now(filesystem: pafs.FileSystem, version: FileVersion) -> None:
    found = current_version(filesystem, version.path)
    check_version(version, found)
    if not _is_local(filesystem):
        note_check(filesystem, version)


@contextmanager
def _explaining(filesystem: pafs.FileSystem, version: FileVersion) -> Iterator[None]:
    """Replaces a read error with the error for a changed file, if the file did change."""
    try:
        yield
    except Exception as error:
        found = None
        with suppress(Exception):  # the first error is more useful
            found = current_version(filesystem, version.path)
        if found is not None and version.became(found):
            raise changed(version, found) from clean_cause(error)
        raise


def check_version(planned: FileVersion, found: FileVersion | None) -> None:
    """Raises `DatasetError` if a file is no longer the one that was planned."""
    if found is None or planned.became(found):
        raise changed(planned, found)


def changed(planned: FileVersion, found: FileVersion | None) -> DatasetError:
    """The error for a file that changed."""
    return DatasetError(
        f"file {planned.shown_path}: expected the version that the pipeline was planned with ({planned}), got "
        f"{'none' if found is None else f'another ({found})'}. It changed since the pipeline was planned. Create the "
        "pipeline again, and write changed data under a new name while the old files are in use."
    )


def current_version(filesystem: pafs.FileSystem, path: str) -> FileVersion | None:
    """Asks the store for the current version of a file; ``None`` if there is no such file.

    Raises:
        OSError: the store cannot be reached.
    """
    return look(filesystem, path)[1]


def look(filesystem: pafs.FileSystem, path: str) -> tuple[pafs.FileType, FileVersion | None]:
    """What is at a path now, and its version if it is a file. Raises like `current_version`."""
    base, inside = without_subtrees(filesystem, path)
    fs = fsspec_of(base)
    if fs is not None:
        fs.invalidate_cache(fs._parent(inside))  # a cached listing would hide changes
        try:
            info = fs.info(inside)
        except FileNotFoundError as error:
            if is_transient(error) or not is_absence(error):
                raise
            return pafs.FileType.NotFound, None
        if info["type"] != "file":
            return pafs.FileType.Directory, None
        return pafs.FileType.File, version_of(store_of(filesystem), path, info)
    found = base.get_file_info(inside)
    if found.type != pafs.FileType.File:
        return found.type, None
    if _is_local(base):
        return found.type, local_version(store_of(filesystem), path, os.stat(inside))
    return found.type, arrow_version(store_of(filesystem), path, found)


def current_versions(filesystem: pafs.FileSystem, paths: Sequence[str]) -> list[FileVersion | None]:
    """`current_version` of several files, in one request if the store supports that."""
    if _is_local(without_subtrees(filesystem, "")[0]) or fsspec_of(filesystem) is not None:
        return [current_version(filesystem, path) for path in paths]
    store = store_of(filesystem)
    infos = filesystem.get_file_info(list(paths))
    return [
        arrow_version(store, path, info) if info.type == pafs.FileType.File else None
        for path, info in zip(paths, infos, strict=True)
    ]


def versions_below(
    filesystem: pafs.FileSystem, directory: str, wants: Callable[[str, bool], bool] = lambda path, is_directory: True
) -> list[FileVersion]:
    """The current versions of all files in a directory, recursively.

    Args:
        wants: says whether to list a local file or directory, by its path and whether it is a directory. Stores list
            all that they have.

    Raises:
        OSError: the store cannot be reached.
        DatasetError: a path is not valid UTF-8, or a link is broken or leads to a directory that contains it.
    """
    store = store_of(filesystem)
    base, inside = without_subtrees(filesystem, directory)
    above = 0 if base is filesystem else len(inside) - len(directory.lstrip("/"))
    fs = fsspec_of(base)
    if fs is not None:
        infos = fs.find(inside, detail=True)
        whole = ((path, fs.info(path) if info.get("size") is None else info) for path, info in infos.items())
        return [version_of(store, path[above:], info) for path, info in whole if info["type"] == "file"]
    if _is_local(base):
        return [local_version(store, path[above:], os.stat(path)) for path in _local_files(inside, above, wants)]
    found = base.get_file_info(pafs.FileSelector(inside, recursive=True))
    return [arrow_version(store, info.path[above:], info) for info in found if info.type == pafs.FileType.File]


def _local_files(directory: str, above: int, wants: Callable[[str, bool], bool]) -> Iterator[str]:
    """Yields the files in a directory, recursively. A broken link, and one to a directory around it, are errors."""
    directories = [directory]
    while directories:
        with os.scandir(directories.pop()) as entries:
            for entry in entries:
                if not wants(entry.path[above:], entry.is_dir()):
                    continue
                if entry.is_symlink():
                    _check_link(entry)
                if entry.is_dir():
                    directories.append(entry.path)
                elif entry.is_file():
                    _check_text(entry.path)
                    yield entry.path


def _check_text(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:  # bytes that are not UTF-8 arrive as lone surrogates
        raise DatasetError(f"file {os.fsencode(path)!r}: expected a path in UTF-8. Rename it.") from None


def _check_link(link: os.DirEntry[str]) -> None:
    around, target = os.path.realpath(os.path.dirname(link.path)), os.path.realpath(link.path)
    if link.is_dir() and f"{around}/".startswith(f"{target}/"):
        raise DatasetError(f"directory {link.path}: the link leads to '{target}', which contains it. Remove it.")
    if not os.path.exists(link.path) and not link.name.startswith((".", "_")):
        raise DatasetError(f"file {link.path}: the link is broken: '{target}' does not exist. Remove it.")


def local_version(store: str, path: str, status: os.stat_result | FileStatus) -> FileVersion:
    """The version of a local file with this status."""
    return FileVersion(
        store=store,
        path=path,
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        tag=f"ctime={status.st_ctime_ns}",
        inode=(status.st_ino, status.st_mode, status.st_nlink, status.st_uid, status.st_gid),
    )


def version_of(store: str, path: str, info: Mapping[Any, Any]) -> FileVersion:
    """The version of a file from the metadata of its store, whatever names the store uses."""
    said = {_text(name).lower(): value for name, value in info.items()}
    tags = [f"{name}={_tag(said[name])}" for name in _TAGS if isinstance(said.get(name), str | bytes | int)]
    times = (_time_ns(said[name]) for name in _TIMES if said.get(name))
    size = said.get("size", said.get("content-length"))
    return FileVersion(
        store=store,
        path=path,
        size_bytes=int(size or 0),
        mtime_ns=next(filter(None, times), 0),
        tag=" ".join(tags),
    )


def arrow_version(store: str, path: str, info: pafs.FileInfo) -> FileVersion:
    """The version of a file from Arrow's description."""
    return FileVersion(store=store, path=path, size_bytes=info.size or 0, mtime_ns=info.mtime_ns or 0)


def _is_local(filesystem: pafs.FileSystem) -> bool:
    return isinstance(filesystem, pafs.LocalFileSystem)


@dataclass(slots=True)
class _Opening:
    """An open file.

    Attributes:
        told: its version, if opening the file reports it.
        is_held: whether nothing is left to check: each read requires the version of the store, or it is trusted.
    """

    source: pa.NativeFile
    told: FileVersion | None = None
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
    source = filesystem.open_input_file(version.path)
    told = source.metadata() if tells else None
    opening = _Opening(source)
    if told:
        found = version_of(store_of(filesystem), version.path, {**told, "size": source.size()})
        opening = _Opening(source, found)
    if opening.told is None or not trusts:
        with source:
            yield opening
        return
    yield opening
    if not version.became(opening.told):
        note_check(filesystem, version)
        keep_open(filesystem, version, source)


def _http_file(
    filesystem: pafs.FileSystem, version: FileVersion, fs: AbstractFileSystem, url: str, *, trusts: bool
) -> Iterator[_Opening]:
    """Yields a file of an HTTP server. Nothing is left to check if its answers told the version."""

    def check(headers: Mapping[str, str], size_bytes: int) -> bool:
        said = {name: headers[name] for name in ("ETag", "Last-Modified") if name in headers}
        found = version_of(version.store, version.path, {**said, "size": size_bytes})
        check_version(version, found)
        return version.can_tell(found)

    raw = HttpFile(fs, url, version.size_bytes, check)
    with pa.PythonFile(raw, mode="r") as source:
        opening = _Opening(source)
        yield opening
        opening.is_held = raw.is_checked or (trusts and is_fresh(filesystem, version))


@contextmanager
def _fsspec_file(
    filesystem: pafs.FileSystem, version: FileVersion, fs: Any, path: str, *, trusts: bool
) -> Iterator[tuple[Any, bool]]:
    """Opens a file of an fsspec file system. Yields it, and whether nothing is left to check; see `_Opening`."""
    etag = _pairs(version.tag).get("etag", "")
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


def _takes_etags(fs: Any) -> bool:
    """Whether the file system is s3fs with a server that compares the ETags of its requests."""
    names = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    others = getattr(fs, "local_expiry_check", False) or getattr(fs, "version_aware", False)
    return "s3" in names and not others


def _unbuffered(fs: Any, path: str, **known: int) -> Any:
    """Opens a file of an fsspec file system without read-ahead, so that it fetches only the requested bytes."""
    choices: list[dict[str, Any]] = [{"cache_type": "none", **known}, {"cache_type": "none"}, {}]
    refused = _refused_options.setdefault((type(fs), bool(known)), 0)
    for number in range(refused, len(choices) - 1):
        with suppress(TypeError):  # this file system has no such option
            return fs.open(path, "rb", **choices[number])
        _refused_options[type(fs), bool(known)] = number + 1
    return fs.open(path, "rb")


def _pairs(tag: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in tag.split())  # each pair has two parts


def _tag(value: object) -> str:
    """Normalizes a tag: removes prefixes and quotes that stores add inconsistently."""
    return _text(value).removeprefix("W/").replace('"', "").replace(" ", "")


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _same_time(mine: int, theirs: int) -> bool:
    """Whether two times are equal at the precision they share. An unknown time equals any other."""
    if not mine or not theirs or abs(mine - theirs) <= _ROUNDING_NS:
        return True
    coarse = not mine % _SECOND_NS or not theirs % _SECOND_NS  # listings have more digits than headers
    return coarse and mine // _SECOND_NS == theirs // _SECOND_NS


def _time_ns(value: object) -> int:
    """Converts a store's representation of a time to nanoseconds; 0 if it is not a time."""
    if isinstance(value, bytes | str):
        value = _parsed(_text(value))
    if isinstance(value, datetime.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=datetime.timezone.utc)
        value = aware.timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return 0
    return round(value * 1_000_000) * 1_000 if value < _MOST_SECONDS else round(value * 1_000) * 1_000


def _parsed(text: str) -> datetime.datetime | None:
    with suppress(ValueError):
        return datetime.datetime.fromisoformat(_TOO_EXACT.sub(r"\1", text).replace("Z", "+00:00"))
    from email.utils import parsedate_to_datetime  # only here, because it takes a while to load

    with suppress(ValueError, TypeError):
        return parsedate_to_datetime(text)
    return None
