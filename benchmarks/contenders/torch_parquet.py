"""A hand-written `IterableDataset` over Parquet: what a careful engineer writes in an afternoon.

Workers split the row groups, shuffle them, keep a shuffle buffer of encoded rows (for tables: permute several row
groups together), and use the same decoder as everyone else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ..steps import as_bytes, image_row, parquet_files, permuted, points, row_groups
from ..touch import rows_of
from ..workloads import NUMBERS, SEED, Case
from .arrow_batches import jagged

SETTINGS = {
    "": "one worker for each processor, prefetch_factor=4; row groups dealt to workers and shuffled; batches made in "
    "the worker; simplejpeg (b: OpenCV resize)"
}


class _Rows(IterableDataset[Any]):
    def __init__(self, case: Case) -> None:
        self._case = case
        key = case.workload.key
        folder = case.data / (f"parquet-{key.partition('-')[2]}" if key.startswith("c") else "parquet")
        self._groups = row_groups(parquet_files(folder))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        key = self._case.workload.key
        if key.startswith("d"):
            return self._table_batches()
        if key == "e":
            return self._text_batches()
        return self._array_batches()

    def _tables(self, columns: list[str], epoch: int) -> Iterator[pa.Table]:
        """Returns this worker's row groups for one epoch."""
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        own = self._groups[worker::workers]
        order = permuted(own, epoch) if self._case.workload.buffer_rows else iter(own)
        for file, number in order:
            with pq.ParquetFile(file) as reader:
                yield reader.read_row_group(number, columns=columns, use_threads=False)

    def _array_batches(self) -> Iterator[dict[str, Any]]:
        size, key = self._case.workload.batch_size, self._case.workload.key
        random = np.random.default_rng(SEED)
        name = "points" if key.startswith("c") else "image"
        for epoch in self._case.epochs():
            waiting: list[Any] = []
            for row in self._shuffled(self._cells(name, epoch), random):
                waiting.append(row)
                if len(waiting) == size:
                    yield self._decoded(waiting, name, random)
                    waiting = []
            if waiting:
                yield self._decoded(waiting, name, random)

    def _decoded(self, rows: list[Any], name: str, random: np.random.Generator) -> dict[str, Any]:
        key = self._case.workload.key
        ids = torch.tensor([number for number, _ in rows])
        if name == "points":
            decode = points if key == "c-ndarray" else _raw_points
            return {"id": ids, name: torch.from_numpy(np.stack([decode(cell) for _, cell in rows]))}
        return {
            "id": ids,
            name: torch.from_numpy(np.stack([image_row(key, as_bytes(cell), random) for _, cell in rows])),
        }

    def _cells(self, name: str, epoch: int) -> Iterator[tuple[int, Any]]:
        filtered = self._case.workload.key == "g"
        columns = ["id", name, *(["event"] if filtered else [])]
        for table in self._tables(columns, epoch):
            if filtered:
                table = table.filter(pc.equal(table.column("event"), 1))
            values = table.column(name)
            if name == "points":
                yield from zip(table.column("id").to_pylist(), (cell.as_buffer() for cell in values), strict=True)
            else:
                yield from zip(table.column("id").to_pylist(), values, strict=True)

    def _shuffled(self, rows: Iterator[Any], random: np.random.Generator) -> Iterator[Any]:
        """A shuffle buffer, divided among the workers."""
        info = get_worker_info()
        size = self._case.workload.buffer_rows // (info.num_workers if info else 1)
        buffer: list[Any] = []
        for row in rows:
            if len(buffer) < size:
                buffer.append(row)
                continue
            if not size:
                yield row
                continue
            place = int(random.integers(size))
            buffer[place], row = row, buffer[place]
            yield row
        yield from (buffer[place] for place in random.permutation(len(buffer)))

    def _shuffled_tables(self, columns: list[str]) -> Iterator[pa.Table]:
        """Joins some row groups and permutes their rows."""
        info = get_worker_info()
        wanted = self._case.workload.buffer_rows // (info.num_workers if info else 1)
        random = np.random.default_rng(SEED)
        for epoch in self._case.epochs():
            waiting: list[pa.Table] = []
            for table in self._tables(columns, epoch):
                waiting.append(table)
                if sum(map(len, waiting)) >= wanted:
                    yield _permuted(waiting, random)
                    waiting = []
            if waiting:
                yield _permuted(waiting, random)

    def _table_batches(self) -> Iterator[dict[str, Any]]:
        size = self._case.workload.batch_size
        packed = self._case.workload.key == "d-pack"
        numbers = NUMBERS[self._case.workload.data]
        for table in self._shuffled_tables(["label", *numbers]):
            columns = {name: table.column(name).to_numpy() for name in table.column_names}
            if packed:
                columns = {"label": columns["label"], "x": np.stack([columns[name] for name in numbers], axis=1)}
            for begin in range(0, len(table), size):
                # From NumPy slices, so only the batch is sent, not the whole storage behind it.
                yield {name: torch.from_numpy(column[begin : begin + size].copy()) for name, column in columns.items()}

    def _text_batches(self) -> Iterator[dict[str, Any]]:
        size = self._case.workload.batch_size
        for table in self._shuffled_tables(["id", "title", "tokens", "scores"]):
            for begin in range(0, len(table), size):
                batch = table.slice(begin, size)
                yield {
                    "id": torch.from_numpy(batch.column("id").to_numpy().copy()),
                    "title": batch.column("title").to_pylist(),
                    **{name: jagged(batch.column(name)) for name in ("tokens", "scores")},
                }


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    loader = DataLoader(_Rows(case), batch_size=None, num_workers=case.workers, prefetch_factor=4)
    return map(rows_of, loader)


def _raw_points(cell: bytes | pa.Buffer) -> np.ndarray:
    return np.frombuffer(cell, np.float32).reshape(-1, 4)


def _permuted(tables: list[pa.Table], random: np.random.Generator) -> pa.Table:
    table = pa.concat_tables(tables).combine_chunks()
    return table.take(random.permutation(len(table)))
