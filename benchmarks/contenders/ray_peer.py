"""Ray Data: Parquet read by its workers, a local shuffle, batches made in the threads of its iterator."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import ray
from ray.data import DataContext, FileShuffleConfig
from ray.data.collate_fn import ArrowBatchCollateFn

from ..steps import parquet_files
from ..touch import rows_of
from ..workloads import SEED, Case
from .arrow_batches import tensors

SETTINGS = {
    "": "read_parquet(shuffle=FileShuffleConfig) of the files, listed 16 times over, because each execution takes a "
    "few seconds to start; iter_torch_batches(local_shuffle_buffer_size=the buffer, prefetch_batches=4), with a "
    "collate_fn for Arrow that decodes in its four threads; ray.init(num_cpus=one for each processor); simplejpeg"
}
_PASSES = 16


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=case.workers, include_dashboard=False, log_to_driver=False, configure_logging=False)
    DataContext.get_current().enable_progress_bars = False
    dataset = ray.data.read_parquet(
        parquet_files(case.data / "parquet") * _PASSES,
        columns=["id", "image"] if case.workload.data == "images" else None,
        shuffle=FileShuffleConfig(seed=SEED),
    )
    for _ in case.epochs():
        loader = dataset.iter_torch_batches(
            batch_size=case.workload.batch_size,
            local_shuffle_buffer_size=case.workload.buffer_rows,
            local_shuffle_seed=SEED,
            prefetch_batches=4,
            collate_fn=_Collate(case.workload.key),
        )
        yield from map(rows_of, loader)


class _Collate(ArrowBatchCollateFn):
    def __init__(self, key: str) -> None:
        self._key = key
        self._random = np.random.default_rng(SEED)

    def __call__(self, batch: pa.Table) -> dict[str, object]:
        return tensors(batch, self._key, self._random)
