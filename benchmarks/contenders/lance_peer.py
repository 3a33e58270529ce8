"""Lance: its own format, written beforehand, read in batches in random order, or row by row at random."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lance.sampler import ShardedBatchSampler
from lance.torch.data import LanceDataset
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..prepare import peer_folder
from ..steps import parquet_files, permuted
from ..touch import rows_of
from ..workloads import SEED, Case
from .arrow_batches import tensors

SETTINGS = {
    "batches": "LanceDataset with ShardedBatchSampler(randomize=True), which shuffles whole batches, not the rows in "
    "them; a: one loader worker for each processor, spawned, prefetch_factor=4; other workloads: no worker, because "
    "Lance reads ahead in its own threads and tensors would travel between processes; simplejpeg",
    "take": "dataset.take of the rows of each batch, all rows in random order; workers as above",
}


def prepare(folder: Path, target: Path) -> None:
    """Writes the same rows in as many files."""
    files = parquet_files(folder / "parquet")
    columns = ["id", "image"] if folder.name == "images" else None
    table = pa.concat_tables(pq.read_table(file, columns=columns) for file in files).replace_schema_metadata()
    lance.write_dataset(table, str(target / "dataset"), max_rows_per_file=-(-len(table) // len(files)))


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    workers = case.workers if case.workload.data == "images" else 0
    options: dict[str, Any] = {"multiprocessing_context": "spawn", "prefetch_factor": 4} if workers else {}
    return map(rows_of, DataLoader(_Batches(case), batch_size=None, num_workers=workers, **options))


class _Batches(IterableDataset[Any]):
    """Batches of all passes, divided among the loader's workers."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._random = np.random.default_rng(SEED)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        dataset = lance.dataset(str(peer_folder(self._case.data, "lance_peer") / "dataset"))
        make = self._taken if self._case.variant == "take" else self._scanned
        for epoch in self._case.epochs():
            yield from make(dataset, epoch, worker, workers)

    def _scanned(self, dataset: Any, epoch: int, worker: int, workers: int) -> Iterator[dict[str, Any]]:
        sampler = ShardedBatchSampler(worker, workers, randomize=True, seed=SEED)
        sampler.set_epoch(epoch)
        yield from LanceDataset(dataset, self._case.workload.batch_size, sampler=sampler, to_tensor_fn=self._tensors)

    def _taken(self, dataset: Any, epoch: int, worker: int, workers: int) -> Iterator[dict[str, Any]]:
        rows = np.fromiter(permuted(range(dataset.count_rows()), epoch), np.int64)
        size = self._case.workload.batch_size
        for begin in range(worker * size, len(rows), workers * size):
            yield self._tensors(dataset.take(rows[begin : begin + size]))

    def _tensors(self, batch: pa.Table | pa.RecordBatch, **_: object) -> dict[str, Any]:
        return tensors(batch, self._case.workload.key, self._random)
