"""The share of time that training waits: everything outside the step, beside peers that may not be installed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from benchmarks import touch, training_waits
from benchmarks.catalog import CONTENDERS
from benchmarks.children import ContenderError
from benchmarks.training_steps import TimedStep, start_training
from benchmarks.training_waits import Trained, framework_of
from benchmarks.workloads import NUMBERS, WORKLOADS, Case


@pytest.fixture(autouse=True)
def touching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests train in this process, which touches batches again afterwards."""
    monkeypatch.setattr(touch, "_TRAINING", [])


class FakeChild:
    """A contender waits 1 s out of 10 s in the first round, and 3 s in the second."""

    turns: ClassVar[list[str]] = []

    def __init__(self, contender: Any, case: Case, **_: Any) -> None:
        if contender.name == "litdata":
            raise ContenderError("not installed", missing=True)
        self._step_s = 7.0 if contender.name in self.turns else 9.0
        self.turns.append(contender.name)

    def __enter__(self) -> FakeChild:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def measure(self, warm_s: float, span_s: float) -> dict[str, float]:
        assert (warm_s, span_s) == (5.0, 10.0)
        counts = {"rows": 100, "batches": 10, "memory_bytes": 300 << 20}
        return {**counts, "elapsed_s": 10.0, "step_s": self._step_s, "cpu_s": 2.0}


def test_what_is_not_the_step_is_waiting_and_missing_peers_are_blank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training_waits, "Child", FakeChild)
    monkeypatch.setattr(training_waits, "prepare", lambda plan, log: None)
    options = ["--workloads", "d-pack", "--contenders", "iterable,tf-eager,litdata,spdl", "--rounds", "2"]
    training_waits.main([*options, "--results", str(tmp_path)])
    rows = [line.strip("|").split("|") for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert [[cell.strip() for cell in row] for row in rows] == [  # SPDL has no such workload
        ["`d-pack` ParquetIterable", "torch", "10", "800.0", "20,000.0", "300", "20.0%", "10.0% to 30.0%"],
        ["`d-pack` ParquetDataset, eager", "tensorflow", "10", "800.0", "20,000.0", "300", "20.0%", "10.0% to 30.0%"],
        ["`d-pack` LitData, optimized", "torch", "", "", "", "", "", ""],
    ]
    assert FakeChild.turns == ["iterable", "tf-eager"] * 2
    assert (tmp_path / "training-waits.json").exists()
    assert training_waits.table([Trained(key="b", contender="x", framework="torch", problem="y")])


def test_the_time_of_a_step_is_counted_with_its_own_work_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [5.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def values(batch: Any) -> tuple[Any, Any]:
        now[0] += 0.5
        return batch["x"], batch["y"]

    def train(x: Any, y: Any) -> None:
        now[0] += 2.0

    step = TimedStep(train, values)
    touch.train_instead(step)
    assert touch.rows_of({"x": np.zeros((3, 2)), "y": np.zeros(3)}) == 3
    now[0] += 10.0
    assert touch.rows_of({"x": np.zeros((4, 2)), "y": np.zeros(4)}) == 4
    assert step.seconds == 5.0


def test_contenders_train_in_their_own_framework() -> None:
    frameworks = {name: framework_of(CONTENDERS[name]) for name in training_waits.NAMES.split(",")}
    assert {name for name, framework in frameworks.items() if framework == "tensorflow"} == {
        "tf-eager",
        "tfrecord",
        "petastorm-tf",
    }


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize("key", ["b", "d", "d-pack"])
def test_both_frameworks_train_on_every_form_of_a_batch(framework: str, key: str) -> None:
    pytest.importorskip(framework)
    case = Case(workload=WORKLOADS[key], variant="", data=Path(), scratch=Path(), rows=1, workers=1, trains=framework)
    numbers = np.arange(4)
    columns = {name: np.ones(4, np.float32) for name in NUMBERS["table"]}
    batch: dict[str, Any] = {
        "b": {"id": numbers, "image": np.ones((4, 32, 32, 3), np.float32)},
        "d": {"label": numbers, **columns},
        "d-pack": {"label": numbers, "x": np.ones((4, len(columns)), np.float32)},
    }[key]
    start_training(case)
    assert touch.rows_of(batch) == 4
    step = touch.training_step()
    assert isinstance(step, TimedStep)
    assert step.seconds > 0
