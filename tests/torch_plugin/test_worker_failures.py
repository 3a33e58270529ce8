"""A dying loader worker: torch's own error, and what is known about the cause."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from parquetry.common.transport import children
from parquetry.torch_plugin import ParquetIterable, as_is
from parquetry.torch_plugin.loader_workers import mapped_regions, worker_failures
from parquetry.torch_plugin.loader_workers.mapped_regions import RegionMemory

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


class Loader:
    """What is known of a loader's iterator, one of whose workers has ended with status 1."""

    def __init__(self, start_method: str, received: int) -> None:
        self._workers = [SimpleNamespace(pid=4242, exitcode=1, _start_method=start_method)]
        self._rcvd_idx = received


@pytest.mark.parametrize(
    ("start_method", "received", "starts"),
    [("spawn", 0, True), ("forkserver", 0, True), ("spawn", 1, False), ("fork", 0, False)],
)
def test_a_worker_that_cannot_import_the_program_is_told_from_one_that_dies(
    start_method: str, received: int, starts: bool
) -> None:
    iterator = Loader(start_method, received)
    worker_failures.follow(iterator)
    error = RuntimeError("DataLoader worker (pid(s) 4242) exited unexpectedly")
    worker_failures.explain(error)
    assert ('put what the program does under `if __name__ == "__main__":`' in str(error)) is starts
    assert ("If memory ran out" in str(error)) is not starts


@pytest.mark.slow
@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_program_without_a_main_guard_says_so(url: str, tmp_path: Path, start_method: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from torch.utils.data import DataLoader\n"
        "from parquetry.torch_plugin import ParquetIterable\n"
        f"dataset = ParquetIterable({url!r}, ['id']).batch(4)\n"
        f"list(DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context={start_method!r}))\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("It ended while it started: its own traceback is above.")


def test_workers_of_other_datasets_are_left_to_torch() -> None:
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid") as raised:
        list(DataLoader(Stock(), num_workers=1))
    assert "parquetry" not in str(raised.value)


def test_memory_that_ran_out_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "killed_for_memory", lambda: children._KILLED_BEFORE + 1)
    with pytest.raises(RuntimeError, match=r"killed by SIGKILL \(out of memory: the kernel killed 1 process since"):
        list(loader(url, signal.SIGKILL))
