"""Lightning's ranks take each row once per epoch, and each epoch has its own order, even with new loaders."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import lightning
import pytest
import torch
from torch.utils.data import DataLoader
from two_ranks import in_two_ranks

from parquetry.torch_plugin import ParquetIterable, ParquetMap, ParquetPipe

FACES = {"iterable": ParquetIterable, "pipe": ParquetPipe}
EPOCHS = 3
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Recorder(lightning.LightningModule):
    """A small model that remembers the rows of each epoch and makes its own loaders."""

    def __init__(self, url: str, face: str, workers: int, sizes: tuple[int, ...] = (60,)) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.seen: dict[int, list[int]] = {}
        self.loaders = url, face, workers, sizes

    def train_dataloader(self) -> Any:
        url, face, workers, sizes = self.loaders
        if face == "map":  # Lightning adds its own sampler
            return DataLoader(ParquetMap(url, ["id", "x"]), batch_size=5, num_workers=workers, shuffle=True)
        datasets = [FACES[face](url, ["id", "x"]).take(size).shuffle(20, seed=5).batch(5) for size in sizes]
        loaders = [DataLoader(dataset, batch_size=None, num_workers=workers) for dataset in datasets]
        return loaders[0] if len(loaders) == 1 else loaders

    def val_dataloader(self) -> Any:
        return DataLoader(ParquetIterable(self.loaders[0], ["x"]).batch(10), batch_size=None)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.linear(batch["x"])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        batch = batch if isinstance(batch, dict) else batch[-1]  # the restarted one
        self.seen.setdefault(self.current_epoch, []).extend(batch["id"].tolist())
        return self.linear(batch["x"]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def fitted(model: Recorder, reload: int, devices: int = 1, epochs: int = EPOCHS) -> list[list[int]]:
    """Returns the rows of each epoch."""
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        reload_dataloaders_every_n_epochs=reload,
        **quiet,
    )
    trainer.fit(model)
    return [model.seen[epoch] for epoch in range(epochs)]


def measure(url: str) -> dict[Any, Any]:
    """Returns what one of two ranks trains on."""
    found: dict[Any, Any] = {
        (face, reload, workers): fitted(Recorder(url, face, workers), reload, devices=2)
        for face in FACES
        for reload in (0, 1)
        for workers in (0, 2)
    }
    return {**found, "map": fitted(Recorder(url, "map", 0), 0, devices=2)}


@pytest.fixture(scope="module")
def ranks(url: str) -> list[dict[Any, Any]]:
    return in_two_ranks(measure, url)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("reload", [0, 1])
@pytest.mark.parametrize("workers", [0, 2])
def test_two_ranks_train_on_each_row_once_in_every_epoch(
    ranks: list[Any], face: str, reload: int, workers: int
) -> None:
    parts = [rank[face, reload, workers] for rank in ranks]
    for epoch in range(EPOCHS):
        assert Counter(parts[0][epoch] + parts[1][epoch]) == Counter(range(60))
    assert len({tuple(epoch) for epoch in parts[0]}) == EPOCHS


def test_two_ranks_take_each_row_by_number_once_in_every_epoch(ranks: list[Any]) -> None:
    parts = [rank["map"] for rank in ranks]
    for epoch in range(EPOCHS):
        assert Counter(parts[0][epoch] + parts[1][epoch]) == Counter(range(60))
    assert len({tuple(epoch) for epoch in parts[0]}) == EPOCHS


def test_new_loaders_continue_with_the_same_epochs_as_kept_ones(url: str) -> None:
    kept, made = (fitted(Recorder(url, "iterable", 0), reload) for reload in (0, 1))
    assert made == kept
    assert made == [
        [row for batch in dataset for row in batch["id"].tolist()]
        for dataset in [ParquetIterable(url, ["id"]).shuffle(20, seed=5).batch(5)]
        for _ in range(EPOCHS)
    ]


def test_a_loader_that_is_begun_again_in_an_epoch_takes_the_next_order(url: str) -> None:
    epochs = fitted(Recorder(url, "iterable", 0, sizes=(60, 30)), reload=0, epochs=2)
    passes = [epoch[start : start + 30] for epoch in epochs for start in (0, 30)]
    assert all(Counter(rows) == Counter(range(30)) for rows in passes)
    assert len({tuple(rows) for rows in passes}) == 4


def test_a_second_fit_resumes(url: str) -> None:
    model = Recorder(url, "iterable", 0)
    loader = model.train_dataloader()
    model.train_dataloader = lambda: loader  # type: ignore[method-assign]
    first, second = fitted(model, 0, epochs=1), None
    model.seen = {}
    second = fitted(model, 0, epochs=1)
    assert Counter(first[0]) == Counter(second[0])
    assert first != second
