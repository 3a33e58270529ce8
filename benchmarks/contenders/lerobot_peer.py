"""LeRobot's own dataset class on the same files, in a torch `DataLoader`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from torch.utils.data import DataLoader

from ..touch import rows_of
from ..workloads import SEED, Case, robot_times
from .torch_files import Repeated

SETTINGS = {
    "": "LeRobotDataset with its default video backend (torchcodec if FFmpeg is there, else PyAV), one loader worker "
    "for each processor, prefetch_factor=4, an endless sampler"
}


def batches(case: Case) -> Iterator[int]:
    """Yields the row count of each batch."""
    torch.manual_seed(SEED)
    dataset = LeRobotDataset("benchmarks/robot", case.data / "lerobot", delta_timestamps=robot_times(case.workload))
    loader = DataLoader(
        dataset,
        batch_size=case.workload.batch_size,
        sampler=Repeated(case, dataset),
        num_workers=case.workers,
        prefetch_factor=4,
    )
    return map(rows_of, loader)
