"""Functions that drop rows: full batches of the remaining rows, an unknown length, and exact states."""

from __future__ import annotations

from typing import Any

import pytest
from ids import flat
from ids import ids_by_element as ids
from torch.utils.data import DataLoader
from torch.utils.data.graph_settings import apply_sharding
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry.common.base.errors import StateError
from parquetry.torch_plugin import ParquetPipe, rank_state

LEFT = [number for number in range(60) if number % 3]


def two_of_three(row: dict[str, Any]) -> dict[str, Any] | None:
    return row if row["id"] % 3 else None


def make(url: str, face: Any = ParquetPipe, *, batch: int | None = 7, seed: int | None = 5) -> Any:
    made = face(url, ["id"], executor="threads")
    if seed is not None:
        made = made.shuffle(10, seed=seed)
    made = made.transform(two_of_three, drops=True)
    return made if batch is None else made.batch(batch)


def test_its_length_is_unknown(url: str) -> None:
    loader = DataLoader(make(url), batch_size=None)
    for sized in (make(url), loader, make(url).map(id)):
        with pytest.raises(TypeError, match="transform with drops=True may leave rows out"):
            len(sized)
    assert len(list(loader)) == 6


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
