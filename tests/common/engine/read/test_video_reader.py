"""Columns that name videos: which files they may name, what a row without a frame gives, and what is fetched for rows."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from cases import every_case
from movies import HEIGHT, WIDTH, number_of, numbers_of, write_movie
from s3_server import S3Server, serving

from parquetry.common import Pipeline, UnischemaField, VideoReference
from parquetry.common.base.errors import DatasetError, DecodeError, ParquetryError, SchemaError
from parquetry.common.dataset.video import frames as video_frames
from parquetry.common.dataset.video.frames import VideoFiles
from parquetry.common.schema.video import FramePlaces

pytest.importorskip("av", reason="PyAV is not installed: pip install 'parquetry[video]'")

FRAMES = 60


@pytest.fixture(scope="module")
def movie(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A video of 60 frames, 30 each second."""
    directory = tmp_path_factory.mktemp("movie")
    write_movie(directory / "data", range(FRAMES))
    (video,) = (directory / "data").glob("*.mp4")
    return video


@pytest.fixture
def drive(tmp_path: Path, movie: Path) -> Path:
    """A table of rows every tenth of a second, in row groups of five, beside the folder of its video."""
    root = tmp_path / "lake" / "drive"
    (root / "videos").mkdir(parents=True)
    shutil.copy(movie, root / "videos" / "front.mp4")
    write_rows(root, ["videos/front.mp4"] * 20, np.arange(20) / 10)
    return root


def write_rows(root: Path, names: list[str | None], times: Any) -> None:
    table = pa.table({"id": range(len(names)), "video": pa.array(names, pa.string()), "t": pa.array(times)})
    pq.write_table(table, root / "rows.parquet", row_group_size=5)


def frames(url: object, *, options: dict[str, Any] | None = None, **codec: Any) -> Pipeline:
    field = UnischemaField(
        "front", np.uint8, (HEIGHT, WIDTH, 3), VideoReference(**{"file": "video", "time": "t", **codec}), nullable=True
    )
    return Pipeline(str(url), [field, "id"], **{"executor": "threads", **(options or {})})


def test_the_nearest_frame_is_read(drive: Path) -> None:
    rows = [*frames(drive)]
    assert [number_of(row["front"]) for row in rows] == [3 * row["id"] for row in rows]
    write_rows(drive, ["videos/front.mp4"] * 3, [0.51, 0.49, 0.5])
    assert [number_of(row["front"]) for row in frames(drive)] == [15, 15, 15]


@every_case(
    ("times", "kind"),
    [([0, 500, 1000], pa.duration("ms")), ([0.0, 0.5, 1.0], pa.float32()), ([0, 1, 1], pa.int64())],
)
def test_times_may_have_any_type(drive: Path, times: list[Any], kind: pa.DataType) -> None:
    write_rows(drive, ["videos/front.mp4"] * 3, pa.array(times, kind))
    expected = [0, 15, 30] if times[1] != 1 else [0, 30, 30]
    assert [number_of(row["front"]) for row in frames(drive)] == expected


def test_rows_whose_columns_are_null_have_no_frame(drive: Path) -> None:
    write_rows(drive, ["videos/front.mp4", None, "videos/front.mp4"], pa.array([0.0, 0.1, None]))
    assert [row["front"] is np.ma.masked or row["front"] is None for row in frames(drive)] == [False, True, True]


@every_case(
    ("name", "time", "text"),
    [
        ("videos/front.mp4", 2.2, r"expected a frame at 2\.2.* s, got none nearer than 1\.96"),
        ("videos/front.mp4", -0.2, "expected a frame at -0.2"),
        ("videos/front.mp4", float("nan"), "expected a frame at nan"),
        ("videos/rear.mp4", 0.0, r"video 'videos/rear\.mp4': there is no such file"),
        ("rows.parquet", 0.0, "video 'rows.parquet'"),
        ("rows.parquet/front.mp4", 0.0, "there is no such file"),
        ("front\0.mp4", 0.0, "there is no such file"),
        (300 * "a", 0.0, "there is no such file"),
    ],
)
def test_a_row_without_its_frame_fails_alone(drive: Path, name: str, time: float, text: str) -> None:
    write_rows(drive, ["videos/front.mp4", name, "videos/front.mp4"], [0.0, time, 0.1])
    with pytest.raises(DecodeError, match=rf"field 'front', file .*rows\.parquet, row group 0, row 1: .*{text}"):
        list(frames(drive))
    good = frames(drive, options={"on_error": "skip"})
    assert [row["id"] for row in good] == [0, 2]


def test_a_tolerance_may_be_given(drive: Path) -> None:
    write_rows(drive, ["videos/front.mp4"] * 2, [0.5, 0.51])
    with pytest.raises(DecodeError, match="row 1"):
        list(frames(drive, tolerance_s=0.001))
    write_rows(drive, ["videos/front.mp4"], [9.0])
    assert [number_of(row["front"]) for row in frames(drive, tolerance_s=10)] == [59]


@every_case(
    ("number", "kind"),
    [
        (60, pa.int8()),
        (-1, pa.int64()),
        (2**63 + 4096, pa.uint64()),
        (0.5, pa.float32()),
        (float("nan"), pa.float64()),
        (float("inf"), pa.float64()),
    ],
)
def test_a_number_that_no_frame_has_fails_its_row(drive: Path, number: float, kind: pa.DataType) -> None:
    write_rows(drive, ["videos/front.mp4"] * 3, pa.array([59, number, 0], kind))
    with pytest.raises(DecodeError, match=r"row 1: .*expected the number of one of its 60 frames, got"):
        list(frames(drive, time=None, frame="t"))
    good = frames(drive, time=None, frame="t", options={"on_error": "skip"})
    assert [number_of(row["front"]) for row in good] == [59, 0]


@every_case(
    ("kind", "codec"),
    [(pa.time64("us"), {}), (pa.timestamp("us"), {}), (pa.duration("s"), {"time": None, "frame": "t"})],
)
def test_times_of_day_and_durations_of_frames_are_refused(
    drive: Path, kind: pa.DataType, codec: dict[str, Any]
) -> None:
    write_rows(drive, ["videos/front.mp4"], pa.array([1], kind))
    with pytest.raises(SchemaError, match="expected a column 't' of numbers"):
        list(frames(drive, **codec))


@every_case("name", ["../movie/front.mp4", "/etc/passwd", "videos/../../front.mp4", "https://example.com/a.mp4", ""])
def test_names_that_lead_elsewhere_are_refused(drive: Path, name: str) -> None:
    write_rows(drive, [name], [0.0])
    with pytest.raises(SchemaError, match=r"expected a name relative to .*root="):
        list(frames(drive))


def test_videos_may_be_in_a_directory_of_their_own(drive: Path, movie: Path) -> None:
    for name in (movie.name, str(movie)):
        write_rows(drive, [name], [0.5])
        assert [number_of(row["front"]) for row in frames(drive, root=str(movie.parent))] == [15]


@every_case(
    ("codec", "text"),
    [
        ({"file": "vide"}, "expected a column 'vide' of text.*no such column"),
        ({"file": "t"}, "expected a column 't' of text.*got double"),
        ({"time": "video"}, "expected a column 'video' of numbers or durations.*got string"),
    ],
)
def test_columns_that_say_no_place_are_refused(drive: Path, codec: dict[str, str], text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        list(frames(drive, **codec))


def test_a_column_of_the_same_name_is_not_hidden(drive: Path) -> None:
    field = UnischemaField("id", np.uint8, (HEIGHT, WIDTH, 3), VideoReference(file="video", time="t"))
    with pytest.raises(SchemaError, match="field 'id': expected a name that no column has"):
        list(Pipeline(str(drive), [field]))


def test_fields_of_other_types_may_be_declared_beside_frames(drive: Path) -> None:
    table = pq.read_table(drive / "rows.parquet")
    narrow = table.set_column(0, "id", pa.array(range(20, 40), pa.int16()))
    pq.write_table(narrow, drive / "more.parquet")
    field = UnischemaField("front", np.uint8, (HEIGHT, WIDTH, 3), VideoReference(file="video", time="t"))
    rows = [*Pipeline(str(drive), [field, UnischemaField("id", np.int32)], executor="threads")]
    assert sorted(int(row["id"]) for row in rows) == [*range(40)]
    assert {row["id"].dtype for row in rows} == {np.dtype(np.int32)}
    assert [number_of(row["front"]) for row in rows] == 2 * [*range(0, 60, 3)]


def test_expressions_cannot_look_into_frames(drive: Path) -> None:
    with pytest.raises(ParquetryError, match="field 'front' is stored encoded"):
        list(frames(drive).where([("front", "=", 3)]))


def test_functions_can_look_at_frames(drive: Path) -> None:
    rows = frames(drive).where(lambda row: number_of(row["front"]) % 2 == 0, ["front"])
    assert [row["id"] for row in rows] == [*range(0, 20, 2)]


def test_samples_that_take_too_much_memory_stay_in_their_file(drive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_frames, "_MOST_LOADED_BYTES", 0)
    rows = [*frames(drive)]
    assert [number_of(row["front"]) for row in rows] == [3 * row["id"] for row in rows]
    videos = VideoFiles(pafs.LocalFileSystem(), str(drive))
    made = videos.read(FramePlaces(["videos/front.mp4"], np.zeros(9, np.int64), frames=np.arange(9)), None)
    assert made.nbytes < 1000
    (drive / "videos" / "front.mp4").write_bytes(b"another")
    with pytest.raises(DatasetError, match=r"front\.mp4.*changed"):
        made.groups[0].packets()


def test_a_video_that_changes_is_an_error(drive: Path, movie: Path) -> None:
    videos = VideoFiles(pafs.LocalFileSystem(), str(drive))
    places = FramePlaces(["videos/front.mp4"], np.zeros(1, np.int64), frames=np.zeros(1, np.int64))
    assert len(videos.read(places, None)) == 1
    video = drive / "videos" / "front.mp4"
    video.write_bytes(video.read_bytes() + bytes(8))
    with pytest.raises(DatasetError, match=r"front\.mp4.*changed"):
        videos.read(places, None)


def replace_video(drive: Path, first: int) -> None:
    """Puts a video in place of the one that is there, whose frames have the numbers from ``first`` on."""
    write_movie(drive / "others", range(first, first + FRAMES))
    (video,) = (drive / "others").glob("*.mp4")
    os.replace(video, drive / "videos" / "front.mp4")
    shutil.rmtree(drive / "others")


@every_case("executor", ["threads", "sidecar"])
def test_a_new_pass_reads_videos_that_were_replaced(drive: Path, executor: str) -> None:
    replace_video(drive, 0)
    pipeline = frames(drive, options={"executor": executor})
    expected = np.arange(0, 60, 3)
    assert [number_of(row["front"]) for row in pipeline] == expected.tolist()
    replace_video(drive, 100)
    assert [number_of(row["front"]) for row in pipeline] == (100 + expected).tolist()
    again = frames(drive, options={"executor": executor})
    assert [number_of(row["front"]) for row in again] == (100 + expected).tolist()


@every_case("name", ["front", "camera"])
def test_statistics_of_frames_are_not_kept(drive: Path, name: str) -> None:
    def means() -> tuple[float, ...]:
        return frames(drive).nulls("drop", "front").rename({"front": name}).fit(name)[name].mean

    replace_video(drive, 0)
    before = means()
    replace_video(drive, 100)
    assert means() != before


def test_lengths_that_are_made_from_frames_are_not_kept(drive: Path) -> None:
    words = UnischemaField("words", np.int32, (None,))

    def read(row: dict[str, Any]) -> dict[str, Any]:
        return {"words": np.full(1 + number_of(row["front"]) % 7, row["id"], np.int32)}

    def lengths() -> np.ndarray:
        some = frames(drive).nulls("drop", "front").transform(read, [words], remove=["front"], lengths=True)
        blocks = [block["words"] for block in some.concat(4, "words", remainder="pad")]
        return np.bincount(np.concatenate(blocks))

    assert len(lengths()) == 20
    replace_video(drive, 100)
    assert len(lengths()) == 20


@pytest.fixture
def server(drive: Path) -> Iterator[S3Server]:
    with serving(drive.parent.parent) as store:
        yield store


def test_a_store_is_asked_for_samples_of_rows_alone(server: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    shown = {int(row["id"]): number_of(row["front"]) for row in frames(server.url("lake/drive"))}
    assert shown == {number: 3 * number for number in range(20)}
    asked = server.count("front.mp4")
    assert asked["GET"] <= 3 + 4  # the index, and one for each row group
    server.log.clear()
    batches = frames(server.url("lake/drive")).shuffle(20, seed=1).batch(4)
    assert sorted(number for batch in batches for number in numbers_of(batch["front"])) == [*range(0, 60, 3)]
    assert server.count("front.mp4")["GET"] <= 4  # the index is known


def test_many_videos_of_a_store_are_opened_side_by_side(server: S3Server, drive: Path) -> None:
    content = (drive / "videos" / "front.mp4").read_bytes()
    names = [f"videos/{number}.mp4" for number in range(8)]
    for name in names:
        (drive / name).write_bytes(content)
    write_rows(drive, [*names[:4], None, *names[4:], None], np.zeros(10))
    together = threading.Barrier(4)

    def wait_for_others(method: str, path: str) -> None:
        if path.endswith(".mp4") and method == "HEAD" and not server.count(path)["GET"]:
            together.wait(timeout=60)

    server.fault = wait_for_others
    rows = [*frames(server.url("lake/drive")).nulls("drop", "front")]
    assert [number_of(row["front"]) for row in rows] == [0] * 8
    assert not together.broken
    for name in names:  # asked for its version, opened, and checked at the end
        assert server.count(name)["HEAD"] <= 3
        assert server.count(name)["GET"] <= 2


def test_a_video_of_a_store_that_changes_during_a_pass_is_an_error_at_its_end(server: S3Server, drive: Path) -> None:
    rows = iter(frames(server.url("lake/drive")))
    next(rows)
    os.utime(drive / "videos" / "front.mp4", (10, 10))
    with pytest.raises(DatasetError, match=r"front\.mp4.*changed"):
        list(rows)


def test_a_store_that_refuses_damages_no_video(server: S3Server) -> None:
    server.fault = lambda method, path: 403 if path.endswith(".mp4") else None
    with pytest.raises(DatasetError, match=r"video .*front\.mp4: .*ACCESS_DENIED") as caught:
        list(frames(server.url("lake/drive")))
    assert "damaged" not in str(caught.value)
