"""WebDataset: tar files in a torch `DataLoader`."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import webdataset as wds

from ..steps import image_row
from ..touch import rows_of
from ..workloads import SEED, Case

SETTINGS = {
    "": "tars of 64 rows (b-large: 16), shards shuffled, shuffle(buffer), batched in the worker, one worker for each "
    "processor, prefetch_factor=4; simplejpeg (b: OpenCV resize); g: select before decoding; j: cache_dir"
}


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    loader = wds.WebLoader(_dataset(case), batch_size=None, num_workers=case.workers, prefetch_factor=4)
    return map(rows_of, loader)


def _dataset(case: Case) -> Any:
    workload = case.workload
    names = sorted(path.name for path in (case.data / "tars").glob("*.tar"))
    urls = [f"{case.url}/tars/{name}" if workload.key == "j" else str(case.data / "tars" / name) for name in names]
    options: dict[str, Any] = {}
    if workload.key == "j":
        folder = case.scratch / "tars"
        folder.mkdir(exist_ok=True)
        options["cache_dir"] = str(folder)
    dataset = wds.WebDataset(urls, shardshuffle=len(urls) if workload.buffer_rows else False, seed=SEED, **options)
    dataset = dataset.repeat(1 << 30 if case.passes is None else case.passes)
    if workload.key == "g":
        dataset = dataset.select(lambda row: row["event"] == b"1")
    if workload.buffer_rows:
        dataset = dataset.shuffle(workload.buffer_rows // case.workers)
    collate = _Rows(workload.key)
    return dataset.map(collate.row).batched(workload.batch_size, collation_fn=collate)


class _Rows:
    def __init__(self, key: str) -> None:
        self._key = key
        self._random = np.random.default_rng(SEED)

    def row(self, sample: dict[str, Any]) -> dict[str, Any]:
        number = int(sample["__key__"])
        if "npy" in sample:
            return {"id": number, "points": np.load(io.BytesIO(sample["npy"]))}
        return {"id": number, "image": image_row(self._key, sample["jpg"], self._random)}

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        names = [name for name in rows[0] if not name.startswith("__")]  # added by WebDataset
        return {name: torch.from_numpy(np.stack([row[name] for row in rows])) for name in names}
