"""Writes small LeRobot datasets, v3.0 and v2.1, in which each value says which frame it is of."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from movies import HEIGHT, WIDTH, painted
from PIL import Image

FPS = 10
TASKS = ("lift the cup", "open the door")
STILL, FRONT = "observation.images.still", "observation.images.front"
NUMBERS = {
    "timestamp": "float32",
    "frame_index": "int64",
    "episode_index": "int64",
    "index": "int64",
    "task_index": "int64",
}


def write_lerobot(
    root: Path,
    version: str = "v3.0",
    lengths: Sequence[int] = (5, 3, 4),
    *,
    still: bool = False,
    front: bool = False,
    in_one: int = 2,
) -> Path:
    """Writes a dataset and returns its folder. Episode ``e`` has task ``e % 2``.

    Args:
        lengths: the frames of each episode.
        still: whether there is a camera whose pictures are in the Parquet files.
        front: whether there is a camera whose frames are in videos and show the number of their row. Needs PyAV.
        in_one: v3.0: how many episodes one Parquet file holds, and one video.
    """
    (root / "meta").mkdir(parents=True)
    tables = [_frames(e, lengths, version, still) for e in range(len(lengths))]
    places = [(0, e // in_one) if version == "v3.0" else (0, e) for e in range(len(lengths))]
    path = "data/chunk-{chunk:03d}/" + ("file-{n:03d}" if version == "v3.0" else "episode_{n:06d}") + ".parquet"
    for chunk, n in dict.fromkeys(places):
        file = root / path.format(chunk=chunk, n=n)
        file.parent.mkdir(parents=True, exist_ok=True)
        parts = [table for table, place in zip(tables, places, strict=True) if place == (chunk, n)]
        with pq.ParquetWriter(file, parts[0].schema) as writer:
            for part in parts:
                writer.write_table(part)
    if front:
        ends = np.cumsum(lengths)
        for chunk, n in dict.fromkeys(places):
            inside = [e for e, place in enumerate(places) if place == (chunk, n)]
            name = (
                f"videos/{FRONT}/chunk-000/file-{n:03d}" if version == "v3.0" else f"videos/chunk-000/{FRONT}/{n:06d}"
            )
            first = inside[0]
            _write_video(root / f"{name}.mp4", range(int(ends[first] - lengths[first]), int(ends[inside[-1]])))
    _write_meta(root, version, lengths, places, still, front)
    return root


def _write_video(path: Path, numbers: Sequence[int]) -> None:
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("h264", FPS, options={"g": "3", "threads": "1"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in numbers:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(painted(number), format="rgb24")))
        out.mux(stream.encode(None))


def _frames(e: int, lengths: Sequence[int], version: str, still: bool) -> pa.Table:
    n = np.arange(lengths[e])
    index = sum(lengths[:e]) + n
    state = (index[:, None] + np.array([0, 0.5])).astype(np.float32)
    flat, ends = pa.array(state.reshape(-1)), pa.array(np.arange(len(n) + 1, dtype=np.int32) * 2)
    fixed = version == "v3.0"
    data: dict[str, Any] = {
        "action": pa.FixedSizeListArray.from_arrays(flat, 2) if fixed else pa.ListArray.from_arrays(ends, flat),
        "timestamp": (n / FPS).astype(np.float32),
        "frame_index": n,
        "episode_index": np.full(len(n), e),
        "index": index,
        "task_index": np.full(len(n), e % len(TASKS)),
    }
    if still:
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        data[STILL] = pa.array([{"bytes": _picture(number), "path": f"{number}.png"} for number in index], kind)
    return pa.table(data)


def _picture(number: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (6, 4), (number, 0, 255)).save(stream, "png")
    return stream.getvalue()


def _features(still: bool, front: bool) -> dict[str, Any]:
    made: dict[str, Any] = {"action": {"dtype": "float32", "shape": [2], "names": ["x", "y"]}}
    if front:
        made[FRONT] = {"dtype": "video", "shape": [3, HEIGHT, WIDTH], "names": ["channels", "height", "width"]}
    if still:
        made[STILL] = {"dtype": "image", "shape": [4, 6, 3], "names": ["height", "width", "channels"]}
    return made | {name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in NUMBERS.items()}


def _write_meta(
    root: Path, version: str, lengths: Sequence[int], places: Sequence[tuple[int, int]], still: bool, front: bool
) -> None:
    ends = np.cumsum(lengths).tolist()
    info = {
        "codebase_version": version,
        "fps": FPS,
        "total_episodes": len(lengths),
        "total_frames": ends[-1],
        "chunks_size": 1000,
        "features": _features(still, front),
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
        if version == "v3.0"
        else "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": ("videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4" if front else None)
        if version == "v3.0"
        else "videos/chunk-{episode_chunk:03d}/{video_key}/{episode_index:06d}.mp4",
    }
    change_json(root / "meta/info.json", info)
    episodes = [{"episode_index": e, "tasks": [TASKS[e % 2]], "length": length} for e, length in enumerate(lengths)]
    stats = [_statistics(end - length, end) for end, length in zip(ends, lengths, strict=True)]
    if version == "v3.0":
        rows = [
            episode | {"data/chunk_index": chunk, "data/file_index": n}
            for episode, (chunk, n) in zip(episodes, places, strict=True)
        ]
        for e, row in enumerate(rows) if front else ():
            before = sum(length for length, place in zip(lengths[:e], places[:e], strict=True) if place == places[e])
            place = {"chunk_index": 0, "file_index": places[e][1], "from_timestamp": before / FPS}
            row.update({f"videos/{FRONT}/{name}": value for name, value in place.items()})
        (root / "meta/episodes/chunk-000").mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet")
        pq.write_table(pa.table({"task_index": range(len(TASKS)), "task": TASKS}), root / "meta/tasks.parquet")
        change_json(root / "meta/stats.json", _statistics(0, ends[-1]))
    else:
        _write_lines(root / "meta/episodes.jsonl", episodes)
        _write_lines(root / "meta/tasks.jsonl", [{"task_index": n, "task": text} for n, text in enumerate(TASKS)])
        lines = [{"episode_index": e, "stats": each} for e, each in enumerate(stats)]
        _write_lines(root / "meta/episodes_stats.jsonl", lines)


def _statistics(begin: int, end: int) -> dict[str, Any]:
    """The statistics of the actions of the frames from ``begin`` to ``end``."""
    values = np.arange(begin, end)[:, None] + np.array([0, 0.5])
    return {
        "action": {
            **{name: getattr(values, name)(0).tolist() for name in ("min", "max", "mean", "std")},
            "count": [len(values)],
            "q01": np.quantile(values, 0.01, axis=0).tolist(),
            "q99": np.quantile(values, 0.99, axis=0).tolist(),
        }
    }


def _write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def change_json(path: Path, changes: Mapping[str, Any]) -> None:
    """Writes a JSON object, or changes some members of the one that is there."""
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **changes}))
