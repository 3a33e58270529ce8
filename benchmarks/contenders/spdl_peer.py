"""SPDL: a threaded pipeline over files, or over Parquet row groups for tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from spdl.pipeline import PipelineBuilder

from ..steps import decode, image_row, parquet_files, permuted, row_groups
from ..touch import rows_of
from ..workloads import CROPPED, IMAGE_SHAPES, LIDAR_SHAPE, NUMBERS, SEED, Case

SETTINGS = {
    "": "PipelineBuilder: source of names, aggregate(batch), one pipe, a thread for each processor, that reads and "
    "decodes a batch, sink of 3; simplejpeg (b: OpenCV resize); d: row groups, rows permuted inside"
}
_TABLES = ("d", "d-wide")


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    builder = PipelineBuilder().add_source(_items(case))
    if case.workload.key in _TABLES:
        builder = builder.pipe(_TableBatches(case), concurrency=case.workers).disaggregate()
    else:
        builder = builder.aggregate(case.workload.batch_size).pipe(_FileBatch(case), concurrency=case.workers)
    pipeline = builder.add_sink(3).build(num_threads=case.workers)
    with pipeline.auto_stop():
        yield from map(rows_of, pipeline.get_iterator())


def _items(case: Case) -> Iterator[Any]:
    if case.workload.key in _TABLES:
        items: Sequence[Any] = row_groups(parquet_files(case.data / "parquet"))
    else:
        items = sorted(str(path) for path in (case.data / "files").iterdir())
    for epoch in case.epochs():
        yield from permuted(items, epoch) if case.workload.buffer_rows else items


class _FileBatch:
    def __init__(self, case: Case) -> None:
        self._key = case.workload.key
        self._shape = IMAGE_SHAPES[case.workload.data]

    def __call__(self, paths: list[str]) -> dict[str, Any]:
        if self._key.startswith("c"):
            points = np.empty((len(paths), *LIDAR_SHAPE), np.float32)
            for row, path in enumerate(paths):
                points[row] = np.load(path, mmap_mode="r")
            return {"points": torch.from_numpy(points)}
        random = np.random.default_rng()
        if self._key in CROPPED:
            return {"image": torch.from_numpy(np.stack([image_row(self._key, _read(path), random) for path in paths]))}
        pixels = np.empty((len(paths), *self._shape), np.uint8)
        for row, path in enumerate(paths):
            decode(_read(path), pixels[row])
        return {"image": torch.from_numpy(pixels)}


class _TableBatches:
    def __init__(self, case: Case) -> None:
        self._size = case.workload.batch_size
        self._numbers = NUMBERS[case.workload.data]
        self._random = np.random.default_rng(SEED)

    def __call__(self, group: tuple[str, int]) -> list[dict[str, Any]]:
        file, number = group
        with pq.ParquetFile(file) as reader:
            table = reader.read_row_group(number, columns=["label", *self._numbers], use_threads=False)
        order = self._random.permutation(len(table))
        columns = {name: torch.from_numpy(table.column(name).to_numpy()[order]) for name in table.column_names}
        return [
            {name: column[begin : begin + self._size] for name, column in columns.items()}
            for begin in range(0, len(table), self._size)
        ]


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
