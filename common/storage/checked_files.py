"""Remembers which versions of remote files this process has checked, and keeps files of pyarrow's stores open.

Asking a store for a file's version takes a request, which costs as much time as fetching a small row group. A version
that was checked is therefore trusted for `RECHECK_S` seconds, and whatever was read since is checked at the end of the
epoch (`used_since_check`). In: file systems and versions. Out: open files, and the versions to check.

pyarrow asks for the headers each time it opens a file, so the most recently used files stay open. Nobody closes them,
because other threads may read from them: they close with the last reference, at the latest with their file system.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import field
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs

from ..base.process.dataclass import dataclass
from ..base.process.forks import ForkLock

RECHECK_S = 30.0
"""How long a version that was checked is trusted."""
MOST_OPEN = 64
"""How many files of one file system stay open."""


class Keyed(Protocol):
    """A version of a file; `FileVersion` is one."""

    @property
    def key(self) -> str:
        """The unique key of the version."""


_Version = TypeVar("_Version", bound=Keyed)


@dataclass(slots=True)
class _Checked:
    """What is known about one version.

    Attributes:
        at_s: when it was last checked.
        is_used: whether something was read from it since then.
    """

    at_s: float
    is_used: bool = False


@dataclass(slots=True)
class _OfFilesystem:
    checked: dict[str, _Checked] = field(default_factory=dict)
    open: OrderedDict[str, pa.NativeFile] = field(default_factory=OrderedDict)


_known: dict[int, _OfFilesystem] = {}  # by the id of the file system
_lock = ForkLock()
_inherited: list[object] = []


def note_check(filesystem: pafs.FileSystem, version: Keyed) -> None:
    """Notes that a version was checked just now."""
    with _lock:
        _of(filesystem).checked[version.key] = _Checked(time.monotonic())


def is_fresh(filesystem: pafs.FileSystem, version: Keyed) -> bool:
    """Whether a version was checked a short time ago. If so, notes that something is read from it."""
    with _lock:
        checked = _of(filesystem).checked.get(version.key)
        if checked is None or time.monotonic() - checked.at_s >= RECHECK_S:
            return False
        checked.is_used = True
        return True


def used_since_check(filesystem: pafs.FileSystem, versions: Iterable[_Version]) -> list[_Version]:
    """Returns the versions from which something was read since they were checked."""
    with _lock:
        checked = _of(filesystem).checked
        return [version for version in versions if (one := checked.get(version.key)) is not None and one.is_used]


def open_file(filesystem: pafs.FileSystem, version: Keyed) -> pa.NativeFile | None:
    """Returns the open file of a version, to read ranges from; ``None`` if there is none."""
    with _lock:
        files = _of(filesystem).open
        if version.key in files:
            files.move_to_end(version.key)
        return files.get(version.key)


def keep_open(filesystem: pafs.FileSystem, version: Keyed, file: pa.NativeFile) -> None:
    """Keeps a file open, in place of those used least recently."""
    dropped = []  # closed outside of the lock
    with _lock:
        files = _of(filesystem).open
        dropped.append(files.pop(version.key, None))
        files[version.key] = file
        while len(files) > MOST_OPEN:
            dropped.append(files.popitem(last=False)[1])


def _of(filesystem: pafs.FileSystem) -> _OfFilesystem:
    key = id(filesystem)
    if key not in _known:
        _known[key] = _OfFilesystem()
        weakref.finalize(filesystem, _known.pop, key, None).atexit = False
    return _known[key]


def _after_fork() -> None:
    """A forked child must neither use nor close the connections of its parent."""
    global _known
    _inherited.append(_known)
    _known = {}


os.register_at_fork(after_in_child=_after_fork)
