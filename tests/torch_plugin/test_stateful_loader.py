"""Exact resume in `StatefulDataLoader`: at every step, with and without workers, and in the following epochs."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import torch
from ids import epoch_of, id_of
from ids import ids_by_element as ids
from torch.utils.data.datapipes.datapipe import _IterDataPipeSerializationWrapper
from torch.utils.data.datapipes.iter import IterableWrapper
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry.common.base.errors import StateError
from parquetry.torch_plugin import ParquetIterable, ParquetPipe, rank_state


def make(url: str, *, batched: bool = True, seed: int | None = 5) -> ParquetPipe:
    pipe = ParquetPipe(url, ["id"]).shuffle(10, seed=seed)
    return pipe.batch(7) if batched else pipe


def load(pipe: Any, workers: int, **options: Any) -> StatefulDataLoader:
    return StatefulDataLoader(pipe, num_workers=workers, **{"batch_size": None, **options})


def state_after(loader: StatefulDataLoader, steps: int) -> dict[str, Any]:
    iterator = iter(loader)
    for _ in range(steps):
        next(iterator)
    return loader.state_dict()


@pytest.mark.parametrize(
    ("workers", "every", "steps"),
    [(0, 1, range(10)), (2, 3, (5,)), pytest.param(2, 1, (1, 9), marks=pytest.mark.slow)],
)
def test_it_resumes_at_every_step_and_counts_on(url: str, workers: int, every: int, steps: Any) -> None:
    pipe = make(url)
    loader = load(pipe, workers, snapshot_every_n_steps=every)
    assert ids(loader) == epoch_of(pipe, 0)
    for number, taken in enumerate(steps, 1):
        state = state_after(loader, taken)
        fresh = load(make(url), workers, snapshot_every_n_steps=every)
        fresh.load_state_dict(state)
        assert ids(fresh) == epoch_of(pipe, number)[taken:]
        assert ids(fresh) == epoch_of(pipe, number + 1)
        assert ids(fresh) == epoch_of(pipe, number + 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_finished_epoch_is_followed_by_the_next(url: str, workers: int) -> None:
    pipe = make(url)
    loader = load(pipe, workers)
    assert [ids(loader) for _ in range(2)] == [epoch_of(pipe, 0), epoch_of(pipe, 1)]
    fresh = load(make(url), workers)
    fresh.load_state_dict(loader.state_dict())
    assert ids(fresh) == epoch_of(pipe, 2)
    assert ids(make(url).load_state_dict(rank_state(loader.state_dict()))) == epoch_of(pipe, 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_count_since_a_state_that_the_loader_restored_is_right_or_refused(url: str, workers: int) -> None:
    pipe = make(url)
    loader = load(pipe, workers)
    loader.load_state_dict(state_after(load(make(url), workers), 3))
    iterator = iter(loader)
    assert [next(iterator)["id"].tolist() for _ in range(2)] == epoch_of(pipe, 0)[3:5]
    if workers:
        with pytest.raises(StateError, match=r"whose loader restored its own\. Use the loader's state_dict\(\)"):
            pipe.state_after(2)
    else:
        assert ids(make(url).load_state_dict(pipe.state_after(2))) == epoch_of(pipe, 0)[5:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_look_at_a_batch_of_a_restored_loader_warns_and_a_counted_epoch_does_not(
    url: str, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    def restored() -> StatefulDataLoader:
        loader = load(make(url, batched=False), workers, batch_size=7, drop_last=True)
        loader.load_state_dict(state_after(load(make(url, batched=False), workers, batch_size=7, drop_last=True), 2))
        return loader

    for taken in (6, 1):  # 8 batches of 60 rows, as of 2 times 30
        loader = restored()
        list(itertools.islice(loader, taken))
        assert not caplog.records
        next(iter(loader))
    (record,) = caplog.records
    assert "The iterator that took a loaded state is not at its end, with 39 elements to come" in record.getMessage()


def odd(row: dict[str, Any]) -> dict[str, Any] | None:
    return row if row["id"] % 2 else None


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_of_unknown_length_that_a_loader_restores_at_its_end_is_not_lost(
    url: str, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    def loader() -> StatefulDataLoader:
        return load(make(url, batched=False).transform(odd, drops=True), workers)

    first = loader()
    count = len(list(first))
    restored = loader()
    restored.load_state_dict(first.state_dict())
    assert len(list(restored)) == len(list(restored)) == count
    assert not caplog.records


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_that_comes_after_the_pass_began_is_refused(url: str, workers: int) -> None:
    state = state_after(load(make(url), workers), 3)
    pipe = make(url)
    loader = load(pipe, workers)
    loader.state_dict()
    pipe.load_state_dict(rank_state(state))
    with pytest.raises(StateError, match=r"got one after\..* Make a new loader after load_state_dict\(\)"):
        next(iter(loader))
    assert ids(load(pipe, workers)) == epoch_of(pipe, 0)[3:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_taken_before_the_first_step_is_the_beginning(url: str, workers: int) -> None:
    loader = load(make(url), workers)
    state = loader.state_dict()
    assert ids(loader) == epoch_of(make(url), 0)
    fresh = load(make(url), workers)
    fresh.load_state_dict(state)
    assert ids(fresh) == epoch_of(make(url), 0)


def test_persistent_workers_count_on_after_a_resume(url: str) -> None:
    pipe = make(url)
    loader = load(pipe, 2, persistent_workers=True)
    list(loader)
    state = state_after(loader, 3)
    fresh = load(make(url), 2, persistent_workers=True)
    fresh.load_state_dict(state)
    assert [ids(fresh) for _ in range(3)] == [epoch_of(pipe, 1)[3:], epoch_of(pipe, 2), epoch_of(pipe, 3)]


@pytest.mark.slow
def test_spawned_workers_count_on_after_a_resume(url: str) -> None:
    pipe = make(url)
    pipe.set_epoch(4)
    state = state_after(load(pipe, 1), 3)
    fresh = load(make(url), 1, multiprocessing_context="spawn")
    fresh.load_state_dict(state)
    assert [ids(fresh) for _ in range(2)] == [epoch_of(pipe, 4)[3:], epoch_of(pipe, 5)]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_collated_by_the_loader_resume(url: str, workers: int) -> None:
    make_loader = lambda: load(make(url, batched=False), workers, batch_size=7)  # noqa: E731
    whole = ids(make_loader())
    assert sorted(number for batch in whole for number in batch) == list(range(60))
    for taken in (1, 4, len(whole)):
        fresh = make_loader()
        fresh.load_state_dict(state_after(make_loader(), taken))
        assert ids(fresh) == whole[taken:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_seed_that_was_drawn_comes_from_the_state(url: str, workers: int) -> None:
    pipe = make(url, seed=None)
    loader = load(pipe, workers)
    list(loader)
    state = state_after(loader, 2)
    other = make(url, seed=None)
    fresh = load(other, workers)
    fresh.load_state_dict(state)
    assert [ids(fresh) for _ in range(2)] == [epoch_of(pipe, 1)[2:], epoch_of(pipe, 2)]
    assert other.pipeline == pipe.pipeline


@pytest.mark.parametrize("workers", [0, 2])
def test_an_elementwise_pipe_resumes(url: str, workers: int) -> None:
    whole = [batch.tolist() for batch in load(make(url).map(id_of), workers)]
    fresh = load(make(url).map(id_of), workers)
    fresh.load_state_dict(state_after(load(make(url).map(id_of), workers), 4))
    assert [batch.tolist() for batch in fresh] == whole[4:]


def test_the_state_is_small_and_json(url: str) -> None:
    state = make(url).state_dict()
    assert len(json.dumps(state)) < 1024
    worker = state_after(load(make(url), 2), 3)["_snapshot"]["_worker_snapshots"]["worker_0"]
    assert json.loads(json.dumps(worker)) == worker


def test_pipes_of_torch_keep_torchs_wrapper() -> None:
    loader = load(IterableWrapper(range(5)), 0)
    assert type(loader.dataset) is _IterDataPipeSerializationWrapper
    assert list(loader) == list(range(5))
    torch.testing.assert_close(next(iter(load(IterableWrapper(range(5)), 0, batch_size=5))), torch.arange(5))


@pytest.mark.parametrize(("before", "after"), [(2, 0), (2, 3), (0, 2)])
@pytest.mark.parametrize("face", [ParquetIterable, ParquetPipe])
def test_a_state_for_another_number_of_workers_says_how_to_use_it(url: str, face: Any, before: int, after: int) -> None:
    def loader(dataset: Any, workers: int) -> Any:
        return StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    def make() -> Any:
        return face(url, ["id"]).shuffle(10, seed=5).batch(4)

    stopped = loader(make(), before)
    head = [batch["id"].tolist() for _, batch in zip(range(4), stopped, strict=False)]
    state = stopped.state_dict()
    other = loader(make(), after)
    other.load_state_dict(state)
    with pytest.raises(
        StateError, match=rf"state of {after} workers, got one of {before}.*load_state_dict\(rank_state"
    ):
        next(iter(other))
    dataset = make()
    dataset.load_state_dict(rank_state(state))
    rest = [batch["id"].tolist() for batch in loader(dataset, after)]
    assert head + rest == [batch["id"].tolist() for batch in make()]
