"""Iterators that are interrupted, closed, or used in a forked process: nothing is lost, and nothing hangs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ids import ids_by_element as ids
from processes import exit_status_of_fork
from torch.utils.data import DataLoader, IterableDataset

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError
from parquetry.common.engine.run.threads import ThreadedEngine
from parquetry.common.pipeline.step_iterator import StepIterator
from parquetry.common.transport.sidecar.sidecar_source import SidecarSource
from parquetry.torch_plugin import ParquetIterable, ParquetNode, prefetch_to_device
from parquetry.torch_plugin.iterator import ElementIterator

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process:DeprecationWarning"
)  # Python 3.12, for forks beside threads


def batches(url: str, **options: Any) -> ParquetIterable:
    return ParquetIterable(url, ["id"], **options).shuffle(20, seed=3).batch(4)


def interrupted_at(step: int, original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function, but with one Ctrl-C: at its ``step``-th call."""
    calls = iter(range(1, 1000))

    def called(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        if next(calls) == step:
            raise KeyboardInterrupt
        return result

    return called


def assert_continues(pipe: ParquetIterable, expected: list[list[int]], *, loaded: bool) -> None:
    """Iterates a pipe whose third batch is interrupted: the state counts two, and nothing is lost."""
    reading = iter(DataLoader(pipe, batch_size=None)) if loaded else iter(pipe)
    found = ids(next(reading) for _ in range(2))
    with pytest.raises(KeyboardInterrupt):
        next(reading)
    assert pipe.state_dict()["consumed"] == 2
    assert found + ids(reading) == expected
    assert pipe.state_dict()["iteration"] == 1


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
@pytest.mark.parametrize("loaded", [False, True])
def test_an_iterator_continues_after_an_interrupt(
    url: str, executor: str, loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ids(batches(url))
    kind = ThreadedEngine if executor == "threads" else SidecarSource
    monkeypatch.setattr(kind, "__next__", interrupted_at(3, kind.__next__))
    assert_continues(batches(url, executor=executor), expected, loaded=loaded)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_batch_that_was_interrupted_on_its_way_is_not_counted(
    url: str, loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ids(batches(url))
    monkeypatch.setattr(ElementIterator, "_batch", interrupted_at(3, ElementIterator._batch))
    assert_continues(batches(url), expected, loaded=loaded)


def test_a_batch_that_the_loader_lost_is_not_counted(url: str) -> None:
    collate = interrupted_at(3, lambda batch: batch)
    pipe = batches(url)
    reading = iter(DataLoader(pipe, batch_size=None, collate_fn=collate))
    found = ids(next(reading) for _ in range(2))
    with pytest.raises(KeyboardInterrupt):
        next(reading)
    state = pipe.state_dict()
    assert state["consumed"] == 2
    again = batches(url)
    again.load_state_dict(state)
    assert found + ids(again) == ids(batches(url))


def test_the_state_of_an_iterator_that_was_closed_is_not_that_of_the_next_epoch(url: str) -> None:
    pipe = batches(url)
    reading = iter(pipe)
    next(reading)
    reading.close()
    assert list(reading) == []
    state = pipe.state_dict()
    assert (state["iteration"], state["consumed"]) == (0, 1)


BEGUN: dict[str, Callable[..., Any]] = {
    "pipeline, rows": lambda url, **options: Pipeline(url, ["id"], **options),
    "pipeline, batches": lambda url, **options: Pipeline(url, ["id"], **options).batch(4),
    "torch, rows": lambda url, **options: ParquetIterable(url, ["id"], **options),
    "torch, batches": batches,
    "node, rows": lambda url, **options: ParquetNode(url, ["id"], **options),
    "loader workers": lambda url, executor: DataLoader(batches(url), batch_size=None, num_workers=2),
    "ahead of a device": lambda url, **options: prefetch_to_device(batches(url, **options), "cpu", depth=3),
}


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
@pytest.mark.parametrize("kind", BEGUN)
def test_a_fork_gets_no_element_of_its_parents_iterator(url: str, kind: str, executor: str) -> None:
    reading = iter(BEGUN[kind](url, executor=executor))
    first = ids([next(reading)])  # rows come from a chunk that is made already

    def is_refused() -> bool:
        with pytest.raises(PipelineError, match=r"Call iter\(\) on the dataset in this process"):
            next(reading)
        return True

    assert exit_status_of_fork(is_refused) == 0
    assert first + ids(reading) == ids(BEGUN[kind](url, executor=executor))


class Peeking(IterableDataset):
    """A wrapper that begins the iterator before the loader's workers are forked."""

    def __init__(self, pipe: ParquetIterable) -> None:
        self._reading = iter(pipe)
        self._first = next(self._reading)

    def __iter__(self) -> Iterator[Any]:
        yield self._first
        yield from self._reading


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_loader_workers_cannot_use_an_iterator_that_was_begun_before(url: str, executor: str) -> None:
    loader = DataLoader(
        Peeking(batches(url, executor=executor)), batch_size=None, num_workers=2, multiprocessing_context="fork"
    )
    with pytest.raises(PipelineError, match=r"iterator: expected process \d+, which began it, got its fork"):
        list(loader)


class InterruptedTwice:
    """A source that is interrupted in a step, and again while it is closed because of that."""

    def __init__(self, source: Any, *, moved: bool) -> None:
        self._source, self._moved, self._closed = source, moved, False
        self.position, self.skipped, self.ready = source.position, source.skipped, 0

    def __next__(self) -> Any:
        if self._moved:
            next(self._source)
        raise KeyboardInterrupt

    def close(self) -> None:
        self._source.close()
        if not self._closed:
            self._closed = True
            raise KeyboardInterrupt


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
@pytest.mark.parametrize("moved", [False, True])
def test_a_second_interrupt_while_the_first_is_handled_loses_nothing(url: str, executor: str, moved: bool) -> None:
    expected = ids(batches(url))
    iterator = iter(batches(url, executor=executor, workers=1))
    found = ids(next(iterator) for _ in range(2))
    steps = iterator._steps
    steps._source = InterruptedTwice(steps._source, moved=moved)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    assert found + ids(iterator) == expected


@pytest.mark.parametrize("at", ["_go_on_later", "begin_at"])
def test_an_interrupt_at_any_time_of_handling_another_loses_nothing(
    url: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = ids(batches(url))
    iterator = iter(batches(url, executor="threads", workers=1))
    found = ids(next(iterator) for _ in range(2))

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StepIterator, at, interrupted)
        patch.setattr(ThreadedEngine, "__next__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
    assert found + ids(iterator) == expected
