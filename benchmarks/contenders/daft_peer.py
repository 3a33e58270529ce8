"""Daft: Parquet read, shuffled and decoded by its native runner, batches cut from the Arrow that it hands out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ |= {"DO_NOT_TRACK": "1", "DAFT_PROGRESS_BAR": "0"}  # read while Daft is imported

import daft
import numpy as np
import pyarrow as pa
from daft.functions import decode_image

from ..steps import parquet_files
from ..touch import rows_of
from ..workloads import IMAGE_SHAPES, SEED, Case
from .arrow_batches import sliced

SETTINGS = {
    "": "read_parquet, shuffle of all rows in memory for each epoch (its only one for single rows), native runner with "
    "a thread for each processor, to_arrow_iter, batches cut as slices; a: into_batches and its own decode_image, "
    "which is faster than a function of Python's"
}


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    frame = daft.read_parquet(parquet_files(case.data / "parquet"))
    random = np.random.default_rng(SEED)
    for epoch in case.epochs():
        shuffled = frame.select("id", "image") if case.workload.data == "images" else frame
        shuffled = shuffled.shuffle(SEED + epoch)
        if case.workload.data == "images":
            yield from map(rows_of, _images(case, shuffled))
        else:
            for batch in shuffled.to_arrow_iter():
                yield from map(rows_of, sliced(batch, case.workload.batch_size, case.workload.key, random))


def _images(case: Case, frame: daft.DataFrame) -> Iterator[dict[str, Any]]:
    height, width, channels = IMAGE_SHAPES["images"]
    kind = daft.DataType.image("RGB", height, width)
    frame = frame.into_batches(case.workload.batch_size)
    frame = frame.with_column("image", decode_image(daft.col("image")).cast(kind))
    for batch in frame.to_arrow_iter():
        pixels: pa.FixedSizeListArray = batch.column("image").storage
        image = pixels.flatten().to_numpy().reshape(-1, height, width, channels)
        yield {"id": batch.column("id").to_numpy(), "image": image}
