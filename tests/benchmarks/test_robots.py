"""The LeRobot dataset of the benchmarks is one, and its windows are those that every contender gets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.contenders.ours_pipelines import pipeline_of
from benchmarks.data import prepare
from benchmarks.workloads import ACTIONS, CAMERAS, EPISODE_FRAMES, SEEN, WORKLOADS, Case
from parquetry.common import Pipeline

pytest.importorskip("av", reason="PyAV is not installed: pip install 'parquetry[video]'")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "robot"
    prepare(folder, "robot", EPISODE_FRAMES + 1)
    return folder


def test_it_holds_whole_episodes_whose_frames_differ(folder: Path) -> None:
    frames = Pipeline.from_lerobot(folder / "lerobot", cameras=CAMERAS[1])
    assert len(frames) == 2 * EPISODE_FRAMES
    first, middle, last = (frames[row] for row in (0, EPISODE_FRAMES, 2 * EPISODE_FRAMES - 1))
    assert [row["frame_index"] for row in (first, middle, last)] == [0, 0, EPISODE_FRAMES - 1]
    shown = [row[CAMERAS[1]].astype(int) for row in (first, middle, last)]
    assert abs(shown[0] - shown[1]).max() > 30
    assert abs(shown[1] - shown[2]).max() > 30


@pytest.mark.parametrize("key", SEEN)
def test_windows_have_the_shapes_that_lerobot_gives(folder: Path, tmp_path: Path, key: str) -> None:
    case = Case(
        workload=WORKLOADS[key], variant="threads", data=folder, scratch=tmp_path, rows=400, workers=1, passes=1
    )
    batch = next(iter(pipeline_of(case, executor="threads")))
    for camera in CAMERAS:
        assert batch[camera].shape == (16, SEEN[key], 3, 240, 320)
        assert batch[camera].dtype == np.float32
        assert 0 <= batch[camera].min() < batch[camera].max() <= 1
    assert batch["action"].shape == (16, ACTIONS, 6)
