"""States restored elsewhere: in other loaders, with other numbers of workers and ranks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import every_case
from ids import epoch_of, flat, id_of
from ids import ids_by_element as ids
from torch.utils.data import DataLoader
from torchdata.nodes import Loader
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry.common.base.errors import StateError
from parquetry.torch_plugin import ParquetIterable, ParquetNode, ParquetPipe, rank_state

CANONICAL = 12


def make(url: str, batch: int = 7) -> ParquetPipe:
    return ParquetPipe(url, ["id"]).shuffle(10, seed=5).batch(batch)


def is_odd(numbers: Any) -> bool:
    return bool(numbers[0] % 2)


def test_other_fields_are_taken_on_request_only(url: str) -> None:
    iterator = iter(make(url))
    next(iterator)
    state = iterator.state_dict()
    rest = ids(iterator)

    def other(face: Any = ParquetPipe) -> Any:
        return face(url, ["id", "flag"]).shuffle(10, seed=5).batch(7)

    for target in (other(), iter(other()), other(ParquetNode)):
        with pytest.raises(StateError, match="saved for a different pipeline"):
            target.load_state_dict(state)
        target.load_state_dict(state, strict=False)
        assert ids(target) == rest
    mapped = other().map(id_of)
    mapped.load_state_dict(state, strict=False)
    assert [batch.tolist() for batch in mapped] == rest


# --- other numbers of ranks ---


# Which ranks get which rows is tested with Pipeline.


@pytest.mark.parametrize("workers", [0, 2])
@every_case("canonical", [CANONICAL, None])
def test_the_workers_of_other_ranks_take_exactly_the_rows_that_are_left(
    url: str, canonical: int | None, workers: int
) -> None:
    before, after = 3, 2

    def rank(index: int, of: int, canonical: int | None = canonical) -> ParquetPipe:
        pipe = ParquetPipe(url, ["id"]).shuffle(10, seed=5)
        return pipe.shard(of, index, even="none", canonical_shards=canonical).batch(5)

    whole = flat(ids(rank(0, 1, canonical or before)))
    first = [iter(rank(index, before)) for index in range(before)]
    taken = [flat([next(iterator)["id"].tolist() for _ in range(2)]) for iterator in first]
    assert taken == [whole[: before * 10][index::before] for index in range(before)]
    for index in range(after):
        pipe = rank(index, after)
        pipe.load_state_dict(first[0].state_dict())
        rest = flat(ids(DataLoader(pipe, batch_size=None, num_workers=workers)))
        assert rest == whole[before * 10 :][index::after]


# --- stock DataLoader: the state of the training process ---


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"num_workers": 3, "persistent_workers": True}])
def test_a_stock_loader_resumes_from_the_pipes_state(url: str, options: dict[str, Any]) -> None:
    pipe = make(url)
    iterator = iter(pipe)
    for _ in range(3):
        next(iterator)
    fresh = make(url)
    fresh.load_state_dict(pipe.state_dict())
    loader = DataLoader(fresh, batch_size=None, **options)
    assert [ids(loader) for _ in range(3)] == [epoch_of(pipe, 0)[3:], epoch_of(pipe, 1), epoch_of(pipe, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_stock_loader_is_resumed_by_the_steps_that_the_training_loop_counts(url: str, method: str) -> None:
    pipe = make(url)
    loader = DataLoader(pipe, batch_size=None, num_workers=2)
    list(loader)
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    fresh = make(url)
    fresh.load_state_dict(pipe.state_after(3))
    again = DataLoader(fresh, batch_size=None, num_workers=1, multiprocessing_context=method)
    iterator = iter(again)
    assert next(iterator)["id"].tolist() == epoch_of(pipe, 1)[3]
    last = make(url)
    last.load_state_dict(fresh.state_after(1))
    assert ids(last) == epoch_of(pipe, 1)[4:]
    assert ids(last) == epoch_of(pipe, 2)
    del iterator
    if method == "fork":
        assert ids(again) == epoch_of(pipe, 2)


def test_a_stock_loader_without_workers_needs_no_count(url: str) -> None:
    pipe = ParquetPipe(url, ["id"]).shuffle(10, seed=5)
    loader = DataLoader(pipe, batch_size=7)
    for number, _ in enumerate(loader):
        if number == 2:
            break
    fresh = ParquetPipe(url, ["id"]).shuffle(10, seed=5)
    fresh.load_state_dict(pipe.state_dict())
    assert flat(ids(DataLoader(fresh, batch_size=7))) == epoch_of(pipe, 0)[21:]


def test_a_chosen_epoch_keeps_the_state_of_that_epoch_only(url: str) -> None:
    state = {**make(url).state_dict(), "iteration": 2, "consumed": 4}
    for epoch, expected in ((2, epoch_of(make(url), 2)[4:]), (3, epoch_of(make(url), 3))):
        pipe = make(url)
        pipe.load_state_dict(state)
        pipe.set_epoch(epoch)
        assert ids(pipe) == expected
        assert ids(pipe) == epoch_of(pipe, epoch + 1)


def test_a_drawn_seed_is_taken_from_the_state_in_loader_workers(url: str) -> None:
    first = ParquetPipe(url, ["id"]).shuffle(10).batch(7)
    other = ParquetPipe(url, ["id"]).shuffle(10).batch(7)
    other.load_state_dict(first.state_after(2))
    loader = DataLoader(other, batch_size=None, num_workers=2)
    assert [ids(loader) for _ in range(2)] == [epoch_of(first, 0)[2:], epoch_of(first, 1)]


# --- StatefulDataLoader and another number of workers ---


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "steps"), [(0, 4), (1, 0), (1, 9), (3, 0), (3, 4), (3, 9)])
def test_a_stateful_loaders_state_is_one_position_of_the_rank(url: str, workers: int, steps: int) -> None:
    loader = StatefulDataLoader(make(url), batch_size=None, num_workers=workers)
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    state = json.loads(json.dumps(rank_state(loader.state_dict())))
    del iterator
    for others in (0, 2):
        pipe = make(url)
        pipe.load_state_dict(state)
        fresh = StatefulDataLoader(pipe, batch_size=None, num_workers=others)
        assert [ids(fresh) for _ in range(2)] == [epoch_of(pipe, 0)[steps:], epoch_of(pipe, 1)]
    node = ParquetNode.from_pipeline(make(url).pipeline)
    node.load_state_dict(state)
    through = Loader(node)
    assert [ids(through) for _ in range(2)] == [epoch_of(node, 0)[steps:], epoch_of(node, 1)]
    numpy_iterator = iter(make(url).pipeline)
    numpy_iterator.load_state_dict(state)
    assert ids(numpy_iterator) == epoch_of(make(url), 0)[steps:]


def test_states_of_other_positions_are_refused(url: str) -> None:
    collated = StatefulDataLoader(ParquetPipe(url, ["id"]), batch_size=7, num_workers=2)
    rare = StatefulDataLoader(make(url), batch_size=None, num_workers=2, snapshot_every_n_steps=3)
    iterators = [iter(collated), iter(rare)]
    for iterator in iterators:
        next(iterator)
    with pytest.raises(StateError, match=r"expected workers that took the elements in turn, got .* are \[1, 14\]"):
        rank_state(collated.state_dict())
    with pytest.raises(StateError, match="got one taken 1 steps after it"):
        rank_state(rare.state_dict())
    with pytest.raises(StateError, match="expected the state of a StatefulDataLoader over a parquetry dataset"):
        rank_state(StatefulDataLoader([1, 2, 3]).state_dict())
    with pytest.raises(StateError, match="got filter"):
        make(url).filter(is_odd).state_after(1)
    iterators.clear()


def test_a_state_of_one_worker_is_refused_in_a_single_process(url: str) -> None:
    state = {**make(url).state_dict(), "worker": 1, "workers": 2}
    for target in (make(url), iter(make(url)), ParquetNode.from_pipeline(make(url).pipeline)):
        with pytest.raises(
            StateError, match="a different number of loader workers: this pipeline has 1, the state has 2"
        ):
            target.load_state_dict(state)


# --- trainers that call state_dict and load_state_dict by name ---


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_loop_that_saves_every_stateful_object_by_name_resumes(url: str, workers: int) -> None:
    """Like Lightning: ``state_dict`` between steps, ``load_state_dict`` before the first, ``set_epoch`` each epoch."""

    def trainer(checkpoint: Any, stop_at: int | None) -> tuple[list[Any], Any]:
        pipe = make(url)
        loader = StatefulDataLoader(pipe, batch_size=None, num_workers=workers)
        seen: list[Any] = []
        start = 0
        if checkpoint is not None:
            start = checkpoint["epoch"]
            loader.load_state_dict(checkpoint["loader"])
        for epoch in range(start, 3):
            pipe.set_epoch(epoch)
            for batch in loader:
                seen.append(batch["id"].tolist())
                if stop_at is not None and len(seen) == stop_at:
                    return seen, {"epoch": epoch, "loader": loader.state_dict()}
        return seen, None

    whole, _ = trainer(None, None)
    assert whole == epoch_of(make(url), 0) + epoch_of(make(url), 1) + epoch_of(make(url), 2)
    for stop_at in (4, 14):
        seen, checkpoint = trainer(None, stop_at)
        assert seen + trainer(checkpoint, None)[0] == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loop_that_fetches_one_batch_ahead_resumes(url: str, workers: int) -> None:
    """Like Accelerate: takes a batch's state before fetching the next batch."""

    def prepared(loader: Any) -> Any:
        iterator = iter(loader)
        current = next(iterator)
        while current is not None:
            state = loader.state_dict()
            following = next(iterator, None)
            yield current["id"].tolist(), state
            current = following

    def load() -> StatefulDataLoader:
        return StatefulDataLoader(make(url), batch_size=None, num_workers=workers)

    steps = list(prepared(load()))
    for number in (0, 3, 7):
        fresh = load()
        fresh.load_state_dict(steps[number][1])
        assert [batch for batch, _ in prepared(fresh)] == epoch_of(make(url), 0)[number + 1 :]


@pytest.mark.parametrize("workers", [0, 2])
def test_state_after_names_the_epoch_that_runs_with_and_without_workers(url: str, workers: int) -> None:
    pipe = make(url)
    loader: Any = DataLoader(pipe, batch_size=None, num_workers=workers)
    for epoch in range(2):
        for step, _ in enumerate(loader, 1):
            if step == 2:
                state = pipe.state_after(np.int64(2))  # type: ignore[arg-type]  # as a counter may have it
                assert state["iteration"] == epoch
                assert ids(make(url).load_state_dict(json.dumps(state))) == epoch_of(make(url), epoch)[2:]


def test_loader_workers_go_on_from_the_state_of_an_endless_rank(url: str) -> None:
    def endless() -> ParquetPipe:
        return ParquetPipe(url, ["id"]).shuffle(10, seed=5).repeat().batch(7)

    rank = iter(endless())
    expected = [next(rank) for _ in range(8)]
    begun = iter(endless())
    next(begun)
    resumed = endless().load_state_dict(begun.state_dict())
    found = itertools.islice(DataLoader(resumed, batch_size=None, num_workers=2), 7)
    assert ids(found) == ids(expected[1:])


@pytest.mark.parametrize("face", [ParquetPipe, ParquetIterable])
def test_state_after_refuses_what_it_cannot_know(url: str, face: Any) -> None:
    rows = face(url, ["id"]).shuffle(10, seed=5)
    next(iter(DataLoader(rows, batch_size=4, num_workers=2)))
    with pytest.raises(StateError, match=r"whose workers make batches of them\. Call batch\(\) on the dataset"):
        rows.state_after(4)
    next(iter(rows))
    assert rows.state_after(4)["consumed"] == 4
    for options in ({"batch_size": 4, "num_workers": 1}, {"num_workers": 2}):  # torch's batch size is 1
        next(iter(DataLoader(rows, **options)))
        assert rows.state_after(4)["consumed"] == 4
    with pytest.raises(StateError, match="expected a number of elements >= 0, got -1"):
        rows.state_after(-1)
    with pytest.raises(StateError, match=r"1 passes of \d+ elements, got 1000000 elements"):
        rows.state_after(10**6)


@pytest.fixture
def begun(url: str) -> dict[str, Any]:
    """The state after two batches of epoch 0."""
    reading = iter(make(url))
    next(reading), next(reading)
    return reading.state_dict()


def test_a_stateful_loader_that_was_looked_into_keeps_no_state_out(url: str, begun: dict[str, Any]) -> None:
    pipe = make(url)
    looked_into = StatefulDataLoader(pipe, batch_size=None)
    next(iter(looked_into))  # as to give an optimizer a state before `torch.distributed.checkpoint` fills it
    pipe.load_state_dict(begun)
    rest = [batch["id"].tolist() for batch in StatefulDataLoader(pipe, batch_size=None)]
    assert rest == [batch["id"].tolist() for batch in make(url)][2:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_is_refused_while_a_pass_runs(url: str, begun: dict[str, Any], workers: int) -> None:
    pipe, expected = make(url), ids(make(url))
    loader = DataLoader(pipe, batch_size=None, num_workers=workers)
    running = iter(loader)
    assert ids([next(running)]) == expected[:1]
    with pytest.raises(StateError, match=r"got one while the pass runs.*Load the state before iter\(loader\)"):
        pipe.load_state_dict(begun)
    assert ids(running) == expected[1:]
    assert ids(pipe.load_state_dict(begun)) == expected[2:]  # that pass has ended
    next(iter(loader))
    pipe.load_state_dict(begun)  # that pass was dropped
    assert ids(loader) == expected[2:]


def test_workers_that_stay_get_no_state(url: str, begun: dict[str, Any]) -> None:
    pipe = make(url)
    loader = DataLoader(pipe, batch_size=None, num_workers=1, persistent_workers=True)
    list(loader)
    with pytest.raises(StateError, match=r"persistent_workers=True.* Drop the loader, load the state, and make a new"):
        pipe.load_state_dict(begun)
    del loader
    pipe.load_state_dict(begun)
    assert ids(DataLoader(pipe, batch_size=None, num_workers=1, persistent_workers=True)) == ids(make(url))[2:]


@pytest.mark.parametrize("face", [ParquetPipe, ParquetNode])
def test_the_later_of_set_epoch_and_a_state_decides(
    url: str, begun: dict[str, Any], face: Any, caplog: pytest.LogCaptureFixture
) -> None:
    whole = make(url)
    expected = [epoch_of(whole, epoch) for epoch in range(2)]

    def given(*calls: Callable[[Any], Any]) -> list[Any]:
        made = face.from_pipeline(whole.pipeline)
        for call in calls:
            call(made)
        return ids(made)

    assert given(lambda made: made.set_epoch(1), lambda made: made.load_state_dict(begun)) == expected[0][2:]
    assert given(lambda made: made.load_state_dict(begun), lambda made: made.set_epoch(0)) == expected[0][2:]
    assert not caplog.records
    assert given(lambda made: made.load_state_dict(begun), lambda made: made.set_epoch(1)) == expected[1]
    assert "set_epoch(1): the state that was loaded before is from epoch 0, so it is dropped" in caplog.text


@pytest.mark.parametrize("face", [ParquetPipe, ParquetNode])
def test_a_state_at_the_end_of_an_epoch_leads_to_the_next_one_without_a_warning(
    url: str, face: Any, caplog: pytest.LogCaptureFixture
) -> None:
    whole = make(url)
    list(DataLoader(whole, batch_size=None))
    ended = whole.state_after(len(whole))
    made = face.from_pipeline(whole.pipeline).load_state_dict(ended)
    made.set_epoch(1)
    assert ids(made) == epoch_of(whole, 1)
    assert not caplog.records
    face.from_pipeline(whole.pipeline).load_state_dict(ended).set_epoch(2)
    assert "from epoch 0, so it is dropped" in caplog.text
