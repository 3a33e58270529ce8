"""Codecs of fields whose values are frames of videos, in files beside the Parquet files.

Such a field has no column of its own. Its codec names the columns that say where each frame is, and `FrameCodec.places`
says it for many rows at once: which file, and which frame or second of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from ..base.errors import DecodeError, SchemaError
from ..base.memory.arrow_views import as_numpy
from ..base.process.dataclass import dataclass
from .codec import Codec, CodedField
from .plain import integer

_ENCODERS = ("av1", "h264", "hevc")
_PIXELS = {np.dtype(np.uint8): (1, 3), np.dtype(np.uint16): (1,)}
_MOST_CRF = 63
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]+:")


@dataclass(frozen=True, slots=True, eq=False)
class FramePlaces:
    """Where the frames of some rows are.

    Attributes:
        files: the names of the files.
        file: for each row, the number of its file in ``files``; -1 = the row has no frame, as its columns are null.
        seconds: for each row, when its frame is shown; ``None`` if ``frames`` tells.
        frames: for each row, the number of its frame in the order of presentation, as its column states it: float64.
    """

    files: Sequence[str]
    file: np.ndarray
    seconds: np.ndarray | None = None
    frames: np.ndarray | None = None


class FrameCodec(Codec):
    """Base class of codecs whose values are frames of videos.

    Attributes:
        root: the directory or URL that the names of files are relative to; ``None`` = the dataset's own directory.
        tolerance_s: how far a frame may be from the time that its row states; ``None`` = half the time of a frame.
    """

    in_column: ClassVar[bool] = False
    costly: ClassVar[bool] = True
    root: str | None = None
    tolerance_s: float | None = None

    @property
    def frees_interpreter(self) -> bool:
        return True

    def check_field(self, field: CodedField) -> None:
        channels = _PIXELS.get(field.dtype) if isinstance(field.dtype, np.dtype) else None
        shape = field.shape
        if channels is None or len(shape) not in (2, 3) or (*shape[2:], 1)[0] not in channels:
            raise SchemaError(
                f"codec of field '{field.name}': expected frames of uint8 and shape (H, W, 3), (H, W, 1) or (H, W), or "
                f"of uint16 and one channel, got {field.dtype} of shape {shape}. H and W may be None."
            )

    def columns(self, field: CodedField) -> tuple[str, ...]:
        """Returns the names of the columns that say where each frame of the field is."""
        raise NotImplementedError

    def levels(self) -> np.ndarray | None:
        """Returns what each stored number of a pixel stands for; ``None`` = itself."""
        return None

    def places(self, columns: Sequence[pa.Array]) -> FramePlaces:
        """Returns where the frames of rows are, given the values of `columns`.

        Raises:
            DecodeError: the values name no place. The message begins with the number of the row.
        """
        raise NotImplementedError

    def arrow_type(self, field: CodedField) -> pa.DataType:
        return pa.null()


@dataclass(frozen=True)
class VideoReference(FrameCodec):
    """Frames of video files that two columns name: one the file, the other a time or the number of a frame.

        >>> UnischemaField("front", np.uint8, (720, 1280, 3), VideoReference(file="video_path", time="timestamp"))

    Declare such a field where you read, as in ``ParquetIterable(url, fields=[...])``. The nearest frame is read. Rows
    whose file or time is null have no frame.

    Args:
        file: the column that names the file, relative to ``root``.
        time: the column of times from the beginning of the video: numbers of seconds, or durations.
        frame: the column of frame numbers, from 0, in the order of presentation. Give this or ``time``.
        root: the directory or URL of the files; ``None`` = the directory of the dataset. A relative path counts from
            the current directory of the process that makes the codec.
        tolerance_s: how many seconds the nearest frame may be away. Otherwise the row fails. ``None`` = half the time
            of a frame.

    Raises:
        SchemaError: neither or both of ``time`` and ``frame`` are given.
    """

    kind: ClassVar[str] = "video_reference"
    names_files: ClassVar[bool] = True
    file: str
    time: str | None = None
    frame: str | None = None
    root: str | None = None
    tolerance_s: float | None = None

    def check(self) -> None:
        if isinstance(self.root, str) and not _SCHEME.match(self.root):
            object.__setattr__(self, "root", os.path.abspath(os.path.expanduser(self.root)))

    def check_field(self, field: CodedField) -> None:
        super().check_field(field)
        names = [self.file, *(name for name in (self.time, self.frame) if name is not None)]
        if len(names) != 2 or not all(isinstance(name, str) and name for name in names):
            raise SchemaError(
                f"codec of field '{field.name}': expected VideoReference(file=..., time=...) or (file=..., frame=...) "
                f"with names of columns, got {self!r}."
            )
        if self.tolerance_s is not None and not self.tolerance_s >= 0:
            raise SchemaError(
                f"codec of field '{field.name}': expected tolerance_s to be 0 or more seconds, got {self.tolerance_s}."
            )
        if field.name in names:
            raise SchemaError(
                f"field '{field.name}': expected a name that no column has, got that of a column which its codec "
                "reads. Give the field a name of its own."
            )

    def columns(self, field: CodedField) -> tuple[str, ...]:
        return self.file, self.time or self.frame or ""

    def places(self, columns: Sequence[pa.Array]) -> FramePlaces:
        names, when = columns
        file, files = _numbered(names)
        file = np.where(as_numpy(when.is_valid()), file, -1)
        if self.time is None:
            return FramePlaces(files, file, frames=_frame_numbers(when))
        return FramePlaces(files, file, seconds=_seconds(when))

    def to_json(self) -> dict[str, Any]:
        parameters = {name: getattr(self, name) for name in ("file", "time", "frame", "root", "tolerance_s")}
        return {"kind": self.kind, **{name: value for name, value in parameters.items() if value is not None}}


@dataclass(frozen=True)
class VideoCodec(FrameCodec):
    """Frames in MP4 files that `write_dataset` writes beside each Parquet file, and that are read like any other field.

        >>> UnischemaField("front", np.uint8, (240, 320, 3), VideoCodec("av1", gop=2))

    The encoding loses information. The Parquet file gets two columns, ``<field>__file`` and ``<field>__frame``, which
    name the video file, relative to the dataset, and the number of the frame. Writing and reading need PyAV.

    Args:
        codec: ``"av1"``, ``"h264"`` or ``"hevc"``.
        gop: the number of frames from one that is stored whole to the next. A shuffle decodes up to so many frames for
            one; larger numbers make smaller files.
        crf: the quality, 0 to 63; less is better.
        fps: frames per second that the file states. Parquetry does not use it.

    Raises:
        SchemaError: an argument is none of these.
    """

    kind: ClassVar[str] = "video"
    names_files: ClassVar[bool] = True
    codec: str = "av1"
    gop: int = 2
    crf: int = 30
    fps: int = 30

    def check_field(self, field: CodedField) -> None:
        super().check_field(field)
        if self.codec not in _ENCODERS:
            raise SchemaError(
                f"codec of field '{field.name}': expected one of {', '.join(_ENCODERS)}, got {self.codec!r}."
            )
        for name, least, most in (("gop", 1, 1 << 16), ("crf", 0, _MOST_CRF), ("fps", 1, 1000)):
            number = integer(getattr(self, name), least=least)
            if number is None or number > most:
                raise SchemaError(
                    f"codec of field '{field.name}': expected {name} from {least} to {most}, got "
                    f"{getattr(self, name)!r}."
                )
        height, width, *channels = field.shape
        if field.dtype != np.uint8 or channels != [3] or height is None or width is None or height % 2 or width % 2:
            raise SchemaError(
                f"codec of field '{field.name}': VideoCodec writes frames of uint8 and shape (H, W, 3) with an even "
                f"height and width, got {field.dtype} of shape {field.shape}. Crop or pad them."
            )

    def columns(self, field: CodedField) -> tuple[str, ...]:
        return f"{field.name}__file", f"{field.name}__frame"

    def arrow_type(self, field: CodedField) -> pa.DataType:
        return pa.binary()  # of the pixels, on their way to the encoder

    def encode(self, field: CodedField, value: object) -> Any:
        return np.ascontiguousarray(value).tobytes()

    def places(self, columns: Sequence[pa.Array]) -> FramePlaces:
        names, numbers = columns
        file, files = _numbered(names)
        return FramePlaces(
            files,
            np.where(as_numpy(numbers.is_valid()), file, -1),
            frames=_frame_numbers(numbers),
        )

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "codec": self.codec, "gop": self.gop, "crf": self.crf, "fps": self.fps}


@dataclass(frozen=True)
class EpisodeVideo(FrameCodec):
    """Frames of videos that hold episodes one after the other, as LeRobot stores them.

    Args:
        fps: frames per second.
        files: the names of the video files.
        episodes: the numbers of the episodes, ascending.
        file: for each of these, the number of its file in ``files``.
        start_s: for each of these, the second of the file at which it begins.
        depth: for a field of float32 depths in mm, how 12-bit numbers stand for them: the least and the largest depth
            in m, a shift, and whether the scale is logarithmic; ``None`` = an ordinary camera.
        root: the directory or URL of the files; ``None`` = the dataset's own.
    """

    kind: ClassVar[str] = "episode_video"
    fps: float
    files: tuple[str, ...]
    episodes: tuple[int, ...]
    file: tuple[int, ...]
    start_s: tuple[float, ...]
    depth: tuple[float, float, float, bool] | None = None
    root: str | None = None

    def check_field(self, field: CodedField) -> None:
        if self.depth is None:
            super().check_field(field)
        elif field.dtype != np.float32 or len(field.shape) != 3 or field.shape[2] != 1:
            raise SchemaError(
                f"codec of field '{field.name}': expected depths of float32 and shape (H, W, 1), got {field.dtype} of "
                f"shape {field.shape}."
            )

    def levels(self) -> np.ndarray | None:
        if self.depth is None:
            return None
        least, most, shift, is_log = self.depth
        scale = np.array([least, most], np.float64)
        bounds = np.log(scale + shift) if is_log else scale
        steps = np.arange(_DEPTHS, dtype=np.float32) * np.float32((bounds[1] - bounds[0]) / (_DEPTHS - 1))
        metres = steps + np.float32(bounds[0])
        if is_log:  # rounded once, as torch's is, so that no depth is off by a millimetre
            metres = np.exp(metres.astype(np.float64)).astype(np.float32) - np.float32(shift)
        levels: np.ndarray = np.rint(np.clip(metres, least, most) * np.float32(1000)).clip(0, _MOST_MM)
        return levels.astype(np.float32)

    def columns(self, field: CodedField) -> tuple[str, ...]:
        return "episode_index", "frame_index", "timestamp"

    def places(self, columns: Sequence[pa.Array]) -> FramePlaces:
        episode, frame, stated = (as_numpy(column.fill_null(-1)) for column in columns)
        known = np.array(self.episodes, np.int64)
        place = np.minimum(np.searchsorted(known, episode), max(len(known) - 1, 0))
        wrong = np.flatnonzero(known[place] != episode) if len(known) else np.arange(len(episode))
        if len(wrong):
            raise DecodeError(
                f"row {wrong[0]}: expected an episode that meta/ describes, got number {episode[wrong[0]]}."
            )
        # float32 cannot tell the frames of one second apart after some half an hour; frame numbers can.
        exact = frame / self.fps
        within = np.where(np.abs(stated - exact) <= _SAME_S + np.abs(stated) * _FLOAT32_ERROR, exact, stated)
        return FramePlaces(
            self.files,
            np.array(self.file, np.int64)[place],
            seconds=np.array(self.start_s, np.float64)[place] + within.astype(np.float64),
        )

    def to_json(self) -> dict[str, Any]:
        names = ("fps", "files", "episodes", "file", "start_s", "depth", "root")
        values = {name: getattr(self, name) for name in names}
        return {
            "kind": self.kind,
            **{name: list(value) if isinstance(value, tuple) else value for name, value in values.items()},
        }

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any]) -> Codec:
        values = {name: tuple(each) if isinstance(each, list) else each for name, each in parameters.items()}
        return cls(**values)  # type: ignore[arg-type]  # as `to_json` wrote them


_DEPTHS = 1 << 12
_MOST_MM = float(np.iinfo(np.uint16).max)
_SAME_S = 1e-4  # LeRobot's own tolerance
_FLOAT32_ERROR = float(np.finfo(np.float32).eps)


def _numbered(names: pa.Array) -> tuple[np.ndarray, list[str]]:
    """Returns the number of each row's name among the distinct names, -1 for null, and these."""
    coded = names.dictionary_encode()
    return as_numpy(coded.indices.cast(pa.int64()).fill_null(-1)), coded.dictionary.to_pylist()


def _frame_numbers(numbers: pa.Array) -> np.ndarray:
    return as_numpy(numbers.cast(pa.float64(), safe=False).fill_null(0.0))


def _seconds(times: pa.Array) -> np.ndarray:
    if pa.types.is_duration(times.type):
        return as_numpy(times.cast(pa.duration("ns")).cast(pa.int64()).fill_null(0)) / 1e9
    return as_numpy(times.cast(pa.float64()).fill_null(0.0))
