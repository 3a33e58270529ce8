"""`Pipeline.from_lerobot`: episodes, tasks, cameras, windows, and metadata that contradicts the files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from lerobot_sets import FPS, FRONT, STILL, TASKS, change_json, write_lerobot
from movies import HEIGHT, WIDTH, number_of, numbers_of
from s3_server import serving

from parquetry.common import Pipeline
from parquetry.common.apps.reports.inspecting import inspect
from parquetry.common.apps.reports.roles import opened_by
from parquetry.common.base.errors import DatasetError, FieldNotFoundError, ParquetryError, PipelineError
from parquetry.common.schema.training_statistics import ElementStatistics, TrainingStatistics

LENGTHS = (5, 3, 4)
EPISODES = [e for e, length in enumerate(LENGTHS) for _ in range(length)]
FRAMES = [n for length in LENGTHS for n in range(length)]


@pytest.fixture(params=["v3.0", "v2.1"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(tmp_path: Path, version: str) -> Path:
    return write_lerobot(tmp_path / "robot", version, LENGTHS, still=True)


def column(pipeline: Pipeline, name: str) -> list[Any]:
    return [row[name].tolist() if hasattr(row[name], "tolist") else row[name] for row in pipeline]


def test_each_frame_has_its_columns_its_task_and_its_picture(root: Path) -> None:
    pipeline = Pipeline.from_lerobot(root)
    rows = list(pipeline)
    assert len(pipeline) == len(rows) == 12
    assert list(rows[0]) == [
        *("action", STILL, "timestamp", "frame_index", "episode_index", "index", "task_index", "task")
    ]
    for place, row in enumerate(rows):
        assert (row["episode_index"], row["frame_index"], row["index"]) == (EPISODES[place], FRAMES[place], place)
        assert row["timestamp"] == np.float32(FRAMES[place] / FPS)
        assert row["task"] == TASKS[EPISODES[place] % 2]
        assert row["action"].dtype == np.float32
        assert row["action"].tolist() == [place, place + 0.5]
        assert row[STILL].shape == (4, 6, 3)
        assert row[STILL][0, 0].tolist() == [place, 0, 255]
    assert {name: field.shape for name, field in pipeline.schema.fields.items() if field.shape} == {
        "action": (2,),
        STILL: (4, 6, 3),
    }


def test_the_pipeline_survives_json_and_the_folder_may_be_relative(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    pipeline = Pipeline.from_lerobot(root.name, episodes=[2], delta_timestamps={"action": [0.0, 0.1]})
    again = Pipeline.from_json(pipeline.to_json())
    assert again == pipeline
    assert column(again, "index") == [8, 9, 10, 11]
    assert again.dataset.fingerprint == pipeline.dataset.fingerprint != Pipeline.from_lerobot(root).dataset.fingerprint


def test_some_episodes_are_read_from_their_files_only(root: Path) -> None:
    pipeline = Pipeline.from_lerobot(root, episodes=[1])
    assert len(pipeline) == 3
    assert column(pipeline, "index") == [5, 6, 7]
    assert column(Pipeline.from_lerobot(root, episodes=np.array([2, 0, 2])), "index") == [0, 1, 2, 3, 4, 8, 9, 10, 11]
    last = sorted((root / "data/chunk-000").iterdir())[-1]
    last.unlink()
    assert column(Pipeline.from_lerobot(root, episodes=[0, 1]), "index") == [*range(8)]
    with pytest.raises(DatasetError, match=rf"expected the file data/chunk-000/{last.name}, which meta/ names, found"):
        Pipeline.from_lerobot(root, episodes=[2])


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([1, 3, 7], "expected episodes from 0 to 2, got 3, 7. Leave those out."),
        ([-1], "expected episodes from 0 to 2, got -1"),
        ([], r"expected episodes= to be a list of numbers, got \[\]"),
        (["1"], "expected episodes= to be a list of numbers"),
        ("1", "expected episodes= to be a list of numbers"),
        (1, "expected episodes= to be a list of numbers, got 1"),
    ],
)
def test_episodes_that_are_not_there_are_refused(root: Path, episodes: Any, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        Pipeline.from_lerobot(root, episodes=episodes)


def test_cameras_are_chosen_by_name(root: Path) -> None:
    assert STILL not in Pipeline.from_lerobot(root, cameras=[]).schema
    assert STILL in Pipeline.from_lerobot(root, cameras=STILL).schema
    with pytest.raises(DatasetError, match=rf"expected cameras= among {STILL}, got 'observation.images.stil'.*mean"):
        Pipeline.from_lerobot(root, cameras=["observation.images.stil"])


def test_tasks_filter_rows_as_text(root: Path) -> None:
    pipeline = Pipeline.from_lerobot(root)
    assert column(pipeline.where(pc.field("task") == TASKS[1]), "index") == [5, 6, 7]
    assert (
        column(pipeline.where([("task", "in", [TASKS[0]])]).select("task", "index").shuffle(5, seed=1), "task")
        == [TASKS[0]] * 9
    )
    assert len(pipeline.where(pc.field("task") == "no such task")) == 0
    assert pipeline.vocabulary("task") == sorted(TASKS)
    drawn = column(pipeline.balance("task", num_items=40, seed=3), "task")
    assert drawn.count(TASKS[0]) == 20


def test_a_number_without_a_task_is_an_error(root: Path, version: str) -> None:
    if version == "v3.0":
        pq.write_table(pa.table({"task_index": [0], "task": TASKS[:1]}), root / "meta/tasks.parquet")
    else:
        (root / "meta/tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": TASKS[0]}))
    pipeline = Pipeline.from_lerobot(root)
    with pytest.raises(DatasetError, match=r"row 0: expected a number of column 'task' from 0 to 0.*got 1"):
        list(pipeline)
    assert len(list(pipeline.select("task_index"))) == 12


def test_windows_have_the_times_and_repeat_frames_at_the_ends_of_an_episode(root: Path) -> None:
    deltas = {"action": [-0.1, 0.0, 0.2], "frame_index": [0.1], STILL: [-0.2, 0]}
    pipeline = Pipeline.from_lerobot(root, delta_timestamps=deltas)
    rows = list(pipeline)
    assert len(rows) == len(pipeline) == 12
    for row, index, e, n in zip(rows, range(12), EPISODES, FRAMES, strict=True):
        begin, end = index - n, index - n + LENGTHS[e] - 1
        for name, offsets in (("action", (-1, 0, 2)), ("frame_index", (1,)), (STILL, (-2, 0))):
            inside = [min(max(index + offset, begin), end) for offset in offsets]
            assert row[f"{name}_is_pad"].tolist() == [not begin <= index + offset <= end for offset in offsets]
            values = {
                "action": row["action"][:, 0],
                "frame_index": row["frame_index"] + begin,
                STILL: row[STILL][:, 0, 0, 0],
            }
            assert values[name].tolist() == inside
        assert row["index"] == index
        assert row["task"] == TASKS[e % 2]
    assert sorted(rows[0]) == sorted(
        [*Pipeline.from_lerobot(root).schema.fields, *(f"{name}_is_pad" for name in deltas)]
    )
    some = Pipeline.from_lerobot(root, episodes=[1], delta_timestamps=deltas)
    assert [row["action"].tolist() for row in some] == [row["action"].tolist() for row in rows[5:8]]


@pytest.mark.parametrize(
    ("deltas", "message"),
    [
        ({"action": [0.0, 0.15, 0.32]}, r"'action': expected multiples of 1/10 seconds.*got 0\.15, 0\.32\."),
        ({"action": []}, "'action': expected a list of seconds"),
        ({"action": 0.1}, "'action': expected a list of seconds, got 0.1"),
        ({"action": [float("nan")]}, "'action': expected a list of seconds"),
        ({"actions": [0.1]}, "expected names of fields, got 'actions'.*mean 'action'"),
        ({}, r"expected \{field: list of seconds\}"),
        ([0.1], r"expected \{field: list of seconds\}"),
    ],
)
def test_times_that_no_frame_has_are_refused(root: Path, deltas: Any, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        Pipeline.from_lerobot(root, delta_timestamps=deltas)


def test_windows_need_their_fields(root: Path) -> None:
    with pytest.raises(FieldNotFoundError, match="field 'action'"):
        list(Pipeline.from_lerobot(root, ["index"], delta_timestamps={"action": [0.1]}))
    windows = Pipeline.from_lerobot(root, ["action"], delta_timestamps={"action": [0.1]})
    assert list(next(iter(windows))) == ["action", "action_is_pad"]


def test_a_resumed_pipeline_goes_on_where_it_was(root: Path) -> None:
    pipeline = Pipeline.from_lerobot(root, delta_timestamps={"action": [0, 0.1]}).shuffle(6, seed=2)
    iterator = iter(pipeline)
    before = [int(next(iterator)["index"]) for _ in range(5)]
    again = iter(pipeline)
    again.load_state_dict(iterator.state_dict())
    rest = [int(row["index"]) for row in again]
    assert sorted(before + rest) == [*range(12)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"codebase_version": "v1.6"}, r"expected a codebase_version of v3.0 or v2.1 in meta/info.json, got 'v1.6'"),
        ({"codebase_version": None}, "got None"),
        ({"fps": 0}, "a positive number of frames per second in 'fps', got 0"),
        (
            {"features": {"action": {"dtype": "float32", "shape": [2]}}},
            "with the feature 'timestamp', got the features",
        ),
        ({"features": {"action": {"dtype": "float32", "shape": [-2]}}}, "that each have a 'dtype' and a 'shape'"),
        ({"features": []}, "that each have a 'dtype' and a 'shape'"),
        ({"data_path": None}, "with the text 'data_path'"),
        ({"data_path": "../{chunk_index}/{episode_chunk}"}, "with "),
        ({"data_path": "data/../../x.parquet"}, "with paths below its folder"),
        ({"data_path": "data/{index:09999999d}.parquet"}, "with paths below its folder"),
        ({"data_path": "data/{x}.parquet"}, "in its paths, got 'data/{x}.parquet'"),
    ],
    ids=str,
)
def test_a_damaged_info_is_refused(root: Path, changes: dict[str, Any], message: str) -> None:
    change_json(root / "meta/info.json", changes)
    with pytest.raises(DatasetError, match=message):
        Pipeline.from_lerobot(root)


@pytest.mark.parametrize("name", ["info.json", "episodes", "tasks"])
def test_metadata_that_is_missing_or_damaged_is_named(root: Path, name: str) -> None:
    (path,) = (each for each in (root / "meta").iterdir() if each.name.split(".")[0] == name.split(".")[0])
    file = path if path.is_file() else next(path.glob("*/*"))
    file.write_bytes(b"{}{" if file.suffix != ".parquet" else b"PAR1junkPAR1")
    with pytest.raises(ParquetryError, match=path.name):
        Pipeline.from_lerobot(root)
    file.unlink()
    with pytest.raises(DatasetError, match=path.name):
        Pipeline.from_lerobot(root)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(
        DatasetError, match=r"expected meta/info.json, found none. Pass the folder or URL that has meta/"
    ):
        Pipeline.from_lerobot(tmp_path)
    with pytest.raises(DatasetError, match="expected revision= only with an hf:// URL, got 'main'"):
        Pipeline.from_lerobot(tmp_path, revision="main")


def test_an_episode_that_is_described_twice_is_refused(tmp_path: Path) -> None:
    root = write_lerobot(tmp_path / "robot", "v2.1")
    lines = (root / "meta/episodes.jsonl").read_text()
    (root / "meta/episodes.jsonl").write_text(lines + lines.splitlines()[1])
    with pytest.raises(DatasetError, match="with each episode once, got episode 1 twice"):
        Pipeline.from_lerobot(root)


def test_counts_that_contradict_each_other_are_logged(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    Pipeline.from_lerobot(root)
    assert not caplog.messages
    change_json(root / "meta/info.json", {"total_frames": 13, "total_episodes": 3})
    first = sorted((root / "data/chunk-000").iterdir())[0]
    frames = pq.read_table(first)
    pq.write_table(frames.slice(1), first)
    shutil.copy(first, first.with_name("file-999.parquet"))
    pipeline = Pipeline.from_lerobot(root)
    assert [message.split(": ", 1)[1] for message in caplog.messages] == [
        "info.json says 13 frames, the list of episodes has 12. The list counts.",
        "1 files in data/ that no episode in meta/ names are left out, such as data/chunk-000/file-999.parquet",
        f"data/chunk-000/{first.name} has {len(frames) - 1} frames, but its episodes have {len(frames)} in meta/. "
        "All frames in the file are read.",
    ]
    assert len(pipeline) == 11


def test_features_of_other_types_and_shapes(tmp_path: Path) -> None:
    root = write_lerobot(tmp_path / "robot", lengths=[3])
    (path,) = (root / "data/chunk-000").iterdir()
    frames = pq.read_table(path)
    more = {
        "grid": (pa.array([[[1, 2, 3], [4, 5, 6]]] * 3, pa.list_(pa.list_(pa.int64()))), "int64", [2, 3]),
        "next.done": (pa.array([False, False, True]), "bool", [1]),
        "note": (pa.array(["a", "b", "c"]), "string", [1]),
        "talk": (pa.array([[{"role": "user"}]] * 3), "language", [1]),
    }
    for name, (values, _, _) in more.items():
        frames = frames.append_column(name, values)
    pq.write_table(frames, path)
    info = json.loads((root / "meta/info.json").read_text())
    stated = {name: {"dtype": dtype, "shape": shape} for name, (_, dtype, shape) in more.items()}
    change_json(root / "meta/info.json", {"features": {**info["features"], **stated}})
    pipeline = Pipeline.from_lerobot(root)
    last = list(pipeline.select(".*"))[-1]
    assert last["grid"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert bool(last["next.done"])
    assert last["note"] == "c"
    assert "talk" not in last
    with pytest.raises(ParquetryError, match="field 'talk': expected a feature of numbers or text, got the dtype"):
        list(pipeline.select("talk"))
    windows = Pipeline.from_lerobot(root, ["grid", "note"], delta_timestamps={"grid": [0, 0.1], "note": [0.1]})
    assert next(iter(windows))["grid"].shape == (2, 2, 3)


def filmed(folder: Path, version: str) -> Path:
    pytest.importorskip("av", reason="PyAV is not installed: pip install 'parquetry[video]'")
    return write_lerobot(folder / "filmed", version, LENGTHS, still=True, front=True)


def test_frames_of_videos_show_their_rows(tmp_path: Path, version: str) -> None:
    pipeline = Pipeline.from_lerobot(filmed(tmp_path, version))
    assert pipeline.schema[FRONT].shape == (HEIGHT, WIDTH, 3)
    shuffled = list(pipeline.shuffle(20, seed=1))
    assert [number_of(row[FRONT]) for row in shuffled] == [int(row["index"]) for row in shuffled]
    later = Pipeline.from_lerobot(tmp_path / "filmed", episodes=[1, 2], cameras=[FRONT])
    assert [number_of(row[FRONT]) for row in Pipeline.from_json(later.to_json())] == [*range(5, 12)]
    assert STILL not in later.schema
    assert [number_of(row[FRONT]) for row in pipeline.where(pc.field("task") == TASKS[1])] == [5, 6, 7]


def test_windows_of_frames_repeat_those_at_the_ends_of_an_episode(tmp_path: Path, version: str) -> None:
    deltas = {FRONT: [-0.1, 0.0, 0.3], "action": [0.1]}
    windows = Pipeline.from_lerobot(filmed(tmp_path, version), delta_timestamps=deltas)
    for row, e, n in zip(windows, EPISODES, FRAMES, strict=True):
        begin = int(row["index"]) - n
        places = [min(max(n + offset, 0), LENGTHS[e] - 1) for offset in (-1, 0, 3)]
        assert numbers_of(row[FRONT]) == [begin + place for place in places]
        assert row[f"{FRONT}_is_pad"].tolist() == [n == 0, False, n + 3 >= LENGTHS[e]]
    one = Pipeline.from_lerobot(tmp_path / "filmed", delta_timestamps={FRONT: [-0.1], STILL: [-0.1]})
    row = list(one)[5]
    assert row[FRONT].shape == (HEIGHT, WIDTH, 3)  # a camera with one time has no time axis,
    assert row[STILL].shape == (1, 4, 6, 3)  # but pictures in Parquet have
    assert (number_of(row[FRONT]), row[f"{FRONT}_is_pad"].tolist()) == (5, [True])


def test_a_missing_video_is_named_when_its_frames_are_read(tmp_path: Path, version: str) -> None:
    root = filmed(tmp_path, version)
    last = sorted((root / "videos").glob("*/*/*.mp4"))[-1]
    last.unlink()
    pipeline = Pipeline.from_lerobot(root)
    with pytest.raises(ParquetryError, match=last.name):
        list(pipeline)
    assert len(list(pipeline.select("index"))) == 12


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"is_depth_map": True, "video.depth_min": 5, "video.depth_max": 1}, "expected a range of depths and a shift"),
        ({"is_depth_map": True, "video.shift": -9.0}, "expected a range of depths and a shift"),
        ({"is_depth_map": True}, r"expected depths of float32 and shape \(H, W, 1\)"),
    ],
)
def test_depths_that_make_no_sense_are_refused(tmp_path: Path, info: dict[str, Any], message: str) -> None:
    root = write_lerobot(tmp_path / "filmed", "v2.1")
    features = json.loads((root / "meta/info.json").read_text())["features"]
    features["depth"] = {"dtype": "video", "shape": [4, 6, 3], "names": None, "info": info}
    change_json(root / "meta/info.json", {"features": features})
    with pytest.raises(ParquetryError, match=message):
        list(Pipeline.from_lerobot(root))
    assert len(list(Pipeline.from_lerobot(root, cameras=[]))) == 12


def test_a_camera_that_the_episodes_do_not_have_is_named(tmp_path: Path) -> None:
    root = write_lerobot(tmp_path / "filmed")
    features = json.loads((root / "meta/info.json").read_text())["features"]
    features["front"] = {"dtype": "video", "shape": [4, 6, 3], "names": None}
    change_json(root / "meta/info.json", {"features": features})
    with pytest.raises(DatasetError, match="with a column 'videos/front/chunk_index', got the columns"):
        Pipeline.from_lerobot(root)
    assert len(list(Pipeline.from_lerobot(root, cameras=[]))) == 12


def test_statistics_standardize_and_clip_each_place_of_a_vector(root: Path) -> None:
    pipeline = Pipeline.from_lerobot(root)
    stats = pipeline.dataset.stats
    values = np.arange(12)[:, None] + np.array([0, 0.5])
    known = stats["action"]
    assert isinstance(known, ElementStatistics)
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(getattr(known, name), getattr(values, name)(0), rtol=1e-12)
    assert TrainingStatistics.from_json(json.loads(json.dumps(stats.to_json()))) == stats
    assert Pipeline.from_json(pipeline.to_json()).dataset.stats == stats
    expected = ((values - values.mean(0)) / values.std(0)).astype(np.float32)
    made = np.array([row["action"] for row in pipeline.standardize("action", stats=stats)])
    np.testing.assert_allclose(made, expected, rtol=1e-6)
    windows = Pipeline.from_lerobot(root, delta_timestamps={"action": [0, 0.1]}).standardize("action", stats=stats)
    batch = next(iter(windows.batch(4)))["action"]
    np.testing.assert_allclose(batch[:, 0], expected[:4], rtol=1e-6)
    again = Pipeline.from_json(windows.to_json())
    assert again == windows
    clipped = pipeline.clip("action", stats=stats, quantiles=(0.01, 0.99))
    low, high = known.quantile(0.01), known.quantile(0.99)
    np.testing.assert_allclose(
        [row["action"] for row in clipped], np.clip(values.astype(np.float32), np.float32(low), np.float32(high))
    )
    serving = pipeline.standardize("action", stats=stats).preprocessing("action")
    np.testing.assert_allclose(
        serving.apply({"action": values[3].astype(np.float32)})["action"], expected[3], rtol=1e-6
    )


def test_statistics_are_refused_where_they_do_not_fit(root: Path) -> None:
    pipeline = Pipeline.from_lerobot(root)
    stats = pipeline.dataset.stats
    with pytest.raises(FieldNotFoundError, match="timestamp"):
        pipeline.standardize("timestamp", stats=stats)
    with pytest.raises(PipelineError, match=r"expected one of 0, 0\.01, 0\.99, 1, which are known, got 0\.5"):
        pipeline.clip("action", stats=stats, quantiles=(0.5, 1))
    with pytest.raises(PipelineError, match="expected statistics of all its numbers, got those by place"):
        pipeline.bucketize("action", stats=stats, buckets=3)
    for path in (root / "meta").glob("*stats*"):
        path.unlink()
    with pytest.raises(DatasetError, match=r"expected statistics that came with the data.*Call fit"):
        _ = Pipeline.from_lerobot(root).dataset.stats


def test_statistics_of_pictures_are_those_of_their_numbers(tmp_path: Path) -> None:
    root = write_lerobot(tmp_path / "robot", still=True)
    parts = {"mean": [0, 0.5, 1], "std": [0.5] * 3, "min": [0] * 3, "max": [1] * 3}
    pictures = {name: [[[value]] for value in values] for name, values in parts.items()}
    change_json(root / "meta/stats.json", {STILL: {**pictures, "count": [12]}, "index": {"mean": "x"}})
    pipeline = Pipeline.from_lerobot(root)
    stats = pipeline.dataset.stats
    assert list(stats) == ["action", STILL]
    assert stats[STILL].mean == (0, 127.5, 255)
    made = [row[STILL][0, 0].tolist() for row in pipeline.standardize(STILL, stats=stats)]
    np.testing.assert_allclose(made, [[n / 127.5, -1, 0] for n in range(12)], rtol=1e-6)
    with pytest.raises(PipelineError, match=r"expected an array whose last axis has 3 places.*got shape \(3, 4, 6\)"):
        list(pipeline.permute(STILL, dims=("C", "H", "W")).standardize(STILL, stats=stats))


def test_plain_pipelines_and_commands_lead_to_from_lerobot(root: Path, version: str) -> None:
    assert len(list(Pipeline(root / "data"))) == 12
    assert opened_by(str(root))[1] == "Pipeline.from_lerobot"
    assert inspect(root).rows == 12
    if version == "v3.0":  # whose list of episodes is Parquet, too
        with pytest.raises(DatasetError, match=r"found a LeRobot dataset.*Open it with from_lerobot\(url\)"):
            list(Pipeline(root))


def test_a_store_gives_the_same_frames_as_the_folder(tmp_path: Path, version: str) -> None:
    (tmp_path / "bucket").mkdir()
    root = filmed(tmp_path / "bucket", version)
    deltas = {FRONT: [-0.1, 0], "action": [0, 0.1]}
    local = list(Pipeline.from_lerobot(root, episodes=[0, 2], delta_timestamps=deltas).shuffle(9, seed=1))
    with serving(tmp_path) as store:
        url = store.url("bucket/filmed")
        stored = Pipeline.from_lerobot(url, episodes=[0, 2], delta_timestamps=deltas).shuffle(9, seed=1)
        rows = list(Pipeline.from_json(stored.to_json()))
    assert [numbers_of(row[FRONT]) for row in rows] == [numbers_of(row[FRONT]) for row in local]
    assert [row["action"].tolist() for row in rows] == [row["action"].tolist() for row in local]
