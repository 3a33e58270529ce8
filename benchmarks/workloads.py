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

IMAGE_SHAPE = (375, 500, 3)
IMAGE_QUALITY = 85
CROP = 224
MEAN = (0.485, 0.456, 0.406)  # ImageNet's, with white = 1
DEVIATION = (0.229, 0.224, 0.225)
LIDAR_SHAPE = (20_000, 4)
NUMBERS = tuple(f"x{number:02d}" for number in range(40))  # 41 numeric columns with the label
WINDOW = 10
BLOCK_TOKENS = 2_049
BUCKET_TOKENS = 32_768  # in a padded batch of similar lengths
RARE = 100  # one image in a hundred is an event
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """How much data to use, and how long to measure.

    Attributes:
        rows: rows in each data folder.
        rounds: measurements of each contender against the limit.
        window_s: length of one measurement, which starts after ``warm_s`` of unmeasured reading.
    """

    name: str
    rows: dict[str, int]
    rounds: int
    warm_s: float
    window_s: float


WORKLOADS = {
    workload.key: workload
    for workload in [
        Workload(key="a", title="JPEG 500 x 375 to uint8, shuffled", data="images", batch_size=64, buffer_rows=256),
        Workload(
            key="b",
            title="JPEG, random crop and resize to 224, normalised, shuffled",
            data="images",
            batch_size=64,
            buffer_rows=256,
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
    ]
}

PROFILES = {
    profile.name: profile
    for profile in [
        Profile(
            name="tiny",
            rows={
                "images": 256,
                "rare": 512,
                "lidar": 32,
                "table": 8_192,
                "texts": 2_048,
                "documents": 512,
                "groups": 2_000,
            },
            rounds=1,
            warm_s=0.05,
            window_s=0.1,
        ),
        Profile(
            name="quick",
            rows={
                "images": 1_024,
                "rare": 8_192,
                "lidar": 512,
                "table": 524_288,
                "texts": 65_536,
                "documents": 65_536,
                "groups": 1_000_000,
            },
            rounds=3,
            warm_s=0.3,
            window_s=0.7,
        ),
        Profile(
            name="full",
            rows={
                "images": 4_096,
                "rare": 32_768,
                "lidar": 2_048,
                "table": 2_097_152,
                "texts": 262_144,
                "documents": 262_144,
                "groups": 1_000_000,
            },
            rounds=7,
            warm_s=1.0,
            window_s=2.5,
        ),
    ]
}

ROW_GROUP_ROWS = {"images": 64, "rare": 64, "lidar": 32, "table": 65_536, "texts": 16_384, "documents": 2_048}


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
    """

    workload: Workload
    variant: str
    data: Path
    scratch: Path
    rows: int
    workers: int
    passes: int | None = None
    url: str = ""

    def epochs(self) -> Iterator[int]:
        """Yields the numbers of the passes."""
        return iter(count()) if self.passes is None else iter(range(self.passes))

    @property
    def delivered(self) -> int:
        """Number of rows that one pass delivers."""
        if self.workload.key == "g":
            return max(1, self.rows // RARE)
        return self.rows

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
