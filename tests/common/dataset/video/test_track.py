"""What the index of an MP4 file says, for files made of boxes here; `test_decoder.py` compares with PyAV."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from cases import every_case

from fuzz.inputs import box, video_file
from parquetry.common.dataset.video.track import Track, VideoError, read_track


def track_of(content: bytes) -> Track:
    return read_track(lambda offset, length: content[offset : offset + length], len(content))


def patched(kind: bytes, offset: int, form: str, *values: int, content: bytes | None = None) -> bytes:
    """Returns a file with other numbers in one of its boxes; the offset is that from the box's content."""
    changed = bytearray(video_file() if content is None else content)
    struct.pack_into(f">{form}", changed, changed.rindex(kind) + 4 + offset, *values)
    return bytes(changed)


@every_case("arguments", [{}, {"long": True}, {"index_first": True}])
def test_an_index_is_read_in_each_form_and_place(arguments: dict[str, bool]) -> None:
    content = video_file(**arguments)
    track = track_of(content)
    samples = [content[at : at + size] for at, size in zip(track.offsets, track.sizes, strict=True)]
    assert samples == [b"key-0", b"ppp", b"b", b"key-3", b"pp"]
    assert (track.codec, track.extradata) == ("mpeg4" if arguments.get("long") else "h264", b"\1\2\3")
    assert (track.width, track.height, track.timescale, track.reorder) == (64, 48, 10, 1)
    assert track.times.tolist() == [5, 7, 6, 8, 9]
    assert track.shown.tolist() == [0, 2, 1, 3, 4]
    assert track.keys.tolist() == [0, 3]
    assert track.seconds().tolist() == [0.5, 0.6, 0.7, 0.8, 0.9]
    assert {array.dtype for array in (track.offsets, track.sizes, track.times, track.keys, track.shown)} == {
        np.dtype("i8")
    }


def test_frames_are_found_by_the_nearest_time() -> None:
    track = track_of(video_file())
    seconds = np.array([-1.0, 0.5, 0.6, 0.64, 0.66, 0.9, 7.0, np.float32(0.8)])
    assert track.frames_at(seconds).tolist() == [0, 0, 1, 1, 2, 4, 4, 3]
    assert replace(track, shown=track.shown[:1]).frames_at(seconds).tolist() == [0] * 8


def test_decoding_begins_at_a_key_and_one_earlier_for_frames_that_are_shown_before_theirs() -> None:
    track = track_of(video_file())
    frames = np.array([4, 0, 1, 2, 3])
    assert track.first_samples(frames).tolist() == [3, 0, 0, 0, 3]
    assert track.last_samples(frames).tolist() == [4, 0, 2, 1, 3]
    leading = replace(track, times=np.array([5, 6, 7, 9, 8]), shown=np.array([0, 1, 2, 4, 3]))
    assert leading.first_samples(np.array([3, 4])).tolist() == [0, 3]  # sample 4 is shown before its key, sample 3
    assert replace(track, keys=np.array([2])).first_samples(frames).tolist() == [2, 0, 2, 0, 2]
    assert replace(track, keys=np.array([], np.int64)).first_samples(frames).tolist() == [0] * 5


def test_a_file_without_key_frames_listed_has_only_key_frames() -> None:
    assert track_of(video_file().replace(b"stss", b"free")).keys.tolist() == [0, 1, 2, 3, 4]


def test_an_edit_list_leaves_out_frames_and_those_that_remain_begin_with_the_presentation() -> None:
    cut = patched(b"elst", 24, "i", 3)  # the second edit begins with the third frame
    assert track_of(cut).shown.tolist() == [1, 3, 4]
    assert track_of(cut).seconds().tolist() == [0.5, 0.6, 0.7]
    short = patched(b"elst", 20, "I", 2)  # and lasts for two frames
    assert track_of(short).shown.tolist() == [0, 2]
    assert track_of(video_file().replace(b"edts", b"free")).seconds().tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]


_MEDIA = box("free", bytes(1 << 20))


@every_case(
    "content, offsets",
    [
        (video_file(index_first=True) + _MEDIA, [0]),
        (video_file()[:20] + _MEDIA + video_file()[20:], [0, 20 + len(_MEDIA)]),
    ],
)
def test_only_headers_and_the_index_are_read_in_few_reads(content: bytes, offsets: list[int]) -> None:
    reads = []

    def read(offset: int, length: int) -> bytes:
        reads.append((offset, length))
        return content[offset : offset + length]

    assert len(read_track(read, len(content)).shown) == 5
    assert [offset for offset, _ in reads] == offsets
    assert sum(length for _, length in reads) <= 1 << 15


@every_case(
    "content, message",
    [
        (b"", "no index"),
        (b"PAR1", "a box of 4 bytes"),
        (b"PAR1" * 100, r"box 'PAR1' of 1,346,458,161 bytes where 400 are left"),
        (video_file()[:-1], r"box 'moov' of 554 bytes where 553 are left: it is cut off"),
        (video_file()[:44], "no index"),
        (video_file(index_first=True)[:-1], "box 'mdat'|samples beyond its end"),
        (video_file().replace(b"moov", b"moof"), "fragmented MP4.* ffmpeg -i in.mp4 -c copy -movflags faststart out.mp4"),
        (video_file().replace(b"trak", b"mvex"), "fragmented MP4"),
        (box("free") * 5000, "first 4,096 boxes"),
        (box("moov", box("free") * 5000), "box 'moov' of more than 4,096 boxes"),
        (box("moov", struct.pack(">I4sQ", 1, b"trak", 8)), "box 'trak' of 8 bytes where 16 are left"),
        (box("moov", struct.pack(">I4s", 7, b"trak")), "box 'trak' of 7 bytes"),
        (video_file().replace(b"vide", b"text"), "has no video track"),
        (video_file().replace(b"stbl", b"free"), "no box 'moov/trak/mdia/minf/stbl'"),
        (video_file().replace(b"avc1", b"vp09"), "type 'vp09': expected one of av01, avc1"),
        (video_file().replace(b"avcC", b"free"), "no box 'moov/trak/mdia/minf/stbl/stsd/avc1/avcC'"),
        (video_file(long=True).replace(b"\x15\x20", b"\x15\xdd"), "object type 0xdd"),
        (video_file(long=True).replace(b"\3\x1a", b"\3\x7f"), "damaged box '.*/esds'"),
        (video_file(long=True).replace(b"\3\x1a", b"\3\xff"), "damaged box '.*/esds'"),
        (patched(b"mdhd", 12, "I", 0), "0 ticks per second"),
        (patched(b"mvhd", 12, "I", 0), "0 ticks per second in 'moov/mvhd'"),
        (patched(b"elst", 4, "I", 17), "edit list of 17 edits"),
        (patched(b"elst", 24, "i", -2), "begins at -2 ticks"),
        (patched(b"elst", 24, "i", 99), "shows no frame"),
        (patched(b"elst", 8, "Ii", 5, 2), "shows frames twice"),
        (patched(b"avc1", 24, "HH", 0, 48), "0 x 48 pixels"),
        (patched(b"stsc", 16, "I", 2), "several descriptions"),
        (patched(b"stsc", 16, "I", 2).replace(struct.pack(">III", 2, 2, 1), struct.pack(">III", 2, 2, 2)), "no description 2"),
        (patched(b"stsc", 8, "I", 2), "do not follow each other"),
        (patched(b"stsc", 20, "I", 9), "do not follow each other"),
        (patched(b"stsc", 12, "I", 4), "5 samples, and chunks of 6"),
        (patched(b"stts", 8, "I", 6), "5 samples, and 6 in 'moov/trak/mdia/minf/stbl/stts'"),
        (patched(b"ctts", 8, "I", 0xFFFFFFFF), "5 samples, and 4,294,967,299 in '.*/ctts'"),
        (patched(b"stts", 4, "I", 0xFFFFFFFF), "claims 34,359,738,368 bytes or more, and has 16"),
        (patched(b"stco", 4, "I", 0x10000000), "claims 1,073,741,832 bytes or more"),
        (patched(b"stco", 8, "I", 0x7FFFFFFF), "samples beyond its end"),
        (patched(b"co64", 8, "Q", 1 << 63, content=video_file(long=True)), "samples beyond its end"),
        (patched(b"stsz", 24, "I", 0xFFFFFFFF), "samples beyond its end"),
        (patched(b"stsz", 8, "I", 0xFFFFFFFF), "4,294,967,295 samples: expected at most"),
        (patched(b"stsz", 4, "II", 1, 0xFFFFFFFF), "4,294,967,295 samples of one size"),
        (patched(b"stz2", 4, "I", 5, content=video_file(long=True)), "sizes with 5 bits"),
        (patched(b"stss", 8, "I", 0), "out of order or do not exist"),
        (patched(b"stss", 8, "II", 4, 1), "out of order or do not exist"),
        (patched(b"stss", 12, "I", 6), "out of order or do not exist"),
        (patched(b"mdhd", 12, "I", 0xFFFFFFFF, content=patched(b"elst", 8, "I", 0xFFFFFFFF)), "more than 9,007"),
    ],
)  # fmt: skip
def test_a_damaged_or_hostile_file_says_what_is_wrong(content: bytes, message: str) -> None:
    with pytest.raises(VideoError, match=message):
        track_of(content)


def test_a_file_that_ends_while_it_is_read_says_so() -> None:
    content = video_file()
    with pytest.raises(VideoError, match="ends early: expected 598 bytes at 0, got 500"):
        read_track(lambda offset, length: content[offset : min(500, offset + length)], len(content))


def test_an_index_uses_memory_in_proportion_to_its_size() -> None:
    """A sample needs one bit of each table, so most claims are refused, and what remains is bounded."""
    count = 1 << 17
    content = patched(b"stsz", 4, "II", 1, count)
    content = patched(b"stts", 8, "I", count, content=content)
    content = patched(b"stsc", 8, "III", 1, count, 1, content=content)
    tracemalloc.start()
    try:
        with pytest.raises(VideoError, match="chunks of"):
            track_of(content)
        assert tracemalloc.get_traced_memory()[1] < 64 * count
    finally:
        tracemalloc.stop()
