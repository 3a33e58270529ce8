"""Mosaic Streaming: MDS shards, written beforehand, in a torch `DataLoader`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from ..prepare import peer_folder
from ..steps import image_row, parquet_files
from ..touch import rows_of
from ..workloads import LIDAR_SHAPE, NUMBERS, SEED, Case

SETTINGS = {
    "": "MDS shards of 64 MB, uncompressed, local; py1e shuffle with the buffer as block size; one loader worker for "
    "each processor, persistent, prefetch_factor=4; simplejpeg (b: OpenCV resize)"
}
_COLUMNS = {
    "images": {"id": "int", "image": "bytes"},
    "lidar": {"id": "int", "points": f"ndarray:float32:{LIDAR_SHAPE[0]},{LIDAR_SHAPE[1]}"},
    "table": {"label": "int", "x": f"ndarray:float32:{len(NUMBERS['table'])}"},
    "texts": {"id": "int", "title": "str", "tokens": "ndarray:int64", "scores": "ndarray:float32"},
}


def prepare(folder: Path, target: Path) -> None:
    """Writes the same rows as MDS."""
    with MDSWriter(out=str(target), columns=_COLUMNS[folder.name], size_limit=1 << 26) as writer:
        for row in _rows(folder):
            writer.write(row)


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    clean_stale_shared_memory()
    loader = _loader(case, _dataset(case))
    for _ in case.epochs():
        yield from map(rows_of, loader)


def resume_steps(case: Case) -> Callable[[], Any]:
    """Returns a function that takes a first batch from the state after 90 % of a pass."""
    dataset = _dataset(case)
    state = dataset.state_dict(int(0.9 * case.rows), True)

    def resumed() -> None:
        again = _dataset(case)
        again.load_state_dict(state)
        next(iter(_loader(case, again)))

    return resumed


def _dataset(case: Case) -> StreamingDataset:
    return _Decoded(
        key=case.workload.key,
        local=str(peer_folder(case.data, "mosaic_peer")),
        shuffle=case.workload.buffer_rows > 0,
        shuffle_seed=SEED,
        shuffle_block_size=max(case.workload.buffer_rows, 1),
        num_canonical_nodes=1,
        batch_size=case.workload.batch_size,
    )


def _loader(case: Case, dataset: StreamingDataset) -> Any:
    return DataLoader(
        dataset,
        batch_size=case.workload.batch_size,
        num_workers=case.workers,
        persistent_workers=True,
        prefetch_factor=4,
        collate_fn=_collate_texts if case.workload.key == "e" else None,
    )


class _Decoded(StreamingDataset):
    def __init__(self, *, key: str, **options: object) -> None:
        super().__init__(**options)
        self._key = key
        self._random = np.random.default_rng(SEED)

    def __getitem__(self, place: object) -> Any:
        row = super().__getitem__(place)
        if "image" in row:
            row["image"] = torch.from_numpy(image_row(self._key, row["image"], self._random))
        return row


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    if folder.name == "images":
        for number, path in enumerate(sorted((folder / "files").glob("*.jpg"))):
            yield {"id": number, "image": path.read_bytes()}
    elif folder.name == "lidar":
        for number, path in enumerate(sorted((folder / "files").glob("*.npy"))):
            yield {"id": number, "points": np.load(path)}
    else:
        for file in parquet_files(folder / "parquet"):
            yield from (_table_rows if folder.name == "table" else _text_rows)(file)


def _table_rows(file: str) -> Iterator[dict[str, Any]]:
    table = pq.read_table(file)
    matrix = np.stack([table.column(name).to_numpy() for name in NUMBERS["table"]], axis=1)
    for label, x in zip(table.column("label").to_pylist(), matrix, strict=True):
        yield {"label": label, "x": x}


def _text_rows(file: str) -> Iterator[dict[str, Any]]:
    for row in pq.read_table(file).to_pylist():
        arrays = {"tokens": np.array(row["tokens"], np.int64), "scores": np.array(row["scores"], np.float32)}
        yield {**row, **arrays}


def _collate_texts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": torch.tensor([row["id"] for row in rows]),
        "title": [row["title"] for row in rows],
        **{
            name: torch.nested.nested_tensor([torch.from_numpy(row[name].copy()) for row in rows], layout=torch.jagged)
            for name in ("tokens", "scores")
        },
    }
