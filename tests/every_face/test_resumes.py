"""States in every face: taken and loaded at every step, in other faces, and with a warning where an epoch is not finished."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from builders import Built, build, built_once
from cases import every_case
from faces import import_framework
from hypothesis import given
from hypothesis import strategies as st
from ids import flat, ids_by_element
from oracle import examples
from resume_cases import CASES, RESUME_NAMES, SIMPLE_CHAINS, corrupted, is_at_its_end

from parquetry.common import Pipeline, mix
from parquetry.common.apps.testing import assert_resumable
from parquetry.common.base.errors import StateError

State = dict[str, Any]
built = built_once([[3, 1, 4], [2], [0], [5, 2]], names=RESUME_NAMES)


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


class Reading:
    """An iterator over a face's dataset, which gives and takes the states; the dataset's next one resumes."""

    def __init__(self, rows: Resumable) -> None:
        self._rows = rows
        self._iterator: Any = None
        self._taken = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        element = next(self._begin())
        self._taken += 1
        return element

    def state_dict(self) -> State:
        iterator = self._begin()
        own: Callable[[], State] | None = getattr(iterator, "state_dict", None)
        return self._rows.state_after(self._taken) if own is None else own()  # type: ignore[misc]  # it has one of them

    def load_state_dict(self, state: State) -> None:
        self._iterator, self._taken = None, 0
        self._rows.load(state)

    def _begin(self) -> Any:
        self._iterator = self._iterator or self._rows.begin()
        return self._iterator


def in_one_process(*, slow: tuple[str, ...], more: Sequence[Any] = ()) -> pytest.MarkDecorator:
    """Parametrizes ``face`` over those whose dataset or iterator knows its position at every step."""
    names = ("tensorflow", "torch", "pipe", "iterators", "node")  # `tests/common` stops pipelines
    marked = [pytest.param(name, marks=pytest.mark.slow if name in slow else ()) for name in names]
    return pytest.mark.parametrize("face", [*marked, *more])


def mixed(rows: Pipeline) -> Pipeline:
    ids = rows.select("id")
    return mix([ids.shuffle(4, seed=1), ids.repeat(2)], weights=[2, 1], seed=5, stop="all").batch(4)


def endless(rows: Pipeline) -> Pipeline:
    return rows.select("id").shuffle(5, seed=3).repeat().batch(4)


def thinned(rows: Pipeline) -> Pipeline:
    return rows.select("id").shuffle(5, seed=3).transform(_two_of_three, drops=True).batch(2)


def _two_of_three(row: dict[str, Any]) -> dict[str, Any] | None:
    return row if row["id"] % 3 else None


# test_properties.py stops arbitrary chains at arbitrary steps.
KINDS = ("rows", "full batches", "shuffle and batch over two passes", "a shard of its own", "take and skip of batches")
STAGES = {
    **{name: CASES[name] for name in KINDS},
    "a mix": mixed,
    "dropped rows": thinned,
    "an endless pipeline": endless,
}


def rows_of(built: Built) -> Pipeline:
    """Returns the fields without nulls, which every framework can represent."""
    return built.pipeline("id", "drive", "ts", "image", "points", "tags", workers=1)


@in_one_process(slow=("tensorflow", "pipe", "iterators"))
@every_case("name", STAGES)
def test_every_stage_resumes_at_every_step(built: Built, face: str, name: str) -> None:
    rows = FACES[face](STAGES[name](rows_of(built)))
    assert_resumable(lambda: Reading(rows), steps=14 if name == "an endless pipeline" else None)


@in_one_process(slow=("pipe", "iterators"))
@every_case("name", ["shuffle and batch over two passes", "canonical shards"])
def test_a_state_crosses_to_the_other_faces_and_back_at_every_step(built: Built, face: str, name: str) -> None:
    pipeline = CASES[name](rows_of(built))
    rows, others = FACES[face](pipeline), of_pipeline(pipeline)
    whole, beginning = ids_by_element(pipeline), state_at(pipeline, 0)
    for step in range(len(whole) + 1):
        for here, there in ((rows, others), (others, rows)):
            first, second = Reading(here), Reading(there)
            first.load_state_dict(beginning)
            assert ids_by_element(islice(first, step)) == whole[:step]
            state = first.state_dict() if here.state_after is None else here.state_after(step)
            second.load_state_dict(json.loads(json.dumps(state)))
            assert ids_by_element(second) == whole[step:]


@in_one_process(slow=("tensorflow",), more=[pytest.param("two-workers", marks=pytest.mark.slow)])
@examples(25)
@given(st.data())
def test_a_corrupt_state_is_refused_or_another_state(built: Built, face: str, data: st.DataObject) -> None:
    pipeline = data.draw(st.sampled_from(SIMPLE_CHAINS))(built.pipeline("id", workers=1))
    corrupt = data.draw(corrupted(state_at(pipeline, 1)), "state")
    rows = FACES[face](pipeline)
    if data.draw(st.booleans(), "in use"):
        next(rows.begin())
    try:
        rows.load(corrupt)
        first = next(rows.begin(), None)
    except StateError:
        return
    except Exception as error:
        if type(error).__name__ != "InvalidArgumentError" or "state" not in str(error):  # of TensorFlow's op
            raise
        return
    assert first is not None or is_at_its_end(pipeline, corrupt)


@in_one_process(slow=("tensorflow",))
def test_a_state_resumes_with_another_batch_size(pipeline: Pipeline, face: str) -> None:
    rows, other = (FACES[face](pipeline.with_stages(pipeline.stages[:-1]).batch(size)) for size in (6, 9))
    whole = flat(ids_by_element(pipeline.with_options()))
    first = Reading(rows)
    list(islice(first, 3))
    resumed, again = Reading(other), Reading(other)
    resumed.load_state_dict(first.state_dict())
    assert ids_by_element(islice(resumed, 1)) == [whole[18:27]]
    again.load_state_dict(resumed.state_dict())
    assert flat(ids_by_element(again)) == whole[27:]


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
