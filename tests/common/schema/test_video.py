"""Codecs of frames say where frames are, have a JSON form, and refuse fields that hold no frames."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cases import every_case

from parquetry.common import Unischema, UnischemaField, VideoCodec, VideoReference
from parquetry.common.base.errors import DecodeError, SchemaError
from parquetry.common.schema.video import EpisodeVideo, FrameCodec

EPISODES = EpisodeVideo(30.0, ("a.mp4", "b.mp4"), (0, 3, 4), (0, 1, 1), (0.0, 0.0, 7.5))


def places(codec: FrameCodec, *columns: Any) -> Any:
    return codec.places([column if isinstance(column, pa.Array) else pa.array(column) for column in columns])


@every_case(
    "codec",
    [
        VideoReference(file="path", time="t"),
        VideoReference(file="path", frame="n", root="s3://lake/videos", tolerance_s=0.5),
        VideoCodec(),
        VideoCodec("hevc", gop=12, crf=20, fps=10),
        EPISODES,
    ],
)
def test_a_schema_keeps_its_codecs(codec: FrameCodec) -> None:
    schema = Unischema("drive", [UnischemaField("front", np.uint8, (4, 6, 3), codec)])
    assert Unischema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


@every_case(
    ("codec", "dtype", "shape", "text"),
    [
        (VideoReference(file="p", time="t"), np.float32, (4, 6, 3), "frames of uint8"),
        (VideoReference(file="p", time="t"), np.uint8, (4, 6, 2), "frames of uint8"),
        (VideoReference(file="p", time="t"), np.uint16, (4, 6, 3), "one channel"),
        (VideoReference(file="p"), np.uint8, (4, 6, 3), r"\(file=\.\.\., frame=\.\.\.\)"),
        (VideoReference(file="p", time="t", frame="n"), np.uint8, (4, 6, 3), r"\(file=\.\.\., frame=\.\.\.\)"),
        (VideoReference(file="p", time="t", tolerance_s=-0.1), np.uint8, (4, 6, 3), "tolerance_s to be 0 or more"),
        (VideoReference(file="p", time="t", tolerance_s=float("nan")), np.uint8, (4, 6, 3), "tolerance_s to be 0 or"),
        (VideoReference(file="front", time="t"), np.uint8, (4, 6, 3), "a name that no column has"),
        (VideoCodec("vp9"), np.uint8, (4, 6, 3), "one of av1, h264, hevc, got 'vp9'"),
        (VideoCodec(gop=0), np.uint8, (4, 6, 3), "gop from 1"),
        (VideoCodec(crf=64), np.uint8, (4, 6, 3), "crf from 0 to 63"),
        (VideoCodec(), np.uint8, (5, 6, 3), "an even height and width"),
        (VideoCodec(), np.uint8, (None, None, 3), "an even height and width"),
        (VideoCodec(), np.uint8, (4, 6, 1), r"shape \(H, W, 3\)"),
    ],
)
def test_other_fields_are_refused(codec: FrameCodec, dtype: Any, shape: Any, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        UnischemaField("front", dtype, shape, codec)


def test_a_relative_root_counts_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert VideoReference(file="p", time="t", root="videos").root == str(tmp_path / "videos")
    for root in ("s3://lake/videos", "dbfs:/videos", "/videos", None):
        assert VideoReference(file="p", time="t", root=root).root == root


def test_two_columns_name_file_and_time() -> None:
    made = places(VideoReference(file="p", time="t"), ["b", "a", None, "b"], [0.5, 1.0, 2.0, None])
    assert [*made.files] == ["b", "a"]
    assert made.file.tolist() == [0, 1, -1, -1]
    assert made.seconds[:2].tolist() == [0.5, 1.0]
    durations = pa.array([1_500_000, 0], pa.duration("us"))
    assert places(VideoReference(file="p", time="t"), ["a", "a"], durations).seconds.tolist() == [1.5, 0.0]
    numbers = places(VideoReference(file="p", frame="n"), ["a", "a"], pa.array([3, 0], pa.int32()))
    assert (numbers.seconds, numbers.frames.tolist()) == (None, [3, 0])


def test_times_of_episodes_are_exact_where_float32_is_not() -> None:
    frame = np.array([0, 1, 100_001, 200_003])
    stated = pa.array((frame / 30).astype(np.float32))
    made = places(EPISODES, np.full(4, 4), frame, stated)
    assert made.file.tolist() == [1, 1, 1, 1]
    assert made.seconds.tolist() == (7.5 + frame / 30).tolist()
    elsewhere = places(EPISODES, [0], [3], pa.array([5.25], pa.float32()))  # the clock of a camera that began later
    assert elsewhere.seconds.tolist() == [5.25]


def test_an_unknown_episode_is_an_error_of_its_row() -> None:
    with pytest.raises(DecodeError, match="row 1: expected an episode that meta/ describes, got number 2"):
        places(EPISODES, [0, 2], [0, 0], pa.array([0, 0], pa.float32()))


def test_depths_are_whole_millimetres_between_their_bounds() -> None:
    codec = EpisodeVideo(30.0, ("a",), (0,), (0,), (0.0,), depth=(0.01, 10.0, 3.5, True))
    UnischemaField("depth", np.float32, (4, 6, 1), codec)
    levels = codec.levels()
    assert levels is not None
    assert (levels.dtype, len(levels), levels[0], levels[-1]) == (np.float32, 4096, 10, 10_000)
    assert (np.diff(levels) > 0).all()
    assert (levels == np.rint(levels)).all()
    assert levels[[2459, 3437]].tolist() == [4382, 7373]  # a float32 exponential gives one less
    with pytest.raises(SchemaError, match="depths of float32"):
        UnischemaField("depth", np.uint8, (4, 6, 3), codec)
