"""A dying loader worker: torch's own error, and what is known about the cause."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from parquetry.common.transport import children
from parquetry.torch_plugin import ParquetIterable, as_is, mapped_regions, worker_failures
from parquetry.torch_plugin.mapped_regions import RegionMemory

DEADLY = 7


class Killed:
    """Ends the current process at one row."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] == DEADLY:
            os.kill(os.getpid(), self.number) if self.number > 0 else os._exit(-self.number)
        return row


def loader(url: str, number: int) -> DataLoader[Any]:
    rows = ParquetIterable(url, ["id"], executor="threads").transform(Killed(number))
    return DataLoader(rows, batch_size=None, num_workers=2, collate_fn=as_is)


@pytest.mark.parametrize(("number", "how"), [(signal.SIGKILL, "killed by SIGKILL"), (-3, "exit status 3")])
def test_the_error_says_which_worker_and_how_it_ended(url: str, number: int, how: str) -> None:
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid") as raised:
        list(loader(url, number))
    text = str(raised.value)
    assert f"): {how}." in text
    assert "parquetry: loader worker 1 of 2 (process " in text  # rows are dealt to workers in turn
    assert text.count("memory_limit") == 1


@pytest.mark.slow
def test_one_that_dies_while_the_loop_computes_is_explained_too(url: str) -> None:
    def train() -> None:
        for _ in loader(url, signal.SIGKILL):
            time.sleep(0.2)

    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid(?s:.*)parquetry: loader worker . of 2 .*SIGKILL"):
        train()


def test_one_that_dies_before_its_batch_is_mapped_is_explained_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(named: RegionMemory, detach: object) -> int:
        os.kill(named.worker, signal.SIGKILL)
        raise FileNotFoundError(named.descriptor)

    monkeypatch.setattr(mapped_regions, "_opened", opened)
    rows = ParquetIterable(url, ["id"], executor="threads").batch(2)
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid(?s:.*)parquetry: loader worker 0 of 1 .*SIGKILL"):
        list(DataLoader(rows, batch_size=None, num_workers=1, collate_fn=as_is))


def test_errors_about_other_things_stay_unchanged() -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    worker_failures.explain(error)
    assert str(error) == "CUDA error: an illegal memory access was encountered"


class Stock(Dataset[int]):
    """A dataset unrelated to parquetry."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_workers_of_other_datasets_are_left_to_torch() -> None:
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid") as raised:
        list(DataLoader(Stock(), num_workers=1))
    assert "parquetry" not in str(raised.value)


def test_memory_that_ran_out_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "killed_for_memory", lambda: children._KILLED_BEFORE + 1)
    with pytest.raises(RuntimeError, match=r"killed by SIGKILL \(out of memory: the kernel killed 1 process since"):
        list(loader(url, signal.SIGKILL))
