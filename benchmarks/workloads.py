"""Defines the workloads: which data they read, in which batches, and how many rows.

`WORKLOADS` maps keys to workloads; a `Case` tells one contender what to do. Every contender of a workload gets the
same rows in batches of the same size, from the same data folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

IMAGE_SHAPES = {"images": (375, 500, 3), "rare": (375, 500, 3), "large": (1_208, 1_920, 3)}
IMAGE_QUALITY = 85
CROP = 224
CROPPED = {
    "b": "bilinear",
    "b-filter": "bilinear",
    "b-large": "area",
}  # workloads with a random crop, and how it is resized
MEAN = (0.485, 0.456, 0.406)  # ImageNet's, with white = 1
DEVIATION = (0.229, 0.224, 0.225)
LIDAR_SHAPE = (20_000, 4)
NUMBERS = {  # the label comes on top
    "table": tuple(f"x{number:02d}" for number in range(40)),
    "wide": tuple(f"x{number:03d}" for number in range(400)),
}
WINDOW = 10
BLOCK_TOKENS = 2_049
BUCKET_TOKENS = 32_768  # in a padded batch of similar lengths
FRAME_SHAPE = (240, 320, 3)
CAMERAS = ("observation.images.top", "observation.images.wrist")
ROBOT_FPS = 30
EPISODE_FRAMES = 200
SEEN = {"l": 2, "l-long": 16}  # workloads over a robot's demonstrations, and the frames in a window
ACTIONS = 16  # in a window
RARE = 100  # one image in a hundred is an event
KEPT = {"b-filter": 2, "g": RARE}  # workloads with a filter, which keeps one row of as many
SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One task for every contender.

    Attributes:
        key: its letter in tables and on the command line.
        title: description of the task.
        data: the data folder to read; see `benchmarks.data`.
        batch_size: rows (windows) per batch.
        buffer_rows: size of the shuffle buffer; 0 = natural order.
        kind: ``"rate"`` (rows per second, steady state), or ``"seconds"`` (how long single steps take).
        unit: unit of the rate.
        measures: for ``"seconds"``: the names of the steps.
        first_pass: whether the first pass differs from later ones; it is then timed separately, not in the rate.
    """

    key: str
    title: str
    data: str
    batch_size: int
    buffer_rows: int = 0
    kind: str = "rate"
    unit: str = "rows/s"
    measures: tuple[str, ...] = ()
    first_pass: bool = False


WORKLOADS = {
    workload.key: workload
    for workload in [
        Workload(key="a", title="JPEG 500 x 375 to uint8, shuffled", data="images", batch_size=64, buffer_rows=256),
        Workload(
            key="b",
            title="JPEG, random crop and resize to 224, normalized, shuffled",
            data="images",
            batch_size=64,
            buffer_rows=256,
        ),
        Workload(
            key="b-filter",
            title="filter: every second row; JPEG, random crop and resize to 224, normalized, shuffled",
            data="images",
            batch_size=64,
            buffer_rows=256,
        ),
        Workload(
            key="b-large",
            title="JPEG 1920 x 1208, random crop and resize to 224 by area, normalized, shuffled",
            data="large",
            batch_size=32,
            buffer_rows=128,
        ),
        Workload(key="c-ndarray", title="lidar 20000 x 4 float32, NdarrayCodec", data="lidar", batch_size=16),
        Workload(key="c-tensor", title="lidar 20000 x 4 float32, TensorCodec", data="lidar", batch_size=16),
        Workload(key="d", title="41 numeric columns, shuffled", data="table", batch_size=1_024, buffer_rows=65_536),
        Workload(
            key="d-pack",
            title="40 numeric columns as one matrix and a label, shuffled",
            data="table",
            batch_size=1_024,
            buffer_rows=65_536,
        ),
        Workload(
            key="d-weigh",
            title="41 numeric columns, drawn by weight, shuffled",
            data="table",
            batch_size=1_024,
            buffer_rows=65_536,
        ),
        Workload(
            key="d-wide",
            title="401 numeric columns, shuffled",
            data="wide",
            batch_size=1_024,
            buffer_rows=16_384,
        ),
        Workload(key="e", title="strings and ragged lists, shuffled", data="texts", batch_size=256, buffer_rows=16_384),
        Workload(key="f", title="windows of 10 JPEG frames, stride 1", data="images", batch_size=8, unit="windows/s"),
        Workload(
            key="f-shuffled",
            title="windows of 10 JPEG frames, stride 1, shuffled",
            data="images",
            batch_size=8,
            buffer_rows=256,
            unit="windows/s",
        ),
        Workload(
            key="g", title="filter: 1 % of the rows, with a JPEG column", data="rare", batch_size=8, first_pass=True
        ),
        Workload(
            key="h",
            title="JPEG batches: cold start, warm start, resume at 90 % of an epoch",
            data="images",
            batch_size=64,
            buffer_rows=256,
            kind="seconds",
            unit="s",
            measures=("cold", "warm", "resume at 90 %"),
        ),
        Workload(
            key="i",
            title="planning row groups from the index",
            data="groups",
            batch_size=64,
            buffer_rows=10_000,
            kind="seconds",
            unit="s",
            measures=("plan",),
        ),
        Workload(
            key="j",
            title="JPEG from a slow store, later epochs",
            data="images",
            batch_size=64,
            buffer_rows=256,
            first_pass=True,
        ),
        Workload(
            key="k",
            title=f"token lists joined into blocks of {BLOCK_TOKENS:,} int32, shuffled",
            data="documents",
            batch_size=8,
            buffer_rows=4_096,
            unit="blocks/s",
        ),
        Workload(
            key="k-bucket",
            title=f"token lists in batches of like length, padded, {BUCKET_TOKENS:,} int32 at most, shuffled",
            data="documents",
            batch_size=16,
            buffer_rows=4_096,
        ),
        *(
            Workload(
                key=key,
                title=f"LeRobot dataset: windows of {frames} frames of two cameras (AV1) as float32, and of {ACTIONS} "
                "actions, shuffled",
                data="robot",
                batch_size=16,
                buffer_rows=2_000,
                unit="windows/s",
            )
            for key, frames in SEEN.items()
        ),
    ]
}

ROW_GROUP_ROWS = {
    "images": 64,
    "rare": 64,
    "large": 16,
    "lidar": 32,
    "table": 65_536,
    "wide": 16_384,
    "texts": 16_384,
    "documents": 2_048,
    "robot": EPISODE_FRAMES,
}


def robot_times(workload: Workload) -> dict[str, list[float]]:
    """Returns the times of a window over a robot's demonstrations, in seconds: ``delta_timestamps`` of LeRobot."""
    seen = [-number / ROBOT_FPS for number in reversed(range(SEEN[workload.key]))]
    return {**dict.fromkeys(CAMERAS, seen), "action": [number / ROBOT_FPS for number in range(ACTIONS)]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Instructions for one contender.

    Attributes:
        variant: which variant of the contender's module to run.
        data: the data folder of this workload.
        scratch: a folder for this run only.
        workers: threads or processes to use: one per processor.
        passes: passes over the data; ``None`` = forever.
        url: URL of the slow store, for workloads that use it.
        trains: the framework of the model that trains on the batches, ``"torch"`` or ``"tensorflow"``; empty = none.
    """

    workload: Workload
    variant: str
    data: Path
    scratch: Path
    rows: int
    workers: int
    passes: int | None = None
    url: str = ""
    trains: str = ""

    def epochs(self) -> Iterator[int]:
        """Yields the numbers of the passes."""
        return iter(count()) if self.passes is None else iter(range(self.passes))

    @property
    def delivered(self) -> int:
        """Number of rows that one pass delivers."""
        return max(1, self.rows // KEPT.get(self.workload.key, 1))

    def to_json(self) -> str:
        """Returns the case as text for the contender's process."""
        value = asdict(self) | {"workload": self.workload.key, "data": str(self.data), "scratch": str(self.scratch)}
        return json.dumps(value)

    @classmethod
    def from_json(cls, text: str) -> Case:
        """The inverse of `to_json`."""
        value = json.loads(text)
        value |= {"workload": WORKLOADS[value["workload"]]}
        value |= {"data": Path(value["data"]), "scratch": Path(value["scratch"])}
        return cls(**value)
