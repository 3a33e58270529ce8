"""The PyTorch half of the demo: a stock `DataLoader` over a `ParquetIterable`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import torch
from demo_report import Result
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from parquetry.torch_plugin import ParquetIterable


def train_on_digits(digits: Path, epochs: int, batch_size: int) -> Result:
    """Trains a small convolutional network; returns its accuracy on the test rows."""
    torch.manual_seed(7)
    torch.set_num_threads(1)  # more threads would only wait for each other on a model this small
    rows = ParquetIterable(digits, fields=["image", "label"])
    split = pc.field("split")
    train = DataLoader(rows.where(split == "train").shuffle(1_000, seed=7).batch(batch_size), batch_size=None)
    test = DataLoader(rows.where(split == "test").batch(batch_size), batch_size=None)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    steps, timed_rows, ends = 0, 0, []
    for epoch in tqdm(range(epochs), "torch epochs", unit="epoch", leave=False):
        for batch in train:
            loss = nn.functional.cross_entropy(model(_pixels(batch)), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            timed_rows += len(batch["label"]) if epoch else 0
        ends.append(time.perf_counter())
    return Result(
        "torch, ParquetIterable",
        steps=steps,
        rows_per_s=timed_rows / (ends[-1] - ends[0]),
        accuracy=_accuracy(model, test),
    )


def first_windows(drives: Path, length: int, max_gap_ms: int) -> dict[str, Any]:
    """Returns the first batch of windows: tensors, and lists of strings."""
    rows = ParquetIterable(drives).ngram(length=length, timestamp="time_ms", max_gap=max_gap_ms, group_by="drive")
    windows = rows.shuffle(32, seed=3).batch(8)
    return next(iter(DataLoader(windows, batch_size=None)))


def _pixels(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return batch["image"].permute(0, 3, 1, 2).float() / 255.0


@torch.no_grad()
def _accuracy(model: nn.Module, test: DataLoader[Any]) -> float:
    right = total = 0
    for batch in test:
        right += int((model(_pixels(batch)).argmax(1) == batch["label"]).sum())
        total += len(batch["label"])
    return right / total
