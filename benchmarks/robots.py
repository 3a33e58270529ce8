"""Writes a LeRobot dataset (v3.0): two cameras in AV1, states and actions; episodes of 200 frames, 30 a second.

Layout: https://huggingface.co/docs/lerobot/lerobot-dataset-v3. Both parquetry and LeRobot read it in place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .workloads import CAMERAS, EPISODE_FRAMES, FRAME_SHAPE, ROBOT_FPS, SEED

_JOINTS = 6
_TASK = "push the block"
_NUMBERS = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}
_DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"


def write_robot(folder: Path, rows: int) -> None:
    """Writes at least ``rows`` frames into ``folder/lerobot``: whole episodes, in one file of each kind. Needs PyAV."""
    root = folder / "lerobot"
    episodes = -(-rows // EPISODE_FRAMES)
    total = episodes * EPISODE_FRAMES
    columns = _columns(total)
    table = pa.table(
        {
            name: pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), _JOINTS)
            if values.ndim > 1
            else values
            for name, values in columns.items()
        }
    )
    path = root / _DATA.format(chunk_index=0, file_index=0)
    path.parent.mkdir(parents=True)
    pq.write_table(table, path, row_group_size=EPISODE_FRAMES)
    for number, camera in enumerate(CAMERAS):
        path = root / _VIDEO.format(video_key=camera, chunk_index=0, file_index=0)
        path.parent.mkdir(parents=True)
        _encode(path, _scenes(total, SEED + number))
    _write_meta(root, columns, episodes)


def _columns(total: int) -> dict[str, np.ndarray]:
    numbers = np.arange(total)
    state = np.cumsum(np.random.default_rng(SEED).normal(0, 0.02, (total, _JOINTS)), 0).astype(np.float32)
    return {
        "action": np.roll(state, -1, 0),
        "observation.state": state,
        "timestamp": (numbers % EPISODE_FRAMES / ROBOT_FPS).astype(np.float32),
        "frame_index": numbers % EPISODE_FRAMES,
        "episode_index": numbers // EPISODE_FRAMES,
        "index": numbers,
        "task_index": np.zeros(total, np.int64),
    }


def _scenes(total: int, seed: int) -> Iterator[np.ndarray]:
    """Yields frames in which a block moves over a background of blocks, with a camera's noise."""
    height, width, _ = FRAME_SHAPE
    random = np.random.default_rng(seed)
    still = random.integers(40, 215, (height // 16, width // 16, 3), np.uint8).repeat(16, 0).repeat(16, 1)
    for number in range(total):
        frame = still + random.normal(0, 4, (height, width, 1))
        row, column = 2 * number % (height - 40), 3 * number % (width - 60)
        frame[row : row + 40, column : column + 60] = (200, 60, 40)
        yield frame.clip(0, 255).astype(np.uint8)


def _encode(path: Path, frames: Iterator[np.ndarray]) -> None:
    import av

    height, width, _ = FRAME_SHAPE
    options = {"g": "2", "crf": "30", "preset": "12", "svtav1-params": "lp=1"}  # as LeRobot records
    with av.open(str(path), "w", options={"movflags": "faststart"}) as out:
        stream = out.add_stream("libsvtav1", ROBOT_FPS, options=options)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        for frame in frames:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        out.mux(stream.encode(None))


def _write_meta(root: Path, columns: dict[str, np.ndarray], episodes: int) -> None:
    total = episodes * EPISODE_FRAMES
    video = {
        "dtype": "video",
        "shape": list(FRAME_SHAPE),
        "names": ["height", "width", "channels"],
        "info": _video_info(),
    }
    vector = {"dtype": "float32", "shape": [_JOINTS], "names": [f"joint{number}" for number in range(_JOINTS)]}
    features: dict[str, Any] = {"action": vector, "observation.state": vector}
    features |= dict.fromkeys(CAMERAS, video)
    features |= {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in _NUMBERS.items()}
    info = {
        "codebase_version": "v3.0",
        "robot_type": "drawn",
        "total_episodes": episodes,
        "total_frames": total,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": ROBOT_FPS,
        "splits": {"train": f"0:{episodes}"},
        "data_path": _DATA,
        "video_path": _VIDEO,
        "features": features,
    }
    stats = {name: _statistics(values) for name, values in columns.items()}
    shares = {"min": 0.0, "max": 1.0, "mean": 0.5, "std": 0.25}
    stats |= {
        camera: {name: [[[value]]] * 3 for name, value in shares.items()} | {"count": [total]} for camera in CAMERAS
    }
    (root / "meta" / "episodes" / "chunk-000").mkdir(parents=True)
    (root / "meta" / "info.json").write_text(json.dumps(info))
    (root / "meta" / "stats.json").write_text(json.dumps(stats))
    rows = [_episode(number) for number in range(episodes)]
    pq.write_table(pa.Table.from_pylist(rows), root / "meta" / "episodes" / "chunk-000" / "file-000.parquet")
    pandas = {  # how pandas finds its index
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [
            {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": dtype, "metadata": None}
            for name, kind, dtype in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
        ],
        "pandas_version": "2.3.0",
    }
    tasks = pa.table({"task_index": [0], "task": [_TASK]})
    pq.write_table(tasks.replace_schema_metadata({"pandas": json.dumps(pandas)}), root / "meta" / "tasks.parquet")


def _video_info() -> dict[str, Any]:
    height, width, channels = FRAME_SHAPE
    kinds = {"video.codec": "av1", "video.pix_fmt": "yuv420p", "is_depth_map": False, "has_audio": False}
    return {
        "video.height": height,
        "video.width": width,
        "video.channels": channels,
        "video.fps": ROBOT_FPS,
        **kinds,
    }


def _episode(number: int) -> dict[str, Any]:
    first, end = number * EPISODE_FRAMES, (number + 1) * EPISODE_FRAMES
    row: dict[str, Any] = {
        "episode_index": number,
        "tasks": [_TASK],
        "length": EPISODE_FRAMES,
        "dataset_from_index": first,
        "dataset_to_index": end,
    }
    row |= {f"{kind}/{name}": 0 for kind in ("data", "meta/episodes") for name in ("chunk_index", "file_index")}
    for camera in CAMERAS:
        row |= {f"videos/{camera}/{name}": 0 for name in ("chunk_index", "file_index")}
        row |= {
            f"videos/{camera}/from_timestamp": first / ROBOT_FPS,
            f"videos/{camera}/to_timestamp": end / ROBOT_FPS,
        }
    return row


def _statistics(values: np.ndarray) -> dict[str, Any]:
    values = values.astype(np.float64).reshape(len(values), -1)
    quantiles = {f"q{percent:02d}": np.quantile(values, percent / 100, 0).tolist() for percent in (1, 10, 50, 90, 99)}
    some = {name: getattr(values, name)(0).tolist() for name in ("min", "max", "mean", "std")}
    return some | {"count": [len(values)]} | quantiles
