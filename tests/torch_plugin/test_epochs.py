"""The count of epochs in a training process and its loader workers."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from parquetry.torch_plugin.epochs import EpochCounter, RestoreCell


def test_without_announcements_each_iterator_is_an_epoch() -> None:
    counter = EpochCounter()
    assert [counter.begin() for _ in range(3)] == [0, 1, 2]


def test_an_announcement_and_the_iterator_after_it_are_one_epoch() -> None:
    counter = EpochCounter()
    found = []
    for _ in range(3):
        counter.announce()
        found.append(counter.begin())
    assert found == [0, 1, 2]


def test_an_announced_epoch_that_nobody_iterated_here_is_over_at_the_next_announcement() -> None:
    counter = EpochCounter()
    for _ in range(3):
        counter.announce()
    assert counter.begin() == 2


@pytest.mark.parametrize("give", [lambda counter: pickle.dumps(counter), lambda counter: os.waitpid(_forked(), 0)])
def test_the_announcement_that_follows_the_start_of_workers_is_the_same_epoch(give: Callable[[Any], Any]) -> None:
    counter = EpochCounter()
    found = []
    for _ in range(3):
        counter.announce()
        give(counter)
        counter.announce()
        found.append(counter.next)
    assert found == [0, 1, 2]
    counter.announce()  # workers that stay get no new start
    counter.announce()
    assert counter.next == 4


def _forked(work: Callable[[], None] = lambda: None) -> int:
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return child


def test_a_worker_repeats_what_its_parent_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    counter = EpochCounter()
    counter.announce()
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as after a fork
    assert not counter.is_owner
    found = []
    for _ in range(3):
        counter.announce()
        found.append(counter.begin())
    assert found == [0, 1, 2]


def test_the_training_process_learns_what_a_worker_restored() -> None:
    counter = EpochCounter()
    counter.announce()
    assert counter.sync() is None
    os.waitpid(_forked(lambda: counter.resumed(6, 42)), 0)
    assert counter.announce() is None  # the repeated one, however late it comes
    assert counter.announce() == 42
    assert counter.begin() == 7
    assert counter.sync() is None


def test_an_iterator_after_workers_that_were_restored_goes_on_from_them() -> None:
    counter = EpochCounter()
    counter.announce()
    os.waitpid(_forked(lambda: counter.resumed(6, None)), 0)
    assert counter.sync() is None  # the seed; the epoch is taken over
    assert counter.begin() == 7


def test_a_chosen_epoch_outweighs_what_a_worker_restored() -> None:
    counter = EpochCounter()
    counter.announce()
    os.waitpid(_forked(lambda: counter.resumed(6, None)), 0)
    counter.set(2)
    assert counter.sync() is None
    assert counter.begin() == 2


def test_a_copy_counts_for_itself() -> None:
    counter = EpochCounter()
    counter.announce()
    counter.begin()
    copied = pickle.loads(pickle.dumps(counter))
    assert copied.is_owner
    assert (copied.begin(), copied.begin(), counter.begin()) == (1, 2, 1)


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the name of a cell needs memfd_create")
def test_a_cell_is_found_by_its_name_while_it_lives() -> None:
    cell = RestoreCell()
    path = cell.path
    assert path is not None
    RestoreCell(path).put(3, None)
    assert cell.take() == (3, None)
    del cell
    with pytest.raises(OSError, match="No such file"):
        RestoreCell(path)
