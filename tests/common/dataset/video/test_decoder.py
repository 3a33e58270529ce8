"""Frames of MP4 files are those of PyAV, bit for bit, whether asked for in order or alone. The files are made by PyAV."""

from __future__ import annotations

import functools
import io
import itertools
import struct
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.fs as pafs
import pytest
from cases import every_case
from processes import exit_status_of_fork

from fuzz.inputs import box
from parquetry.common.base.errors import CodecUnavailableError
from parquetry.common.dataset.video import frames as video_frames
from parquetry.common.dataset.video.decoder import Decoder, require_av
from parquetry.common.dataset.video.frames import VideoFiles
from parquetry.common.dataset.video.intra_refresh import recovery_pictures
from parquetry.common.dataset.video.track import Track, VideoError, read_track
from parquetry.common.schema.video import FramePlaces

if TYPE_CHECKING:
    import av
else:
    av = pytest.importorskip("av", reason="PyAV is not installed: pip install 'parquetry[video]'")

H, W = 48, 64
X264, X265, SVT = {"threads": "1"}, "log-level=none:pools=1:frame-threads=1", {"preset": "12", "svtav1-params": "lp=1"}
VIDEOS = {
    "av1": ("libsvtav1", 1, SVT),
    "av1, two a group": ("libsvtav1", 2, SVT),
    "av1, 30 a group": ("libsvtav1", 30, SVT),
    "av1, 10 bits": ("libsvtav1", 4, SVT | {"pix_fmt": "yuv420p10le"}),
    "av1, odd size": ("libsvtav1", 2, SVT | {"height": 65, "width": 67}),
    "h264": ("h264", 1, X264),
    "h264, two a group": ("h264", 2, X264 | {"bf": "0"}),
    "h264, 30 a group": ("h264", 30, X264),
    "h264, pyramids of B-frames": ("h264", 9, X264 | {"x264-params": "b-adapt=0:bframes=4:b-pyramid=normal"}),
    "h264, open groups": ("h264", 6, X264 | {"x264-params": "open-gop=1:bframes=3"}),
    "h264, odd size": ("h264", 6, X264 | {"height": 47, "width": 63, "pix_fmt": "yuv444p"}),
    "h264, all values": ("h264", 6, X264 | {"pix_fmt": "yuvj420p", "colorspace": "bt709"}),
    "h264, no edit list": ("h264", 9, X264 | {"use_editlist": "0"}),
    "h264, negative offsets": ("h264", 9, X264 | {"movflags": "negative_cts_offsets"}),
    "h264, index first": ("h264", 9, X264 | {"movflags": "faststart"}),
    "hevc": ("hevc", 1, {"x265-params": X265}),
    "hevc, two a group, open": ("hevc", 2, {"x265-params": X265}),
    "hevc, three a group, open": ("hevc", 3, {"x265-params": f"{X265}:bframes=6:b-adapt=0"}),
    "hevc, 30 a group": ("hevc", 30, {"x265-params": X265}),
    "hevc, closed groups": ("hevc", 5, {"x265-params": f"{X265}:open-gop=0"}),
    "hevc, 10 bits": ("hevc", 6, {"x265-params": X265, "pix_fmt": "yuv422p10le"}),
    "mpeg4": ("mpeg4", 6, {"bf": "2"}),
}


def encoded(codec: str, group: int, options: dict[str, str | int], frames: Iterable[np.ndarray] | None = None) -> bytes:
    """Returns an MP4 file, of eleven pictures that differ in every block if no frames are given."""
    options = {"pix_fmt": "yuv420p", "height": H, "width": W, **options}
    height, width = int(options.pop("height")), int(options.pop("width"))
    container = {name: str(options.pop(name)) for name in ("movflags", "use_editlist") if name in options}
    if frames is None:
        blocks = np.random.default_rng(3).integers(0, 255, (height // 4 + 1, width // 4 + 1, 3), np.uint8)
        scene = blocks.repeat(4, 0).repeat(4, 1)[:height, :width]
        frames = [np.ascontiguousarray(np.roll(scene, 3 * number, 1)) for number in range(11)]
    with tempfile.TemporaryDirectory() as folder:  # a file in memory cannot be read again for its index to come first
        path = Path(folder) / "x.mp4"
        with av.open(str(path), "w", options=container) as out:
            stream = out.add_stream(codec, 30)
            stream.height, stream.width, stream.pix_fmt = height, width, options.pop("pix_fmt")
            stream.options = {"g": str(group)} | {name: str(value) for name, value in options.items()}
            for pixels in frames:
                form = "rgb24" if pixels.ndim == 3 else stream.pix_fmt
                out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, form)))
            out.mux(stream.encode(None))
        return path.read_bytes()


@functools.cache
def video(name: str) -> bytes:
    return encoded(*VIDEOS[name])


def track_of(content: bytes) -> Track:
    return read_track(lambda offset, length: content[offset : offset + length], len(content))


def packets(content: bytes, track: Track, first: int = 0, last: int | None = None) -> list[memoryview]:
    """Returns the bytes of samples."""
    last = len(track.sizes) - 1 if last is None else last
    places = zip(track.offsets[first : last + 1].tolist(), track.sizes[first : last + 1].tolist(), strict=True)
    return [memoryview(content)[at : at + size] for at, size in places]


def alone(decoder: Decoder, content: bytes, track: Track, number: int) -> av.VideoFrame:
    """Returns a frame from no more samples than it needs."""
    (first,), (last,) = track.first_samples(np.array([number])), track.last_samples(np.array([number]))
    ((decoded, frame),) = decoder.frames(track, first, packets(content, track, first, last), [number])
    assert decoded == number
    return frame


def written(decoder: Decoder, frame: av.VideoFrame, *channels: int, dtype: str = "u1") -> np.ndarray:
    out = np.zeros((frame.height, frame.width, *channels), dtype)
    decoder.write(frame, out)
    return out


def by_pyav(content: bytes | Path) -> tuple[list[np.ndarray], list[int]]:
    """Returns the pixels and times of all frames."""
    with av.open(io.BytesIO(content) if isinstance(content, bytes) else str(content)) as container:
        frames = [*container.decode(video=0)]
    return [frame.to_ndarray(format="rgb24") for frame in frames], [frame.pts for frame in frames]


def check_frames(content: bytes) -> None:
    pixels, times = by_pyav(content)
    track = track_of(content)
    assert track.times[track.shown].tolist() == times
    assert track.frames_at(np.array(times) / track.timescale).tolist() == [*range(len(times))]
    decoder = Decoder()
    frames = [*decoder.frames(track, 0, packets(content, track), range(len(times)))]
    assert [number for number, _ in frames] == [*range(len(times))]
    for number, frame in frames:
        assert np.array_equal(written(decoder, frame, 3), pixels[number]), number
    for number in np.random.default_rng(1).permutation(len(times)).tolist():
        frame = alone(decoder, content, track, number)
        assert np.array_equal(written(decoder, frame, 3), pixels[number]), f"{number}, alone"


@every_case("name", VIDEOS)
def test_frames_are_those_of_pyav_in_order_and_alone(name: str) -> None:
    content = video(name)
    with av.open(io.BytesIO(content)) as container:
        stream = container.streams.video[0]
        samples = [packet for packet in container.demux(stream) if packet.size]
        track = track_of(content)
        assert (track.codec, track.extradata) == (
            stream.codec_context.codec.canonical_name,
            stream.codec_context.extradata,
        )
        assert (track.height, track.width, track.timescale) == (
            stream.height,
            stream.width,
            stream.time_base.denominator,
        )
    assert packets(content, track) == [bytes(packet) for packet in samples]
    assert track.times.tolist() == [packet.pts for packet in samples]
    assert track.keys.tolist() == [number for number, packet in enumerate(samples) if packet.is_keyframe]
    check_frames(content)


@every_case("name", ["av1, two a group", "h264, 30 a group", "hevc, two a group, open"])
def test_frames_of_files_joined_by_ffmpeg_are_those_of_pyav(name: str, tmp_path: Path) -> None:
    listing = tmp_path / "parts.ffconcat"
    for part in range(3):
        (tmp_path / f"{part}.mp4").write_bytes(video(name))
    listing.write_text("ffconcat version 1.0\n" + "".join(f"file '{part}.mp4'\n" for part in range(3)))
    path = tmp_path / "joined.mp4"
    with (
        av.open(str(listing), format="concat", options={"safe": "0"}) as source,
        av.open(str(path), "w", options={"movflags": "faststart"}) as out,
    ):
        stream = out.add_stream_from_template(source.streams.video[0], opaque=True)
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                out.mux(packet)
    content = path.read_bytes()
    assert len(track_of(content).shown) == 33
    check_frames(content)


def with_edits(content: bytes, edits: Sequence[tuple[int, int]], *, version: int) -> bytes:
    """Returns a file whose index, which is last, has another edit list: durations in milliseconds, and media times."""
    form = ">QqI" if version else ">IiI"
    rows = [struct.pack(form, *edit, 1 << 16) for edit in edits]
    edited = box("edts", box("elst", struct.pack(">BxxxI", version, len(edits)), *rows))
    at = content.rindex(b"moov") + 4
    begin = content.index(b"trak", at) - 4
    (size,) = struct.unpack_from(">I", content, begin)
    track = content[begin + 8 : begin + size]
    if b"edts" in track:
        at_edits = track.index(b"edts") - 4
        track = track[:at_edits] + track[at_edits + struct.unpack_from(">I", track, at_edits)[0] :]
    head = track.index(b"mdia") - 4
    index = content[at:begin] + box("trak", track[:head], edited, track[head:]) + content[begin + size :]
    return content[: at - 8] + box("moov", index)


@every_case(
    "name, edits",
    [
        *itertools.product(
            ["av1, two a group", "h264, pyramids of B-frames", "h264, negative offsets", "hevc, 30 a group"],
            [
                [(10_000, 0)],
                [(10_000, 1024)],
                [(10_000, 1000)],
                [(200, 1100)],
                [(500, -1), (10_000, 1024)],
                [(33, -1), (100, 1536)],
                [(30, -1), (20, -1), (100, 2048)],
                [(33, -1), (100, 300)],
            ],
        ),
        ("av1, two a group", [(100, 0), (100, 2560)]),  # parts of the file, one after the other
    ],
)
def test_edit_lists_mean_what_they_mean_to_ffmpeg(name: str, edits: list[tuple[int, int]]) -> None:
    for version in (0, 1):
        check_frames(with_edits(video(name), edits, version=version))


def test_only_the_frames_asked_for_come_and_no_more_packets_are_taken_than_needed() -> None:
    content = video("h264, pyramids of B-frames")
    track, decoder = track_of(content), Decoder()
    taken = []

    class Packets(list[memoryview]):
        def __iter__(self) -> Iterator[memoryview]:
            for number, packet in enumerate(super().__iter__()):
                taken.append(number)
                yield packet

    frames = decoder.frames(track, 0, Packets(packets(content, track)), [3, 1])
    assert [number for number, _ in frames] == [1, 3]
    assert len(taken) < len(track.sizes)
    assert [*decoder.frames(track, 0, packets(content, track), [])] == []


def test_a_decoder_goes_from_track_to_track_and_leaves_frames_behind() -> None:
    decoder = Decoder()
    for name in ("hevc, 30 a group", "av1, 30 a group", "hevc, 30 a group", "hevc, 30 a group", "mpeg4"):
        content = video(name)
        track, (pixels, _) = track_of(content), by_pyav(content)
        frames = decoder.frames(track, 0, packets(content, track), range(len(pixels)))
        number, frame = next(frames)
        assert np.array_equal(written(decoder, frame, 3), pixels[number])
        frame = alone(decoder, content, track, 7)  # as if the others were never asked for
        assert np.array_equal(written(decoder, frame, 3), pixels[7])


def test_a_stream_that_does_not_state_its_reordering_loses_no_frame() -> None:
    content = video("h264, pyramids of B-frames")
    track = track_of(content)
    assert track.reorder == 2
    track = replace(track, extradata=without_usability_information(track.extradata))
    pixels, _ = by_pyav(content)
    decoder = Decoder()
    for _ in range(2):
        frames = decoder.frames(track, 0, packets(content, track), range(len(pixels)))
        assert [np.array_equal(written(decoder, frame, 3), pixels[number]) for number, frame in frames] == [True] * 11


def without_usability_information(config: bytes) -> bytes:
    """Returns an avcC whose sequence parameter set ends before the VUI, in which encoders state the reordering."""
    end = 8 + int.from_bytes(config[6:8], "big")
    unit = config[8:end].replace(b"\0\0\3", b"\0\0")
    bits = "".join(f"{byte:08b}" for byte in unit[4:])
    at = 0

    def flag() -> bool:
        nonlocal at
        at += 1
        return bits[at - 1] == "1"

    def skip(numbers: int) -> None:  # Exp-Golomb codes
        nonlocal at
        for _ in range(numbers):
            at = 2 * bits.index("1", at) - at + 1

    skip(4)  # set, chroma format, bit depths
    assert unit[1] == 100, "High Profile"
    assert [flag(), flag()] == [False, False]
    skip(1)
    assert bits[at] == "1", "order of type 0"
    skip(3)  # type, length of the order, reference frames
    flag()
    skip(2)
    if not flag():
        flag()
    flag()
    if flag():
        skip(4)
    assert flag(), "it has a VUI"
    kept = bits[: at - 1] + "01"
    kept += "0" * (-len(kept) % 8)
    changed = unit[:4] + int(kept, 2).to_bytes(len(kept) // 8, "big")
    assert b"\0\0" not in changed
    return config[:6] + len(changed).to_bytes(2, "big") + changed + config[end:]


@every_case("stored, bits", [("gray10le", 10), ("gray12le", 12)])
def test_deep_gray_is_written_as_it_is_stored(stored: str, bits: int) -> None:
    codes = np.arange(H * W).reshape(H, W)
    depths = [((codes * 7 + 13 * number) % (1 << bits)).astype(np.uint16) for number in range(5)]
    content = encoded("hevc", 2, {"x265-params": f"{X265}:lossless=1", "pix_fmt": stored}, depths)
    track, decoder = track_of(content), Decoder()
    for number, depth in enumerate(depths):
        frame = alone(decoder, content, track, number)
        assert np.array_equal(written(decoder, frame, 1, dtype="u2")[..., 0], depth)
        assert np.array_equal(written(decoder, frame, dtype="u2"), depth)
    with pytest.raises(VideoError, match=f"format {stored}: expected|do not fit uint16"):
        written(decoder, frame, 3, dtype="u2")


def test_pixels_are_written_as_gray_and_into_parts_of_larger_arrays() -> None:
    content = video("h264, two a group")
    track, decoder = track_of(content), Decoder()
    frame = alone(decoder, content, track, 5)
    gray, rgb = frame.to_ndarray(format="gray"), frame.to_ndarray(format="rgb24")
    assert np.array_equal(written(decoder, frame), gray)
    assert np.array_equal(written(decoder, frame, 1)[..., 0], gray)
    out = np.zeros((2, H + 2, W + 2, 3), np.uint8)
    decoder.write(frame, out[1, 1:-1, 1:-1])
    assert np.array_equal(out[1, 1:-1, 1:-1], rgb)
    out[1, 1:-1, 1:-1] = 0
    assert not out.any()
    for shape, dtype, message in (
        ((H, W + 1, 3), "u1", r"shape \(48, 64\): expected \(48, 65\)"),
        ((H, W, 4), "u1", r"do not fit uint8 of the shape \(48, 64, 4\)"),
        ((H, W, 3, 1), "u1", "do not fit"),
        ((H, W, 3), "f4", "do not fit float32"),
        ((H, W), "u2", "format yuv420p: expected one of gray10le, gray12le, gray16le"),
    ):
        with pytest.raises(VideoError, match=message):
            decoder.write(frame, np.zeros(shape, dtype))


@every_case("name", ["av1, 30 a group", "h264, 30 a group", "hevc, 30 a group", "mpeg4"])
def test_damaged_and_missing_packets_are_errors_that_name_the_frame_and_log_nothing(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    content = video(name)
    track, (pixels, _) = track_of(content), by_pyav(content)
    capfd.readouterr()
    decoder = Decoder()
    sample = int(track.shown[5])
    whole = packets(content, track)
    noise = np.random.default_rng(1).bytes(len(whole[sample]))
    for damage in (noise, b"\xff" * len(noise), b"\0" * 9, b"", bytes(whole[sample][: len(noise) // 2])):
        fed = [*whole[:sample], memoryview(damage), *whole[sample + 1 :]]
        with pytest.raises(VideoError, match=r"frame 5 (does not come out of its packets|is damaged)"):
            [*decoder.frames(track, 0, fed, [5])]
    with pytest.raises(VideoError, match="frame 5 does not come out of its packets"):
        [*decoder.frames(track, 0, whole[:sample], [5])]
    frames = decoder.frames(track, 0, whole[: int(track.shown[7])], [0, 7])
    assert np.array_equal(written(decoder, next(frames)[1], 3), pixels[0])
    with pytest.raises(VideoError, match="frame 7"):
        next(frames)
    assert np.array_equal(written(decoder, alone(decoder, content, track, 5), 3), pixels[5])
    assert capfd.readouterr() == ("", "")


@every_case("name", ["h264, 30 a group", "h264, pyramids of B-frames", "h264, open groups", "mpeg4"])
def test_frames_after_a_damaged_one_are_refused_until_the_next_key_frame(name: str) -> None:
    content = video(name)
    track, (pixels, _) = track_of(content), by_pyav(content)
    decoder, random, whole = Decoder(), np.random.default_rng(7), packets(content, track)

    def result(sample: int, fed: Sequence[bytes | memoryview]) -> str:
        number = track.shown.tolist().index(sample)
        (first,) = track.first_samples(np.array([number])).tolist()
        try:
            ((_, frame),) = decoder.frames(track, first, fed[first : sample + 1], [number])
        except VideoError as error:
            return str(error)
        return "sound" if np.array_equal(written(decoder, frame, 3), pixels[number]) else "wrong"

    refused = 0
    end = next((key for key in track.keys.tolist() if key > 1), len(whole))
    for sample in range(end - 1):
        for _ in range(6):
            damage = bytearray(whole[sample])
            damage[random.integers(len(damage))] ^= int(random.integers(1, 256))
            fed = [*whole[:sample], bytes(damage), *whole[sample + 1 :]]
            assert [result(before, fed) for before in range(sample)] == ["sound"] * sample
            if "is damaged, or refers to a frame that is" in result(sample, fed):
                refused += 1
                after = [result(later, fed) for later in range(sample + 1, end)]
                assert not {"sound", "wrong"} & {*after}, (sample, after)
    assert refused > 5


def test_a_sample_without_bytes_does_not_end_the_stream() -> None:
    content = video("h264")
    track, (pixels, _), decoder = track_of(content), by_pyav(content), Decoder()
    fed = [*packets(content, track)[:3], b"", *packets(content, track)[4:]]
    frames = dict(decoder.frames(track, 0, fed, [1, 9]))
    assert [np.array_equal(written(decoder, frames[number], 3), pixels[number]) for number in (1, 9)] == [True, True]


def test_pictures_much_larger_than_the_index_says_are_not_decoded() -> None:
    content = encoded("h264", 1, X264 | {"height": 480, "width": 640})
    track = replace(track_of(content), height=16, width=16)
    with pytest.raises(VideoError, match="frame 0 does not come out"):
        [*Decoder().frames(track, 0, packets(content, track), [0])]


REFRESHED = 50


def with_intra_refresh(group: int, **options: str) -> bytes:
    blocks = np.random.default_rng(3).integers(0, 255, (H // 4, W // 4, 3), np.uint8).repeat(4, 0).repeat(4, 1)
    scenes = [np.ascontiguousarray(np.roll(blocks, 3 * number, 1)) for number in range(REFRESHED)]
    return encoded("h264", group, X264 | {"intra-refresh": "1"} | options, scenes)


@every_case(
    ("group", "options", "limit_bytes"),
    [
        (10, {"bf": "0"}, 1 << 20),
        (15, {"bf": "0", "refs": "4"}, 0),  # samples stay in the file
        (10, {"bf": "3"}, 1 << 20),
        (4, {"bf": "2"}, 1 << 20),  # it takes several groups until pictures are whole
    ],
)
def test_frames_asked_for_alone_are_read_from_a_recovery_point_before_them(
    group: int, options: dict[str, str], limit_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = with_intra_refresh(group, **options)
    path = tmp_path / f"{group}.mp4"
    path.write_bytes(content)
    pixels, _ = by_pyav(content)
    monkeypatch.setattr(video_frames, "_MOST_LOADED_BYTES", limit_bytes)
    files, decoder = VideoFiles(pafs.LocalFileSystem(), str(tmp_path)), Decoder()
    decoded = 0
    for number in np.random.default_rng(1).permutation(REFRESHED).tolist():
        place = FramePlaces([path.name], np.zeros(1, np.int64), frames=np.array([float(number)]))
        (some,) = files.read(place, None).groups
        ((_, frame),) = decoder.frames(some.track, some.first, some.packets(), [number])
        assert np.array_equal(written(decoder, frame, 3), pixels[number]), number
        decoded += some.last - some.first + 1
    assert decoded < REFRESHED * REFRESHED / 2.5  # not from the beginning of the file


def test_a_recovery_point_says_after_how_many_pictures() -> None:
    content = with_intra_refresh(10, bf="0")
    track = track_of(content)
    samples = packets(content, track)
    assert [recovery_pictures(samples[key], track.extradata) for key in track.keys] == [0, 2, 2, 2, 2]
    for size in range(len(samples[10])):  # cut off
        assert recovery_pictures(samples[10][:size], track.extradata) in (0, 2)
    whole = encoded("h264", 6, X264 | {"x264-params": "open-gop=1:bframes=3"})
    track = track_of(whole)
    assert {recovery_pictures(sample, track.extradata) for sample in packets(whole, track)} == {0}


@every_case(
    ("message", "count"),
    [
        ("0602" + "344080", 5),
        ("05ff01" + "00" * 256 + "0601" + "7180", 2),  # after a long message
        ("0602" + "0000030280", 0),  # more zeros than a count has
        ("0601", 0),
        ("ffff", 0),
        ("", 0),
    ],
)
def test_messages_of_any_kind_are_taken(message: str, count: int) -> None:
    unit = b"\x06" + bytes.fromhex(message)
    assert recovery_pictures(memoryview(len(unit).to_bytes(4, "big") + unit), b"\1\0\0\0\xff") == count


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns about forks in threaded processes
def test_a_forked_child_opens_its_own_codec() -> None:
    content = video("av1, 30 a group")
    track, (pixels, _), decoder = track_of(content), by_pyav(content), Decoder()
    frames = decoder.frames(track, 0, packets(content, track), range(11))
    next(frames)
    context = decoder._context

    def decodes() -> bool:
        assert decoder._context is None
        frame = alone(decoder, content, track, 9)
        return np.array_equal(written(decoder, frame, 3), pixels[9])

    assert exit_status_of_fork(decodes) == 0
    assert decoder._context is context
    assert [number for number, _ in frames] == [*range(1, 11)]


def test_a_missing_pyav_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require_av.cache_clear()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(CodecUnavailableError, match=r"decoding videos needs av, .* pip install 'parquetry\[video\]'"):
        Decoder()
