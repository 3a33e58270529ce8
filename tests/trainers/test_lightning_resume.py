"""A Lightning run that stops in mid epoch continues from its checkpoint, also on another number of ranks."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torchdata.stateful_dataloader import StatefulDataLoader
from two_ranks import in_two_ranks

from parquetry.torch_plugin import ParquetIterable, ParquetPipe

FACES = {"iterable": ParquetIterable, "pipe": ParquetPipe}
CASES = [(face, workers) for face in FACES for workers in (0, 2)]
STOP, EPOCHS = 3, 2
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Recorder(lightning.LightningModule):
    """A small model that remembers the rows of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.seen: list[tuple[int, list[int]]] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.append((self.current_epoch, batch["id"].tolist()))
        return self.linear(batch["x"]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def fitted(
    url: str, case: tuple[str, int], folder: str, *, ranks: int = 1, stop: int = -1, begin: str | None = None
) -> list[tuple[int, list[int]]]:
    """Returns the epoch and the rows of each step, and checkpoints after every step."""
    face, workers = case
    dataset = FACES[face](url, ["id", "x"]).shuffle(20, seed=5).batch(5)
    model = Recorder()
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        max_steps=stop,
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        callbacks=[ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, StatefulDataLoader(dataset, batch_size=None, num_workers=workers), ckpt_path=begin)
    return model.seen


def checkpoint(folder: str, step: int) -> str:
    return str(Path(folder, f"step={step}.ckpt"))


def measure(url: str, folder: str) -> dict[Any, Any]:
    """Returns what one of two ranks trains on, before and after the stop."""
    found: dict[Any, Any] = {}
    for case in CASES:
        own = f"{folder}/{case[0]}-{case[1]}"
        found[case, "stopped"] = fitted(url, case, own, ranks=2, stop=STOP)
        found[case, "resumed"] = fitted(url, case, f"{own}-b", ranks=2, begin=checkpoint(own, STOP))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def ranks(url: str, folder: str) -> list[dict[Any, Any]]:
    return in_two_ranks(measure, url, folder)


def rows_of(steps: list[tuple[int, list[int]]], epoch: int) -> list[int]:
    return [row for found, rows in steps if found == epoch for row in rows]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_ranks_continue_with_the_next_row(ranks: list[Any], case: tuple[str, int]) -> None:
    for epoch in range(EPOCHS):
        parts = [[*rank[case, "stopped"], *rank[case, "resumed"]] for rank in ranks]
        assert Counter(rows_of([*parts[0], *parts[1]], epoch)) == Counter(range(60))
    assert len({len(rank[case, "resumed"]) for rank in ranks}) == 1


@pytest.mark.parametrize("face", FACES)
def test_one_process_continues_the_epoch_of_two(ranks: list[Any], url: str, folder: str, face: str) -> None:
    case = (face, 0)
    alone = fitted(url, case, f"{folder}/{face}-alone", begin=checkpoint(f"{folder}/{face}-0", STOP))
    taken = [row for rank in ranks for row in rows_of(rank[case, "stopped"], 0)]
    assert Counter([*taken, *rows_of(alone, 0)]) == Counter(range(60))
    assert Counter(rows_of(alone, 1)) == Counter(range(60))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_process_continues_its_own_epoch(url: str, tmp_path: Path, case: tuple[str, int]) -> None:
    whole = fitted(url, case, str(tmp_path / "whole"))
    stopped = fitted(url, case, str(tmp_path / "stopped"), stop=STOP)
    resumed = fitted(url, case, str(tmp_path / "resumed"), begin=checkpoint(str(tmp_path / "stopped"), STOP))
    assert [*stopped, *resumed] == whole
