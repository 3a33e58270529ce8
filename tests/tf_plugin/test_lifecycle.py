"""The life of a TensorFlow trainer: what ends leaves nothing, what is held stays valid, short epochs do not add up."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tensorflow as tf
from builders import Built, build
from processes import WITHIN_S, gone

from parquetry.tf_plugin import ParquetDataset

pytestmark = pytest.mark.skipif(
    not hasattr(os, "pidfd_open"), reason="needs pidfd_open to wait for processes of others"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("lifecycle"), [[20, 13], [7, 0, 30], [30]])


def ids(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["id"].numpy().tolist()]


TRAINER = """
import os, signal, sys
import psutil
import tensorflow as tf
from parquetry.tf_plugin import ParquetDataset

if __name__ == "__main__":
    url, how = sys.argv[1:]
    dataset = ParquetDataset(url, ["id", "image", "tags"], workers=2).repeat().batch(4)
    dataset = dataset.map(lambda row: row["id"]).prefetch(2) if how == "Ctrl-C" else dataset
    iterator = iter(dataset)
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


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL", "os._exit", "raise", "Ctrl-C"])
def test_the_end_of_the_trainer_is_the_end_of_all_it_started(built: Built, tmp_path: Path, how: str) -> None:
    script, temporary = tmp_path / "trainer.py", tmp_path / "temporary"
    script.write_text(textwrap.dedent(TRAINER))
    temporary.mkdir()
    trainer = subprocess.Popen(
        [sys.executable, str(script), built.url, how],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert trainer.stdout is not None
    children = [int(pid) for pid in trainer.stdout.readline().split()]
    assert len(children) == 3  # a reader and two workers
    if how in ("SIGTERM", "SIGKILL"):
        (trainer.terminate if how == "SIGTERM" else trainer.kill)()
    try:
        _, errors = trainer.communicate(timeout=30)
    finally:
        trainer.kill()
    assert gone(children, WITHIN_S) == []
    assert ("the training loop failed" in errors) == (how == "raise")
    assert "sidecar" not in errors
    left = {path.name for path in temporary.rglob("*") if "autograph" not in path.name}  # TensorFlow's own, of `map`
    assert left <= {"__pycache__"}  # of the same


def test_elements_that_are_held_stay_valid_and_stall_nothing(built: Built) -> None:
    def batches() -> ParquetDataset:
        return ParquetDataset(built.url, ["id", "vector", "image", "tags"], workers=1).repeat(4).batch(2)

    hoard = list(batches())
    assert len(hoard) == 200  # many more than there are slots
    numbers = ids(hoard)
    assert numbers == [number for _ in range(4) for number in range(100)]
    images = [element["image"].numpy().copy() for element in hoard[:50]]
    for _ in batches():  # others come and go, while all are held
        pass
    gc.collect()
    assert ids(hoard) == numbers
    for element, image in zip(hoard, images, strict=False):
        np.testing.assert_array_equal(element["image"].numpy(), image)
    rows = {row["id"]: row for row in built.plain}
    for element in hoard:
        for number, vector in zip(element["id"].numpy().tolist(), element["vector"].numpy(), strict=True):
            assert vector.tolist() == rows[number]["vector"]


def test_elements_outlive_their_iterator_and_dataset(built: Built) -> None:
    dataset = ParquetDataset(built.url, ["id", "vector"], workers=1).batch(10)
    iterator = iter(dataset)
    held = [next(iterator) for _ in range(3)]
    del iterator, dataset
    gc.collect()
    for _ in ParquetDataset(built.url, ["id", "vector"], workers=1).batch(10):
        pass
    assert ids(held) == list(range(30))


def test_threads_may_iterate_one_dataset_at_the_same_time(built: Built) -> None:
    dataset = ParquetDataset(built.url, ["id"]).batch(7)
    found: dict[int, list[int]] = {}

    def read(number: int) -> None:
        found[number] = ids(dataset)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: list(range(100)) for number in range(4)}


def test_nested_loops_and_breaks_begin_anew(built: Built) -> None:
    dataset = ParquetDataset(built.url, ["id"]).batch(40)
    pairs = [(ids([outer]), ids([inner])) for outer in dataset for inner in dataset]
    batches = [list(range(at, min(at + 40, 100))) for at in range(0, 100, 40)]
    assert pairs == list(itertools.product(batches, batches))
    for _ in range(5):
        for batch in dataset:
            assert ids([batch]) == batches[0]
            break
    assert ids(dataset) == list(range(100))


LOOPS: dict[str, tuple[int, Callable[[str], tf.data.Dataset]]] = {
    "batches": (1000, lambda url: ParquetDataset(url, ["id"]).shuffle(10, seed=5).batch(50)),
    "workers": (60, lambda url: ParquetDataset(url, ["id", "image"], workers=1).batch(25)),
    "mapped": (60, lambda url: ParquetDataset(url, ["id", "tags"]).batch(50).map(lambda row: row).prefetch(1)),
}


@pytest.mark.timeout(180, method="thread")
@pytest.mark.parametrize(("epochs", "make"), LOOPS.values(), ids=LOOPS)
def test_short_epochs_leave_nothing_behind(
    built: Built, epochs: int, make: Callable[[str], tf.data.Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARQUETRY_SIDECAR_IDLE_S", "60")  # nothing ends because it was idle while it is counted
    dataset, process = make(built.url), psutil.Process()
    for _ in range(max(3, epochs // 10)):  # what is made once, and kept
        _epoch(dataset, whole=True)
    before = _counts(process)
    for number in range(epochs):
        _epoch(dataset, whole=number % 3 != 1)
    after = _counts(process)
    assert after["processes"] <= before["processes"]
    assert after["descriptors"] <= before["descriptors"] + 2
    assert after["threads"] <= before["threads"] + 4  # of TensorFlow's pools
    assert after["bytes"] - before["bytes"] < 32 << 20
    assert after["sidecar bytes"] - before["sidecar bytes"] < 32 << 20


def _epoch(dataset: tf.data.Dataset, *, whole: bool) -> None:
    iterator = iter(dataset)
    next(iterator)
    if whole:
        for _ in iterator:
            pass


def _counts(process: psutil.Process) -> dict[str, int]:
    gc.collect()
    children = process.children(recursive=True)
    return {
        "processes": len(children),
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "bytes": process.memory_info().rss,
        "sidecar bytes": sum(child.memory_info().rss for child in children),
    }
