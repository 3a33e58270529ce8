"""Which version of which file on which store: one value, by which everything that is kept about a file is found.

Every opening of a data file goes through `opened`, and what was read is of the version that was planned, or it is a
`DatasetError`. What that costs depends on the file system:

==========================  ==========================================  =============================================
local                       size, time, change time, inode              a ``stat`` behind each read: a microsecond
S3, GCS, Azure of pyarrow   size, time (and ETag, where both tell)      nothing: the headers that opening gets anyway
fsspec                      size, time, ETag or generation              ``info()`` behind each read; nothing where the
                                                                        file itself insists on the ETag (s3fs)
others (HDFS, handlers)     size, time                                  ``get_file_info`` behind each read
==========================  ==========================================  =============================================

A store that tells neither times nor tags leaves the footer to compare (`StoredDataset.open`), and nothing of it is kept
for other plans.
"""

from __future__ import annotations

import datetime
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from ..errors import DatasetError
from .stores import fsspec_of, store_of, without_subtrees

# What stores call that which changes with the content, and when it was written; in lower case.
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
_SECOND_NS = 10**9
_MOST_SECONDS = 10**11  # beyond, they are milliseconds
_TOO_EXACT = re.compile(r"(\.\d{6})\d+")  # more digits than Python reads
_ROUNDING_NS = 1_000  # of seconds since 1970 in a float


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVersion:
    """A file as it stood on a store at some time.

    Attributes:
        path: the full path on the store.
        store: see `stores.store_of`.
        mtime_ns: when it was written; 0 where the store has no times.
        tag: what else changes with the content, as ``name=value`` pairs: ETag, generation; the change time if local.
        inode: of a local file: its number, then its rights and names, whose change alters the change time, too.
        plan: drawn for one plan, where nothing else would tell this version from the next one.
    """

    path: str
    size_bytes: int
    store: str = ""
    mtime_ns: int = 0
    tag: str = ""
    inode: tuple[int, ...] = ()
    plan: str = ""

    @property
    def is_dated(self) -> bool:
        """Whether another version of the file would be told from this one by the store alone."""
        return bool(self.mtime_ns or self.tag)

    @property
    def outlives_plan(self) -> bool:
        """Whether what is kept about it may serve another plan."""
        return not self.plan

    @property
    def key(self) -> str:
        """The one name of this version: equal for equal content, different for any other file or version."""
        return f"{self.shared_key}\0{self.plan}"

    @property
    def shared_key(self) -> str:
        """The same in every process that lists the file."""
        return f"{self.store}\0{self.path}\0{self.size_bytes}\0{self.mtime_ns}\0{self.tag}"

    @property
    def portable_tag(self) -> str:
        """The tag, if it stays when the file is copied with its times."""
        return "" if self.inode else self.tag

    def can_tell(self, found: FileVersion) -> bool:
        """Whether `became` compares more than sizes."""
        return bool(self.mtime_ns and found.mtime_ns) or not _pairs(self.tag).keys().isdisjoint(_pairs(found.tag))

    def became(self, found: FileVersion) -> bool:
        """Whether the file that was found is no longer this one."""
        if self.size_bytes != found.size_bytes:
            return True
        if self.inode and found.inode:
            return self.mtime_ns != found.mtime_ns or (self.tag != found.tag and not self._explains(found))
        mine, theirs = _pairs(self.tag), _pairs(found.tag)
        return not _same_time(self.mtime_ns, found.mtime_ns) or any(
            mine[name] != theirs[name] for name in mine.keys() & theirs.keys()
        )

    def _explains(self, found: FileVersion) -> bool:
        """Whether other rights or names alone explain another change time: the content is still the same."""
        return self.inode[0] == found.inode[0] and self.inode[1:] != found.inode[1:]

    def to_json(self) -> list[Any]:
        """A JSON list, because there may be many."""
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
    """A `FileVersion.plan` that no other plan has."""
    return secrets.token_hex(8)


@contextmanager
def opened(filesystem: pafs.FileSystem, version: FileVersion) -> Iterator[pa.NativeFile]:
    """A data file, open for reading; what the block reads is of this version.

    Raises:
        DatasetError: at the end of the block, or in place of an error in it: the file changed since it was listed.
    """
    with _explaining(filesystem, version), _open(filesystem, version.path) as opening:
        if opening.told is not None:
            hold(version, opening.told)
        yield opening.source
    if opening.told is None and not (opening.insists_on and opening.insists_on in _pairs(version.tag).values()):
        hold(version, current_version(filesystem, version.path))


@contextmanager
def _explaining(filesystem: pafs.FileSystem, version: FileVersion) -> Iterator[None]:
    """What cannot be read, or does not fit, of a file that changed is best explained by that."""
    try:
        yield
    except Exception as error:
        found = None
        with suppress(Exception):  # the first error says more
            found = current_version(filesystem, version.path)
        if found is not None and version.became(found):
            raise changed(version, found) from error
        raise


def hold(planned: FileVersion, found: FileVersion | None) -> None:
    """Raises `DatasetError` if a file is no longer the one that was planned."""
    if found is None or planned.became(found):
        raise changed(planned, found)


def changed(planned: FileVersion, found: FileVersion | None) -> DatasetError:
    """The one error for a file that changed."""
    return DatasetError(
        f"file {planned.path}: expected the version that the pipeline was planned with ({planned}), got "
        f"{'none' if found is None else f'another ({found})'}. It changed since the pipeline was planned: make the "
        "pipeline anew, and write changed data under a new name while they are in use."
    )


def current_version(filesystem: pafs.FileSystem, path: str) -> FileVersion | None:
    """A file as it is now, asked of the store itself; ``None`` if there is no such file.

    Raises:
        OSError: the store cannot be reached.
    """
    return look(filesystem, path)[1]


def look(filesystem: pafs.FileSystem, path: str) -> tuple[pafs.FileType, FileVersion | None]:
    """What is at a path now; of a file, its version. Errors as of `current_version`."""
    base, inside = without_subtrees(filesystem, path)
    fs = fsspec_of(base)
    if fs is not None:
        fs.invalidate_cache(fs._parent(inside))  # a listing of before would say that nothing changed
        try:
            info = fs.info(inside)
        except FileNotFoundError:
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
    """`current_version` of some files; together where the store takes several questions at once."""
    if _is_local(without_subtrees(filesystem, "")[0]) or fsspec_of(filesystem) is not None:
        return [current_version(filesystem, path) for path in paths]
    store = store_of(filesystem)
    infos = filesystem.get_file_info(list(paths))
    return [
        arrow_version(store, path, info) if info.type == pafs.FileType.File else None
        for path, info in zip(paths, infos, strict=True)
    ]


def versions_below(filesystem: pafs.FileSystem, directory: str) -> list[FileVersion]:
    """The files in a directory and all below it, as they are now.

    Raises:
        OSError: the store cannot be reached.
        DatasetError: a path that is no text, or a link that leads nowhere or to a directory that it lies in.
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
        return [local_version(store, path[above:], os.stat(path)) for path in _local_files(inside)]
    found = base.get_file_info(pafs.FileSelector(inside, recursive=True))
    return [arrow_version(store, info.path[above:], info) for info in found if info.type == pafs.FileType.File]


def _local_files(directory: str) -> Iterator[str]:
    """The files in a directory and all below it; no link may repeat files, or leave one out, without a word."""
    directories = [directory]
    while directories:
        with os.scandir(directories.pop()) as entries:
            for entry in entries:
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
    except UnicodeEncodeError:  # its bytes are no text: they came as lone surrogates
        raise DatasetError(f"file {os.fsencode(path)!r}: expected a path in UTF-8. Rename it.") from None


def _check_link(link: os.DirEntry[str]) -> None:
    around, target = os.path.realpath(os.path.dirname(link.path)), os.path.realpath(link.path)
    if link.is_dir() and f"{around}/".startswith(f"{target}/"):
        raise DatasetError(f"directory {link.path}: the link leads to '{target}', which it lies in. Remove it.")
    if not os.path.exists(link.path) and not link.name.startswith((".", "_")):
        raise DatasetError(f"file {link.path}: the link leads to nothing, '{target}'. Remove it.")


def local_version(store: str, path: str, status: os.stat_result) -> FileVersion:
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
    """The version of a file that a store describes in its own words."""
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
    """The version of a file that Arrow describes."""
    return FileVersion(store=store, path=path, size_bytes=info.size or 0, mtime_ns=info.mtime_ns or 0)


def _is_local(filesystem: pafs.FileSystem) -> bool:
    return isinstance(filesystem, pafs.LocalFileSystem)


@dataclass(frozen=True, slots=True)
class _Opening:
    """An open file.

    Attributes:
        told: its version, where opening it tells.
        insists_on: the ETag that each read asks the store for; empty if they take what is there.
    """

    source: pa.NativeFile
    told: FileVersion | None = None
    insists_on: str = ""


@contextmanager
def _open(filesystem: pafs.FileSystem, path: str) -> Iterator[_Opening]:
    base, inside = without_subtrees(filesystem, path)
    fs = fsspec_of(base)
    if fs is not None and type(base.handler) is pafs.FSSpecHandler:  # which would ask first whether it is a file
        with _unbuffered(fs, inside) as raw, pa.PythonFile(raw, mode="r") as source:
            etag = getattr(raw, "req_kw", {}).get("IfMatch")  # of s3fs
            yield _Opening(source, insists_on="" if etag is None else _tag(etag))
        return
    with filesystem.open_input_file(path) as source:
        told = source.metadata() if base.type_name in _TELLS_ON_OPENING else None
        if told:
            yield _Opening(source, version_of(store_of(filesystem), path, {**told, "size": source.size()}))
        else:
            yield _Opening(source)


def _unbuffered(fs: Any, path: str) -> Any:
    """Opens a file of an fsspec file system so that it fetches what is asked for, and no block behind it."""
    try:
        return fs.open(path, "rb", cache_type="none")
    except TypeError:  # this file system has no such option
        return fs.open(path, "rb")


def _pairs(tag: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in tag.split())  # two parts each


def _tag(value: object) -> str:
    """A tag without what stores put around it here and leave out there."""
    return _text(value).removeprefix("W/").replace('"', "").replace(" ", "")


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _same_time(mine: int, theirs: int) -> bool:
    """Whether two times are one, as exactly as both are given; unknown ones are."""
    if not mine or not theirs or abs(mine - theirs) <= _ROUNDING_NS:
        return True
    coarse = not mine % _SECOND_NS or not theirs % _SECOND_NS  # listings know more digits than headers
    return coarse and mine // _SECOND_NS == theirs // _SECOND_NS


def _time_ns(value: object) -> int:
    """A time as some store writes it; 0 for what is none."""
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
    with suppress(ValueError, TypeError):
        return parsedate_to_datetime(text)
    return None
