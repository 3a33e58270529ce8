"""Many short epochs leave no process, descriptor, thread, or memory behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from torch.utils.data import DataLoader
from torchdata.nodes import Loader
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry.common.transport.sidecar.client import IDLE
from parquetry.torch_plugin import ParquetNode, ParquetPipe

FIELDS = ["id", "points"]
LOOPS: dict[str, tuple[int, Callable[[str], Any]]] = {
    "pipe": (1000, lambda url: ParquetPipe(url, FIELDS, workers=1).shuffle(10, seed=5).batch(16)),
    "node": (300, lambda url: Loader(ParquetNode(url, FIELDS).shuffle(10, seed=5).batch(16))),
    "loader": (300, lambda url: DataLoader(ParquetPipe(url, FIELDS).shuffle(10, seed=5).batch(16), batch_size=None)),
    "sidecar": (300, lambda url: ParquetPipe(url, FIELDS, executor="sidecar", workers=1).batch(16)),
    "workers": (4, lambda url: StatefulDataLoader(ParquetPipe(url, FIELDS).batch(16), batch_size=None, num_workers=2)),
}


@pytest.mark.parametrize(("epochs", "make"), LOOPS.values(), ids=LOOPS)
def test_short_epochs_leave_nothing_behind(url: str, epochs: int, make: Callable[[str], Any]) -> None:
    IDLE.close()  # sidecars of other tests
    elements, process = make(url), psutil.Process()
    for _ in range(max(2, epochs // 10)):  # what is made once, and kept
        _epoch(elements, whole=True)
    before = _counts(process)
    for number in range(epochs):
        _epoch(elements, whole=number % 3 != 1)  # the last one is whole: a loader keeps one that is not
    after = _counts(process)
    assert after["processes"] <= before["processes"]
    assert after["descriptors"] <= before["descriptors"] + 2
    assert after["threads"] <= before["threads"] + 2
    assert after["bytes"] - before["bytes"] < 24 << 20


def _epoch(elements: Any, *, whole: bool) -> None:
    """A pass over all elements, or one that is broken off."""
    iterator = iter(elements)
    assert next(iterator)["id"].shape == (16,)
    if whole:
        for _ in iterator:
            pass


def _counts(process: psutil.Process) -> dict[str, int]:
    gc.collect()
    for thread in threading.enumerate():  # threads of an iteration that was closed end by themselves
        if thread.name.startswith("parquetry") and thread.name != "parquetry-stderr":  # lives with its sidecar
            thread.join(5)
    return {
        "processes": len(process.children(recursive=True)),
        "descriptors": process.num_fds(),
        "threads": threading.active_count(),
        "bytes": process.memory_info().rss,
    }
