"""LeRobot's own dataset class on the same files, in a torch `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from torch.utils.data import DataLoader, RandomSampler, Sampler

from ..touch import rows_of
from ..workloads import SEED, Case, robot_times

SETTINGS = {
    "": "LeRobotDataset with its default video backend (torchcodec if FFmpeg is there, else PyAV), one loader worker "
    "for each processor, prefetch_factor=4, an endless sampler"
}


class _Repeated(Sampler[int]):
    """Yields epochs back to back, so no epoch waits for the previous one to end."""

    def __init__(self, case: Case, dataset: LeRobotDataset) -> None:
        self._sampler = RandomSampler(dataset)
        self._case = case

    def __iter__(self) -> Iterator[int]:
        for _ in self._case.epochs():
            yield from self._sampler


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    torch.manual_seed(SEED)
    dataset = LeRobotDataset("benchmarks/robot", case.data / "lerobot", delta_timestamps=robot_times(case.workload))
    loader = DataLoader(
        dataset,
        batch_size=case.workload.batch_size,
        sampler=_Repeated(case, dataset),
        num_workers=case.workers,
        prefetch_factor=4,
    )
    return map(rows_of, loader)
