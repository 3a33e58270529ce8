"""`CopyJob` writes the stripes of a copy to a hidden directory in the target, then moves them to their final names.

``.parquetry-copy/job.json`` identifies the copy and says whether its files are being moved. Each ``stripe-00012`` is a
complete dataset, or is written again. A copy can resume after an interruption at any point. On a cluster, several
attempts may write the same stripe, each in a directory of its own. Readers see no files until all stripes are finished.
While the files are moved, they refuse the target (see `MOVING`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import posixpath
import threading
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, as_completed
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from tqdm import tqdm

from ...base.errors import DatasetError, ParquetryError
from ...base.process.locks import holder_of
from ...base.threads import ThreadPool
from ...dataset.dataset import LABELS_KEY
from ...parquet.group_footers import stored_footers
from ...schema.field import Unischema
from ...storage.file_cache import COPY
from ...storage.files import is_data_name, list_files
from ...storage.patterns import WILDCARDS, Pattern
from ...storage.stores import store_of
from ...storage.table_logs import is_hidden
from ...storage.whole_files import MOVING, release
from ...write.metadata_file import replace_file, write_metadata
from ...write.petastorm import petastorm_metadata
from ...write.staging import COMMON_METADATA, storage_errors

_JOB = "job.json"


class CopyJob:
    """A copy into the directory ``root``.

    Args:
        fingerprint: identifies the source, the selection and the layout. Only a copy with the same fingerprint resumes.
        sources: the store and path of each source.
        patterns: the store and pattern of each source that is one.
        overwrite: whether to replace a dataset at the target, and to discard a different unfinished copy.

    Raises:
        DatasetError: the target holds a dataset or a different unfinished copy, and ``overwrite`` is not set; or the
            target contains a source, or lies inside one.
    """

    def __init__(
        self,
        filesystem: pafs.FileSystem,
        root: str,
        fingerprint: str,
        *,
        sources: Iterable[tuple[str, str]],
        patterns: Iterable[tuple[str, Pattern]] = (),
        overwrite: bool,
    ) -> None:
        check_apart(filesystem, root, sources, patterns)
        self._filesystem = filesystem
        self._root = root
        self._work = posixpath.join(root, COPY)
        self._mark = posixpath.join(self._work, MOVING)
        self._fingerprint = fingerprint
        self._overwrite = overwrite
        with storage_errors("writing", root):
            kind = filesystem.get_file_info(root).type
            if kind == pafs.FileType.File:
                raise DatasetError(
                    f"copy to '{root}': expected a directory or nothing, got a file. Choose another target."
                )
            self._is_new = kind == pafs.FileType.NotFound
            self._began = False
            self._moving = self._begin()

    @property
    def filesystem(self) -> pafs.FileSystem:
        """The file system of the target."""
        return self._filesystem

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Excludes other copies to the target on this machine while the block runs. Only on local disks.

        If the block raises a `ParquetryError` before any stripe is finished, nothing of a copy that began with this
        object is left.

        Raises:
            DatasetError: another copy is running, has just ended, or began after this one.
        """
        with self._locked():
            note = self._noted()
            if note is None:
                raise DatasetError(f"copy to '{self._root}': another copy just ended there. Look at it first.")
            if note["fingerprint"] != self._fingerprint:
                raise DatasetError(f"copy to '{self._root}': a different copy began there. Choose another target.")
            self._moving = bool(note["moving"])  # an earlier copy may have come further
            try:
                yield
            except ParquetryError:
                with contextlib.suppress(OSError, ParquetryError):
                    if self._began and not self._has_any():
                        self.discard()  # nothing to resume, and perhaps a wrong argument
                raise

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if not isinstance(self._filesystem, pafs.LocalFileSystem):
            yield
            return
        try:
            owner = os.open(self._work, os.O_RDONLY)
        except FileNotFoundError:
            raise DatasetError(f"copy to '{self._root}': another copy just ended there. Look at it first.") from None
        try:
            try:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DatasetError(
                    f"copy to '{self._root}': {holder_of(owner)} copies to it. Wait for it, or choose another target."
                ) from None
            except OSError:  # a file system without locks
                pass
            yield
        finally:
            release(owner)

    def discard(self) -> None:
        """Removes the files of the copy, unless they are already replacing those of the target. Idempotent."""
        if self._moving or self._is_file(self._mark):
            return
        with contextlib.suppress(OSError):
            self._filesystem.delete_dir(self._work)
            if self._is_new and not self._filesystem.get_file_info(pafs.FileSelector(self._root)):
                self._filesystem.delete_dir(self._root)

    def place(self, stripe: int) -> str:
        """The directory that a stripe is written to."""
        return posixpath.join(self._work, f"stripe-{stripe:05d}")

    def attempt(self, stripe: int) -> str:
        """Returns a new directory for an attempt to write a stripe, if others may be writing it or were killed."""
        return f"{self.place(stripe)}-{uuid.uuid4().hex}"

    def check_current(self, attempt: str) -> None:
        """Removes a finished attempt and raises `DatasetError` if the copy has all stripes, or another one began."""
        note = self._noted()
        if note is not None and note["fingerprint"] == self._fingerprint and not note["moving"]:
            return
        with contextlib.suppress(OSError):
            self._remove(attempt)
            if not self._filesystem.get_file_info(pafs.FileSelector(self._work)):
                self._filesystem.delete_dir(self._work)
        raise DatasetError(f"copy to '{self._root}': it has ended, or another copy began there, so this part is late.")

    def has(self, stripe: int) -> bool:
        """Whether a stripe is finished."""
        return self._moving or self._is_file(posixpath.join(self.place(stripe), COMMON_METADATA))

    def run(
        self,
        sizes: Sequence[int],
        write: Callable[[int], Generator[int, None, None]],
        *,
        what: str,
        unit: str,
        workers: int = 1,
        progress: bool = True,
    ) -> int:
        """Writes the missing stripes. Returns how many were already finished.

        Args:
            sizes: the size of each stripe in ``unit``, for the progress bar.
            write: writes a stripe and yields its progress in ``unit``.
            workers: how many stripes are written in parallel.

        Raises:
            Exception: any error of ``write``. The other stripes stop, and finished ones are kept.
        """
        stopped, lock = threading.Event(), threading.Lock()
        missing = [stripe for stripe in range(len(sizes)) if not self.has(stripe)]
        there = sum(sizes) - sum(sizes[stripe] for stripe in missing)

        def work(stripe: int) -> None:
            with storage_errors("writing", self._root):
                self._remove(self.place(stripe))  # files that a killed writer was moving
            with contextlib.closing(write(stripe)) as steps:
                for done in steps:
                    with lock:
                        bar.update(done)
                    if stopped.is_set():
                        raise CancelledError

        scaled = unit == "B"
        with tqdm(
            total=sum(sizes), initial=there, desc=what, unit=unit, unit_scale=scaled, disable=not progress
        ) as bar:
            if workers == 1:
                for stripe in missing:
                    work(stripe)
                return len(sizes) - len(missing)
            with ThreadPool(workers, "parquetry-convert") as pool:
                running = [pool.submit(work, stripe) for stripe in missing]
                try:
                    for future in as_completed(running):
                        future.result()
                except BaseException:
                    stopped.set()
                    pool.shutdown(wait=True, cancel_futures=True)
                    raise
        return len(sizes) - len(missing)

    def complete(
        self,
        stripes: int,
        schema: Unischema,
        arrow: pa.Schema,
        *,
        petastorm_compatible: bool,
        labels: Mapping[str, Sequence[str]] | None = None,
        attempts: Mapping[int, str] | None = None,
    ) -> int:
        """Moves the files to their final names and writes ``_common_metadata``. Returns the number of data files.

        Args:
            labels: class names by field; see `StoredDataset.labels`.
            attempts: the directory of each stripe that has rows; ``None`` = those that `run` wrote.
        """
        with storage_errors("finishing", self._root):
            if not self._moving:
                if not self._is_file(self._mark):  # else an earlier run was stopped while it removed files
                    self._check_target()
                    replace_file(self._filesystem, self._mark, b"")
                self._remove_old()
                self._note(moving=True)
                self._moving = True
            for stripe in range(stripes):
                place = self.place(stripe) if attempts is None else attempts.get(stripe)
                if place is None:
                    continue
                for path in self._files_of(place):
                    directory, name = posixpath.split(path[len(place) + 1 :])
                    name = name if stripes == 1 else name.replace("part-", f"part-{stripe:05d}-", 1)
                    final = posixpath.join(self._root, directory, name)
                    self._filesystem.create_dir(posixpath.dirname(final), recursive=True)
                    self._filesystem.move(path, final)
            files = [path for path in self._files_of(self._root) if not path.startswith(f"{self._work}/")]
            metadata = dict(arrow.metadata or {})
            if labels:
                metadata[LABELS_KEY] = json.dumps(dict(labels)).encode()
            if petastorm_compatible:
                counts = {path[len(self._root) + 1 :]: self._row_groups(path) for path in files}
                metadata.update(petastorm_metadata(schema, counts))
            write_metadata(self._filesystem, self._root, arrow, metadata)
            self._filesystem.delete_dir(self._work)
        return len(files)

    def check_rows(self, expected: int) -> None:
        """Checks the number of rows of the finished target.

        Raises:
            DatasetError: it has more or fewer.
        """
        listing = list_files([self._root], filesystem=self._filesystem)
        rows = sum(int(footer.rows.sum()) for footer in stored_footers(self._filesystem, listing.files))
        if rows != expected:
            raise DatasetError(
                f"copy to '{self._root}': expected {expected} rows there, found {rows}. Did another process write to "
                "it? Copy again with overwrite=True (--overwrite)."
            )

    def _begin(self) -> bool:
        """Starts or resumes the job. Returns whether its files are already being moved."""
        if self._noted() is None:
            self._check_target()
            self._filesystem.create_dir(self._work, recursive=True)
        with self._locked():
            note = self._noted()
            if note is not None:
                if note["fingerprint"] == self._fingerprint:
                    if not (note["moving"] or self._is_file(self._mark)):
                        self._check_target()
                    return bool(note["moving"])
                if not self._overwrite:
                    raise DatasetError(
                        f"copy to '{self._root}': expected to resume the same copy, found a different unfinished one. "
                        f"Delete {self._work}, or pass overwrite=True (--overwrite)."
                    )
                if note["moving"]:
                    replace_file(self._filesystem, self._mark, b"")
                self._clear()
            self._check_target()
            if note is None:
                self._clear()  # what late attempts of an earlier copy left
            self._note(moving=False)
        self._began = True
        return False

    def _check_target(self) -> None:
        """Checks that the target is empty, or a dataset that may be replaced."""
        visible = self._visible()
        if visible and not self._overwrite:
            raise DatasetError(
                f"copy to '{self._root}': expected an empty target, got {len(visible)} entries such as '{visible[0]}'. "
                "Choose another target, or pass overwrite=True (--overwrite)."
            )
        others = self._others()
        if others:
            raise DatasetError(
                f"copy to '{self._root}': expected a dataset to replace, found other files such as '{others[0]}'. "
                "Choose another target, or remove them yourself."
            )

    def _clear(self) -> None:
        """Removes the stripes of another copy. Its mark stays, because some of its files may be in place."""
        for info in self._filesystem.get_file_info(pafs.FileSelector(self._work)):
            if posixpath.basename(info.path.rstrip("/")) not in (_JOB, MOVING):
                self._remove(info.path)

    def _has_any(self) -> bool:
        """Whether any stripe is finished."""
        entries = self._filesystem.get_file_info(pafs.FileSelector(self._work, allow_not_found=True))
        names = {posixpath.basename(info.path.rstrip("/")) for info in entries} - {_JOB, MOVING}
        return any(self._is_file(posixpath.join(self._work, name, COMMON_METADATA)) for name in names)

    def _remove(self, path: str) -> None:
        kind = self._filesystem.get_file_info(path).type
        if kind == pafs.FileType.File:
            self._filesystem.delete_file(path)
        elif kind == pafs.FileType.Directory:
            self._filesystem.delete_dir(path)

    def _noted(self) -> dict[str, Any] | None:
        path = posixpath.join(self._work, _JOB)
        if not self._is_file(path):
            return None
        with self._filesystem.open_input_stream(path) as stream:
            return json.loads(stream.read())  # type: ignore[no-any-return]  # of JSON

    def _note(self, *, moving: bool) -> None:
        note = json.dumps({"fingerprint": self._fingerprint, "moving": moving})
        replace_file(self._filesystem, posixpath.join(self._work, _JOB), note.encode())

    def _visible(self) -> list[str]:
        entries = self._filesystem.get_file_info(pafs.FileSelector(self._root, allow_not_found=True))
        names = (posixpath.basename(info.path.rstrip("/")) for info in entries)
        return sorted(name for name in names if not name.startswith("."))

    def _others(self) -> list[str]:
        """Returns files that `_remove_old` would remove although they do not belong to a dataset."""
        infos = self._filesystem.get_file_info(pafs.FileSelector(self._root, recursive=True, allow_not_found=True))
        files = (info.path[len(self._root) :].lstrip("/") for info in infos if info.type == pafs.FileType.File)
        return sorted(file for file in files if not file.startswith(".") and not _belongs(file))

    def _remove_old(self) -> None:
        for name in self._visible():
            self._remove(posixpath.join(self._root, name))

    def _files_of(self, directory: str) -> Iterator[str]:
        infos = self._filesystem.get_file_info(pafs.FileSelector(directory, recursive=True, allow_not_found=True))
        files = (info.path for info in infos if info.type == pafs.FileType.File)
        yield from sorted(path for path in files if posixpath.basename(path).startswith("part-"))

    def _row_groups(self, path: str) -> int:
        return int(pq.read_metadata(path, filesystem=self._filesystem).num_row_groups)

    def _is_file(self, path: str) -> bool:
        return bool(self._filesystem.get_file_info(path).type == pafs.FileType.File)


def check_apart(
    filesystem: pafs.FileSystem,
    root: str,
    sources: Iterable[tuple[str, str]],
    patterns: Iterable[tuple[str, Pattern]] = (),
) -> None:
    """Checks that the target and the sources do not overlap.

    A copy would replace a source inside the target, and add rows to a source that contains the target, or to a pattern
    that matches files in it.

    Raises:
        DatasetError: they overlap.
    """
    store = store_of(filesystem)
    real = os.path.realpath if filesystem.type_name == "local" else str
    target = f"{real(root)}/"
    for source_store, path in sources:
        source = f"{real(path)}/"
        if source_store == store and source.startswith(target):
            raise DatasetError(
                f"copy to '{root}': expected a target that contains none of the sources, got '{path}' below it. "
                "Choose another target."
            )
        if source_store == store and target.startswith(source) and not is_hidden(target[len(source) :]):
            raise DatasetError(
                f"copy to '{root}': expected a target outside the sources, got one below '{path}', which would "
                "then include the copied rows. Choose another target, or a directory whose name begins with '_'."
            )
    for source_store, pattern in patterns:
        above = f"{real(pattern.root).rstrip('/')}/"
        below = target[len(above) : -1]
        if source_store != store or not target.startswith(above) or is_hidden(f"{below}/"):
            continue
        if _may_match_written(pattern, below):
            raise DatasetError(
                f"copy to '{root}': expected a target outside the sources, got one that the pattern "
                f"'{posixpath.join(pattern.root, *pattern.parts)}' matches, which would then include the copied rows. "
                "Choose another target, or a directory whose name begins with '_'."
            )


def _may_match_written(pattern: Pattern, directory: str) -> bool:
    """Whether a pattern may match files that a writer makes in a directory, perhaps in partitions."""
    last = pattern.parts[-1]
    may_name_one = not WILDCARDS.isdisjoint(last) or "=" in last or last.startswith("part-")
    return pattern.matches(directory) or (may_name_one and pattern.may_match_below(directory))


def _belongs(file: str) -> bool:
    """Whether writers give a file of a dataset such a relative path: data, or metadata beside it."""
    *folders, name = file.split("/")
    return not any(folder.startswith("_") for folder in folders) and (name.startswith(("_", ".")) or is_data_name(name))
