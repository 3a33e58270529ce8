"""Stages files so that they become visible together.

`Staging` writes to a hidden directory inside the target directory (readers skip names that begin with ``.``). `commit`
makes the files visible; `discard` removes them. A process that dies in between leaves only the hidden directory, which
the next writer to the target removes.

`commit` works as follows:

- On a local disk, if the target holds nothing else, the hidden directory replaces the target by ``rename``. A reader
  sees either no file or every file.
- Elsewhere (object stores, mount points, a target with other hidden files), each file is moved to its final name in the
  order of opening, so ``_common_metadata`` is moved last. If a move fails, the earlier ones are undone. Meanwhile, the
  hidden directory contains the file ``moving``, and parquetry's readers refuse the target.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.fs as pafs

from ..base.errors import DatasetError, ParquetryError
from ..base.process.locks import lock_file
from ..base.urls import clean_cause
from ..storage.store_answers import wrong_option
from ..storage.whole_files import MOVING, new_directory, release, remove_leftovers, unfinished_name

COMMON_METADATA = "_common_metadata"
_OURS = frozenset({COMMON_METADATA, "_metadata", "_row_groups.parquet"})
_WITHOUT_DIRECTORIES = frozenset({"s3", "gcs", "abfs"})


class Staging:
    """Owns the hidden directory of a dataset that is being written. Not thread-safe.

    Raises:
        DatasetError: the target is a file, already holds a dataset, or cannot be written.
    """

    def __init__(self, filesystem: pafs.FileSystem, root: str) -> None:
        self._filesystem = filesystem
        self._root = root
        self._files: list[str] = []
        self._is_local = isinstance(filesystem, pafs.LocalFileSystem)
        self._done = False
        with storage_errors("writing", root, filesystem):
            self._check_free()
            self._new_directories = _missing_directories(root) if self._is_local else []
            remove_leftovers(filesystem, root)
            self._owner: int | None = None
            if self._is_local:
                os.makedirs(root, exist_ok=True)
                self._hidden, self._owner = new_directory(root)
            else:
                self._hidden = _join(root, unfinished_name())
                self._create_directory(self._hidden)

    @property
    def root(self) -> str:
        """The path of the target."""
        return self._root

    def open(self, relative: str) -> pa.NativeFile:
        """Opens a stream to a new file, whose final path in the target will be ``relative``."""
        path = _join(self._hidden, relative)
        with storage_errors("writing", _join(self._root, relative)):
            self._create_directory(posixpath.dirname(path))
            stream = self._filesystem.open_output_stream(path)
        self._files.append(relative)
        return stream

    def commit(self) -> None:
        """Makes the files visible. They must be closed.

        Raises:
            DatasetError: the file system refused. None of the files is visible.
        """
        with storage_errors("finishing", self._root), self._alone():
            self._check_free()
            if not (self._is_local and _take_place(self._hidden, self._root)):
                self._move_each()
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
    def _alone(self) -> Iterator[None]:
        """Excludes other writers on this machine between the check that the target is free and the last move."""
        if not self._is_local:
            yield
            return
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
        info = self._filesystem.get_file_info(self._root)
        if info.type == pafs.FileType.File:
            raise DatasetError(
                f"dataset '{self._root}': expected a directory or nothing, got a file. Choose another path."
            )
        if info.type == pafs.FileType.NotFound:
            return
        entries = self._filesystem.get_file_info(pafs.FileSelector(self._root, allow_not_found=True))
        names = sorted(name for name in map(_name, entries) if _is_data(name))
        if names:
            raise DatasetError(
                f"dataset '{self._root}': expected an empty directory, got {len(names)} entries such as '{names[0]}'. "
                "Choose an empty directory or delete it first."
            )

    def _create_directory(self, path: str) -> None:
        if self._filesystem.type_name not in _WITHOUT_DIRECTORIES:
            self._filesystem.create_dir(path, recursive=True)

    def _move_each(self) -> None:
        mark = _join(self._hidden, MOVING)
        self._filesystem.open_output_stream(mark).close()
        try:
            for relative in self._files:
                final = _join(self._root, relative)
                self._create_directory(posixpath.dirname(final))
                self._filesystem.move(_join(self._hidden, relative), final)
            self._filesystem.delete_file(mark)
        except BaseException:
            self._undo_moves()
            raise
        with contextlib.suppress(OSError):  # the dataset is complete; an empty hidden directory does no harm
            self._filesystem.delete_dir(self._hidden)

    def _undo_moves(self) -> None:
        for top in {relative.partition("/")[0] for relative in self._files}:
            path = _join(self._root, top)
            with contextlib.suppress(OSError):
                if self._filesystem.get_file_info(path).type == pafs.FileType.Directory:
                    self._filesystem.delete_dir(path)
                else:
                    self._filesystem.delete_file(path)


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


def _join(root: str, relative: str) -> str:
    return posixpath.join(root, relative)
