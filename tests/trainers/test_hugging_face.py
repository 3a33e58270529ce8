"""The Hugging Face Trainer sees each row once per epoch, knows the number of steps, and resumes in order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments
from two_ranks import in_two_ranks

from parquetry.torch_plugin import ParquetIterable, ParquetPipe

FACES = {"iterable": ParquetIterable, "pipe": ParquetPipe}
BATCH = 5


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
    model = Recorder()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(output_dir=str(directory), **(arguments | options)),
        train_dataset=FACES[face](url, ["id", "x", "labels"]).shuffle(20, seed=5),
        eval_dataset=FACES[face](url, ["id", "x", "labels"]),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, model


def measure(url: str, directory: str) -> dict[Any, Any]:
    """Returns what one of two ranks trains on."""
    found: dict[Any, Any] = {}
    for face in FACES:
        for dispatch in (None, False):
            for workers in (0, 2):
                config = {"dispatch_batches": dispatch}
                options: dict[str, Any] = {"accelerator_config": config, "dataloader_num_workers": workers}
                trainer, model = trained(url, Path(directory, "plain"), face, **options)
                predicted = trainer.predict(FACES[face](url, ["id", "x", "labels"]))
                found[face, dispatch, workers] = {
                    "seen": model.seen,
                    "steps": (trainer.state.max_steps, trainer.state.global_step),
                    "predicted": predicted.label_ids.tolist(),
                }
    target = Path(directory, "saved")
    _, whole = trained(url, target, save_strategy="steps", save_steps=4)
    _, rest = trained(url, target, resume=str(target / "checkpoint-8"))
    found["resumed"] = whole.seen, rest.seen
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trainer")


@pytest.fixture(scope="module")
def ranks(url: str, folder: Path) -> list[dict[Any, Any]]:
    return in_two_ranks(measure, url, str(folder))


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("dispatch", [None, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_two_ranks_train_on_each_row_once_an_epoch(ranks: list[Any], face: str, dispatch: Any, workers: int) -> None:
    parts = [rank[face, dispatch, workers] for rank in ranks]
    epochs = [Counter(parts[0]["seen"][start : start + 30] + parts[1]["seen"][start : start + 30]) for start in (0, 30)]
    assert epochs == [Counter(range(60))] * 2
    assert parts[0]["seen"][:30] != parts[0]["seen"][30:]
    assert [part["steps"] for part in parts] == [(12, 12)] * 2
    for part in parts:
        assert sorted(part["predicted"]) == [float(number) for number in range(60)]


def test_two_ranks_resume_in_the_middle_of_an_epoch(ranks: list[Any]) -> None:
    for rank in ranks:
        whole, rest = rank["resumed"]
        assert rest == whole[8 * BATCH :]


def test_one_process_continues_the_epoch_of_two(ranks: list[Any], url: str, folder: Path) -> None:
    checkpoint = str(folder / "saved" / "checkpoint-8")
    _, rest = trained(url, folder / "alone", resume=checkpoint, per_device_train_batch_size=2 * BATCH)
    wholes = [rank["resumed"][0] for rank in ranks]
    assert Counter(row for whole in wholes for row in whole[6 * BATCH :]) == Counter(range(60))  # the second epoch
    assert Counter(rest.seen) == Counter(row for whole in wholes for row in whole[8 * BATCH :])


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
