"""Hugging Face datasets: streaming Parquet in a torch `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from datasets import load_dataset
from torch.utils.data import DataLoader

from ..steps import image_row, parquet_files, points
from ..touch import rows_of
from ..workloads import BLOCK_TOKENS, SEED, Case

SETTINGS = {
    "": "load_dataset('parquet', streaming=True, columns=...; g: filters=...), shuffle(buffer_size), one loader worker "
    "for each processor, prefetch_factor=4, decoding while collating; simplejpeg (b: OpenCV resize); "
    "k: map(group_texts, batched=True)"
}


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    return map(rows_of, _loader(case, _dataset(case).repeat(case.passes)))


def _dataset(case: Case) -> Any:
    key = case.workload.key
    folder = case.data / (f"parquet-{key.partition('-')[2]}" if key.startswith("c") else "parquet")
    options: dict[str, Any] = {"columns": ["id", "image"]} if case.workload.data in ("images", "rare", "large") else {}
    if key == "g":
        options["filters"] = [("event", "==", 1)]
    dataset = load_dataset("parquet", data_files=parquet_files(folder), split="train", streaming=True, **options)
    if case.workload.buffer_rows:
        dataset = dataset.shuffle(seed=SEED, buffer_size=case.workload.buffer_rows)
    return dataset.map(_group_texts, batched=True) if key == "k" else dataset


def _group_texts(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """Concatenates documents and cuts them into blocks, as in Hugging Face's language-model examples."""
    joined = list(chain.from_iterable(rows["tokens"]))
    whole = len(joined) // BLOCK_TOKENS * BLOCK_TOKENS
    return {"tokens": [joined[at : at + BLOCK_TOKENS] for at in range(0, whole, BLOCK_TOKENS)]}


def _loader(case: Case, dataset: Any) -> Any:
    return DataLoader(
        dataset,
        batch_size=case.workload.batch_size,
        collate_fn=_Collate(case.workload.key),
        num_workers=min(case.workers, dataset.num_shards),
        prefetch_factor=4,
    )


class _Collate:
    def __init__(self, key: str) -> None:
        self._key = key
        self._random = np.random.default_rng(SEED)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {name: self._column(name, [row[name] for row in rows]) for name in rows[0]}

    def _column(self, name: str, values: list[Any]) -> Any:
        if name == "image":
            return torch.from_numpy(np.stack([image_row(self._key, value, self._random) for value in values]))
        if name == "points":
            return torch.from_numpy(np.stack([self._points(value) for value in values]))
        if name == "title":
            return values
        if self._key == "k":
            return torch.tensor(values, dtype=torch.int32)
        if isinstance(values[0], list):
            dtype = torch.int64 if name == "tokens" else torch.float32
            return torch.nested.nested_tensor([torch.tensor(one, dtype=dtype) for one in values], layout=torch.jagged)
        return torch.tensor(values)

    def _points(self, value: bytes) -> np.ndarray:
        return points(value) if self._key == "c-ndarray" else np.frombuffer(value, np.float32).reshape(-1, 4)
