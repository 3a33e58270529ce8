"""LeRobot datasets: Parquet files of frames, the videos of their cameras, and what ``meta/`` says about both.

It takes a folder and the episodes and cameras to read, and returns a `LeRobotSource`: a `Table` of the frames in which
each camera is a field and the text of the task is a column. It reads v3.0 (several episodes in a file) and v2.1 (a file
for each episode). Where the counts in ``meta/`` and the files differ, the files count, and a warning says so.

Rules: https://huggingface.co/docs/lerobot/lerobot-dataset-v3.
"""

from __future__ import annotations

import json
import logging
import math
import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from ..base.errors import DatasetError, ParquetryError, SchemaError
from ..base.memory.arrow_views import as_numpy
from ..base.other_names import did_you_mean
from ..base.process.dataclass import dataclass
from ..base.urls import clean_cause
from ..dataset.table import Table, TableColumn, TableFile, TableSource, sorted_files
from ..parquet.footers import open_checked, remedy
from ..parquet.group_footers import stored_footers
from ..schema.field import UnischemaField
from ..schema.infer import infer_field
from ..schema.plain import integer, plain
from ..schema.training_statistics import ElementStatistics, TrainingStatistics
from ..schema.video import EpisodeVideo
from ..storage.files import DataFile, list_files
from ..storage.filesystem import resolve
from ..storage.opening import read_whole
from ..storage.retries import with_retries
from .huggingface import image_column, pin_commit

_LOGGER = logging.getLogger(__name__)
_VERSIONS = ("v3.0", "v2.1")
_KEYS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_PLACE = re.compile(r"\{(\w+)(?::0?(\d)d)?\}")
_QUANTILE = re.compile(r"q\d\d")
_MOST_META_BYTES = 1 << 30
_MOST_TASKS = 1 << 24
_MOST_SHOWN = 5
_DEPTHS = {"depth_min": 0.01, "depth_max": 10.0, "shift": 3.5, "use_log": True}  # the defaults of lerobot
_NEAR_FRAME_S = 1e-4  # LeRobot's own tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class LeRobotSource:
    """A LeRobot dataset.

    Attributes:
        source: its frames as a table.
        fps: frames per second.
        videos: the names of the fields that are read from videos.
        episodes: the numbers of the episodes to read; ``None`` = all.
    """

    source: TableSource
    fps: float
    videos: tuple[str, ...]
    episodes: list[int] | None

    def offsets(self, delta_timestamps: object) -> dict[str, tuple[int, ...]]:
        """Returns the frames that ``delta_timestamps`` names for each field, counted from the current one.

        Raises:
            DatasetError: it is not ``{field: seconds}``, or a time is not one of a frame.
        """
        what = f"LeRobot dataset '{self.source.url}', delta_timestamps"
        names = [column.name for column in self.source.table.columns]
        if not isinstance(delta_timestamps, Mapping) or not delta_timestamps:
            raise DatasetError(f"{what}: expected {{field: list of seconds}}, got {delta_timestamps!r}.")
        offsets: dict[str, tuple[int, ...]] = {}
        for name, seconds in delta_timestamps.items():
            if name not in names:
                raise DatasetError(
                    f"{what}: expected names of fields, got {name!r}. Fields are: {', '.join(sorted(names))}."
                    f"{did_you_mean(str(name), names)}"
                )
            listed = plain(seconds)
            if not isinstance(listed, tuple) or not listed or not all(map(_is_number, listed)):
                raise DatasetError(f"{what}, '{name}': expected a list of seconds, got {seconds!r}.")
            far = [each for each in listed if abs(each - round(each * self.fps) / self.fps) > _NEAR_FRAME_S]
            if far:
                raise DatasetError(
                    f"{what}, '{name}': expected multiples of 1/{self.fps:g} seconds, the time of a frame, got "
                    f"{', '.join(map(str, far[:_MOST_SHOWN]))}. Write [n / {self.fps:g} for n in ...]."
                )
            offsets[name] = tuple(round(each * self.fps) for each in listed)
        return offsets


def open_lerobot(
    path: str | os.PathLike[str],
    *,
    episodes: Iterable[int] | None,
    cameras: str | Iterable[str] | None,
    revision: str | None,
    filesystem: object,
    storage_options: Mapping[str, Any] | None,
) -> LeRobotSource:
    """Opens the frames of some episodes with some cameras; ``None`` = all.

    Raises:
        DatasetError: there is no such dataset, episode or camera, its version is unknown, or ``meta/`` is damaged or
            contradicts the files.
    """
    url = os.fspath(path)
    if revision is not None and not url.startswith("hf://"):
        raise DatasetError(f"LeRobot dataset '{url}': expected revision= only with an hf:// URL, got {revision!r}.")
    if filesystem is None:
        url = pin_commit(url, storage_options, revision, what=f"LeRobot dataset '{url}'")
    store, root = resolve(url, filesystem=filesystem, storage_options=storage_options)
    folder = _Folder(what=f"LeRobot dataset '{url}'", filesystem=store, root=root.rstrip("/"))
    info = _info(folder)
    chosen = _chosen_cameras(folder, info, cameras)
    videos = tuple(name for name in chosen if info.features[name]["dtype"] == "video")
    described = (_episodes_v3 if info.version == "v3.0" else _episodes_v2)(folder, info, videos)
    _check_totals(folder, info, described)
    if episodes is not None:
        described = described.only(_places_of(folder, described, episodes))
    columns, refused = _columns(folder, info, chosen, described)
    table = Table(
        kind="lerobot",
        root=folder.root,
        identity="",
        version="",
        columns=tuple(columns),
        files=tuple(TableFile(version=file.version) for file in _files(folder, described, some=episodes is not None)),
        refused=tuple(refused),
        statistics=_statistics(folder, info, [column.field for column in columns if column.field is not None]),
    )
    source = TableSource(url=url, table=sorted_files(table), filesystem=filesystem)
    numbers = None if episodes is None else described.numbers.tolist()
    return LeRobotSource(source=source, fps=info.fps, videos=videos, episodes=numbers)


# --- meta/ ---


@dataclass(frozen=True, slots=True, kw_only=True)
class _Folder:
    """Where a dataset is."""

    what: str
    filesystem: pafs.FileSystem
    root: str

    def error(self, name: str, rule: str, got: object) -> DatasetError:
        return DatasetError(f"{self.what}: expected {name} {rule}, got {got}. Repair it, or write the dataset again.")

    def read(self, name: str) -> bytes:
        """Reads a file of ``meta/`` whole."""
        content = self.find(name)
        if content is None:
            raise DatasetError(
                f"{self.what}: expected {name}, found none. Pass the folder or URL that has meta/ and data/ in it."
            )
        return content

    def find(self, name: str) -> bytes | None:
        """Reads a file of ``meta/`` whole, if there is one."""
        try:
            return read_whole(self.filesystem, posixpath.join(self.root, name), _MOST_META_BYTES)
        except ParquetryError:
            raise
        except (OSError, pa.ArrowException, ValueError) as error:
            raise DatasetError(
                f"{self.what}: expected a readable {name}, got: {error}. {remedy(error, 'Repair it.')}"
            ) from clean_cause(error)

    def read_lines(self, name: str, *, required: bool = True) -> list[dict[str, Any]]:
        """Reads a file that has a JSON object in each line. One that need not be there is read as empty."""
        content = self.read(name) if required else self.find(name) or b""
        lines = [_json(self, name, line) for line in content.splitlines() if line.strip()]
        if not all(isinstance(line, dict) for line in lines):
            raise self.error(name, "with a JSON object in each line", "something else")
        return lines

    def read_columns(self, path: str, names: Sequence[str] | None) -> pa.Table:
        """Reads some columns of a Parquet file; ``None`` = all."""

        def read() -> pa.Table:
            with self.filesystem.open_input_file(path) as stream:
                return open_checked(stream).read(columns=None if names is None else list(names))

        shown = path.removeprefix(f"{self.root}/")
        try:
            table = with_retries(self.filesystem, read, f"file {path}")
        except ParquetryError:
            raise
        except (OSError, pa.ArrowException, ValueError) as error:
            raise DatasetError(
                f"{self.what}: expected a readable {shown}, got: {error}. {remedy(error, 'Repair it.')}"
            ) from clean_cause(error)
        for name in names or ():
            if name not in table.column_names:
                raise self.error(shown, f"with a column '{name}'", f"the columns {', '.join(table.column_names)[:200]}")
        return table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Info:
    """What ``meta/info.json`` says."""

    version: str
    fps: float
    features: Mapping[str, Mapping[str, Any]]
    data_path: str
    video_path: str
    chunk: int
    episodes: int | None
    frames: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Episodes:
    """The episodes, ascending.

    Attributes:
        numbers, lengths: the number of each, and how many frames it has.
        files: the Parquet file of each, relative to the folder.
        videos: for each camera, the video file of each episode, and the second at which the episode begins in it.
    """

    numbers: np.ndarray
    lengths: np.ndarray
    files: Sequence[str]
    videos: Mapping[str, tuple[Sequence[str], np.ndarray]]

    def only(self, places: np.ndarray) -> _Episodes:
        """Returns those at some places."""
        videos = {
            name: ([files[place] for place in places], begins[places]) for name, (files, begins) in self.videos.items()
        }
        files = [self.files[place] for place in places]
        return _Episodes(numbers=self.numbers[places], lengths=self.lengths[places], files=files, videos=videos)


def _json(folder: _Folder, name: str, content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{folder.what}: expected JSON in {name}, got: {error}. Repair it.") from clean_cause(error)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _info(folder: _Folder) -> _Info:
    name = "meta/info.json"
    stated = _json(folder, name, folder.read(name))
    if not isinstance(stated, dict):
        raise folder.error(name, "to be a JSON object", f"{stated!r:.80}")
    version = stated.get("codebase_version")
    if version not in _VERSIONS:
        raise DatasetError(
            f"{folder.what}: expected a codebase_version of {' or '.join(_VERSIONS)} in {name}, got {version!r:.40}. "
            "Convert it with the scripts of lerobot, or update parquetry."
        )
    fps, features = stated.get("fps"), stated.get("features")
    if not _is_number(fps) or not 0 < fps < 1 << 20:
        raise folder.error(name, "with a positive number of frames per second in 'fps'", f"{fps!r:.40}")
    if not isinstance(features, dict) or not all(map(_is_feature, features.values())):
        raise folder.error(name, "with 'features' that each have a 'dtype' and a 'shape'", f"{features!r:.200}")
    missing = [key for key in _KEYS if key not in features]
    if missing:
        raise folder.error(name, f"with the feature '{missing[0]}'", f"the features {', '.join(features)[:200]}")
    data_path, video_path = stated.get("data_path"), stated.get("video_path") or ""
    if not isinstance(data_path, str) or not isinstance(video_path, str):
        raise folder.error(
            name, "with the text 'data_path', and 'video_path' if there are videos", f"{data_path!r:.80}"
        )
    return _Info(
        version=version,
        fps=fps,
        features=features,
        data_path=data_path,
        video_path=video_path,
        chunk=integer(stated.get("chunks_size"), least=1) or 1000,
        episodes=integer(stated.get("total_episodes")),
        frames=integer(stated.get("total_frames")),
    )


def _is_feature(feature: object) -> bool:
    if not isinstance(feature, dict) or not isinstance(feature.get("dtype"), str):
        return False
    shape = feature.get("shape")
    return isinstance(shape, list) and all(type(axis) is int and 0 <= axis < 1 << 31 for axis in shape)


def _episodes_v3(folder: _Folder, info: _Info, videos: Sequence[str]) -> _Episodes:
    parts = ("chunk_index", "file_index", "from_timestamp")
    of_video = {name: [f"videos/{name}/{part}" for part in parts] for name in videos}
    names = [
        "episode_index",
        "length",
        "data/chunk_index",
        "data/file_index",
        *(each for own in of_video.values() for each in own),
    ]
    listing = list_files([posixpath.join(folder.root, "meta/episodes")], filesystem=folder.filesystem)
    tables = [folder.read_columns(file.path, names).select(names) for file in listing.files]
    columns = {name: _numbers(folder, name, [table.column(name) for table in tables]) for name in names}
    order = _order(folder, columns["episode_index"])
    columns = {name: column[order] for name, column in columns.items()}

    def files(template: str, chunks: np.ndarray, numbers: np.ndarray, **more: str) -> list[str]:
        pairs = zip(chunks.tolist(), numbers.tolist(), strict=True)
        return [_filled(folder, template, {"chunk_index": chunk, "file_index": n, **more}) for chunk, n in pairs]

    return _Episodes(
        numbers=columns["episode_index"],
        lengths=columns["length"],
        files=files(info.data_path, columns["data/chunk_index"], columns["data/file_index"]),
        videos={
            name: (files(info.video_path, columns[chunk], columns[number], video_key=name), columns[begin])
            for name, (chunk, number, begin) in of_video.items()
        },
    )


def _numbers(folder: _Folder, name: str, columns: Sequence[pa.ChunkedArray]) -> np.ndarray:
    kind = pa.float64() if name.endswith("/from_timestamp") else pa.int64()
    try:
        column = pa.concat_arrays([chunk.cast(kind) for column in columns for chunk in column.chunks])
        if column.null_count:
            raise pa.ArrowInvalid(f"{column.null_count} nulls")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise folder.error("meta/episodes", f"with numbers in the column '{name}'", error) from clean_cause(error)
    numbers: np.ndarray = as_numpy(column)
    return numbers


def _episodes_v2(folder: _Folder, info: _Info, videos: Sequence[str]) -> _Episodes:
    name = "meta/episodes.jsonl"
    lines = folder.read_lines(name)
    try:
        numbers, lengths = (np.array([line[key] for line in lines], np.int64) for key in ("episode_index", "length"))
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise folder.error(name, "with 'episode_index' and 'length' in each line", repr(error)) from clean_cause(error)
    order = _order(folder, numbers)
    numbers, lengths = numbers[order], lengths[order]

    def files(template: str, **more: str) -> list[str]:
        return [
            _filled(folder, template, {"episode_chunk": number // info.chunk, "episode_index": number, **more})
            for number in numbers.tolist()
        ]

    begins = np.zeros(len(numbers))
    return _Episodes(
        numbers=numbers,
        lengths=lengths,
        files=files(info.data_path),
        videos={name: (files(info.video_path, video_key=name), begins) for name in videos},
    )


def _order(folder: _Folder, numbers: np.ndarray) -> np.ndarray:
    """Returns the places of the episodes in ascending order of their numbers, each of which there is once."""
    order = np.argsort(numbers, kind="stable")
    ascending = numbers[order]
    twice = ascending[1:][ascending[1:] == ascending[:-1]]
    if len(twice):
        raise folder.error("meta/", "with each episode once", f"episode {twice[0]} twice")
    return order


def _filled(folder: _Folder, template: str, values: Mapping[str, int | str]) -> str:
    """Returns the path that a template of ``info.json`` gives, relative to the folder and below it."""

    def value_at(place: re.Match[str]) -> str:
        value = values.get(place[1])
        if value is None:
            raise folder.error("meta/info.json", f"with {', '.join(values)} in its paths", f"'{template:.200}'")
        return f"{value:0{place[2]}d}" if isinstance(value, int) and place[2] else str(value)

    path = _PLACE.sub(value_at, template)
    if not path or path.startswith("/") or ".." in path.split("/") or {"\0", "{", "}", ":"} & set(path):
        raise folder.error("meta/info.json", "with paths below its folder", f"'{template:.200}'")
    return path


def _check_totals(folder: _Folder, info: _Info, described: _Episodes) -> None:
    """Warns if ``info.json`` counts other episodes or frames than are described."""
    frames = int(described.lengths.sum())
    for name, stated, count in (("episodes", info.episodes, len(described.numbers)), ("frames", info.frames, frames)):
        if stated is not None and stated != count:
            _LOGGER.warning(
                "%s: info.json says %d %s, the list of episodes has %d. The list counts.",
                *(folder.what, stated, name, count),
            )


def _tasks(folder: _Folder, info: _Info) -> tuple[str, ...]:
    """The text of each task, by its number. Numbers that are not described have none."""
    if info.version == "v3.0":
        name = "meta/tasks.parquet"
        table = folder.read_columns(posixpath.join(folder.root, name), None)
        texts = next((each for each in ("task", "__index_level_0__") if each in table.column_names), None)
        if texts is None or "task_index" not in table.column_names:
            raise folder.error(name, "with the columns 'task' and 'task_index'", ", ".join(table.column_names)[:200])
        pairs = list(zip(table.column("task_index").to_pylist(), table.column(texts).to_pylist(), strict=True))
    else:
        name = "meta/tasks.jsonl"
        lines = folder.read_lines(name)
        pairs = [(line.get("task_index"), line.get("task")) for line in lines]
    by_number: dict[int, str] = {}
    for number, text in pairs:
        if type(number) is not int or not 0 <= number < _MOST_TASKS or not isinstance(text, str):
            raise folder.error(name, "with a number and a text for each task", f"{number!r:.40} and {text!r:.80}")
        by_number[number] = text
    return tuple(by_number.get(number, "") for number in range(max(by_number, default=-1) + 1))


def _statistics(folder: _Folder, info: _Info, fields: Sequence[UnischemaField]) -> TrainingStatistics | None:
    """The statistics of whole episodes; ``None`` if there are none. Those of pictures are of numbers from 0 to 255."""
    if info.version == "v3.0":
        content = folder.find("meta/stats.json")
        parts = [] if content is None else [_json(folder, "meta/stats.json", content)]
    else:
        parts = [line.get("stats") for line in folder.read_lines("meta/episodes_stats.jsonl", required=False)]
    named = [(field.name, _of_field(field, parts)) for field in fields]
    known = tuple((name, statistics) for name, statistics in named if statistics is not None)
    rows = info.frames or 0
    return TrainingStatistics(rows=rows, dataset="", chain=(), fields=known) if known else None


def _of_field(field: UnischemaField, parts: Sequence[Any]) -> ElementStatistics | None:
    """The statistics of a field over all parts; ``None`` unless each part has them for each place of its last axis."""
    places = 1 if not field.shape or field.shape[-1] is None else field.shape[-1]
    scale = 255 if field.dtype == np.uint8 and field.storage.coded else 1
    try:
        stated: list[Any] = [part[field.name] for part in parts]
        counts = np.array([each["count"] for each in stated], np.float64).reshape(-1, 1)
        names = [name for name in stated[0] if name in ("mean", "std", "min", "max") or _QUANTILE.fullmatch(name)]
        made = {
            name: scale * np.array([each[name] for each in stated], np.float64).reshape(len(stated), places)
            for name in names
            if all(name in each for each in stated)
        }
        means, shares = made["mean"], counts / counts.sum()
        mean = (means * shares).sum(0)
        variance = ((made["std"] ** 2 + (means - mean) ** 2) * shares).sum(0)
        return ElementStatistics(
            count=int(counts.sum()),
            mean=tuple(mean.tolist()),
            std=tuple(np.sqrt(variance).tolist()),
            min=tuple(made["min"].min(0).tolist()),
            max=tuple(made["max"].max(0).tolist()),
            quantiles=tuple(
                (int(name[1:]) / 100, tuple((values * shares).sum(0).tolist()))
                for name, values in made.items()
                if name.startswith("q")
            ),
        )
    except (LookupError, TypeError, ValueError, AttributeError):
        return None


# --- which episodes, cameras and files ---


def _places_of(folder: _Folder, described: _Episodes, episodes: Iterable[int]) -> np.ndarray:
    listed = plain([*episodes]) if isinstance(episodes, Iterable) and not isinstance(episodes, str | bytes) else ()
    numbers = [integer(number) for number in listed]
    known = described.numbers
    if not numbers or None in numbers:
        raise DatasetError(f"{folder.what}: expected episodes= to be a list of numbers, got {episodes!r:.80}.")
    chosen = np.unique(np.array(numbers, np.int64))
    missing = np.setdiff1d(chosen, known)
    if len(missing):
        between = f"from {known[0]} to {known[-1]}" if len(known) else "but there are none"
        raise DatasetError(
            f"{folder.what}: expected episodes {between}, got {', '.join(map(str, missing[:_MOST_SHOWN]))}"
            f"{', ...' if len(missing) > _MOST_SHOWN else ''}. Leave those out."
        )
    return np.searchsorted(known, chosen)


def _chosen_cameras(folder: _Folder, info: _Info, cameras: str | Iterable[str] | None) -> list[str]:
    known = [name for name, feature in info.features.items() if feature["dtype"] in ("video", "image")]
    if cameras is None:
        return known
    names = [cameras] if isinstance(cameras, str) else list(cameras)
    for name in names:
        if name not in known:
            raise DatasetError(
                f"{folder.what}: expected cameras= among {', '.join(known) or 'none, as it has none'}, got {name!r}."
                f"{did_you_mean(str(name), known)}"
            )
    return [name for name in known if name in names]


def _files(folder: _Folder, described: _Episodes, *, some: bool) -> list[DataFile]:
    """The Parquet files of the episodes. Warns if they have more or fewer frames than described."""
    listing = list_files([posixpath.join(folder.root, "data")], filesystem=folder.filesystem, by_name=True)
    prefix = f"{folder.root}/"
    by_name = {file.path.removeprefix(prefix): file for file in listing.files}
    frames = Counter[str]()
    for name, length in zip(described.files, described.lengths.tolist(), strict=True):
        frames[name] += length
    missing = [name for name in frames if name not in by_name]
    if missing:
        raise DatasetError(
            f"{folder.what}: expected the file {missing[0]}, which meta/ names, found none"
            f"{f' (nor {len(missing) - 1} others)' if len(missing) > 1 else ''}. Download it, or read other episodes "
            "with episodes=[...]."
        )
    files = [by_name[name] for name in frames]
    if some:
        return files
    unnamed = sorted(by_name.keys() - frames.keys())
    if unnamed:
        _LOGGER.warning(
            "%s: %d files in data/ that no episode in meta/ names are left out, such as %s",
            *(folder.what, len(unnamed), unnamed[0]),
        )
    for name, footer in zip(frames, stored_footers(folder.filesystem, files), strict=True):
        rows = int(footer.rows.sum())
        if rows != frames[name]:
            _LOGGER.warning(
                "%s: %s has %d frames, but its episodes have %d in meta/. All frames in the file are read.",
                *(folder.what, name, rows, frames[name]),
            )
    return files


# --- which fields ---


def _columns(
    folder: _Folder, info: _Info, cameras: Sequence[str], described: _Episodes
) -> tuple[list[TableColumn], list[tuple[str, str]]]:
    """Returns the columns, and the features that cannot be read, each with the reason."""
    columns: list[TableColumn] = []
    refused: list[tuple[str, str]] = []
    for name, feature in info.features.items():
        if feature["dtype"] in ("video", "image") and name not in cameras:
            continue
        try:
            columns.append(_column(name, feature, info, described))
        except SchemaError as error:
            refused.append((name, str(error)))
    if "task" not in info.features:
        task = TableColumn(
            name="task",
            arrow=pa.string(),
            nullable=False,
            names=(("task_index",),),
            texts=_tasks(folder, info),
        )
        columns.append(task)
    return columns, refused


def _column(name: str, feature: Mapping[str, Any], info: _Info, described: _Episodes) -> TableColumn:
    dtype, shape = feature["dtype"], tuple(feature["shape"])
    if dtype == "image" and _depth(name, feature) is not None:
        raise SchemaError(
            f"field '{name}': expected depths in a video, got pictures of depths, which are not read. Leave the field "
            "out with cameras=[...]."
        )
    if dtype == "image":
        return image_column(name, _frame_shape(feature), nullable=False)
    if dtype == "video":
        return _video(name, feature, info, described)
    try:
        arrow = pa.type_for_alias(dtype)
    except ValueError as error:
        raise SchemaError(
            f"field '{name}': expected a feature of numbers or text, got the dtype '{dtype}'. Leave the field out with "
            "select(...) or fields=[...]."
        ) from clean_cause(error)
    shape = () if shape == (1,) else shape  # as it is stored
    for _ in shape:
        arrow = pa.list_(arrow)
    field = infer_field(name, pa.field(name, arrow, nullable=False)).replace(shape=shape)
    return TableColumn(name=name, arrow=arrow, nullable=False, names=((name,),), field=field)


def _frame_shape(feature: Mapping[str, Any]) -> tuple[int, ...]:
    """The height, width and channels of a camera, whose shape may begin with the channels."""
    shape, names = tuple(feature["shape"]), feature.get("names")
    first = names[0] if isinstance(names, list) and names else ""
    if len(shape) == 3 and isinstance(first, str) and first.startswith("channel"):
        return shape[1], shape[2], shape[0]
    return shape


def _video(name: str, feature: Mapping[str, Any], info: _Info, described: _Episodes) -> TableColumn:
    paths, begins = described.videos[name]
    files = {path: number for number, path in enumerate(dict.fromkeys(paths))}
    depth = _depth(name, feature)
    codec = EpisodeVideo(
        fps=info.fps,
        files=tuple(files),
        episodes=tuple(described.numbers.tolist()),
        file=tuple(files[path] for path in paths),
        start_s=tuple(begins.tolist()),
        depth=depth,
    )
    shape = _frame_shape(feature)
    field = UnischemaField(
        name, np.uint8 if depth is None else np.float32, shape, codec, dims=("H", "W", "C")[: len(shape)]
    )
    return TableColumn(name=name, arrow=pa.null(), nullable=False, names=((),), field=field)


def _depth(name: str, feature: Mapping[str, Any]) -> tuple[float, float, float, bool] | None:
    """Returns how numbers stand for depths, if the camera sees depths; see `EpisodeVideo`."""
    parts = [each for key in ("video_info", "info") if isinstance(each := feature.get(key), dict)]
    stated = {key.removeprefix("video."): value for part in parts for key, value in part.items()}
    if not stated.get("is_depth_map"):
        return None
    values = [default if stated.get(key) is None else stated[key] for key, default in _DEPTHS.items()]
    least, most, shift, is_log = values
    numbers = all(map(_is_number, (least, most, shift)))
    if not numbers or not least < most or (is_log and least + shift <= 0):
        raise SchemaError(f"field '{name}': expected a range of depths and a shift in its 'info', got {values}.")
    return float(least), float(most), float(shift), bool(is_log)
