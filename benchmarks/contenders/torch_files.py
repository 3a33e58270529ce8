"""torch's `DataLoader` over files, as in a good tutorial, well tuned."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, SequentialSampler

from ..steps import image_row
from ..touch import rows_of
from ..workloads import SEED, WINDOW, Case

SETTINGS = {
    "": "map-style Dataset, one worker for each processor, an endless sampler, prefetch_factor=4; simplejpeg "
    "(b: OpenCV resize)"
}


class _Files(Dataset[Any]):
    def __init__(self, case: Case) -> None:
        self._key = case.workload.key
        self._paths = sorted(str(path) for path in (case.data / "files").iterdir())
        self._random = np.random.default_rng(SEED)

    def __len__(self) -> int:
        return len(self._paths) - (WINDOW - 1 if self._key == "f" else 0)

    def __getitem__(self, place: int) -> dict[str, Any]:
        if self._key == "f":
            return {"id": place, "image": torch.stack([self._image(place + step) for step in range(WINDOW)])}
        if self._key.startswith("c"):
            return {"id": place, "points": torch.from_numpy(np.load(self._paths[place]))}
        return {"id": place, "image": self._image(place)}

    def _image(self, place: int) -> torch.Tensor:
        with open(self._paths[place], "rb") as file:
            return torch.from_numpy(image_row(self._key, file.read(), self._random))


class Repeated(Sampler[int]):
    """Yields epochs back to back, so no epoch waits for the previous one to end."""

    def __init__(self, case: Case, dataset: Sized) -> None:
        shuffled = case.workload.buffer_rows > 0
        self._sampler = RandomSampler(dataset) if shuffled else SequentialSampler(dataset)
        self._case = case

    def __iter__(self) -> Iterator[int]:
        for _ in self._case.epochs():
            yield from self._sampler


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    torch.manual_seed(SEED)
    dataset = _Files(case)
    loader = DataLoader(
        dataset,
        batch_size=case.workload.batch_size,
        sampler=Repeated(case, dataset),
        num_workers=case.workers,
        prefetch_factor=4,
    )
    return map(rows_of, loader)
