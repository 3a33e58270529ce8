"""The epoch counter in a training process and its loader workers."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from processes import exit_status_of_fork

from parquetry.common.base.errors import PipelineError
from parquetry.torch_plugin import ParquetIterable, ParquetMap, ParquetNode, ParquetPipe, epochs
from parquetry.torch_plugin.epochs import AnnouncedPass, EpochCounter, EpochMemory
from parquetry.torch_plugin.loader_passes import Pass


def here() -> Pass:
    return Pass(loader=1, workers=0, seed=None)


def with_workers(loader: int = 1) -> Pass:
    return Pass(loader=loader, workers=2, seed=None)


def in_worker(monkeypatch: pytest.MonkeyPatch, counter: EpochCounter) -> EpochCounter:
    """Returns the counter as in a spawned loader worker; from here on, this process acts as that worker."""
    copied: EpochCounter = pickle.loads(pickle.dumps(counter))
    monkeypatch.setattr(os, "getpid", lambda: -1)
    monkeypatch.setattr(epochs, "get_worker_info", lambda: "a worker")
    return copied


def _in_child(work: Callable[[], Any]) -> None:
    def as_worker() -> bool:
        epochs.get_worker_info = lambda: "a worker"  # type: ignore[assignment,return-value]
        work()
        return True

    assert exit_status_of_fork(as_worker) == 0


@pytest.mark.parametrize("face", [ParquetIterable, ParquetMap, ParquetNode, ParquetPipe])
@pytest.mark.parametrize("epoch", [-1, True, 1.0, "1", None])
def test_an_epoch_is_a_number_from_0(face: Any, epoch: Any) -> None:
    with pytest.raises(PipelineError, match=f"set_epoch: expected an integer >= 0, got {epoch!r}"):
        face("never-read").set_epoch(epoch)


@pytest.mark.parametrize("face", [ParquetIterable, ParquetMap, ParquetNode, ParquetPipe])
def test_an_epoch_may_be_a_number_of_numpy_or_torch(face: Any) -> None:
    for epoch in (np.int64(3), torch.tensor(3)):
        face("never-read").set_epoch(epoch)


@pytest.mark.parametrize(
    ("passes", "epochs_of_iterators"),
    [
        ("iterator iterator iterator", [0, 1, 2]),
        ("announced iterator announced iterator announced iterator", [0, 1, 2]),  # one epoch for both
        ("announced announced announced iterator iterator", [2, 3]),  # a pass whose iterator never came is over
    ],
)
def test_an_announcement_or_an_iterator_without_one_begins_an_epoch(
    passes: str, epochs_of_iterators: list[int]
) -> None:
    counter = EpochCounter()
    begin = {"announced": lambda: counter.announce(here()), "iterator": counter.begin}
    assert [epoch for each in passes.split() if (epoch := begin[each]()) is not None] == epochs_of_iterators


def test_a_pass_of_workers_is_not_that_of_an_iterator_in_the_training_process() -> None:
    counter = EpochCounter()
    counter.announce(with_workers())
    assert counter.upcoming == 0  # in the workers
    assert counter.begin() == 1
    assert counter.upcoming == 2


def test_workers_that_run_follow_what_their_loader_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = EpochCounter()
    counter.announce(with_workers())
    started = pickle.dumps(counter)
    counter.announce(with_workers(loader=2))  # of another loader
    counter.set(7)
    with monkeypatch.context() as patch:
        copied = in_worker(patch, pickle.loads(started))
        assert copied.begin() == 0
    counter.announce(with_workers())
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        patch.setattr(epochs, "get_worker_info", lambda: "a worker")
        assert [copied.begin(), copied.begin()] == [7, 8]  # a second iterator in one pass


def test_a_slow_worker_begins_one_pass_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = EpochCounter()
    counter.announce(with_workers())
    slow = pickle.loads(pickle.dumps(counter))
    counter.announce(with_workers())
    counter.set(7)
    counter.announce(with_workers())
    in_worker(monkeypatch, slow)
    assert [slow.begin() for _ in range(4)] == [0, 1, 7, 8]


def test_a_slow_worker_that_is_restored_keeps_to_its_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = EpochCounter()
    counter.announce(with_workers())
    slow = pickle.loads(pickle.dumps(counter))
    counter.set(5)
    counter.announce(with_workers())
    in_worker(monkeypatch, slow)
    assert slow.begin() == 0
    slow.resumed(3, None, tell=False)
    assert [slow.begin() for _ in range(2)] == [5, 6]


def test_workers_count_by_themselves_where_nothing_can_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = EpochCounter()
    counter.set(4)
    counter.announce(with_workers())
    counter._memory = None
    copied = in_worker(monkeypatch, counter)
    assert copied.is_announced
    assert [copied.begin() for _ in range(3)] == [4, 5, 6]


def test_a_worker_whose_loader_said_nothing_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = EpochCounter()
    counter.announce(here())
    assert not in_worker(monkeypatch, counter).is_announced


def test_the_training_process_learns_what_a_worker_restored() -> None:
    counter = EpochCounter()
    counter.announce(with_workers())
    assert counter.sync() is None
    _in_child(lambda: counter.resumed(6, 42))
    assert counter.announce(with_workers()) == 42
    assert counter.upcoming == 7
    assert counter.sync() is None


def test_an_iterator_after_workers_that_were_restored_resumes_from_them() -> None:
    counter = EpochCounter()
    counter.announce(with_workers())
    _in_child(lambda: counter.resumed(6, None))
    assert counter.sync() is None  # returns the seed; the epoch carries over
    assert counter.begin() == 7


def test_a_chosen_epoch_outweighs_what_a_worker_restored() -> None:
    counter = EpochCounter()
    counter.announce(with_workers())
    _in_child(lambda: counter.resumed(6, None))
    counter.set(2)
    assert counter.sync() is None
    assert counter.begin() == 2


def test_a_copy_counts_for_itself() -> None:
    counter = EpochCounter()
    counter.announce(with_workers())
    counter.begin()
    copied = pickle.loads(pickle.dumps(counter))
    assert copied.is_owner
    assert (copied.begin(), copied.begin(), counter.begin()) == (2, 3, 2)


def test_a_process_that_is_not_a_worker_counts_for_itself() -> None:
    counter = EpochCounter()
    counter.announce(with_workers())

    def is_a_rank() -> bool:  # forked with the dataset, it reports nothing to the process that created it
        counter.announce(with_workers())
        counter.resumed(8, None)
        return counter.begin() == 9

    assert exit_status_of_fork(is_a_rank) == 0
    assert counter.begin() == 1


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the name of a memory needs memfd_create")
def test_the_memory_is_found_by_its_name_while_it_lives() -> None:
    memory = EpochMemory()
    path = memory.path
    assert path is not None
    EpochMemory(path).put(3, None)
    assert memory.take() == (3, None)
    memory.announce(1, AnnouncedPass(number=4, epoch=9))
    assert EpochMemory(path).passes(1) == [AnnouncedPass(number=4, epoch=9)]
    memory.announce(1 + 64, AnnouncedPass(number=5, epoch=9))
    assert memory.passes(1) == []
    del memory
    with pytest.raises(OSError, match="No such file"):
        EpochMemory(path)
