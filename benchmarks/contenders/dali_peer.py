"""NVIDIA DALI on the processor: its file reader, its JPEG decoder and its own crop, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types

from ..touch import rows_of
from ..workloads import CROP, CROPPED, DEVIATION, MEAN, SEED, Case

SETTINGS = {
    "": "readers.file with random_shuffle and the buffer as initial_fill, decoders.image(device='cpu', "
    "use_fast_idct=True), num_threads: one for each processor, prefetch_queue_depth=2, outputs as numpy views; b: "
    "decoders.image_random_crop, which decodes the crop alone, resize (b-large: antialias=True, as DALI has no resize "
    "by area), crop_mirror_normalize"
}


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    pipeline = _pipeline(case, batch_size=case.workload.batch_size, num_threads=case.workers, device_id=None, seed=SEED)
    pipeline.build()
    for _ in case.epochs():
        for _ in range(case.rows // case.workload.batch_size):
            images, numbers = pipeline.run()
            yield rows_of({"id": _view(numbers)[:, 0], "image": _view(images)})


@pipeline_def
def _pipeline(case: Case) -> tuple[Any, Any]:
    files = sorted(str(path) for path in (case.data / "files").iterdir())
    encoded, numbers = fn.readers.file(
        files=files,
        labels=list(range(len(files))),
        random_shuffle=case.workload.buffer_rows > 0,
        initial_fill=case.workload.buffer_rows,
        name="files",
    )
    if case.workload.key not in CROPPED:
        return fn.decoders.image(encoded, device="cpu", use_fast_idct=True), numbers
    crops = fn.decoders.image_random_crop(
        encoded,
        device="cpu",
        use_fast_idct=True,
        random_area=[0.08, 1.0],
        random_aspect_ratio=[3 / 4, 4 / 3],
    )
    small = fn.resize(
        crops,
        size=[CROP, CROP],
        interp_type=types.INTERP_LINEAR,
        antialias=CROPPED[case.workload.key] == "area",
    )
    images = fn.crop_mirror_normalize(
        small,
        dtype=types.FLOAT,
        output_layout="HWC",
        mean=[255 * value for value in MEAN],
        std=[255 * value for value in DEVIATION],
        mirror=fn.random.coin_flip(),
    )
    return images, numbers


def _view(batch: Any) -> np.ndarray:
    """Returns a batch as an array over DALI's memory, which is valid until the next batch."""
    return np.asarray(batch.as_tensor())
