"""Many short epochs leave no process, descriptor, thread or memory behind."""

from __future__ import annotations

import gc
import importlib.util
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from builders import Built, build
from faces import import_framework
from processes import PATIENCE_S, in_own_process, open_files, unless_ended

MIB = 1 << 20
KEPT = {"parquetry-child", "parquetry-idle", "parquetry-store"}
"""Threads that stay alive: with their sidecar, for later calls, with the thread that reads from a store."""
MOST_SLOTS = 16
"""A sidecar makes as many slots as its pace needs, each a memory file, up to this number."""
CHEAP, COSTLY = ("id", "small", "vector", "label"), ("id", "image", "points", "tags")
SIZES = [[20, 13], [7, 0, 30], [30]]


def threads(built: Built) -> Any:
    return built.pipeline().shuffle(10, seed=1).batch(20)


def sidecar(built: Built) -> Any:
    return built.pipeline(*CHEAP, executor="sidecar").shuffle(10, seed=1).batch(20)


def sidecar_workers(built: Built) -> Any:
    return built.pipeline(*COSTLY, executor="sidecar").shuffle(10, seed=1).batch(20)


def tensorflow(built: Built) -> Any:
    from parquetry.tf_plugin import ParquetDataset

    return ParquetDataset(built.url, ["id"]).shuffle(10, seed=5).batch(50)


def tensorflow_workers(built: Built) -> Any:
    from parquetry.tf_plugin import ParquetDataset

    return ParquetDataset(built.url, ["id", "image"], workers=1).batch(25)


def tensorflow_mapped(built: Built) -> Any:
    from parquetry.tf_plugin import ParquetDataset

    return ParquetDataset(built.url, ["id", "tags"]).batch(50).map(lambda row: row).prefetch(1)


def _pipe(built: Built, **options: Any) -> Any:
    from parquetry.torch_plugin import ParquetPipe

    return ParquetPipe(built.url, ["id", "points"], **options)


def pipe(built: Built) -> Any:
    return _pipe(built, workers=1).shuffle(10, seed=5).batch(16)


def pipe_sidecar(built: Built) -> Any:
    return _pipe(built, executor="sidecar", workers=1).batch(16)


def loader(built: Built) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(_pipe(built).shuffle(10, seed=5).batch(16), batch_size=None)


def loader_workers(built: Built) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(_pipe(built).batch(16), batch_size=None, num_workers=2)


def node(built: Built) -> Any:
    from torchdata.nodes import Loader

    from parquetry.torch_plugin import ParquetNode

    return Loader(ParquetNode(built.url, ["id", "points"]).shuffle(10, seed=5).batch(16))


LOOPS: list[tuple[Callable[[Built], Any], str, int]] = [
    (threads, "numpy", 60),
    (sidecar, "numpy", 60),
    (sidecar_workers, "numpy", 40),
    (tensorflow, "tensorflow", 100),
    (tensorflow_workers, "tensorflow", 40),
    (tensorflow_mapped, "tensorflow", 40),
    (pipe, "torch", 100),
    (pipe_sidecar, "torch", 60),
    (loader, "torch", 60),
    (loader_workers, "torch", 4),
    (node, "torch", 60),
]
OF_EACH_KIND = (threads, sidecar, sidecar_workers, tensorflow, loader, loader_workers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "needs", "epochs"),
    [
        pytest.param(*loop, id=loop[0].__name__, marks=() if loop[0] in OF_EACH_KIND else pytest.mark.nightly)
        for loop in LOOPS
    ],
)
def test_short_epochs_leave_nothing_behind(
    make: Callable[[Built], Any], needs: str, epochs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not importlib.util.find_spec(needs):
        pytest.skip(f"needs {needs}")
    monkeypatch.setenv("PARQUETRY_SIDECAR_IDLE_S", "6000")  # no idle process ends during the count
    before, after = in_own_process(counts_of_epochs, make.__name__, needs, epochs, str(tmp_path))
    assert after["processes"] <= before["processes"]
    assert after["descriptors"] <= before["descriptors"] + 2
    more_slots = max(2, min(MOST_SLOTS, epochs // 3))
    assert after["memory files"] <= before["memory files"] + more_slots
    assert after["threads"] <= before["threads"] + (4 if needs == "tensorflow" else 2)  # in TensorFlow's pools
    assert after["bytes"] - before["bytes"] < 12 * MIB
    assert after["descriptors of processes"] <= before["descriptors of processes"] + 2
    more_files = more_slots * after["processes"]  # the reader and each worker map every slot
    assert after["memory files of processes"] <= before["memory files of processes"] + more_files
    assert after["bytes of processes"] - before["bytes of processes"] < 24 * MIB


def counts_of_epochs(make: str, needs: str, epochs: int, folder: str) -> tuple[dict[str, int], dict[str, int]]:
    """Returns the most of everything in the first epochs, and the least in the last ones."""
    import_framework(needs)
    elements, process = globals()[make](build(Path(folder), SIZES)), psutil.Process()
    warm = max(3, epochs // 2)  # slots and regions are made as they are needed, up to a fixed number
    looks = []
    for number in range(warm + epochs):
        whole = number % 3 != 1 or number in {warm - 1, warm + epochs - 1}
        _epoch(elements, whole=whole)
        # A loader that is not persistent keeps the threads of an epoch that stopped early.
        if whole and (number < warm or number >= warm + epochs - min(6, epochs // 2)):
            looks.append((number, _counts(process)))
    # An epoch may use a few more slots or blocks while it is looked at; they must not accumulate.
    before = {name: max(look[name] for number, look in looks if number < warm) for name in looks[0][1]}
    after = {name: min(look[name] for number, look in looks if number >= warm) for name in before}
    return before, after


def _epoch(elements: Any, *, whole: bool) -> None:
    """Runs a full pass, or one that stops early."""
    iterator = iter(elements)
    next(iterator)
    if whole:
        for _ in iterator:
            pass


def _counts(process: psutil.Process) -> dict[str, int]:
    gc.collect()
    for thread in threading.enumerate():  # threads of a closed iteration end on their own
        if thread.name.startswith("parquetry") and thread.name not in KEPT:
            thread.join(PATIENCE_S)
    children = process.children(recursive=True)
    own, theirs = open_files(), [name for child in children for name in open_files(pid=child.pid)]
    return {
        "processes": len(children),
        # Each thread that was used has one for the time that it waits; how many threads are kept is counted by itself.
        "descriptors": sum(not name.endswith("/schedstat") for name in own) - len(_memory_files(own)),
        "memory files": len(_memory_files(own)),
        "threads": process.num_threads(),
        "bytes": process.memory_info().rss,
        "descriptors of processes": len(theirs) - len(_memory_files(theirs)),
        "memory files of processes": len(_memory_files(theirs)),
        "bytes of processes": sum(unless_ended(_resident_bytes, child, otherwise=0) for child in children),
    }


def _resident_bytes(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _memory_files(names: list[str]) -> list[str]:
    return [name for name in names if "/memfd:parquetry" in name]
