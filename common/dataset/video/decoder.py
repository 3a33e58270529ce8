"""Decodes frames of videos with PyAV (FFmpeg), from the packets of a `Track`.

In: a `Track` and the bytes of consecutive samples. Out: frames in the order of presentation, and their pixels in arrays
of the caller. A decoder has one thread, that of its caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np

from ...base.errors import CodecUnavailableError, missing_package
from ...base.process.forks import importing, leave_to_parent
from .track import Track, VideoError

if TYPE_CHECKING:
    import av

_DECODERS = {"av1": "libdav1d"}  # FFmpeg's own needs a GPU
_STORED = ("gray10le", "gray12le", "gray16le")
_PIXELS = {("uint8", 3): "rgb24", ("uint8", 1): "gray", ("uint16", 1): "as stored"}
_SPARE_PIXELS = 128  # on each side, as codecs store whole blocks


@lru_cache(maxsize=1)
def require_av() -> ModuleType:
    """Imports PyAV, whose FFmpeg logs nothing unless it is told to.

    Raises:
        CodecUnavailableError: it is not installed.
    """
    try:
        with importing():
            import av
    except ImportError as error:
        raise CodecUnavailableError(f"decoding videos {missing_package(error, 'av', 'video')}") from error
    return av


class Decoder:
    """Decodes frames of tracks. Each thread needs its own.

    A codec stays open from one call to the next. A forked child opens its own.
    """

    def __init__(self) -> None:
        self._av = require_av()
        self._key: tuple[str, bytes, int] | None = None
        self._context: av.VideoCodecContext | None = None
        self._reformatter = self._av.video.reformatter.VideoReformatter()
        leave_to_parent(self)

    def forget_elements(self) -> object:
        """Called in a forked child: forgets the codec, and returns it."""
        held = self._context, self._reformatter
        self._key, self._context = None, None
        self._reformatter = self._av.video.reformatter.VideoReformatter()
        return held

    def frames(
        self, track: Track, first: int, packets: Sequence[bytes | memoryview], frames: Sequence[int]
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """Yields frames with their numbers, in the order of presentation.

        A frame may refer to any sample before it, so it comes only once these have come out undamaged.

        Args:
            first: the sample of the first packet, at which decoding may begin: see `Track.first_samples`.
            packets: the bytes of the samples from there on, up to `Track.last_samples` of all frames.
            frames: the numbers of the frames to yield.

        Raises:
            VideoError: a frame is damaged, or does not come out of these packets.
        """
        missing = {int(track.shown[frame]): int(frame) for frame in frames}
        context = self._open(track)
        times = track.times[first : first + len(packets)]
        latest = np.maximum.accumulate(times)  # of a sample and those before it
        held: deque[tuple[int, av.VideoFrame]] = deque()
        cause: Exception | None = None
        end = damaged = first + len(packets)
        shown = -np.inf
        fed = (self._packet(sample, data) for sample, data in enumerate(packets, first) if len(data))
        for packet in chain(fed, (None,)):  # `None` drains the decoder; an empty packet would, too
            if not missing:
                return
            if packet is not None and (cause is not None or damaged < end):
                continue
            try:
                decoded = context.decode(packet)
            except self._av.FFmpegError as error:
                cause, decoded = error, []
            for frame in decoded:
                if frame.pts is None:
                    continue
                sample, shown = frame.pts, times[frame.pts - first]
                if sample in missing:
                    held.append((sample, frame))
                if frame.is_corrupt and shown >= times[0]:  # others are shown before the key sample, and refer to more
                    damaged = min(sample, damaged)
            if packet is None:
                shown = latest[-1]
            while held and latest[held[0][0] - first] <= shown:
                sample, frame = held.popleft()
                if sample < damaged and sample in missing and not frame.is_corrupt:
                    yield missing.pop(sample), frame
        if missing:
            number = min(missing.values())
            if damaged <= track.shown[number] < end:
                raise VideoError(f"frame {number} is damaged, or refers to a frame that is")
            why = "" if cause is None else f" ({cause})"
            raise VideoError(
                f"frame {number} does not come out of its packets{why}: some are damaged or missing"
            ) from cause

    def write(self, frame: av.VideoFrame, out: np.ndarray) -> None:
        """Writes the pixels of a frame into an array.

        Args:
            out: uint8 of the shape (H, W, 3) for RGB as PyAV converts it, or (H, W) or (H, W, 1) for gray; uint16 of
                the shape (H, W) or (H, W, 1) for the values of frames that are stored as gray with 10, 12 or 16 bits.

        Raises:
            VideoError: the frame has another size, or is stored in another format.
        """
        channels = out.shape[2] if out.ndim == 3 else 1
        if out.shape[:2] != (frame.height, frame.width):
            raise VideoError(f"has frames of the shape {(frame.height, frame.width)}: expected {out.shape[:2]}")
        if out.ndim not in (2, 3) or (out.dtype.name, channels) not in _PIXELS:
            raise VideoError(f"has frames that do not fit {out.dtype} of the shape {out.shape}")
        if out.dtype == np.uint8:
            try:
                frame = self._reformatter.reformat(frame, format=_PIXELS[out.dtype.name, channels], threads=1)
            except self._av.FFmpegError as error:
                raise VideoError(f"has frames of the format {frame.format.name}, which cannot be converted") from error
        elif frame.format.name not in _STORED:
            raise VideoError(f"has frames of the format {frame.format.name}: expected one of {', '.join(_STORED)}")
        plane = frame.planes[0]
        strides = (plane.line_size, out.itemsize * channels, out.itemsize)[: out.ndim]
        np.copyto(out, np.ndarray(out.shape, out.dtype.newbyteorder("<"), memoryview(plane), strides=strides))

    def _open(self, track: Track) -> av.VideoCodecContext:
        """Returns a codec that has seen no packet, or none that it remembers."""
        key = (track.codec, track.extradata, track.reorder)
        if self._context is None or self._key != key:
            self._context = self._av.CodecContext.create(_DECODERS.get(track.codec, track.codec), "r")
            self._context.extradata = track.extradata
            self._context.thread_count = 1
            most = 4 * (track.width + _SPARE_PIXELS) * (track.height + _SPARE_PIXELS)
            self._context.options = {"max_pixels": str(most)}  # whatever the packets claim
            self._key = key
        else:
            self._context.flush_buffers()
        self._context.reorder_depth = track.reorder  # of streams that do not state it themselves
        return self._context

    def _packet(self, sample: int, data: bytes | memoryview) -> av.Packet[av.VideoStream]:
        """Returns a packet whose frame has the sample as its time.

        It is a copy, because decoders may read some bytes beyond the end of a packet.
        """
        packet = self._av.Packet(len(data))
        packet.update(data)
        packet.pts = sample
        copy: av.Packet[av.VideoStream] = packet
        return copy
