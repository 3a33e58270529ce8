"""Notes of parts: which files a writer is adding to a dataset, so that readers see all of them or none.

A part is published as follows, on any file system:

1. Its files are complete, in the writer's hidden directory ``.parquetry-<32 hex digits>``.
2. The note ``.parquetry-parts/<32 hex digits>.adding``, JSON with their final paths, appears. Readers leave these out.
3. Each file is moved to its final path.
4. The note is renamed to ``.added``. At this moment, the part is in the dataset.

Readers look at the notes before and after they list the files, and list again if a part was added meanwhile.
`roll_back` removes the files of a writer that died before step 4.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.fs as pafs

from ..base.errors import DatasetError
from ..base.process.dataclass import dataclass
from ..base.urls import clean_cause
from .file_versions import FileVersion, path_below, versions_below
from .retries import is_local, with_retries
from .store_answers import StoreError
from .table_logs import above_partitions, is_hidden
from .whole_files import MINUTE_NS, abandoned

PARTS = ".parquetry-parts"
"""The hidden directory of the notes, in the dataset's."""
ADDING, ADDED = ".adding", ".added"
_NOTE = re.compile(rf"(?P<above>|.+/){re.escape(PARTS)}/(?P<note>[0-9a-f]{{32}}({ADDING}|{ADDED}))")
_KEPT_NS = 10 * MINUTE_NS  # longer than any reader takes to list a dataset
_ATTEMPTS = 10
_PAGE = 1000  # what stores list at one moment
_DAY_NS = 24 * 60 * MINUTE_NS
_REFUSED = (OSError, NotImplementedError, pa.ArrowException)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """The notes in one directory at one moment.

    Attributes:
        adding, added: the hex digits of the parts that are being added, and of those that were added lately.
    """

    adding: frozenset[str] = frozenset()
    added: frozenset[str] = frozenset()

    @classmethod
    def of(cls, names: Iterable[str]) -> Notes:
        """Sorts the names of notes. Others are ignored, and so is one of a part that is still being added."""
        marks = [posixpath.splitext(name) for name in names]
        adding = frozenset(part for part, mark in marks if mark == ADDING)
        return cls(adding=adding, added=frozenset(part for part, mark in marks if mark == ADDED) - adding)

    def moved_on(self, now: Notes) -> bool:
        """Whether files may have appeared or vanished since these notes, so that a listing may have some of a part."""
        return bool(now.added - self.added or self.adding - now.adding)


def list_whole_parts(
    filesystem: pafs.FileSystem, root: str, list_files: Callable[[], list[FileVersion]]
) -> list[FileVersion]:
    """Lists the files in a directory without those of parts that are being added, there or in directories below.

    On a store, nothing is asked again unless the listing has notes or took several answers, and the notes above a
    partition directory are not looked for.

    Args:
        list_files: lists all files, including the notes.

    Raises:
        DatasetError: parts are added all the time, or a note cannot be understood.
    """
    is_on_disk = is_local(filesystem)
    top = (above_partitions(root) if is_on_disk else None) or root
    for _ in range(_ATTEMPTS):
        before = _notes_in(filesystem, top) if is_on_disk else None
        files = list_files()
        notes = _notes_among(root, files)
        if before is not None:
            notes[top] = before
        elif len(files) >= _PAGE:
            notes.setdefault(root, Notes())
        now = {directory: _notes_in(filesystem, directory) for directory in notes}
        if any(notes[directory].moved_on(now[directory]) for directory in notes):
            continue
        parts = [_files_being_added(filesystem, directory, each) for directory, each in now.items()]
        adding = {path.lstrip("/") for part in parts for path in part or ()}
        if None not in parts:
            return [file for file in files if file.path.lstrip("/") not in adding] if adding else files
    raise DatasetError(
        f"dataset '{root}': parts were added to it each of the {_ATTEMPTS} times that it was listed. Open it again."
    )


def _notes_in(filesystem: pafs.FileSystem, root: str) -> Notes:
    """The notes in a directory now."""
    path = posixpath.join(root, PARTS)

    def read() -> list[FileVersion]:
        try:
            return versions_below(filesystem, path)
        except FileNotFoundError:
            return []

    files = read() if is_local(filesystem) else with_retries(filesystem, read, f"directory {path}", is_listing=True)
    return Notes.of(posixpath.basename(file.path) for file in files)


def _notes_among(root: str, files: Iterable[FileVersion]) -> dict[str, Notes]:
    """The notes in a listing, by the directory that has them."""
    groups: dict[str, list[str]] = {}
    for file in files:
        match = _NOTE.fullmatch(path_below(file.path, root)) if PARTS in file.path else None
        if match is not None and not is_hidden(match["above"]):
            groups.setdefault(posixpath.join(root, match["above"]).rstrip("/"), []).append(match["note"])
    return {directory: Notes.of(names) for directory, names in groups.items()}


def is_note(relative: str) -> bool:
    """Whether a path below a directory is that of a note."""
    return _NOTE.fullmatch(relative) is not None


def _files_being_added(filesystem: pafs.FileSystem, root: str, notes: Notes) -> set[str] | None:
    """The paths of the files in the parts that are being added.

    Returns:
        ``None`` if a part has been added, or given up, since the notes were listed.
    """
    paths = set[str]()
    for part in sorted(notes.adding):
        note = note_path(root, part, ADDING)
        try:
            data = with_retries(filesystem, partial(_read, filesystem, note), f"file {note}")
        except FileNotFoundError:
            return None
        except StoreError as error:
            if error.is_gone:
                return None
            raise
        paths |= {posixpath.join(root, name) for name in _files_in(data, note)}
    return paths


def note_path(root: str, part: str, mark: str) -> str:
    """The path of the note of a part."""
    return posixpath.join(root, PARTS, f"{part}{mark}")


def note_text(files: Sequence[str]) -> bytes:
    """The content of a note."""
    return json.dumps({"version": 1, "files": list(files)}).encode()


def roll_back(filesystem: pafs.FileSystem, root: str) -> None:
    """Removes the files of parts whose writers died, and notes that no reader needs. Ignores errors of the file system.

    On stores, which have no locks, a writer counts as dead after a day.
    """
    with contextlib.suppress(*_REFUSED, DatasetError):
        now = time.time_ns()
        for file in versions_below(filesystem, posixpath.join(root, PARTS)):
            match = _NOTE.fullmatch(posixpath.join(PARTS, posixpath.basename(file.path)))
            quiet_ns = now - file.mtime_ns if file.mtime_ns else 0
            if match is None:
                continue
            part, mark = posixpath.splitext(match["note"])
            path = note_path(root, part, mark)
            if mark == ADDED:
                if quiet_ns > _KEPT_NS:
                    filesystem.delete_file(path)
                continue
            with _dead(filesystem, posixpath.join(root, f".parquetry-{part}"), quiet_ns) as is_dead:
                if is_dead:
                    remove_part(filesystem, root, _files_in(_read(filesystem, path), path))
                    filesystem.delete_file(path)


def remove_part(filesystem: pafs.FileSystem, root: str, files: Iterable[str]) -> None:
    """Removes those of a part's files that were moved already, and directories that are empty then.

    Raises:
        OSError: the file system refused.
    """
    for relative in files:
        path = posixpath.join(root, relative)
        if filesystem.get_file_info(path).type == pafs.FileType.File:
            filesystem.delete_file(path)
        while relative := posixpath.dirname(relative):
            directory = posixpath.join(root, relative)
            if filesystem.get_file_info(directory).type != pafs.FileType.Directory:
                continue
            if filesystem.get_file_info(pafs.FileSelector(directory)):
                break
            filesystem.delete_dir(directory)


@contextlib.contextmanager
def _dead(filesystem: pafs.FileSystem, hidden: str, quiet_ns: int) -> Iterator[bool]:
    """Yields whether the writer that owns a hidden directory is gone."""
    if not isinstance(filesystem, pafs.LocalFileSystem):
        yield quiet_ns > _DAY_NS
    elif filesystem.get_file_info(hidden).type == pafs.FileType.NotFound:
        yield True
    else:
        with abandoned(hidden, quiet_ns, is_directory=True) as is_left:
            yield is_left


def _read(filesystem: pafs.FileSystem, path: str) -> bytes:
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())


def _files_in(data: bytes, note: str) -> list[str]:
    try:
        files = json.loads(data)["files"]
        if not all(isinstance(name, str) and _is_below(name) for name in files):
            raise ValueError("a path that leads elsewhere")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DatasetError(
            f"file {note}: expected the paths of the files that a writer adds, got: {error}. If no writer is running, "
            "delete it."
        ) from clean_cause(error)
    return list(files)


def _is_below(name: str) -> bool:
    """Whether a writer gives a file of a part such a path."""
    *folders, last = name.split("/")
    return all("=" in folder for folder in folders) and (last.startswith("part-") or last == "_common_metadata")
