"""Functions that drop rows: full batches of the remaining rows, an unknown length, and exact states."""

from __future__ import annotations

from typing import Any

import pytest
from ids import flat
from ids import ids_by_element as ids
from torch.utils.data import DataLoader
from torch.utils.data.graph_settings import apply_sharding
from torchdata.nodes import Loader
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry.common.apps.testing import assert_resumable
from parquetry.common.base.errors import StateError
from parquetry.torch_plugin import ParquetNode, ParquetPipe, rank_state

LEFT = [number for number in range(60) if number % 3]


def two_of_three(row: dict[str, Any]) -> dict[str, Any] | None:
    return row if row["id"] % 3 else None


def make(url: str, face: Any = ParquetPipe, *, batch: int | None = 7, seed: int | None = 5) -> Any:
    made = face(url, ["id"], executor="threads")
    if seed is not None:
        made = made.shuffle(10, seed=seed)
    made = made.transform(two_of_three, drops=True)
    return made if batch is None else made.batch(batch)


@pytest.mark.parametrize("face", [ParquetPipe, ParquetNode])
def test_batches_are_full_of_the_rows_that_are_left(url: str, face: Any) -> None:
    assert ids(make(url, face, seed=None)) == [LEFT[start : start + 7] for start in range(0, 40, 7)]
    assert ids(make(url, face, seed=None, batch=None)) == LEFT


def test_its_length_is_unknown(url: str) -> None:
    loader = DataLoader(make(url), batch_size=None)
    for sized in (make(url), loader, make(url).map(id)):
        with pytest.raises(TypeError, match="transform with drops=True may leave rows out"):
            len(sized)
    assert len(list(loader)) == 6


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 7])
def test_a_state_is_exact_at_every_step(url: str, batch: int | None) -> None:
    assert_resumable(lambda: iter(make(url, batch=batch)))
    assert_resumable(lambda: make(url, ParquetNode, batch=batch))
    assert_resumable(lambda: iter(make(url, batch=batch).map(id_only)))


def id_only(element: dict[str, Any]) -> Any:
    return element["id"]


def test_a_state_resumes_with_another_batch_size(url: str) -> None:
    iterator = iter(make(url))
    whole = flat(ids(make(url, batch=60)))
    taken = [next(iterator)["id"].tolist() for _ in range(2)]
    other = iter(make(url, batch=4))
    other.load_state_dict(iterator.state_dict())
    rest = ids(other)
    assert flat(taken) + flat(rest) == whole
    assert [len(batch) for batch in rest] == [4] * 6 + [2]


def test_another_rank_refuses_the_state(url: str) -> None:
    def sharded(index: int, of: int) -> Any:
        pipe = ParquetPipe(url, ["id"], executor="threads").shuffle(10, seed=5).shard(of, index, canonical_shards=2)
        return pipe.transform(two_of_three, drops=True).batch(4)

    iterator = iter(sharded(0, 2))
    next(iterator)
    resumed = iter(sharded(0, 2))
    resumed.load_state_dict(iterator.state_dict())
    assert ids(resumed) == ids(iterator)
    for other in (sharded(1, 2), sharded(0, 1)):
        with pytest.raises(StateError, match=r"belongs to rank 0 of 2: expected . of ., because with transform"):
            iter(other).load_state_dict(iterator.state_dict())


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_workers_give_every_row_that_is_left_once_in_full_batches(url: str, workers: int) -> None:
    batches = ids(DataLoader(make(url), batch_size=None, num_workers=workers))
    assert sorted(flat(batches)) == LEFT
    assert sum(len(batch) < 7 for batch in batches) <= max(workers, 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_resumes(url: str, workers: int) -> None:
    def load() -> StatefulDataLoader:
        return StatefulDataLoader(make(url), batch_size=None, num_workers=workers)

    whole = ids(load())
    for taken in (1, 4, len(whole)):
        loader = load()
        iterator = iter(loader)
        head = [next(iterator)["id"].tolist() for _ in range(taken)]
        state = loader.state_dict()
        fresh = load()
        fresh.load_state_dict(state)
        assert head + ids(fresh) == whole
        del iterator


def test_a_nodes_loader_resumes(url: str) -> None:
    loader = Loader(make(url, ParquetNode))
    iterator = iter(loader)
    head = [next(iterator)["id"].tolist() for _ in range(3)]
    state = loader.state_dict()
    fresh = Loader(make(url, ParquetNode))
    fresh.load_state_dict(state)
    assert flat(head + ids(fresh)) == flat(ids(make(url)))


def test_the_position_of_several_workers_together_is_unknown(url: str) -> None:
    loader = StatefulDataLoader(make(url), batch_size=None, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(StateError, match="expected workers that took the elements in turn"):
        rank_state(loader.state_dict())
    with pytest.raises(StateError, match="expected a pipeline whose elements can be counted"):
        make(url).state_after(3)
    del iterator


def test_the_loader_deals_the_rows_before_the_function(url: str) -> None:
    parts = []
    for index in range(4):
        pipe = make(url)
        apply_sharding(pipe, 4, index)
        parts += flat(ids(pipe))
    assert sorted(parts) == LEFT
