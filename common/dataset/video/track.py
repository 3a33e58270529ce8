"""Reads the index of an MP4 file: where the samples of its first video track are, and when each frame is shown.

In: a function that reads bytes of the file. Out: a `Track` of numpy arrays, or a `VideoError`. Only headers of boxes
and the box `moov` are read, and no more memory is used than in proportion to it, whatever the bytes claim.

A sample is one encoded frame, numbered in the order of decoding. A frame is what a player shows, numbered in the order
of presentation. Frame times are those of FFmpeg, edit lists included. Rotation is ignored, as frames are trained on as
they are stored.

Source: ISO/IEC 14496-12 (boxes), 14496-14 (mp4v), 14496-15 (avc1, hvc1), and AV1's binding to ISO base media files.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import numpy as np

from ...base.process.dataclass import dataclass

Read = Callable[[int, int], "bytes | memoryview"]

_AHEAD_BYTES = 1 << 14  # read at once from where a box begins: most often, with several headers in it
_MOST_INDEX_BYTES = 1 << 26
_MOST_BOXES = 1 << 12  # inside one box
_MOST_EDITS = 16
_MOST_SAMPLES = 1 << 24
_MOST_EQUAL_SAMPLES = 1 << 17  # of one size, which the index states once
_MOST_TICKS = 1 << 53  # exact as float64
_ENTRY_BYTES = 78  # of a visual sample entry, before its boxes

_CONFIGS = {
    b"av01": ("av1", b"av1C"),
    b"avc1": ("h264", b"avcC"),
    b"avc3": ("h264", b"avcC"),
    b"hev1": ("hevc", b"hvcC"),
    b"hvc1": ("hevc", b"hvcC"),
    b"mp4v": ("mpeg4", b"esds"),
}
"""By sample entry: FFmpeg's name of the codec, and the box with its configuration."""
_MPEG4 = 0x20  # among the object types of mp4v


class VideoError(ValueError):
    """A video cannot be read. It says what is wrong, and the caller adds file and row."""


@dataclass(frozen=True, slots=True, eq=False)
class Track:
    """What the index of an MP4 file says of its first video track.

    Attributes:
        codec: FFmpeg's name, such as ``"av1"``, ``"h264"``, ``"hevc"``, or ``"mpeg4"``.
        extradata: what the decoder needs beside packets.
        width, height: the pixels of a frame, as the index says.
        timescale: ticks per second.
        offsets, sizes: where each sample is in the file, in the order of decoding.
        times: when each sample is shown, in ticks, after the edit list.
        keys: the samples at which decoding may begin, in ascending order.
        shown: the sample of each frame, in the order of presentation. Frames that the edit list leaves out are missing.
        reorder: how many frames a decoder holds back to return them in the order of presentation.
        recovery: after how many reference pictures from a key sample on pictures are whole; more than 0 only with intra
            refresh, whose key samples after the first one are not whole themselves. ``None`` = unknown, as the index
            does not say it.
    """

    codec: str
    extradata: bytes
    width: int
    height: int
    timescale: int
    offsets: np.ndarray
    sizes: np.ndarray
    times: np.ndarray
    keys: np.ndarray
    shown: np.ndarray
    reorder: int
    recovery: int | None = None

    def seconds(self) -> np.ndarray:
        """Returns when each frame is shown."""
        seconds: np.ndarray = self.times[self.shown] / self.timescale
        return seconds

    def frames_at(self, seconds: np.ndarray) -> np.ndarray:
        """Returns the number of the frame whose time is nearest to each time; the earlier one of two equally near."""
        begins = self.seconds()
        after = np.searchsorted(begins, seconds).clip(1, max(1, len(begins) - 1))
        before = after - 1
        after = after.clip(max=len(begins) - 1)
        return np.where(seconds - begins[before] <= begins[after] - seconds, before, after)

    def first_samples(self, frames: np.ndarray) -> np.ndarray:
        """Returns the sample at which decoding must begin for each frame.

        A frame that is shown before its key sample refers to frames before that, so decoding begins one key earlier.
        """
        if not len(self.keys):
            return np.zeros(len(frames), np.int64)
        samples = self.shown[frames]
        if self.recovery:
            return self._first_recovered(samples, self.recovery)
        number = np.searchsorted(self.keys, samples, side="right") - 1
        is_leading = self.times[samples] < self.times[self.keys[number.clip(0)]]
        number -= is_leading
        return np.where(number < 0, 0, self.keys[number.clip(0)])

    def _first_recovered(self, samples: np.ndarray, recovery: int) -> np.ndarray:
        """Returns the last key sample from which each sample is whole, in what is decoded and in what is shown."""
        anchors = np.flatnonzero(
            self.times == np.maximum.accumulate(self.times)
        )  # others are shown before earlier ones
        whole = np.searchsorted(anchors, self.keys) + recovery
        whole[0] = np.searchsorted(anchors, self.keys[0])
        whole = anchors[whole[whole < len(anchors)]]
        decoded = np.searchsorted(whole, samples, side="right")
        shown = np.searchsorted(self.times[whole], self.times[samples], side="right")
        keys: np.ndarray = self.keys[(np.minimum(decoded, shown) - 1).clip(0)]
        return keys

    def last_samples(self, frames: np.ndarray) -> np.ndarray:
        """Returns the last sample that a decoder must be given for each frame to come out when it is drained.

        That is the frame's own sample, as samples only refer to earlier ones.
        """
        samples: np.ndarray = self.shown[frames]
        return samples


def read_track(read: Read, size_bytes: int) -> Track:
    """Reads the index of an MP4 file.

    Args:
        read: returns so many bytes of the file, from an offset.
        size_bytes: the size of the file.

    Raises:
        VideoError: it is no MP4 file, or is damaged, or has no video track, or parts that are not supported.
    """
    movie = _Box("moov", _read_moov(read, size_bytes))
    if movie.find("mvex") is not None:
        raise _fragmented()
    for track in movie.all("trak"):
        handler = track.find("mdia", "hdlr")
        if handler is not None and bytes(handler.content[8:12]) == b"vide":
            return _read_track(movie, track, size_bytes)
    raise VideoError("has no video track")


def _fragmented() -> VideoError:
    return VideoError(
        "is a fragmented MP4, whose index is spread over the file: expected one index. "
        "Run: ffmpeg -i in.mp4 -c copy -movflags faststart out.mp4"
    )


def _read_moov(read: Read, size_bytes: int) -> memoryview:
    """Returns the content of the box `moov`, wherever it is in the file."""
    at = begin = 0
    head = memoryview(b"")
    for _ in range(_MOST_BOXES):
        if at >= size_bytes:
            raise VideoError("has no index (no box 'moov'): it is no MP4 file, or its recording did not end")
        if not begin <= at <= begin + len(head) - min(16, size_bytes - at):
            begin, head = at, _read(read, at, min(_AHEAD_BYTES, size_bytes - at))
        kind, content, end = _header(head[at - begin :], size_bytes - at)
        if kind == b"moof":
            raise _fragmented()
        if kind == b"moov":
            if end > _MOST_INDEX_BYTES:
                raise VideoError(f"has an index of {end:,} bytes: expected at most {_MOST_INDEX_BYTES:,}")
            known = head[at - begin : at - begin + end]
            rest = _read(read, at + len(known), end - len(known)) if len(known) < end else b""
            return memoryview(b"".join((known, rest)))[content:]
        at += end
    raise VideoError(f"has no index (no box 'moov') among its first {_MOST_BOXES:,} boxes")


def _read(read: Read, offset: int, length: int) -> memoryview:
    data = memoryview(read(offset, length))
    if len(data) != length:
        raise VideoError(f"ends early: expected {length:,} bytes at {offset:,}, got {len(data):,}")
    return data


def _header(data: memoryview, room: int) -> tuple[bytes, int, int]:
    """Returns the type of the box that begins here, and where its content begins and ends.

    Args:
        room: the bytes between here and the end of what the box is in.
    """
    if len(data) < 8:
        raise VideoError(f"has a box of {len(data)} bytes: expected 8 or more, so it is damaged, or no MP4 file")
    size, kind = struct.unpack_from(">I4s", data)
    content = 8
    if size == 1 and len(data) >= 16:
        (size,) = struct.unpack_from(">Q", data, 8)
        content = 16
    elif size == 0:
        size = room
    if not content <= size <= room:
        raise VideoError(
            f"has a box {_name(kind)} of {size:,} bytes where {room:,} are left: it is cut off, damaged, or no MP4 file"
        )
    return kind, content, size


def _name(kind: bytes) -> str:
    return repr(kind.decode("latin-1"))


@dataclass(frozen=True, slots=True, eq=False)
class _Box:
    """A box of the index, by the names of the boxes that it is in."""

    path: str
    content: memoryview

    def boxes(self) -> Iterator[tuple[bytes, memoryview]]:
        """Yields type and content of the boxes inside."""
        at = 0
        for _ in range(_MOST_BOXES):
            if at + 8 > len(self.content):  # QuickTime ends some with a 0 of four bytes
                return
            kind, content, end = _header(self.content[at:], len(self.content) - at)
            yield kind, self.content[at + content : at + end]
            at += end
        raise VideoError(f"has a box '{self.path}' of more than {_MOST_BOXES:,} boxes")

    def all(self, name: str) -> Iterator[_Box]:
        for kind, content in self.boxes():
            if kind == name.encode():
                yield _Box(f"{self.path}/{name}", content)

    def find(self, *names: str) -> _Box | None:
        box: _Box | None = self
        for name in names:
            box = next(box.all(name), None) if box is not None else None
        return box

    def get(self, *names: str) -> _Box:
        box = self.find(*names)
        if box is None:
            raise VideoError(f"has no box '{'/'.join((self.path, *names))}', so it is damaged, or was not finished")
        return box

    def number(self, offset: int, dtype: str = ">u4") -> int:
        return int(self.array(offset, dtype, 1)[0])

    def array(self, offset: int, dtype: str, count: int) -> np.ndarray:
        end = offset + np.dtype(dtype).itemsize * count
        if end > len(self.content):
            raise VideoError(
                f"has a box '{self.path}' that claims {end:,} bytes or more, and has {len(self.content):,}"
            )
        return np.frombuffer(self.content, dtype, count, offset)

    def table(self, dtype: str, columns: int, offset: int = 4) -> np.ndarray:
        """Returns the columns of a table that begins with its number of rows, as int64."""
        rows = self.number(offset)
        values = self.array(offset + 4, dtype, rows * columns).reshape(rows, columns)
        return np.ascontiguousarray(values.T, np.int64)


def _read_track(movie: _Box, track: _Box, size_bytes: int) -> Track:
    media = track.get("mdia")
    header = media.get("mdhd")
    timescale = header.number(20 if header.number(0, ">u1") == 1 else 12)
    if not timescale:
        raise VideoError("has a video track with 0 ticks per second")
    samples = media.get("minf", "stbl")
    sizes = _sizes(samples)
    offsets, description = _offsets(samples, sizes, size_bytes)
    codec, extradata, width, height = _description(samples.get("stsd"), description)
    decoding, times = _times(samples, len(sizes))
    edits = track.find("edts", "elst")
    is_shown = np.ones(len(sizes), np.bool_)
    if edits is not None:
        times, is_shown = _edit(edits, movie, timescale, decoding, times)
    if not is_shown.any():
        raise VideoError("shows no frame: it has no samples, or its edit list leaves all of them out")
    if abs(times).max() > _MOST_TICKS:
        raise VideoError(f"has frames after more than {_MOST_TICKS:,} ticks, so it is damaged")
    order = np.argsort(times, kind="stable")
    return Track(
        codec=codec,
        extradata=extradata,
        width=width,
        height=height,
        timescale=timescale,
        offsets=offsets,
        sizes=sizes,
        times=times,
        keys=_keys(samples, len(sizes)),
        shown=order[is_shown[order]],
        reorder=int((np.maximum.accumulate(order) - np.arange(len(order))).max()),
    )


def _sizes(samples: _Box) -> np.ndarray:
    box, compact = samples.find("stsz"), samples.find("stz2")
    if box is not None:
        size, count = box.number(4), box.number(8)
        if size:
            if count > _MOST_EQUAL_SAMPLES:
                raise VideoError(f"has {count:,} samples of one size: expected at most {_MOST_EQUAL_SAMPLES:,}")
            return np.full(count, size, np.int64)
        bits = 32
    elif compact is not None:
        box, bits, count = compact, compact.number(7, ">u1"), compact.number(8)
    else:
        raise VideoError(f"has no box '{samples.path}/stsz', so it is damaged, or was not finished")
    if count > _MOST_SAMPLES:
        raise VideoError(f"has {count:,} samples: expected at most {_MOST_SAMPLES:,}")
    if bits == 4:
        pairs = box.array(12, ">u1", -(-count // 2))
        return np.stack((pairs >> 4, pairs & 15), 1).ravel()[:count].astype(np.int64)
    if bits not in (8, 16, 32):
        raise VideoError(f"has a box '{box.path}' of sizes with {bits} bits: expected 4, 8, or 16")
    return box.array(12, f">u{bits // 8}", count).astype(np.int64)


def _offsets(samples: _Box, sizes: np.ndarray, size_bytes: int) -> tuple[np.ndarray, int]:
    """Returns where each sample begins, and the number of the description of all of them."""
    box = samples.find("stco")
    chunks = box.table(">u4", 1)[0] if box is not None else samples.get("co64").table(">i8", 1)[0]
    first, counts, descriptions = samples.get("stsc").table(">u4", 3)
    runs = np.diff(first, append=len(chunks) + 1)
    if not len(first) or first[0] != 1 or (runs <= 0).any():
        raise VideoError(f"has chunks of samples that do not follow each other, in '{samples.path}/stsc'")
    if (descriptions != descriptions[0]).any():
        raise VideoError("has frames of several descriptions, such as sizes or codecs: encode it anew, with one")
    in_chunk = np.repeat(counts, runs)
    ends = np.cumsum(in_chunk)
    if ends[-1] != len(sizes):
        raise VideoError(f"has {len(sizes):,} samples, and chunks of {ends[-1]:,}, so it is damaged")
    before = np.concatenate(([0], np.cumsum(sizes)))
    if (chunks < 0).any() or (chunks > size_bytes).any():
        raise VideoError(f"has samples beyond its end, at byte {size_bytes:,}, so it is cut off or damaged")
    offsets = np.repeat(chunks - before[ends - in_chunk], in_chunk) + before[:-1]
    if (offsets + sizes > size_bytes).any():
        raise VideoError(f"has samples beyond its end, at byte {size_bytes:,}, so it is cut off or damaged")
    return offsets, int(descriptions[0])


def _times(samples: _Box, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns when each sample is decoded, and when it is shown, in ticks of the media."""
    durations = _expanded(samples.get("stts"), ">u4", count)
    decoding = np.cumsum(durations) - durations
    box = samples.find("ctts")
    if box is None:
        return decoding, decoding
    return decoding, decoding + _expanded(box, ">i4", count)  # signed in both versions, as writers mix them up


def _expanded(box: _Box, dtype: str, count: int) -> np.ndarray:
    """Returns the value of each sample from a table of repetitions and values."""
    _, values = box.table(dtype, 2)
    repetitions, _ = box.table(">u4", 2)
    total = repetitions.sum()
    if total != count:
        raise VideoError(f"has {count:,} samples, and {total:,} in '{box.path}', so it is damaged")
    return np.repeat(values, repetitions)


def _keys(samples: _Box, count: int) -> np.ndarray:
    box = samples.find("stss")
    if box is None:
        return np.arange(count)
    keys: np.ndarray = box.table(">u4", 1)[0] - 1
    if len(keys) and (keys[0] < 0 or keys[-1] >= count or (np.diff(keys) <= 0).any()):
        raise VideoError(f"has key frames that are out of order or do not exist, in '{box.path}'")
    return keys


def _edit(
    box: _Box, movie: _Box, timescale: int, decoding: np.ndarray, times: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns when each sample is shown in the presentation, and whether it is.

    As in FFmpeg, a frame is shown if it begins within an edit, and the first one begins where the edit does.
    """
    edits = _edits(box, movie, timescale)
    is_shown = np.zeros(len(times), np.bool_)
    result, at, empty = times, 0, 0
    for media_time, duration in edits:
        is_inside = (times >= media_time) & (times < media_time + duration)
        if media_time < 0:
            empty += 0 if is_shown.any() else duration
        elif is_inside.any():
            if (is_shown & is_inside).any():
                raise VideoError("has an edit list that shows frames twice: encode it anew, without")
            shifted = at + times - decoding[is_inside.argmax()]
            result = np.where(is_inside, shifted, result) if is_shown.any() else shifted
            is_shown |= is_inside
        at += duration
    least = result[is_shown].min(initial=_MOST_TICKS)
    return result - max(0, int(least) - empty), is_shown


def _edits(box: _Box, movie: _Box, timescale: int) -> list[tuple[int, int]]:
    """Returns media time (-1: nothing is shown) and duration of each edit, in ticks of the media."""
    count = box.number(4)
    if count > _MOST_EDITS:
        raise VideoError(f"has an edit list of {count:,} edits: expected at most {_MOST_EDITS}")
    version = box.number(0, ">u1")
    width = 8 if version == 1 else 4
    header = movie.get("mvhd")
    movie_timescale = header.number(20 if header.number(0, ">u1") == 1 else 12)
    if not movie_timescale and count:
        raise VideoError("has an edit list, and 0 ticks per second in 'moov/mvhd'")
    edits = []
    for at in range(8, 8 + count * (2 * width + 4), 2 * width + 4):
        duration, media_time = box.number(at, f">u{width}"), box.number(at + width, f">i{width}")
        if media_time < -1 or media_time > _MOST_TICKS:
            raise VideoError(f"has an edit that begins at {media_time:,} ticks, so it is damaged")
        ticks = (duration * timescale + movie_timescale // 2) // movie_timescale
        edits.append((media_time, min(ticks, _MOST_TICKS)))
    return edits


def _description(box: _Box, number: int) -> tuple[str, bytes, int, int]:
    """Returns codec, extradata, width and height of a sample description."""
    entries = [*_Box(box.path, box.content[8:]).boxes()]
    if not 1 <= number <= len(entries):
        raise VideoError(f"has no description {number} of its samples, in '{box.path}'")
    kind, content = entries[number - 1]
    if kind not in _CONFIGS:
        known = ", ".join(name.decode() for name in _CONFIGS)
        raise VideoError(f"has a video track of the type {_name(kind)}: expected one of {known}")
    entry = _Box(f"{box.path}/{kind.decode()}", content)
    width, height = entry.array(24, ">u2", 2).tolist()
    if not width or not height:
        raise VideoError(f"has frames of {width} x {height} pixels")
    codec, config = _CONFIGS[kind]
    extradata = _Box(entry.path, content[_ENTRY_BYTES:]).get(config.decode())
    return codec, bytes(_decoder_info(extradata) if config == b"esds" else extradata.content), width, height


def _decoder_info(box: _Box) -> memoryview:
    """Returns what the decoder needs from nested descriptors (ISO/IEC 14496-1, 7.2.6.5)."""
    stream = _descriptor(box.content[4:], 3, box.path)
    flags = stream[2] if len(stream) > 2 else 0
    at = 3 + 2 * (flags >> 7) + 2 * (flags >> 5 & 1)
    if flags >> 6 & 1 and len(stream) > at:
        at += 1 + stream[at]
    config = _descriptor(stream[at:], 4, box.path)
    if len(config) < 13 or config[0] != _MPEG4:
        kind = f"{config[0]:#04x}" if len(config) else "missing"
        raise VideoError(f"has a video track 'mp4v' of the object type {kind}: expected {_MPEG4:#04x}, MPEG-4")
    return _descriptor(config[13:], 5, box.path)


def _descriptor(data: memoryview, tag: int, path: str) -> memoryview:
    """Returns the content of a descriptor with this tag."""
    size = 0
    for at in range(1, min(5, len(data))):
        size = size << 7 | data[at] & 127
        if data[at] < 128 and data[0] == tag and at + 1 + size <= len(data):
            return data[at + 1 : at + 1 + size]
    raise VideoError(f"has a damaged box '{path}'")
