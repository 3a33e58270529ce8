"""A loaded state in every face: what a count of elements means after it, and a warning where its epoch is not finished."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from builders import build
from faces import import_framework

from parquetry.common import Pipeline

State = dict[str, Any]
ROWS = 40


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """40 rows in 10 batches, in a new order each epoch."""
    directory: Path = tmp_path_factory.mktemp("resumes")
    return build(directory, [[10, 10], [20]], names=["id"]).pipeline("id").shuffle(10, seed=1).batch(4)


class Resumable:
    """A dataset of a face that resumes from states, with the way to iterate it.

    Attributes:
        load: takes a state.
        begin: begins a pass.
        state_after: returns the state after a number of elements of the latest iterator; ``None`` = it has none.
    """

    def __init__(
        self,
        load: Callable[[State], object],
        begin: Callable[[], Iterator[Any]],
        state_after: Callable[[int], State] | None = None,
    ) -> None:
        self.load, self.begin, self.state_after = load, begin, state_after


def of_pipeline(pipeline: Pipeline, **options: Any) -> Resumable:
    made = pipeline.with_options(**options)
    loaded: list[State] = []

    def begin() -> Iterator[Any]:
        iterator = iter(made)
        return iterator.load_state_dict(loaded.pop()) if loaded else iterator

    return Resumable(loaded.append, begin)


def of_tensorflow(pipeline: Pipeline) -> Resumable:
    import_framework("tensorflow")
    from parquetry.tf_plugin import ParquetDataset

    dataset = ParquetDataset.from_pipeline(pipeline)
    return Resumable(dataset.load_state_dict, dataset.__iter__, dataset.state_dict)


def of_torch(pipeline: Pipeline, kind: str = "ParquetIterable", workers: int | None = None) -> Resumable:
    torch_plugin = pytest.importorskip("parquetry.torch_plugin")
    from torch.utils.data import DataLoader

    dataset = getattr(torch_plugin, kind).from_pipeline(pipeline)
    begin = dataset if workers is None else DataLoader(dataset, batch_size=None, num_workers=workers)
    return Resumable(dataset.load_state_dict, begin.__iter__, dataset.state_after)


def of_iterators(pipeline: Pipeline) -> Resumable:
    """States are loaded into iterators of a torch dataset, not into the dataset."""
    dataset = pytest.importorskip("parquetry.torch_plugin").ParquetIterable.from_pipeline(pipeline)
    loaded: list[State] = []

    def begin() -> Iterator[Any]:
        iterator = iter(dataset)
        return iterator.load_state_dict(loaded.pop()) if loaded else iterator

    return Resumable(loaded.append, begin, dataset.state_after)


def of_node(pipeline: Pipeline) -> Resumable:
    node = pytest.importorskip("parquetry.torch_plugin").ParquetNode.from_pipeline(pipeline)

    def begin() -> Iterator[Any]:
        node.reset()
        return iter(node)

    return Resumable(node.load_state_dict, begin)


FACES: dict[str, Callable[[Pipeline], Resumable]] = {
    "threads": of_pipeline,
    "sidecar": lambda pipeline: of_pipeline(pipeline, executor="sidecar", workers=1),
    "tensorflow": of_tensorflow,
    "torch": of_torch,
    "pipe": lambda pipeline: of_torch(pipeline, "ParquetPipe"),
    "iterators": of_iterators,
    "loader": lambda pipeline: of_torch(pipeline, workers=0),
    "two-workers": lambda pipeline: of_torch(pipeline, workers=2),
    "node": of_node,
}
every_face = pytest.mark.parametrize("face", FACES)


def state_at(pipeline: Pipeline, elements: int) -> State:
    iterator = iter(pipeline.with_options())
    for _ in range(elements):
        next(iterator)
    return iterator.state_dict()


def lost(caplog: pytest.LogCaptureFixture) -> int:
    found = [record for record in caplog.records if "took a loaded state is not at its end" in record.getMessage()]
    assert all("load_state_dict(state)" in record.getMessage() for record in found)
    caplog.clear()
    return len(found)


@every_face
def test_a_look_at_a_batch_that_uses_up_a_state_warns_when_the_loop_begins(
    pipeline: Pipeline, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rows, state = FACES[face](pipeline), state_at(pipeline, 3)
    rows.load(state)
    next(rows.begin())
    assert not lost(caplog)
    assert len(list(rows.begin())) == 10  # the next epoch
    assert lost(caplog) == 1
    list(rows.begin())
    rows.load(state)
    next(rows.begin())
    rows.load(state)  # again, before the loop
    assert len(list(rows.begin())) == 7
    list(rows.begin())
    assert not lost(caplog)


@every_face
def test_a_resumed_epoch_that_a_loop_counts_to_its_end_is_not_lost(
    pipeline: Pipeline, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rows = FACES[face](pipeline)
    rows.load(state_at(pipeline, 3))
    assert len(list(islice(rows.begin(), 7))) == 7  # as Lightning does: it never asks for more
    next(rows.begin())
    assert not lost(caplog)


def test_iterators_that_take_states_may_be_read_side_by_side(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    rows = pipeline.with_options()
    first, second = (iter(rows).load_state_dict(state_at(pipeline, step)) for step in (3, 5))
    assert len(list(zip(second, first, strict=False))) == 5
    assert not lost(caplog)


@every_face
def test_a_count_of_elements_means_those_of_the_latest_iterator(pipeline: Pipeline, face: str) -> None:
    rows = FACES[face](pipeline)
    if rows.state_after is None:
        pytest.skip("its iterators know their position")
    rows.load(state_at(pipeline, 3))
    list(islice(rows.begin(), 4))
    assert rows.state_after(4) == state_at(pipeline, 7)
    rows.load(state_at(pipeline, 5))
    if face != "iterators":
        assert rows.state_after(0) == state_at(pipeline, 5)
    list(rows.begin())
    assert rows.state_after(1) == state_at(pipeline, 6)
