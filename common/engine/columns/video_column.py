"""`VideoColumn`: frames of videos in a loaded block, each decoded directly into its place in the batch.

Frames are decoded in groups, from one that is stored whole to the last that is needed. What other items of the block
need is kept while it may be needed, within a limit, so that each group is decoded once.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ...base.errors import DecodeError
from ...dataset.row_groups import MOST_VALUES
from ...dataset.video.decoder import Decoder
from ...dataset.video.frames import EncodedFrames, PictureGroup
from ...dataset.video.track import VideoError
from ...schema.codec import fits_shape
from ...schema.dtypes import delivered_dtype
from ...schema.field import UnischemaField
from ...schema.ragged import ends_of
from ...schema.video import FrameCodec
from ..read.file_cells import Part
from .batch import Column, Dense, Ragged
from .protocols import DecodeContext
from .shared_rows import Places, SharedRows

if TYPE_CHECKING:
    from av import VideoFrame

_KEPT_SHARE = 0.5  # of the memory limit: the next block may begin while this one ends


def kept_bytes(fields: Sequence[UnischemaField], limit_bytes: int | None) -> int:
    """Returns the memory for decoded frames of each field of frames, given the limit for a block."""
    count = sum(not field.storage.in_column for field in fields)
    return int(_KEPT_SHARE * (limit_bytes or 0)) // max(count, 1)


class VideoColumn:
    """Frames of videos. A `BlockColumn`. Thread-safe.

    Args:
        parts: the column's part of each row group, all `EncodedFrames`.
    """

    def __init__(self, field: UnischemaField, parts: Sequence[Part], context: DecodeContext) -> None:
        encoded = [part for part in parts if isinstance(part, EncodedFrames)]
        starts = ends_of([len(part) for part in encoded]).tolist()
        group, frame = np.zeros(starts[-1], np.int64), np.zeros(starts[-1], np.int64)
        self._field = field
        self._context = context
        self._levels = field.storage.levels() if isinstance(field.storage, FrameCodec) else None
        self._groups: list[PictureGroup] = []
        self._problems: dict[int, str] = {}
        for start, end, part in zip(starts, starts[1:], encoded, strict=False):
            group[start:end] = np.where(part.group < 0, -1, part.group + len(self._groups))
            frame[start:end] = part.frame
            self._groups += part.groups
            self._problems |= {start + row: text for row, text in part.problems.items()}
        # Rows may share a frame. Pictures are the frames, each once, those of a group together.
        pairs, self._picture, self._left = np.unique(
            np.stack([group, frame], 1), axis=0, return_inverse=True, return_counts=True
        )
        self._picture = self._picture.reshape(-1)
        self._group, self._frame = pairs[:, 0], pairs[:, 1]
        self._first_row = np.zeros(len(pairs), np.int64)
        self._first_row[self._picture[::-1]] = np.arange(len(group))[::-1]
        self._locks = [threading.Lock() for _ in self._groups]
        self._kept = SharedRows(context.kept_bytes())

    def gather(self, rows: np.ndarray, out: np.ndarray | None) -> Column:
        """As `BlockColumn`.

        Raises:
            DecodeError: the frame of a row cannot be read. The error names file, row group, row and video.
        """
        pictures = self._picture[rows]
        valid = self._group[pictures] >= 0
        if self._problems:
            self._check(rows[~valid])
        given = None if valid.all() else valid
        if out is not None:
            self._decode(pictures, out)
            return Dense(out, given)
        shapes = np.zeros((len(rows), len(self._field.shape)), np.int64)
        for number in np.flatnonzero(valid).tolist():
            shapes[number] = self._shape(pictures[number])
        ends = ends_of(np.prod(shapes, axis=1, dtype=np.int64))
        dtype = delivered_dtype(self._field.dtype)
        size, limit = int(ends[-1]) * dtype.itemsize, MOST_VALUES * self._context.max_value_bytes
        if size > limit:
            raise self._failed(int(rows[0]), f"{len(rows)} frames from here on take {size} bytes, more than {limit}")
        values = np.empty(int(ends[-1]), dtype)
        places = [
            values[begin:end].reshape(shape) for begin, end, shape in zip(ends[:-1], ends[1:], shapes, strict=True)
        ]
        self._decode(pictures, places)
        return Ragged(shapes, values, (len(rows),), given)

    def _check(self, rows: np.ndarray) -> None:
        for row in rows.tolist():
            if row in self._problems:
                raise self._failed(row, self._problems[row])

    def _shape(self, picture: int) -> tuple[int, ...]:
        track = self._groups[self._group[picture]].track
        shape = (track.height, track.width, *(axis or 0 for axis in self._field.shape[2:]))
        size, limit = math.prod(shape) * delivered_dtype(self._field.dtype).itemsize, self._context.max_value_bytes
        if not fits_shape(shape, self._field.shape):
            raise self._failed(self._first_row[picture], f"expected shape {self._field.shape}, got {shape}")
        if size > limit:
            text = f"expected at most {limit} bytes, got a frame of shape {shape}; max_value_bytes= allows more"
            raise self._failed(self._first_row[picture], text)
        return shape

    def _decode(self, pictures: np.ndarray, out: np.ndarray | Sequence[np.ndarray]) -> None:
        """Decodes pictures into ``out``. Those without a group become zeros."""
        order = np.argsort(pictures, kind="stable")
        groups = self._group[pictures[order]]
        begins = np.flatnonzero(np.diff(groups, prepend=-2))
        for places in np.split(order, begins[1:]) if len(order) else ():
            group = int(self._group[pictures[places[0]]])
            if group < 0:
                for place in places.tolist():
                    out[place][...] = 0
                continue
            self._shape(pictures[places[0]])
            by_picture: dict[int, Places] = {}
            for picture, place in zip(pictures[places].tolist(), places.tolist(), strict=True):
                by_picture.setdefault(picture, Places(out, [])).numbers.append(place)
            with self._locks[group]:
                self._decode_group(group, by_picture)

    def _decode_group(self, group: int, wanted: dict[int, Places]) -> None:
        missing: dict[int, Places] = {}
        for picture, places in wanted.items():
            value = self._kept.get(picture)
            self._left[picture] -= len(places.numbers)
            if value is None:
                missing[picture] = places
            else:
                places.fill(value)
        if missing:
            self._decode_missing(group, missing)
        for picture in wanted:
            if not self._is_needed(picture):
                self._kept.drop(picture)

    def _is_needed(self, picture: int) -> bool:
        """Returns whether other items of the block may still ask for a picture."""
        return self._context.reuse or bool(self._left[picture] > 0)

    def _decode_missing(self, number: int, missing: dict[int, Places]) -> None:
        """Decodes pictures of a group, and those of its others for which there is room and that somebody may need."""
        own = range(*np.searchsorted(self._group, [number, number + 1]).tolist())
        later = {each for each in own if self._is_needed(each) and self._kept.get(each) is None}
        if not self._kept.has_room(next(iter(missing.values())).first.nbytes):
            later &= missing.keys()
        left = dict(missing)
        try:
            self._decode_pictures(number, left, later)
        except VideoError:  # perhaps of a picture that nobody has asked for yet
            try:
                self._decode_pictures(number, left, later & left.keys())
            except VideoError as error:
                row = int(self._first_row[min(left)])
                raise self._failed(row, f"video {self._groups[number].path}: {error}") from error

    def _decode_pictures(self, number: int, left: dict[int, Places], later: set[int]) -> None:
        """Decodes pictures: those ``left`` into their places, which it takes out, and keeps those for ``later``."""
        group, decoder = self._groups[number], _decoder()
        if not left:
            return
        like = next(iter(left.values())).first
        picture_of = {int(self._frame[each]): each for each in sorted(left.keys() | later)}
        for frame, decoded in decoder.frames(group.track, group.first, group.packets(), list(picture_of)):
            picture = picture_of[frame]
            places = left.get(picture)
            write = partial(self._write, decoder, decoded)
            value = self._kept.keep(picture, like, write) if picture in later else None
            if places is not None and value is not None:
                places.fill(value)
            elif places is not None:
                places.decode(write)
            left.pop(picture, None)

    def _write(self, decoder: Decoder, frame: VideoFrame, place: np.ndarray) -> None:
        """Writes the values of a frame's pixels."""
        if self._levels is None:
            decoder.write(frame, place)
            return
        numbers = np.empty(place.shape, np.uint16)
        decoder.write(frame, numbers)
        np.take(self._levels, numbers, out=place, mode="clip")

    def _failed(self, row: int, why: str) -> DecodeError:
        return DecodeError(
            f"field '{self._field.name}', {self._context.describe(row)}: cannot read the frame: {why.rstrip('.')}."
        )


_local = threading.local()


def _decoder() -> Decoder:
    """Returns the decoder of this thread."""
    decoder: Decoder | None = getattr(_local, "decoder", None)
    if decoder is None:
        decoder = _local.decoder = Decoder()
    return decoder
