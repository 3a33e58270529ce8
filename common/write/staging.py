"""Stages files so that they become visible together.

`Staging` writes to a hidden directory inside the target directory (readers skip names that begin with ``.``). `commit`
makes the files visible; `discard` removes them. A process that dies in between leaves only the hidden directory, which
the next writer to the target removes.

`commit` works as follows:

- On a local disk, if the target holds nothing else, the hidden directory replaces the target by ``rename``. A reader
  sees either no file or every file.
- Elsewhere (object stores, mount points, a target with other hidden files), each file is moved to its final name, under
  a note that makes readers leave these files out until all are there; see `added_parts`.

`add` does the latter in a directory that holds a dataset, under names that no other writer uses.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
from collections.abc import Iterator, Mapping

import pyarrow as pa
import pyarrow.fs as pafs

from ..base.errors import DatasetError, ParquetryError
from ..base.process.locks import lock_file
from ..base.urls import clean_cause
from ..storage.added_parts import ADDED, ADDING, note_path, note_text, remove_part, roll_back
from ..storage.store_answers import wrong_option
from ..storage.whole_files import new_directory, release, remove_leftovers, unfinished_name

COMMON_METADATA = "_common_metadata"
_OURS = frozenset({COMMON_METADATA, "_metadata", "_row_groups.parquet"})
_WITHOUT_DIRECTORIES = frozenset({"s3", "gcs", "abfs"})


class Staging:
    """Owns the hidden directory of files that are being written. Not thread-safe.

    Args:
        appends: whether the target may hold a dataset, which the files are added to.

    Raises:
        DatasetError: the target is a file, already holds a dataset, or cannot be written.
    """

    def __init__(self, filesystem: pafs.FileSystem, root: str, *, appends: bool = False) -> None:
        self._filesystem = filesystem
        self._root = root
        self._files: list[str] = []
        self._is_local = isinstance(filesystem, pafs.LocalFileSystem)
        self._done = False
        with storage_errors("writing", root, filesystem):
            roll_back(filesystem, root)
            if appends:
                data_entries(filesystem, root)
            else:
                self._check_free()
            self._new_directories = _missing_directories(root) if self._is_local else []
            remove_leftovers(filesystem, root)
            self._owner: int | None = None
            if self._is_local:
                os.makedirs(root, exist_ok=True)
                self._hidden, self._owner = new_directory(root)
            else:
                self._hidden = posixpath.join(root, unfinished_name())
                self._create_directory(self._hidden)

    @property
    def root(self) -> str:
        """The path of the target."""
        return self._root

    @property
    def part(self) -> str:
        """32 hex digits that no other writer has."""
        return posixpath.basename(self._hidden).rpartition("-")[2]

    @property
    def files(self) -> tuple[str, ...]:
        """The relative paths of the files, in the order in which they were opened."""
        return tuple(self._files)

    def open(self, relative: str) -> pa.NativeFile:
        """Opens a stream to a new file, whose final path in the target will be ``relative``."""
        path = posixpath.join(self._hidden, relative)
        with storage_errors("writing", posixpath.join(self._root, relative)):
            self._create_directory(posixpath.dirname(path))
            stream = self._filesystem.open_output_stream(path)
        self._files.append(relative)
        return stream

    def commit(self) -> None:
        """Makes the files visible, as a new dataset. They must be closed.

        Raises:
            DatasetError: the file system refused. None of the files is visible.
        """
        with storage_errors("finishing", self._root), self.alone():
            self._check_free()
            if not (self._is_local and _take_place(self._hidden, self._root)):
                self._publish({relative: relative for relative in self._files})
                self._remove_note(ADDED)
        self._end()

    def add(self, names: Mapping[str, str]) -> None:
        """Makes the files visible beside those that are there. They must be closed. Call it in a block of `alone`.

        Args:
            names: the final relative path of each file.

        Raises:
            DatasetError: the file system refused. None of the files is visible.
        """
        with storage_errors("finishing", self._root):
            self._publish(names)
        self._end()

    def discard(self) -> None:
        """Removes everything this object created. Has no effect after `commit`. Idempotent."""
        if self._done:
            return
        with contextlib.suppress(OSError):
            self._filesystem.delete_dir(self._hidden)
        self._end()
        with contextlib.suppress(OSError):  # another process may use them by now
            for directory in self._new_directories:
                os.rmdir(directory)

    def _end(self) -> None:
        self._done = True
        if self._owner is not None:
            release(self._owner)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Excludes other writers on this machine while the block looks at the target and makes files visible in it."""
        if not self._is_local:
            yield
            return
        with storage_errors("finishing", self._root):
            descriptor = os.open(self._root, os.O_RDONLY)
        try:
            try:
                lock_file(descriptor, self._root)
            except TimeoutError as error:
                text = f"finishing '{self._root}': {error}. End that process, or choose another path."
                raise DatasetError(text) from None
            yield
        finally:
            release(descriptor)

    def _check_free(self) -> None:
        names = data_entries(self._filesystem, self._root)
        if names:
            raise DatasetError(
                f"dataset '{self._root}': expected an empty directory, got {len(names)} entries such as '{names[0]}'. "
                "Choose an empty directory or delete it first. To add rows to a dataset, write with mode='append'."
            )

    def _create_directory(self, path: str) -> None:
        if self._filesystem.type_name not in _WITHOUT_DIRECTORIES:
            self._filesystem.create_dir(path, recursive=True)

    def _publish(self, names: Mapping[str, str]) -> None:
        """Moves the files to their final names, so that readers see none of them until all are there."""
        note, done = (note_path(self._root, self.part, mark) for mark in (ADDING, ADDED))
        hidden_note = posixpath.join(self._hidden, posixpath.basename(note))
        with self._filesystem.open_output_stream(hidden_note) as stream:
            stream.write(note_text(list(names.values())))
        self._create_directory(posixpath.dirname(note))
        try:
            self._filesystem.move(hidden_note, note)
            for relative, final in names.items():
                path = posixpath.join(self._root, final)
                self._create_directory(posixpath.dirname(path))
                self._filesystem.move(posixpath.join(self._hidden, relative), path)
            self._filesystem.move(note, done)
        except BaseException:
            if self._is_file(note) or not self._is_file(done):  # otherwise the part is in the dataset
                remove_part(self._filesystem, self._root, names.values())
                self._remove_note(ADDED)
                self._remove_note(ADDING)
            raise
        with contextlib.suppress(OSError):  # the dataset is complete; an empty hidden directory does no harm
            self._filesystem.delete_dir(self._hidden)

    def _remove_note(self, mark: str) -> None:
        """Removes the note of this part, and the directory of the notes if there are no others."""
        note = note_path(self._root, self.part, mark)
        with contextlib.suppress(OSError):
            if self._is_file(note):
                self._filesystem.delete_file(note)
            directory = posixpath.dirname(note)
            if self._is_local:
                os.rmdir(directory)
            elif not self._filesystem.get_file_info(pafs.FileSelector(directory, allow_not_found=True)):
                self._filesystem.delete_dir(directory)

    def _is_file(self, path: str) -> bool:
        return bool(self._filesystem.get_file_info(path).type == pafs.FileType.File)


def data_entries(filesystem: pafs.FileSystem, root: str) -> list[str]:
    """The names in a target that may be those of data.

    Raises:
        DatasetError: the target is a file.
    """
    info = filesystem.get_file_info(root)
    if info.type == pafs.FileType.File:
        raise DatasetError(f"dataset '{root}': expected a directory or nothing, got a file. Choose another path.")
    if info.type == pafs.FileType.NotFound:
        return []
    entries = filesystem.get_file_info(pafs.FileSelector(root, allow_not_found=True))
    return sorted(name for name in map(_name, entries) if _is_data(name))


@contextlib.contextmanager
def storage_errors(doing: str, path: str, filesystem: pafs.FileSystem | None = None) -> Iterator[None]:
    """Turns file system errors into a `DatasetError` that says what was being done to which path.

    Args:
        filesystem: the file system, if the block is the first to use it and may find that its options are wrong.
    """
    try:
        yield
    except ParquetryError:
        raise
    except TypeError as error:
        wrong = "" if filesystem is None else wrong_option(filesystem, error)
        if not wrong:
            raise
        raise DatasetError(
            f"{doing} '{path}': the store's client does not take the option '{wrong}'. Correct storage_options."
        ) from clean_cause(error)
    except (OSError, NotImplementedError, pa.ArrowException) as error:
        raise DatasetError(
            f"{doing} '{path}': the file system refused: {error}. Check the path, the permissions and the free space."
        ) from clean_cause(error)


def _take_place(hidden: str, root: str) -> bool:
    """Replaces ``root`` with the directory ``hidden`` inside it. Returns whether that was possible."""
    root = os.path.realpath(root)
    hidden = os.path.join(root, os.path.basename(hidden))
    aside = os.path.join(os.path.dirname(root), f".{os.path.basename(root)}-{os.path.basename(hidden)[1:]}")
    try:
        old, new = os.stat(root), os.stat(hidden)
        if os.listdir(root) != [os.path.basename(hidden)] or (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            return False
        shutil.copystat(root, hidden)
        os.rename(hidden, aside)
    except OSError:
        return False
    try:
        os.rename(aside, root)  # replaces an empty directory in one step (POSIX)
    except OSError:
        os.rename(aside, hidden)
        return False
    return True


def _missing_directories(path: str) -> list[str]:
    """The directories that must be created for ``path``, deepest first."""
    missing = []
    while not os.path.lexists(path):
        missing.append(path)
        path = os.path.dirname(path)
    return missing


def _is_data(name: str) -> bool:
    return name in _OURS or "=" in name or not name.startswith((".", "_"))


def _name(info: pafs.FileInfo) -> str:
    return str(posixpath.basename(info.path.rstrip("/")))
