"""`VideoWriters`: the video files of one Parquet file that is being written, one for each field of frames.

Frames are encoded as their row groups are written. The video file appears together with the Parquet file.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from ..base.errors import EncodeError
from ..dataset.video.decoder import require_av
from ..schema.field import Unischema, UnischemaField
from ..schema.video import VideoCodec
from .staging import Staging

_ENCODERS = {"av1": "libsvtav1", "h264": "libx264", "hevc": "libx265"}
# Groups are closed, or a frame would need two of them, and as long as asked for, whatever the scenes.
_OPTIONS = {
    "av1": {"preset": "8", "svtav1-params": "lp=1"},
    "h264": {"threads": "1", "sc_threshold": "0"},
    "hevc": {"x265-params": "open-gop=0:scenecut=0:pools=1:log-level=none"},
}
_SVT_LOG = "SVT_LOG"
_OTHER_WRITER = 12  # hex digits that tell the files of two writers apart


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Opens an encoder of SVT-AV1 without its report on standard error, which nothing else can turn off."""
    if _SVT_LOG in os.environ:
        yield
        return
    os.environ[_SVT_LOG] = "-1"
    try:
        yield
    finally:
        os.environ.pop(_SVT_LOG, None)


class VideoWriters:
    """The video files beside one Parquet file.

    Args:
        relative: the path of the Parquet file in the dataset.
    """

    def __init__(self, staging: Staging, relative: str, schema: Unischema) -> None:
        directory, name = posixpath.split(relative)
        stem = f"{name.partition('.')[0].replace('part-', '')}-{staging.part[:_OTHER_WRITER]}"
        fields = [(field, codec) for field in schema if isinstance(codec := field.storage, VideoCodec)]
        self._videos = {
            field.name: _VideoWriter(
                staging, posixpath.join(directory, f"{quote(field.name, safe='')}-{stem}.mp4"), field, codec
            )
            for field, codec in fields
        }

    def write(self, rows: pa.Table) -> pa.Table:
        """Encodes the frames of rows, and returns the rows with the columns that are stored in their place.

        Raises:
            EncodeError: a frame cannot be encoded.
        """
        for name, video in self._videos.items():
            place = rows.column_names.index(name)
            file, frame = video.write(rows.column(place))
            nullable = rows.schema.field(place).nullable
            columns = pa.field(f"{name}__file", pa.string(), nullable), pa.field(f"{name}__frame", pa.int64(), nullable)
            rows = rows.remove_column(place).add_column(place, columns[1], frame).add_column(place, columns[0], file)
        return rows

    def close(self) -> None:
        """Finishes the files."""
        for video in self._videos.values():
            video.close()

    def abandon(self) -> None:
        """Drops the files."""
        for video in self._videos.values():
            video.abandon()


class _VideoWriter:
    def __init__(self, staging: Staging, relative: str, field: UnischemaField, codec: VideoCodec) -> None:
        self._staging = staging
        self._relative = relative
        self._field = field
        self._codec = codec
        self._frames = 0
        self._stack = contextlib.ExitStack()
        self._container: Any = None

    def write(self, pixels: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
        """Encodes frames. Returns the columns of file names and frame numbers."""
        valid = pixels.is_valid().to_numpy()
        numbers = self._frames + np.cumsum(valid) - 1
        height, width = (axis or 0 for axis in self._field.shape[:2])
        for value in pixels:
            if value.is_valid:
                self._encode(np.frombuffer(value.as_buffer(), np.uint8).reshape(height, width, 3))
        mask = ~valid
        return (
            pa.array(np.full(len(valid), posixpath.basename(self._relative), object), pa.string(), mask=mask),
            pa.array(numbers.astype(np.int64), pa.int64(), mask=mask),
        )

    def _encode(self, frame: np.ndarray) -> None:
        av = require_av()
        if self._container is None:
            self._begin(av)
        with self._errors(av):
            picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
            picture.pts = self._frames
            self._container.mux(self._stream.encode(picture))
        self._frames += 1

    def _begin(self, av: Any) -> None:
        self._file = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
        codec, options = self._codec, _OPTIONS[self._codec.codec]
        with self._errors(av):
            self._container = self._stack.enter_context(av.open(self._file, "w", format="mp4"))
            stream = self._container.add_stream(
                _ENCODERS[codec.codec], codec.fps, options={"g": str(codec.gop), "crf": str(codec.crf), **options}
            )
            stream.height, stream.width = (axis or 0 for axis in self._field.shape[:2])
            stream.pix_fmt = "yuv420p"
            with _quiet():
                stream.codec_context.open(strict=False)
            self._stream = stream

    def close(self) -> None:
        if self._container is None:
            return
        with self._stack:
            av = require_av()
            with self._errors(av):
                self._container.mux(self._stream.encode(None))
                self._container.close()
            self._file.seek(0)
            with self._staging.open(self._relative) as target:
                shutil.copyfileobj(self._file, target)
        self._container = None

    def abandon(self) -> None:
        with contextlib.suppress(Exception):  # of the encoder, which has not got all frames
            self._stack.close()
        self._container = None

    @contextlib.contextmanager
    def _errors(self, av: Any) -> Iterator[None]:
        try:
            yield
        except av.FFmpegError as error:
            raise EncodeError(
                f"field '{self._field.name}', frame {self._frames} of '{self._relative}': PyAV cannot encode it as "
                f"{self._codec.codec}: {error}. Choose another codec, or check the size of the frames."
            ) from error
