"""LitData: its own optimized chunks, written beforehand, or Parquet through its index."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from litdata import StreamingDataLoader, StreamingDataset, index_parquet_dataset, optimize
from litdata.streaming.item_loader import ParquetLoader, TokensLoader

from ..prepare import peer_folder
from ..steps import image_row, parquet_files
from ..touch import rows_of
from ..workloads import BLOCK_TOKENS, NUMBERS, SEED, Case

SETTINGS = {
    "optimized": "optimize() to chunks of 64 MB, shuffle, one loader worker for each processor, persistent, "
    "prefetch_factor=4; simplejpeg (b: OpenCV resize)",
    "parquet": "index_parquet_dataset, ParquetLoader, shuffle, one loader worker for each processor, persistent, "
    "prefetch_factor=4, workers spawned, as it asks for; simplejpeg",
    "tokens": "optimize() with TokensLoader to chunks of 64 MB of its own format, in the order of the files; "
    "TokensLoader(block_size=2049), shuffle, one loader worker for each processor, prefetch_factor=4",
}


def prepare(folder: Path, target: Path) -> None:
    """Writes the same rows as chunks, and an index of the same files."""
    if folder.name == "documents":
        _prepare_tokens(folder, target)
        return
    if folder.name != "lidar":
        (target / "parquet").mkdir()
        for file in parquet_files(folder / "parquet"):
            shutil.copy(file, target / "parquet")
        index_parquet_dataset(str(target / "parquet"), num_workers=1)
    if folder.name not in ("texts", "wide"):
        rows = len(list((folder / "files").iterdir())) if (folder / "files").exists() else _table_rows(folder)
        make = partial(_row, folder) if folder.name != "table" else _TableRow(folder)
        optimize(make, list(range(rows)), str(target / "optimized"), chunk_bytes="64MB", num_workers=1, verbose=False)


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    folder = peer_folder(case.data, "litdata_peer")
    if case.variant == "tokens":
        yield from _token_batches(case, folder)
        return
    parquet = case.variant == "parquet"
    dataset = _Decoded(
        str(folder / case.variant),
        cache_dir=str(case.scratch / "litdata"),
        item_loader=ParquetLoader() if parquet else None,
        shuffle=case.workload.buffer_rows > 0,
        seed=SEED,
    )
    dataset.key = case.workload.key  # on the object, so spawned workers have it
    loader = StreamingDataLoader(
        dataset,
        batch_size=case.workload.batch_size,
        num_workers=case.workers,
        persistent_workers=True,
        prefetch_factor=4,
        multiprocessing_context="spawn" if parquet else "fork",  # Polars does not survive a fork
        collate_fn=_collate_texts if case.workload.key == "e" else None,
    )
    for _ in case.epochs():
        yield from map(rows_of, loader)


def _prepare_tokens(folder: Path, target: Path) -> None:
    optimize(
        _documents,
        parquet_files(folder / "parquet"),
        str(target / "tokens"),
        chunk_bytes="64MB",
        num_workers=1,
        item_loader=TokensLoader(),
        verbose=False,
    )


def _documents(file: str) -> Iterator[torch.Tensor]:
    for chunk in pq.read_table(file).column("tokens").chunks:
        for document in chunk:
            yield torch.from_numpy(document.values.to_numpy().copy())


def _token_batches(case: Case, folder: Path) -> Iterator[int]:
    dataset = StreamingDataset(
        str(folder / "tokens"), item_loader=TokensLoader(block_size=BLOCK_TOKENS), shuffle=True, seed=SEED
    )
    loader = StreamingDataLoader(
        dataset,
        batch_size=case.workload.batch_size,
        num_workers=case.workers,
        persistent_workers=True,
        prefetch_factor=4,
    )
    for _ in case.epochs():
        yield from (rows_of({"tokens": batch}) for batch in loader)


class _Decoded(StreamingDataset):
    key = ""
    _random = np.random.default_rng(SEED)

    def __getitem__(self, place: object) -> Any:
        row = super().__getitem__(place)
        if "image" not in row:
            return row
        pixels = torch.from_numpy(image_row(self.key, row["image"], self._random))
        return {"id": row["id"], "image": pixels}


def _row(folder: Path, number: int) -> dict[str, Any]:
    if folder.name == "lidar":
        return {"id": number, "points": np.load(folder / "files" / f"{number:08d}.npy")}
    return {"id": number, "image": (folder / "files" / f"{number:08d}.jpg").read_bytes()}


class _TableRow:
    def __init__(self, folder: Path) -> None:
        table = pq.read_table(parquet_files(folder / "parquet"))
        self._labels = table.column("label").to_pylist()
        self._matrix = np.stack([table.column(name).to_numpy() for name in NUMBERS[folder.name]], axis=1)

    def __call__(self, number: int) -> dict[str, Any]:
        return {"label": self._labels[number], "x": self._matrix[number]}


def _table_rows(folder: Path) -> int:
    return sum(pq.read_metadata(file).num_rows for file in parquet_files(folder / "parquet"))


def _collate_texts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": torch.tensor([row["id"] for row in rows]),
        "title": [row["title"] for row in rows],
        **{
            name: torch.nested.nested_tensor([torch.tensor(row[name]) for row in rows], layout=torch.jagged)
            for name in ("tokens", "scores")
        },
    }
