"""The pipeline of each workload, shared by every dataset class of parquetry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc

from parquetry.common import Pipeline

from ..http_store import HttpStore
from ..steps import parquet_files
from ..workloads import (
    BLOCK_TOKENS,
    BUCKET_TOKENS,
    CAMERAS,
    CROP,
    CROPPED,
    DEVIATION,
    MEAN,
    NUMBERS,
    SEED,
    WINDOW,
    Case,
    robot_times,
)


def pipeline_of(case: Case, **options: Any) -> Pipeline:
    """Returns the chain of verbs, endless or with as many passes as the case asks for."""
    workload = case.workload
    pipeline = _source(case, options)
    if workload.key.startswith("f"):
        pipeline = pipeline.ngram(length=WINDOW, timestamp="id")
    if workload.key == "g":
        pipeline = pipeline.where(pc.field("event") == 1)
    if workload.key == "b-filter":
        pipeline = pipeline.where(pc.bit_wise_and(pc.field("id"), 1) == 0)
    if workload.buffer_rows:
        pipeline = pipeline.shuffle(workload.buffer_rows, seed=SEED)
    if workload.data == "robot":
        for camera in CAMERAS:  # as LeRobot's own class gives them
            pipeline = pipeline.normalize(camera).permute(camera, dims=("C", "H", "W"))
    if workload.key == "j":
        pipeline = pipeline.cache(case.scratch / "cache")
    if workload.key == "d-pack":
        pipeline = pipeline.pack("x", NUMBERS["table"])
    if workload.key == "k":
        pipeline = pipeline.concat(BLOCK_TOKENS, "tokens")
    if workload.key == "d-weigh":
        pipeline = pipeline.weigh(pc.field("label") + 1)
    if workload.key in CROPPED:
        pipeline = pipeline.random_resized_crop("image", CROP, interpolation=CROPPED[workload.key], antialias=False)
        pipeline = pipeline.random_flip("image").normalize("image", MEAN, DEVIATION)
    if workload.key == "k-bucket":
        lengths = [64, 128, 256, 512, 1_024, 2_048, 4_096, 8_192]
        pipeline = pipeline.bucket("tokens", boundaries=lengths, max_tokens=BUCKET_TOKENS)
    else:
        pipeline = pipeline.batch(workload.batch_size)
    ends = case.passes == 1 or workload.kind == "seconds" or workload.key == "g"
    return pipeline if ends else pipeline.repeat(case.passes)


def passes_of(case: Case) -> Iterator[int]:
    """Returns how often to iterate the pipeline: short filtered passes are separate iterations that read again."""
    return case.epochs() if case.workload.key == "g" else iter([0])


def _source(case: Case, options: dict[str, Any]) -> Pipeline:
    key = case.workload.key
    if key == "j":
        paths = parquet_files(case.data / "parquet")
        names = [f"parquet/{path.rpartition('/')[2]}" for path in paths]
        return Pipeline(names, ["id", "image"], filesystem=HttpStore(case.url), **options)
    if case.workload.data == "robot":
        return Pipeline.from_lerobot(case.data / "lerobot", delta_timestamps=robot_times(case.workload), **options)
    if key.startswith("c"):
        return Pipeline(case.data / f"parquet-{key.partition('-')[2]}", **options)
    fields = ["id", "image"] if case.workload.data in ("images", "rare", "large") else None
    return Pipeline(case.data / "parquet", fields, **options)
