"""The life of a PyTorch trainer: what ends leaves no process behind, and what is held stays valid."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import WITHIN_S, gone
from torch.utils.data import DataLoader

from parquetry.torch_plugin import ParquetNode, ParquetPipe

ROWS = 60

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="needs pidfd_open to wait for processes of others"
)

TRAINER = """
import os, signal, sys
import psutil
from torch.utils.data import DataLoader
from parquetry.torch_plugin import ParquetPipe

if __name__ == "__main__":
    url, start, how = sys.argv[1:]
    if start == "sidecar":
        loader = ParquetPipe(url, ["id", "image"], executor="sidecar", workers=2).repeat().batch(4)
    else:
        pipe = ParquetPipe(url, ["id", "image"]).repeat().batch(4)
        loader = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context=start)
    iterator = iter(loader)
    next(iterator)
    print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
    if how == "raise":
        raise KeyError("the training loop failed")
    if how == "os._exit":
        os._exit(0)
    if how == "Ctrl-C":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
        os.kill(os.getpid(), signal.SIGINT)
    while True:
        next(iterator)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("start", "how"),
    [
        ("sidecar", "SIGTERM"),
        ("sidecar", "Ctrl-C"),
        ("sidecar", "os._exit"),
        ("sidecar", "raise"),
        ("fork", "SIGTERM"),
        ("fork", "Ctrl-C"),
        ("spawn", "os._exit"),
        ("forkserver", "raise"),
    ],
)
def test_the_end_of_the_trainer_is_the_end_of_all_it_started(url: str, tmp_path: Path, start: str, how: str) -> None:
    script, temporary = tmp_path / "trainer.py", tmp_path / "temporary"
    script.write_text(textwrap.dedent(TRAINER))
    temporary.mkdir()
    trainer = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), url, start, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert trainer.stdout is not None
    children = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(children) >= (3 if start == "sidecar" else 2)
    if how == "SIGTERM":
        trainer.terminate()
    try:
        _, errors = trainer.communicate(timeout=60)
    finally:
        trainer.kill()
    assert gone(children, 2 * WITHIN_S) == []  # torch's workers look every 5 s whether their parent lives
    assert ("the training loop failed" in errors) == (how == "raise")
    assert "sidecar" not in errors
    assert [path.name for path in temporary.rglob("*") if "parquetry" in path.name] == []


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_batches_that_are_held_stay_valid_and_stall_nothing(url: str, executor: str) -> None:
    def batches() -> ParquetPipe:
        return ParquetPipe(url, ["id", "x", "image"], executor=executor, workers=1).repeat(10).batch(2)

    hoard = list(batches())
    assert len(hoard) == 10 * ROWS // 2
    for _ in batches():  # others come and go, while all are held
        pass
    numbers = torch.cat([batch["id"] for batch in hoard])
    assert numbers.tolist() == list(range(ROWS)) * 10
    images = torch.cat([batch["image"] for batch in hoard])
    assert torch.equal(images, numbers.to(torch.uint8).reshape(-1, 1, 1, 1).expand(images.shape))
    vectors = torch.cat([batch["x"] for batch in hoard])
    assert torch.equal(vectors, numbers.reshape(-1, 1) * torch.arange(3, dtype=torch.float32))


@pytest.mark.parametrize("face", [ParquetPipe, ParquetNode])
def test_nested_loops_breaks_and_dropped_iterators_begin_anew(url: str, face: Any) -> None:
    steps = [list(range(at, min(at + 25, ROWS))) for at in range(0, ROWS, 25)]

    def make() -> Any:
        return face(url, ["id"]).batch(25)

    one, other = make(), make()
    pairs = [(outer["id"].tolist(), inner["id"].tolist()) for outer in _once(one) for inner in _once(other)]
    assert pairs == list(itertools.product(steps, steps))
    for _ in range(5):
        for batch in _once(one):
            assert batch["id"].tolist() == steps[0]
            break
    assert [batch["id"].tolist() for batch in _once(one)] == steps


def _once(elements: Any) -> Any:
    if isinstance(elements, ParquetNode):
        elements.reset()
    return iter(elements)


def test_a_pipe_takes_two_iterators_at_once(url: str) -> None:
    pipe = ParquetPipe(url, ["id"]).batch(25)
    assert [(a["id"].tolist(), b["id"].tolist()) for a, b in zip(iter(pipe), iter(pipe), strict=True)] == [
        (batch["id"].tolist(), batch["id"].tolist()) for batch in pipe
    ]


def test_threads_may_iterate_pipes_at_the_same_time(url: str) -> None:
    found: dict[int, list[int]] = {}
    pipe = ParquetPipe(url, ["id"]).batch(7)

    def read(number: int) -> None:
        found[number] = [value for batch in pipe for value in batch["id"].tolist()]

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: list(range(ROWS)) for number in range(4)}


def test_a_loader_that_failed_begins_cleanly_again(url: str) -> None:
    pipe = ParquetPipe(url, ["id"]).batch(10)
    loader = DataLoader(pipe, batch_size=None, num_workers=1)

    def train(limit: int) -> list[int]:
        seen = []
        for batch in loader:
            seen += batch["id"].tolist()
            if len(seen) > limit:
                raise KeyError("the training loop failed")
        return seen

    with pytest.raises(KeyError, match="the training loop failed"):
        train(25)
    assert train(ROWS) == list(range(ROWS))
