"""`FileVersion` identifies one version of one file on one store. Everything cached about a file is keyed by it.

`opening.opened` compares it with the planned version. If a store reports neither times nor tags, nothing about the file
is cached for other plans.
"""

from __future__ import annotations

import datetime
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow.fs as pafs

from ..base.errors import DatasetError
from ..base.native.parquet import FileStatus
from ..base.process.dataclass import dataclass
from ..base.urls import url_without_secrets, without_signature
from ..schema.plain import is_utf_8
from .retries import is_local, is_transient
from .store_answers import is_absence
from .stores import fsspec_of, store_of, without_subtrees

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
_SECOND_NS = 10**9
_MOST_SECONDS = 10**11  # larger numbers are milliseconds
_TOO_EXACT = re.compile(r"(\.\d{6})\d+")  # more digits than Python parses
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
        return bool(self.mtime_ns and found.mtime_ns) or not pairs_of(self.tag).keys().isdisjoint(pairs_of(found.tag))

    def became(self, found: FileVersion) -> bool:
        """Whether the file that was found is no longer this version."""
        if self.size_bytes != found.size_bytes:
            return True
        if self.inode and found.inode:
            return self.mtime_ns != found.mtime_ns or (self.tag != found.tag and not self._explains(found))
        own, theirs = pairs_of(self.tag), pairs_of(found.tag)
        return not _same_time(self.mtime_ns, found.mtime_ns) or any(
            own[name] != theirs[name] for name in own.keys() & theirs.keys()
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
        parts = [f"{self.size_bytes} bytes"]
        if self.mtime_ns:
            time = datetime.datetime.fromtimestamp(self.mtime_ns / _SECOND_NS, datetime.UTC)
            parts.append(f"written {time:%Y-%m-%dT%H:%M:%S.%fZ}")
        parts += self.tag.split()
        if self.inode:
            parts.append(f"inode {self.inode[0]}")
        return ", ".join(parts)


def drawn_plan() -> str:
    """Draws a unique `FileVersion.plan`."""
    return secrets.token_hex(8)


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
    status = base.get_file_info(inside)
    if status.type != pafs.FileType.File:
        return status.type, None
    if is_local(base):
        return status.type, local_version(store_of(filesystem), path, os.stat(inside))
    return status.type, arrow_version(store_of(filesystem), path, status)


def current_versions(filesystem: pafs.FileSystem, paths: Sequence[str]) -> list[FileVersion | None]:
    """`current_version` of several files, in one request if the store supports that."""
    if is_local(filesystem) or fsspec_of(filesystem) is not None:
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
        fs.invalidate_cache()  # directories below are cached one by one
        infos = fs.find(inside, detail=True)
        whole = ((path, fs.info(path) if info.get("size") is None else info) for path, info in infos.items())
        return [version_of(store, path[above:], info) for path, info in whole if info["type"] == "file"]
    if is_local(base):
        versions = []
        for path in _local_files(inside, above, wants):
            with suppress(FileNotFoundError):  # a writer has just moved it
                versions.append(local_version(store, path[above:], os.stat(path)))
        return versions
    listing = base.get_file_info(pafs.FileSelector(inside, recursive=True))
    return [arrow_version(store, info.path[above:], info) for info in listing if info.type == pafs.FileType.File]


def path_below(path: str, root: str) -> str:
    """The path relative to a directory above it.

    Some file systems drop the first slash of the paths that they list, or add one.
    """
    bare, above = path.lstrip("/"), root.lstrip("/")
    return bare[len(above) :].lstrip("/") if bare.startswith(above) else path


def _local_files(directory: str, above: int, wants: Callable[[str, bool], bool]) -> Iterator[str]:
    """Yields the files in a directory, recursively. A broken link, and one to a directory around it, are errors.

    A directory below that vanishes meanwhile, because a writer moves it, has no files.
    """
    directories = [directory]
    while directories:
        place = directories.pop()
        try:
            listing = os.scandir(place)
        except FileNotFoundError:
            if place == directory:
                raise
            continue
        with listing as entries:
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
    if not is_utf_8(path):
        raise DatasetError(f"file {os.fsencode(path)!r}: expected a path in UTF-8. Rename it.")


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
    values = {_text(name).lower(): value for name, value in info.items()}
    tags = [f"{name}={_tag(values[name])}" for name in _TAGS if isinstance(values.get(name), str | bytes | int)]
    times = (_time_ns(values[name]) for name in _TIMES if values.get(name))
    size = values.get("size", values.get("content-length"))
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


def pairs_of(tag: str) -> dict[str, str]:
    """Returns the names and values of a tag that consists of several."""
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
        value = _parse_time(_text(value))
    if isinstance(value, datetime.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        value = aware.timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return 0
    return round(value * 1_000_000) * 1_000 if value < _MOST_SECONDS else round(value * 1_000) * 1_000


def _parse_time(text: str) -> datetime.datetime | None:
    with suppress(ValueError):
        return datetime.datetime.fromisoformat(_TOO_EXACT.sub(r"\1", text).replace("Z", "+00:00"))
    from email.utils import parsedate_to_datetime  # only here, because it takes a while to load

    with suppress(ValueError, TypeError):
        return parsedate_to_datetime(text)
    return None
