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
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from two_ranks import in_two_ranks

from parquetry.torch_plugin import ParquetIterable, ParquetPipe

FACES = {"iterable": ParquetIterable, "pipe": ParquetPipe}
CASES = [("iterable", 0, "loader"), ("iterable", 2, "module"), ("pipe", 0, "module"), ("pipe", 2, "loader")]
STOP, STOP_ALONE, EPOCHS = 3, 4, 2  # the ranks of a group take half as many steps in an epoch as a process alone
Case = tuple[str, int, str]
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Recorder(lightning.LightningModule):
    """A small model that remembers the rows of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.seen: list[tuple[int, list[int]]] = []
        self.validated: list[int] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.append((self.current_epoch, batch["id"].tolist()))
        return self.linear(batch["x"]).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.append(self.current_epoch)


class Rows(lightning.LightningDataModule):
    """Makes its loaders itself, as most projects do."""

    def __init__(self, url: str, face: str, workers: int) -> None:
        super().__init__()
        self.rows = url, face, workers

    def train_dataloader(self) -> Any:
        url, face, workers = self.rows
        dataset = FACES[face](url, ["id", "x"]).shuffle(20, seed=5).batch(5)
        return StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    def val_dataloader(self) -> Any:
        return DataLoader(ParquetIterable(self.rows[0], ["id"]).batch(30), batch_size=None)


def fitted(
    url: str, case: Case, folder: str, *, ranks: int = 1, stop: int = -1, begin: str | None = None
) -> list[tuple[int, list[int]]]:
    """Returns the epoch and the rows of each step, and checkpoints after every step."""
    face, workers, given = case
    model, rows = Recorder(), Rows(url, face, workers)
    trainer = lightning.Trainer(
        max_epochs=EPOCHS,
        max_steps=stop,
        accelerator="cpu",
        devices=ranks,
        strategy="ddp" if ranks > 1 else "auto",
        callbacks=[ModelCheckpoint(folder, filename="{step}", every_n_train_steps=1, save_top_k=-1)],
        num_sanity_val_steps=0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    if given == "module":
        trainer.fit(model, datamodule=rows, ckpt_path=begin)
    else:
        trainer.fit(model, rows.train_dataloader(), rows.val_dataloader(), ckpt_path=begin)
    if stop < 0:
        assert sorted({*model.validated}) == [*range(EPOCHS)]  # at the end of every epoch, of a resumed one too
    return model.seen


def checkpoint(folder: str, step: int) -> str:
    return str(Path(folder, f"step={step}.ckpt"))


def measure(url: str, folder: str) -> dict[Any, Any]:
    """Returns what one of two ranks trains on: before and after a stop, and in the rest of an epoch begun alone."""
    found: dict[Any, Any] = {}
    for case in CASES:
        own = folder_of(folder, case)
        found[case, "stopped"] = fitted(url, case, f"{own}/two", ranks=2, stop=STOP)
        found[case, "resumed"] = fitted(url, case, f"{own}/again", ranks=2, begin=checkpoint(f"{own}/two", STOP))
        begun = checkpoint(f"{own}/one", STOP_ALONE)
        found[case, "joined"] = fitted(url, case, f"{own}/joined", ranks=2, begin=begun)
    return found


def folder_of(folder: str, case: Case) -> str:
    return f"{folder}/{'-'.join(map(str, case))}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def alone(url: str, folder: str) -> dict[Case, list[tuple[int, list[int]]]]:
    """Returns what one process trains on until it stops."""
    return {case: fitted(url, case, f"{folder_of(folder, case)}/one", stop=STOP_ALONE) for case in CASES}


@pytest.fixture(scope="module")
def ranks(url: str, folder: str, alone: Any) -> list[dict[Any, Any]]:
    return in_two_ranks(measure, url, folder)


def rows_of(steps: list[tuple[int, list[int]]], epoch: int) -> list[int]:
    return [row for found, rows in steps if found == epoch for row in rows]


def each_row_once(*parts: list[tuple[int, list[int]]]) -> bool:
    rows = [Counter(row for part in parts for row in rows_of(part, epoch)) for epoch in range(EPOCHS)]
    return rows == [Counter(range(60))] * EPOCHS


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_ranks_continue_with_the_next_row(ranks: list[Any], case: Case) -> None:
    assert each_row_once(*(rank[case, part] for rank in ranks for part in ("stopped", "resumed")))
    assert len({len(rank[case, "resumed"]) for rank in ranks}) == 1


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_ranks_continue_the_epoch_of_one_process(alone: Any, ranks: list[Any], case: Case) -> None:
    joined = [rank[case, "joined"] for rank in ranks]
    assert each_row_once(alone[case], *joined)
    assert [len(steps) for steps in joined] == [4 + 6, 4 + 6]  # the rest of one epoch, and another one


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_process_continues_the_epoch_of_two(ranks: list[Any], url: str, folder: str, case: Case) -> None:
    own = folder_of(folder, case)
    rest = fitted(url, case, f"{own}/rest", begin=checkpoint(f"{own}/two", STOP))
    assert each_row_once(rest, *(rank[case, "stopped"] for rank in ranks))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_process_continues_its_own_epoch(alone: Any, url: str, folder: str, case: Case) -> None:
    own = folder_of(folder, case)
    whole = fitted(url, case, f"{own}/whole")
    assert [*alone[case], *fitted(url, case, f"{own}/last", begin=checkpoint(f"{own}/one", STOP_ALONE))] == whole
