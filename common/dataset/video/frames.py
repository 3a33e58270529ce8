"""`EncodedFrames`: frames of videos, still encoded. `VideoFiles` finds and reads them.

It takes where the frames of some rows are (`FramePlaces`) and finds the samples from which they are decoded. They are
read at once, neighbors in one request; those that would take too much memory stay in their file until they are decoded.
A frame that cannot be read is a problem of its row, which its decoding raises.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from ...base.errors import DatasetError, ParquetryError, SchemaError
from ...base.memory.lru_cache import LRUCache
from ...base.metrics.counters import Count, add, counters_here
from ...base.process.dataclass import dataclass
from ...base.process.forks import cached_property
from ...base.progress import thread_pool
from ...base.urls import clean_cause, url_without_secrets
from ...parquet.footers import remedy
from ...schema.video import FramePlaces
from ...storage.checked_files import note_check
from ...storage.chunk_ranges import fetch_ranges, joined
from ...storage.file_versions import FileVersion, current_version
from ...storage.opening import check_used, opened
from ...storage.retries import is_local, with_retries
from ...storage.store_answers import StoreError
from ...storage.stores import ForkSafeFileSystem
from .intra_refresh import recovery_pictures
from .track import Track, VideoError, read_track

_TRACKS_BYTES = 64 << 20
_MOST_LOADED_BYTES = 64 << 20  # of a field in a row group
_MOST_AT_ONCE = 16  # files of a store; `request_slots` limits the requests of all
_NO_NAMES = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EINVAL)  # of what no file is called
_SAME_S = 1e-4  # a frame so close to a time is the one that was meant

Value = TypeVar("Value")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, eq=False)
class FileSamples:
    """Samples that stay in their file.

    Attributes:
        store: the file system.
        version: the version of the file.
    """

    store: ForkSafeFileSystem
    version: FileVersion

    def of(self, offsets: np.ndarray, sizes: np.ndarray) -> list[memoryview]:
        """Reads the samples at the given offsets.

        Raises:
            DatasetError: the file cannot be read, or has changed.
        """
        return self.loaded(offsets, sizes).of(offsets, sizes)

    def loaded(self, offsets: np.ndarray, sizes: np.ndarray) -> LoadedSamples:
        """Reads samples into memory. Raises as `of`."""
        filesystem, version = self.store.here, self.version
        ranges = _ranges(offsets, sizes)
        size_bytes = sum(end - first for first, end in ranges)
        fetch = partial(fetch_ranges, partial(opened, filesystem, version, ranges=True), ranges)
        try:
            content = with_retries(filesystem, fetch, f"file {version.shown_path}", size_bytes=size_bytes)
        except ParquetryError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(version.shown_path, error) from clean_cause(error)
        add(Count.READ_BYTES, size_bytes)
        return LoadedSamples(np.array([first for first, _ in ranges], np.int64), content)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return 0


@dataclass(frozen=True, slots=True, eq=False)
class LoadedSamples:
    """Ranges of a file, ascending, and the bytes of each."""

    starts: np.ndarray
    content: Sequence[bytes]

    def of(self, offsets: np.ndarray, sizes: np.ndarray) -> list[memoryview]:
        """Returns the samples at the given offsets, without a copy."""
        ranges = np.searchsorted(self.starts, offsets, side="right") - 1
        begins = offsets - self.starts[ranges]
        places = zip(ranges.tolist(), begins.tolist(), (begins + sizes).tolist(), strict=True)
        return [memoryview(self.content[number])[begin:end] for number, begin, end in places]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(map(len, self.content))


@dataclass(frozen=True, slots=True, eq=False)
class PictureGroup:
    """Samples of a video that are decoded together, because the later ones refer to the first.

    Attributes:
        path: the file, for messages.
        first, last: the numbers of the first and the last sample, in decoding order.
    """

    path: str
    track: Track
    samples: FileSamples | LoadedSamples
    first: int
    last: int

    def packets(self) -> list[memoryview]:
        """Returns its samples, in decoding order. Raises as `FileSamples.of`."""
        some = slice(self.first, self.last + 1)
        return self.samples.of(self.track.offsets[some], self.track.sizes[some])


@dataclass(frozen=True, slots=True, eq=False)
class EncodedFrames:
    """The frames of some rows, still encoded, in memory or in files.

    Attributes:
        groups: what is decoded.
        group: for each row, the number of its group; -1 = the row has no frame, or a problem.
        frame: for each row, the number of its frame in its file.
        problems: what is wrong with the frames of rows.
    """

    groups: Sequence[PictureGroup]
    group: np.ndarray
    frame: np.ndarray
    problems: Mapping[int, str]

    def __len__(self) -> int:
        return len(self.group)

    @property
    def needed(self) -> int:
        """The number of different frames."""
        some = self.group >= 0
        return len(np.unique(np.stack([self.group[some], self.frame[some]]), axis=1).T)

    @property
    def decoded(self) -> int:
        """The number of samples that must be decoded for them."""
        return sum(group.last - group.first + 1 for group in self.groups)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        samples = {id(group.samples): group.samples for group in self.groups}
        return self.group.nbytes + self.frame.nbytes + sum(each.nbytes for each in samples.values())


class VideoFiles:
    """Reads frames of the videos in one directory. Thread-safe.

    Args:
        filesystem: holds the files.
        root: the directory that names of files are relative to.
    """

    def __init__(self, filesystem: pafs.FileSystem, root: str) -> None:
        self._store = ForkSafeFileSystem(filesystem)
        self._root = root.rstrip("/")
        self._versions: dict[str, FileVersion | None] = {}

    def read(self, places: FramePlaces, tolerance_s: float | None) -> EncodedFrames:
        """Reads the samples from which the frames of rows are decoded.

        Args:
            tolerance_s: how far a frame may be from its time; ``None`` = half the time of a frame.

        Raises:
            DatasetError: a file cannot be read, though it is there, or it has changed.
            SchemaError: a name leads out of the directory.
        """
        frame = np.zeros(len(places.file), np.int64)
        group = np.full(len(places.file), -1, np.int64)
        groups: list[PictureGroup] = []
        problems: dict[int, str] = {}
        needs: list[_Need] = []
        left_bytes = _MOST_LOADED_BYTES
        numbers = np.unique(places.file[places.file >= 0]).tolist()
        names = [places.files[number] for number in numbers]
        for number, name, video in zip(numbers, names, self._side_by_side(self._opened, names), strict=True):
            rows = np.flatnonzero(places.file == number)
            if isinstance(video, VideoError):
                problems.update((row, f"video '{name}': {video}") for row in rows.tolist())
                continue
            version, track = video
            frames, wrong = _numbers_of(track, places, rows, tolerance_s)
            problems.update((row, f"video {version.shown_path}: {text}") for row, text in wrong)
            good = frames >= 0
            if good.any():
                needs.append(_Need(version, track, rows[good], frames[good], left_bytes))
                left_bytes -= needs[-1].loaded_bytes
        for need, (own, number_of_row) in zip(needs, self._side_by_side(self._groups, needs), strict=True):
            frame[need.rows] = need.frames
            group[need.rows] = number_of_row + len(groups)
            groups += own
        return EncodedFrames(groups, group, frame, problems)

    def check_unchanged(self) -> None:
        """Checks the files of a store that were read since their last check. Call it at the end of an epoch.

        Raises:
            DatasetError: one of them has changed, or the store fails.
        """
        if is_local(self._filesystem):
            return
        versions = [version for version in self._versions.values() if version is not None]
        try:
            check_used(self._filesystem, versions, directories=())
        except StoreError as error:
            raise DatasetError(
                f"videos of the epoch: cannot be checked for changes, {error}. {error.advice}"
            ) from clean_cause(error)

    def _side_by_side(self, function: Callable[[Value], Result], values: Sequence[Value]) -> list[Result]:
        """Calls a function that asks the store, several times at once. Each request takes a slot of its own."""
        if len(values) < 2 or is_local(self._filesystem):
            return [function(value) for value in values]
        counters = counters_here()

        def call(value: Value) -> Result:
            if counters is not None:
                counters.bind()
            return function(value)

        with thread_pool(min(len(values), _MOST_AT_ONCE), "parquetry-videos") as pool:
            return list(pool.map(call, values))

    def _opened(self, name: str) -> tuple[FileVersion, Track] | VideoError:
        """Returns the version and the index of a file, or what is wrong with it."""
        path = self._path(name)
        if path not in self._versions:
            self._versions[path] = self._version(path)
        version = self._versions[path]
        if version is None:
            return VideoError("there is no such file")
        try:
            return version, _tracks.made(version.key, partial(self._read_track, version))
        except VideoError as error:
            return error

    def _version(self, path: str) -> FileVersion | None:
        look = partial(current_version, self._filesystem, path)
        try:
            version = with_retries(self._filesystem, look, f"file {path}", is_question=True)
        except ParquetryError:
            raise
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, pa.ArrowInvalid) or getattr(error, "errno", None) in _NO_NAMES:
                return None
            raise _unreadable(path, error) from clean_cause(error)
        if version is not None and not is_local(self._filesystem):
            note_check(self._filesystem, version)
        return version

    @property
    def _filesystem(self) -> pafs.FileSystem:
        return self._store.here

    def _path(self, name: str) -> str:
        inside = name.removeprefix(f"{self._root}/")
        if inside.startswith("/") or "://" in inside or ".." in inside.split("/") or not inside:
            raise SchemaError(
                f"video '{url_without_secrets(name)}': expected a name relative to {url_without_secrets(self._root)}, "
                "got one that leads elsewhere. Give the directory of the videos, as in VideoReference(..., root=...)."
            )
        return f"{self._root}/{posixpath.normpath(inside)}"

    def _read_track(self, version: FileVersion) -> Track:
        def read() -> Track:
            with opened(self._filesystem, version, ranges=True) as source:

                def read_at(offset: int, length: int) -> bytes:
                    add(Count.READ_BYTES, length)
                    return bytes(source.read_at(length, offset))

                return read_track(read_at, version.size_bytes)

        try:
            return with_retries(self._filesystem, read, f"file {version.shown_path}")
        except (ParquetryError, VideoError):
            raise
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(version.shown_path, error) from clean_cause(error)

    def _groups(self, need: _Need) -> tuple[list[PictureGroup], np.ndarray]:
        """Returns what to decode for frames of a file, and for each frame, which of it. Reads samples that fit."""
        version, track, (firsts, lasts, number_of_row) = need.version, need.track, need.groups
        numbers = _covered(firsts, lasts)
        in_file = FileSamples(self._store, version)
        samples = in_file.loaded(track.offsets[numbers], track.sizes[numbers]) if need.loaded_bytes else in_file
        if track.codec == "h264" and track.recovery is None and firsts[-1] > 0:
            key = slice(firsts[-1], firsts[-1] + 1)
            (packet,) = samples.of(track.offsets[key], track.sizes[key])
            track = replace(track, recovery=recovery_pictures(packet, track.extradata))
            _tracks.replace(version.key, track)
            if track.recovery:
                return self._groups(_Need(version, track, need.rows, need.frames, need.left_bytes))
        groups = [
            PictureGroup(version.shown_path, track, samples, first, last)
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
        ]
        return groups, number_of_row


@dataclass(frozen=True, eq=False)
class _Need:
    """Frames of a file that some rows need.

    Attributes:
        left_bytes: how many bytes may be read into memory.
    """

    version: FileVersion
    track: Track
    rows: np.ndarray
    frames: np.ndarray
    left_bytes: int

    @cached_property
    def groups(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first and the last sample of each group that is decoded for the frames, and the group of each frame."""
        firsts, number_of_row = np.unique(self.track.first_samples(self.frames), return_inverse=True)
        number_of_row = number_of_row.reshape(-1)
        lasts = np.zeros(len(firsts), np.int64)
        np.maximum.at(lasts, number_of_row, self.track.last_samples(self.frames))
        return firsts, lasts, number_of_row

    @cached_property
    def loaded_bytes(self) -> int:
        """The bytes of their samples; 0 if these are more than may be read, and stay in the file."""
        firsts, lasts, _ = self.groups
        size_bytes = int(self.track.sizes[_covered(firsts, lasts)].sum())
        return size_bytes if size_bytes <= self.left_bytes else 0


_tracks: LRUCache[str, Track] = LRUCache(
    _TRACKS_BYTES,
    lambda track: sum(each.nbytes for each in (track.offsets, track.sizes, track.times, track.keys, track.shown)),
)


def _numbers_of(
    track: Track, places: FramePlaces, rows: np.ndarray, tolerance_s: float | None
) -> tuple[np.ndarray, Iterator[tuple[int, str]]]:
    """Returns the number of each row's frame, -1 for those without one, and why these have none."""
    count = len(track.shown)
    if places.seconds is None:
        assert places.frames is not None
        frames = places.frames[rows]
        inside = (frames >= 0) & (frames < count) & (frames == np.floor(frames))
        numbers = zip(rows[~inside].tolist(), frames[~inside].tolist(), strict=True)
        return np.where(inside, frames, -1).astype(np.int64), (
            (row, f"expected the number of one of its {count} frames, got {number:.10g}") for row, number in numbers
        )
    seconds = places.seconds[rows]
    if not count:
        return np.full(len(rows), -1, np.int64), ((row, "it has no frames") for row in rows.tolist())
    shown = track.seconds()
    frames = track.frames_at(seconds)
    most = max(float(np.median(np.diff(shown))) / 2, 0.0) + _SAME_S if count > 1 else np.inf
    far = ~(np.abs(shown[frames] - seconds) <= (most if tolerance_s is None else tolerance_s))  # also for NaN
    wrong = zip(rows[far].tolist(), seconds[far].tolist(), shown[frames[far]].tolist(), strict=True)
    return np.where(far, -1, frames), (
        (row, f"expected a frame at {at:.6f} s, got none nearer than {nearest:.6f} s") for row, at, nearest in wrong
    )


def _covered(firsts: np.ndarray, lasts: np.ndarray) -> np.ndarray:
    """Returns the numbers of all samples from each first to its last one, each once, ascending.

    >>> _covered(np.array([2, 4]), np.array([4, 5]))
    array([2, 3, 4, 5])
    """
    counts = lasts - firsts + 1
    begins = np.repeat(firsts - np.cumsum(counts) + counts, counts)
    return np.unique(begins + np.arange(counts.sum()))


def _ranges(offsets: np.ndarray, sizes: np.ndarray) -> list[tuple[int, int]]:
    """Returns the ranges to read for samples: those that follow each other or are close together are one.

    >>> _ranges(np.array([10, 0, 30]), np.array([5, 10, 1]))
    [(0, 31)]
    """
    order = np.argsort(offsets)
    starts, ends = offsets[order], (offsets + sizes)[order]
    begins = np.flatnonzero(np.append(True, starts[1:] != ends[:-1])[: len(starts)])
    if not len(begins):
        return []
    return joined(list(zip(starts[begins].tolist(), np.maximum.reduceat(ends, begins).tolist(), strict=True)))


def _unreadable(path: str, error: Exception) -> DatasetError:
    return DatasetError(
        f"video {url_without_secrets(path)}: expected a file that can be read, got: {error}. "
        f"{remedy(error, 'It is damaged: write it again.')}"
    )
