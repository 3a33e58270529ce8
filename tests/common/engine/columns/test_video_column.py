"""Frames are decoded in groups: each once for all items of a block, within the memory that they may take."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from movies import HEIGHT, WIDTH, front, number_of, numbers_of, write_movie

from parquetry.common import CompressedImageCodec, Pipeline, UnischemaField, VideoReference, write_dataset
from parquetry.common.base.errors import DecodeError, SchemaError
from parquetry.common.dataset.video.decoder import Decoder
from parquetry.common.dataset.video.track import VideoError

pytest.importorskip("av", reason="PyAV is not installed: pip install 'parquetry[video]'")

FRAME_BYTES = HEIGHT * WIDTH * 3
FRONT = UnischemaField("view", np.uint8, (None, None, 3), VideoReference(file="front__file", frame="front__frame"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_movie(tmp_path_factory.mktemp("movie") / "data")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Counts how often each group, named by its first sample, is decoded."""
    counts: Counter[int] = Counter()
    frames = Decoder.frames

    def counting(self: Decoder, track: Any, first: int, *rest: Any) -> Any:
        counts[first] += 1
        return frames(self, track, first, *rest)

    monkeypatch.setattr(Decoder, "frames", counting)
    return counts


def threads(url: str, **options: Any) -> Pipeline:
    return Pipeline(url, executor="threads", workers=1, **options)


def check(pipeline: Pipeline) -> int:
    seen = 0
    for batch in pipeline:
        shown = numbers_of(batch["front"])
        assert shown == np.asarray(batch["id"]).reshape(-1).tolist()
        seen += len(shown)
    return seen


def test_each_group_is_decoded_once_in_a_shuffled_block(url: str, decoded: Counter[int]) -> None:
    assert check(threads(url).shuffle(100, seed=3).batch(7)) == 60
    assert set(decoded.values()) == {1}
    assert len(decoded) == 15


def test_each_group_is_decoded_once_for_overlapping_windows(url: str, decoded: Counter[int]) -> None:
    windows = threads(url).ngram(length=6).shuffle(100, seed=3).batch(4)
    assert check(windows) == 6 * 55
    assert set(decoded.values()) == {1}


@pytest.mark.parametrize("limit", [1, 20 * FRAME_BYTES])
def test_frames_that_find_no_room_are_decoded_again(url: str, decoded: Counter[int], limit: int) -> None:
    assert check(threads(url, memory_limit=limit).ngram(length=6).shuffle(100, seed=3).batch(4)) == 6 * 55
    assert max(decoded.values()) > 1


def test_rows_that_share_a_frame_get_it(url: str) -> None:
    weighed = threads(url).weigh("id", seed=1).batch(5)  # draws some rows several times
    assert check(weighed) == 60


def test_only_frames_of_rows_that_pass_are_decoded(url: str, decoded: Counter[int]) -> None:
    assert check(threads(url).where([("id", "in", [9, 33])]).batch(2)) == 2
    assert sorted(decoded) == [8, 32]


def test_frames_of_any_size_come_as_they_are(url: str) -> None:
    rows = [*threads(url).select([FRONT, "id"])]
    assert [number_of(row["view"]) for row in rows] == [row["id"] for row in rows]
    assert rows[0]["view"].shape == (HEIGHT, WIDTH, 3)
    batch = next(iter(threads(url).select([FRONT, "id"]).batch(3)))
    assert [number_of(image) for image in batch["view"]] == [0, 1, 2]


def test_a_frame_of_another_size_is_an_error_of_its_row(url: str) -> None:
    other = FRONT.replace(shape=(HEIGHT, WIDTH + 2, 3))
    with pytest.raises(DecodeError, match=rf"row 0: .*expected shape \({HEIGHT}, {WIDTH + 2}, 3\), got \({HEIGHT}"):
        next(iter(threads(url).select([other])))
    with pytest.raises(DecodeError, match=f"expected at most {FRAME_BYTES - 1} bytes"):
        next(iter(threads(url, max_value_bytes=FRAME_BYTES - 1).select([FRONT])))


def test_a_frame_of_another_format_is_an_error_of_its_row(url: str) -> None:
    other = FRONT.replace(dtype=np.uint16, shape=(None, None))
    rows = iter(threads(url).select([other]))
    for row in range(2):
        with pytest.raises(DecodeError, match=rf"row {row}: .*has frames of the format yuv420p: expected one of gray"):
            next(rows)


def test_a_damaged_frame_does_not_fail_those_that_are_asked_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = Decoder.frames

    def damaged(self: Decoder, track: Any, first: int, packets: Any, wanted: list[int]) -> Any:
        for number, frame in frames(self, track, first, packets, wanted):
            if number == 1:
                raise VideoError("frame 1 is damaged")
            yield number, frame

    monkeypatch.setattr(Decoder, "frames", damaged)
    good = [row["id"] for row in threads(url, on_error="skip").shuffle(100, seed=3)]
    assert sorted(good) == [0, *range(2, 60)]


def test_frames_cannot_be_declared_as_something_else(url: str) -> None:
    other = UnischemaField("front", np.uint8, (HEIGHT, WIDTH, 3), CompressedImageCodec("png"))
    with pytest.raises(SchemaError, match=r"field 'front': expected a codec of frames.*got CompressedImageCodec"):
        next(iter(threads(url).select([other])))


def test_rows_without_a_frame_are_null(tmp_path: Path) -> None:
    url = write_movie(tmp_path / "data", [0, 1], field=front(nullable=True))
    rows = [{"id": 2, "front": None}, {"id": 3, "front": np.zeros((HEIGHT, WIDTH, 3), np.uint8)}]
    write_dataset(url, threads(url).schema, rows, mode="append")
    kept = [*threads(url).nulls("drop", "front")]
    assert [row["id"] for row in kept] == [0, 1, 3]
    assert numbers_of([row["front"] for row in kept]) == [0, 1, 0]
    filled = next(iter(threads(url).nulls("fill", "front", value=0).batch(4)))
    assert not filled["front"][2].any()


@pytest.mark.parametrize("workers", [1, 3])
def test_damaged_samples_fail_their_own_rows(tmp_path: Path, workers: int) -> None:
    url = write_movie(tmp_path / "data")
    (video,) = Path(url).glob("*.mp4")
    content = bytearray(video.read_bytes())
    start = content.index(b"mdat") + 4
    content[start + 900 : start + 980] = bytes(80)
    video.write_bytes(content)
    with pytest.raises(DecodeError, match=r"field 'front', file .*row \d+: cannot read the frame: video .*mp4"):
        check(Pipeline(url, executor="threads", workers=workers).batch(4))
    good = [row["id"] for row in Pipeline(url, executor="threads", workers=workers, on_error="skip")]
    assert 0 < len(good) < 60
    assert good == sorted(set(good))
