"""The Hugging Face Trainer sees each row once per epoch, knows the number of steps, and resumes in order."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments
from two_ranks import in_two_ranks

from parquetry.torch_plugin import ParquetIterable, ParquetMap, ParquetPipe

FACES = {"iterable": ParquetIterable, "pipe": ParquetPipe}
BATCH = 5
SPLIT = [("iterable", True, True, 0), ("pipe", True, True, 2), ("iterable", False, True, 0)]
CASES = [  # dispatch_batches, split_batches, loader workers
    *itertools.product(FACES, [None, False], [False], (0, 2)),
    ("iterable", True, False, 0),
    *SPLIT,
]
JOINED = [CASES[0], *SPLIT[:2]]
MAP_WORKERS = (0, 2)  # of loaders over rows by number
STOP = 8  # in the second epoch, of 6 steps with 10 rows each, whatever the number of ranks


class Recorder(torch.nn.Module):
    """A small model that remembers the rows it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        self.seen: list[int] = []

    def forward(self, id: torch.Tensor, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen += id.tolist()
        logits = self.linear(x)[:, 0]
        return {"loss": ((logits - labels) ** 2).mean(), "logits": logits}


def trained(url: str, directory: Path, face: str = "iterable", resume: str | None = None, **options: Any) -> Any:
    """Returns the trainer and its model after two epochs."""
    arguments = {"num_train_epochs": 2, "save_strategy": "no", "report_to": [], "disable_tqdm": True, "use_cpu": True}
    arguments |= {"per_device_train_batch_size": BATCH, "per_device_eval_batch_size": BATCH, "learning_rate": 0.0}
    model, rows = Recorder(), {**FACES, "map": ParquetMap}[face](url, ["id", "x", "labels"])
    trainer = Trainer(
        model=model,
        args=TrainingArguments(output_dir=str(directory), **(arguments | options)),
        train_dataset=rows if face == "map" else rows.shuffle(20, seed=5),  # the Trainer's sampler shuffles by number
        eval_dataset=rows,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, model


def measure(url: str, directory: str) -> dict[Any, Any]:
    """Returns what one of two ranks trains on."""
    found: dict[Any, Any] = {}
    for case in CASES:
        trainer, model = trained(url, Path(directory, "plain"), case[0], **options_of(case))
        predicted = trainer.predict(FACES[case[0]](url, ["id", "x", "labels"]))
        found[case] = {
            "seen": model.seen,
            "steps": (trainer.state.max_steps, trainer.state.global_step),
            "predicted": predicted.label_ids.tolist(),
        }
    target = Path(directory, "saved")
    _, whole = trained(url, target, save_strategy="steps", save_steps=4)
    _, rest = trained(url, target, resume=str(target / f"checkpoint-{STOP}"))
    found["resumed"] = whole.seen, rest.seen
    for workers in MAP_WORKERS:
        found["map", workers] = stopped_and_resumed(url, Path(directory, f"map-{workers}"), workers)
    begun = str(Path(directory, "one", f"checkpoint-{STOP}"))
    for case in JOINED:
        found["joined", case] = trained(url, target, case[0], resume=begun, **options_of(case))[1].seen
    return found


def stopped_and_resumed(url: str, directory: Path, workers: int) -> dict[str, Any]:
    """Returns what a rank trains on by number, in a whole run and in one that continues it in the second epoch."""
    trainer, whole = trained(url, directory, "map", save_strategy="steps", save_steps=4, dataloader_num_workers=workers)
    checkpoint = str(directory / f"checkpoint-{STOP}")
    _, rest = trained(url, directory / "rest", "map", resume=checkpoint, dataloader_num_workers=workers)
    return {"steps": (trainer.state.max_steps, trainer.state.global_step), "seen": whole.seen, "rest": rest.seen}


def options_of(case: tuple[str, bool | None, bool, int]) -> dict[str, Any]:
    """Returns options with which two ranks take 10 rows in a step; batches that are split count for both of them."""
    _, dispatch, split, workers = case
    return {
        "accelerator_config": {"dispatch_batches": dispatch, "split_batches": split},
        "dataloader_num_workers": workers,
        "per_device_train_batch_size": 2 * BATCH if split else BATCH,
        "per_device_eval_batch_size": 2 * BATCH if split else BATCH,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainer")


@pytest.fixture(scope="module")
def alone(url: str, folder: Path) -> list[int]:
    """Returns what one process trains on; it saves checkpoints."""
    options = {"save_strategy": "steps", "save_steps": STOP, "per_device_train_batch_size": 2 * BATCH}
    return trained(url, folder / "one", **options)[1].seen


@pytest.fixture(scope="module")
def ranks(url: str, folder: Path, alone: Any) -> list[dict[Any, Any]]:
    return in_two_ranks(measure, url, str(folder))


def epochs_of(parts: list[dict[str, Any]]) -> list[Counter[int]]:
    """Counts the rows of each epoch on both ranks."""
    return [Counter(row for part in parts for row in part["seen"][start : start + 30]) for start in (0, 30)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_ranks_train_on_each_row_once_an_epoch(ranks: list[Any], case: Any) -> None:
    parts = [rank[case] for rank in ranks]
    assert epochs_of(parts) == [Counter(range(60))] * 2
    assert parts[0]["seen"][:30] != parts[0]["seen"][30:]
    assert [part["steps"] for part in parts] == [(12, 12)] * 2
    for part in parts:
        assert sorted(part["predicted"]) == [float(number) for number in range(60)]


@pytest.mark.parametrize("workers", MAP_WORKERS)
def test_two_ranks_train_on_each_row_by_number_once_an_epoch_and_resume(ranks: list[Any], workers: int) -> None:
    parts = [rank["map", workers] for rank in ranks]
    assert epochs_of(parts) == [Counter(range(60))] * 2
    assert [part["steps"] for part in parts] == [(12, 12)] * 2
    for part in parts:
        assert len(part["rest"]) == 4 * BATCH
        assert part["rest"] == part["seen"][STOP * BATCH :]


def test_two_ranks_resume_in_the_middle_of_an_epoch(ranks: list[Any]) -> None:
    for rank in ranks:
        whole, rest = rank["resumed"]
        assert rest == whole[STOP * BATCH :]


@pytest.mark.parametrize("case", JOINED, ids=str)
def test_two_ranks_continue_the_epoch_of_one_process(ranks: list[Any], alone: list[int], case: Any) -> None:
    parts = [rank["joined", case] for rank in ranks]
    assert [len(seen) for seen in parts] == [4 * BATCH, 4 * BATCH]
    for step in range(4):
        begin = (STOP + step) * 2 * BATCH
        taken = Counter(row for seen in parts for row in seen[step * BATCH : (step + 1) * BATCH])
        assert taken == Counter(alone[begin : begin + 2 * BATCH])
    assert Counter(alone[60 : STOP * 2 * BATCH]) + Counter(parts[0] + parts[1]) == Counter(range(60))


def test_one_process_continues_the_epoch_of_two(ranks: list[Any], url: str, folder: Path) -> None:
    checkpoint = str(folder / "saved" / f"checkpoint-{STOP}")
    _, rest = trained(url, folder / "rest", resume=checkpoint, per_device_train_batch_size=2 * BATCH)
    wholes = [rank["resumed"][0] for rank in ranks]
    assert Counter(row for whole in wholes for row in whole[6 * BATCH :]) == Counter(range(60))  # the second epoch
    assert Counter(rest.seen) == Counter(row for whole in wholes for row in whole[STOP * BATCH :])


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("workers", [0, 2])
def test_one_process_resumes_in_the_middle_of_an_epoch(url: str, tmp_path: Path, face: str, workers: int) -> None:
    options = {"dataloader_num_workers": workers}
    _, whole = trained(url, tmp_path, face, save_strategy="steps", save_steps=15, **options)
    _, rest = trained(url, tmp_path, face, resume=str(tmp_path / "checkpoint-15"), **options)
    assert Counter(whole.seen) == Counter([*range(60), *range(60)])
    assert rest.seen == whole.seen[15 * BATCH :]


def test_batches_of_batches_warn(url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Shapes(Recorder):
        def forward(self, id: torch.Tensor, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            self.seen.append(tuple(id.shape))  # type: ignore[arg-type]
            return {"loss": (self.linear(x)[..., 0] - labels).pow(2).mean()}

    arguments = TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=BATCH,
        max_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    model, rows = Shapes(), ParquetIterable(url, ["id", "x", "labels"])
    Trainer(model=model, args=arguments, train_dataset=rows).train()
    assert model.seen == [(BATCH,)]
    assert "already batched" not in caplog.text
    Trainer(model=model, args=arguments, train_dataset=rows.batch(BATCH)).train()
    assert model.seen == [(BATCH,), (BATCH, BATCH)]
    assert f"batches of {BATCH} from elements that batch() already batched" in caplog.text
