"""Finds files that several names lead to: URLs that overlap, links, and links to directories.

A file is read once. It keeps the name that leads to it without a link, or else the first of its names. Stores that keep
equal files once give it several names that are no links to each other (hard links, or links to a blob): names in
different partitions then stand for different rows.
"""

from __future__ import annotations

import logging
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import pyarrow.fs as pafs

from .file_versions import FileVersion
from .retries import is_local
from .stores import without_subtrees

_LOGGER = logging.getLogger(__name__)
_warned: set[tuple[str, str]] = set()


class Named(Protocol):
    """A file as it was listed."""

    @property
    def version(self) -> FileVersion:
        """The version that was listed, with the full path."""

    @property
    def relative(self) -> str:
        """The path below the dataset's root."""

    @property
    def partition(self) -> tuple[tuple[str, str | None], ...]:
        """The values of the partition directories in the path."""


NamedT = TypeVar("NamedT", bound=Named)


def each_name_once(files: Iterable[NamedT]) -> list[NamedT]:
    """Returns the files sorted by full path, and warns once if one of them is listed twice."""
    by_name: dict[str, NamedT] = {}
    repeated = ""
    for file in files:
        before = by_name.setdefault(file.version.identity, file)
        if before is not file:
            repeated = repeated or file.version.shown_path
            if len(file.relative) > len(before.relative):  # below the URL that shows more of its directories
                by_name[file.version.identity] = file
    if repeated and ("", repeated) not in _warned:
        _warned.add(("", repeated))
        _LOGGER.warning(
            "file '%s': several URLs of one dataset lead to it. It is read once. To see some rows more often, mix() "
            "pipelines or weigh() rows.",
            repeated,
        )
    return [by_name[identity] for identity in sorted(by_name)]


def each_once(filesystem: pafs.FileSystem, files: Sequence[NamedT]) -> list[NamedT]:
    """Leaves out all but one of the names that lead to the same file, and tells the log once.

    This is for local file systems. Others that have links do not say where they lead.
    """
    repeated: set[str] = set()
    for same in _same_files(filesystem, files) if is_local(filesystem) else ():
        for keep, other in _repeated(filesystem, same):
            repeated.add(other.version.identity)
            _tell(keep, other)
    return [file for file in files if file.version.identity not in repeated]


def _same_files(filesystem: pafs.FileSystem, files: Iterable[NamedT]) -> Iterator[Sequence[NamedT]]:
    """Yields the names of each file that has several."""
    by_number: dict[tuple[int, ...], list[NamedT]] = {}
    for file in files:
        version = file.version
        if version.inode:  # on some network file systems, different files have the same number
            by_number.setdefault((version.inode[0], version.size_bytes, version.mtime_ns), []).append(file)
    for alike in by_number.values():
        while len(alike) > 1:  # on several devices, different files have the same number
            same = [alike[0], *(other for other in alike[1:] if _is_same(filesystem, alike[0], other))]
            if len(same) > 1:
                yield same
            alike = [file for file in alike if not any(file is each for each in same)]


def _is_same(filesystem: pafs.FileSystem, first: Named, second: Named) -> bool:
    try:
        return os.path.samefile(_place(filesystem, first), _place(filesystem, second))
    except OSError:  # it is gone; reading it says so
        return False


def _repeated(filesystem: pafs.FileSystem, same: Sequence[NamedT]) -> Iterator[tuple[NamedT, NamedT]]:
    """Yields each name of a file that is left out, after the name that stays."""
    ranks = {file.version.identity: (*_links(filesystem, file), file.version.identity) for file in same}
    first, *others = sorted(same, key=lambda file: ranks[file.version.identity])
    keep = {first.partition: first}
    for other in others:
        is_link_to_first = ranks[other.version.identity][:2] != ranks[first.version.identity][:2]
        before = first if is_link_to_first else keep.setdefault(other.partition, other)
        if before is not other:
            yield before, other


def _links(filesystem: pafs.FileSystem, file: Named) -> tuple[bool, bool]:
    """Whether a link below the dataset's root leads to the file, and whether any link does."""
    place, real = _place(filesystem, file), os.path.realpath(_place(filesystem, file))
    root = os.path.realpath(place.removesuffix(file.relative))
    return real != posixpath.join(root, file.relative), real != posixpath.normpath(place)


def _place(filesystem: pafs.FileSystem, file: Named) -> str:
    return without_subtrees(filesystem, file.version.path)[1]


def _tell(keep: Named, other: Named) -> None:
    names = keep.version.shown_path, other.version.shown_path
    if names in _warned:
        return
    _warned.add(names)
    differs = keep.partition != other.partition
    _LOGGER.log(
        logging.WARNING if differs else logging.INFO,
        "file '%s' is read once, although '%s' leads to it, too.%s",
        *names,
        " The rows have the values of the directories in the first of these names." if differs else "",
    )
