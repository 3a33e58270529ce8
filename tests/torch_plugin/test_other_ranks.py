"""A dataset without ``shard()`` resumes on another number of processes, one included."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from builders import Built, built_once
from torch.utils.data import DataLoader

from parquetry.common.errors import StateError
from parquetry.torch_plugin import ParquetIterable, ParquetNode, ParquetPipe

ROWS, BATCH = 120, 4
built = built_once([[20, 13], [7, 20], [30, 30]])


CHAINS: dict[str, Callable[[Any], Any]] = {
    "as stored": lambda rows: rows.batch(BATCH),
    "shuffled": lambda rows: rows.shuffle(20, seed=3).batch(BATCH),
    "filtered": lambda rows: rows.where([("id", ">=", 24)]).shuffle(20, seed=3).batch(BATCH),
    "repeated": lambda rows: rows.shuffle(20, seed=3).repeat(2).batch(BATCH),
    "rows": lambda rows: rows.shuffle(20, seed=3),
}


def ids_of(elements: Any) -> list[int]:
    return [int(number) for element in elements for number in element["id"].reshape(-1)]


# Each class with each chain, once with fewer ranks and once with more; each of them meets all numbers of ranks.
FEWER, MORE = [(2, 1), (3, 1), (3, 2)], [(1, 2), (1, 3), (2, 3)]
MOVES = [
    pytest.param(
        cls,
        *ranks[(one + other) % 3],
        chain,
        id=f"{cls.__name__}-{name}-{'-'.join(map(str, ranks[(one + other) % 3]))}",
    )
    for one, cls in enumerate([ParquetIterable, ParquetPipe, ParquetNode])
    for other, (name, chain) in enumerate(CHAINS.items())
    for ranks in (FEWER, MORE)
]


@pytest.mark.parametrize(("cls", "before", "after", "chain"), MOVES)
def test_the_rest_of_an_epoch_is_dealt_to_other_ranks(
    built: Built, on_rank: Any, cls: Any, before: int, after: int, chain: Callable[[Any], Any]
) -> None:
    taken, state = [], None
    for rank in range(before):
        on_rank(rank, before)
        rows = chain(cls(built.url, ["id"]))
        if isinstance(rows, ParquetNode):
            rows.reset()
            taken += ids_of(next(rows) for _ in range(5))
        else:
            iterator = iter(rows)
            taken += ids_of(next(iterator) for _ in range(5))
        state = rows.state_dict()
    lengths = set()
    for rank in range(after):
        on_rank(rank, after)
        rows = chain(cls(built.url, ["id"]))
        rows.load_state_dict(state)
        rest = list(rows)
        lengths.add(len(rest))
        taken += ids_of(rest)
    whole = ids_of(chain(built.pipeline("id")))
    assert len(lengths) == 1
    assert set(taken) == set(whole)
    assert len(whole) <= len(taken) < len(whole) + 2 * BATCH * after  # padded to equal lengths


@pytest.mark.parametrize("cls", [ParquetIterable, pytest.param(ParquetPipe, marks=pytest.mark.slow)])
@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("chain", ["as stored", "shuffled", "filtered"])
@pytest.mark.parametrize("ranks", [(1, 2, 1), (1, 2, 1, 1), (1, 2, 1, 3, 1), (2, 1, 2, 1), (1, 3, 2, 1)])
def test_it_moves_from_one_process_to_several_and_back(
    built: Built, on_rank: Any, cls: Any, explicit: bool, chain: str, ranks: tuple[int, ...]
) -> None:
    """Also with a ``shard()`` that you write only where there are several ranks."""
    taken, state = [], None
    for phase, count in enumerate(ranks):
        states = []
        for rank in range(count):
            on_rank(*((0, 1) if explicit else (rank, count)))
            rows = cls(built.url, ["id"])
            rows = CHAINS[chain](Sharded(rows, count, rank) if explicit else rows)
            if state is not None:
                rows.load_state_dict(state)
            elements = iter(rows)
            steps = elements if phase == len(ranks) - 1 else itertools.islice(elements, 3)
            taken += ids_of(steps)
            states.append(rows.state_dict())
        state = states[0]
    assert sorted(taken) == sorted(ids_of(CHAINS[chain](built.pipeline("id"))))


ELSEWHERE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "before the shuffle": (lambda rows: rows, lambda rows: rows.shuffle(20, seed=3)),
    "before skip": (lambda rows: rows, lambda rows: rows.skip(40)),
    "before take": (lambda rows: rows, lambda rows: rows.take(40)),
    "between take and shuffle": (lambda rows: rows.take(80), lambda rows: rows.shuffle(20, seed=3)),
    "after repeat": (lambda rows: rows.shuffle(20, seed=3).repeat(2), lambda rows: rows),
}
"""Places of ``shard()`` that give another order than the one that a process group gets."""


@pytest.mark.parametrize("place", ELSEWHERE)
def test_a_state_of_another_order_is_refused(built: Built, place: str) -> None:
    before, after = ELSEWHERE[place]
    parts = [after(before(ParquetIterable(built.url, ["id"])).shard(2, rank)).batch(BATCH) for rank in range(2)]
    iterator = iter(parts[0])
    for _ in range(3):
        next(iterator)
    alone = after(before(ParquetIterable(built.url, ["id"]))).batch(BATCH)
    with pytest.raises(StateError):
        alone.load_state_dict(parts[0].state_dict())
    if place not in ("before the shuffle", "between take and shuffle"):
        return  # no other number of ranks can resume it
    one = after(before(ParquetIterable(built.url, ["id"])).shard(1, 0)).batch(BATCH)
    one.load_state_dict(parts[0].state_dict())
    next(iter(one))
    with pytest.raises(StateError):
        alone.load_state_dict(one.state_dict())


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_chain_that_no_shard_may_follow_resumes_its_own_state(built: Built, ranks: int) -> None:
    def keeps(row: Any) -> Any:
        return row if row["id"] % 3 else None

    def chain() -> ParquetIterable:
        rows = ParquetIterable(built.url, ["id"], executor="threads")
        rows = rows if ranks == 1 else rows.shard(ranks, 0)
        return rows.transform(keeps, drops=True).shuffle(20, seed=1).batch(BATCH)

    whole = ids_of(chain())
    rows = chain()
    iterator = iter(rows)
    taken = ids_of(next(iterator) for _ in range(3))
    again = chain()
    again.load_state_dict(rows.state_dict())
    assert taken + ids_of(again) == whole


class Sharded:
    """A dataset to whose chains ``shard()`` is added before they are batched."""

    def __init__(self, rows: Any, count: int, rank: int) -> None:
        self._rows, self._part = rows, (count, rank)

    def __getattr__(self, verb: str) -> Any:
        def called(*arguments: Any, **options: Any) -> Any:
            rows = self._rows.shard(*self._part) if verb == "batch" and self._part[0] > 1 else self._rows
            result = getattr(rows, verb)(*arguments, **options)
            return result if verb == "batch" else Sharded(result, *self._part)

        return called


def test_one_process_continues_the_order_of_several_ranks(built: Built, on_rank: Any) -> None:
    rows = CHAINS["shuffled"](ParquetIterable(built.url, ["id"]))
    on_rank(0, 2)
    iterator = iter(rows)
    next(iterator)
    state = rows.state_dict()
    on_rank(0, 1)
    alone = CHAINS["shuffled"](ParquetIterable(built.url, ["id"]))
    alone.load_state_dict(state)
    explicit = ids_of(built.pipeline("id").shuffle(20, seed=3).shard(1, 0, canonical_shards=2).batch(BATCH))
    assert (
        ids_of(iter(CHAINS["shuffled"](ParquetIterable(built.url, ["id"]))).load_state_dict(state))
        == (explicit[2 * BATCH :])
    )
    assert ids_of(alone) == explicit[2 * BATCH :]
    following = ids_of(DataLoader(alone, batch_size=None))
    assert sorted(following) == list(range(ROWS))
    again = alone.state_dict()
    assert again["canonical_shards"] == 2
    for ranks in (1, 2):
        on_rank(0, ranks)
        CHAINS["shuffled"](ParquetIterable(built.url, ["id"])).load_state_dict(again)


def test_another_order_is_still_refused(built: Built, on_rank: Any) -> None:
    on_rank(0, 2)
    state = CHAINS["shuffled"](ParquetIterable(built.url, ["id"])).state_dict()
    on_rank(0, 1)
    other = ParquetIterable(built.url, ["id"]).shuffle(21, seed=3).batch(BATCH)
    with pytest.raises(StateError, match="saved for a different pipeline"):
        other.load_state_dict(state)
    before_shuffle = ParquetIterable(built.url, ["id"]).shard(2, 0).shuffle(20, seed=3).batch(BATCH)
    with pytest.raises(StateError, match="saved for a different pipeline"):
        before_shuffle.load_state_dict(CHAINS["shuffled"](ParquetIterable(built.url, ["id"])).state_dict())


@pytest.mark.parametrize("cls", [ParquetIterable, ParquetPipe, ParquetNode])
def test_shard_takes_the_rank_of_the_group_if_no_launcher_says_one(
    built: Built, on_rank: Any, monkeypatch: pytest.MonkeyPatch, cls: Any
) -> None:
    on_rank(1, 3)
    monkeypatch.setenv("RANK", "1")  # Lightning removes the other one after a fit
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    rows = cls(built.url, ["id"]).shard()
    assert rows.pipeline.plan().order.shard.num_shards == 3
    assert rows.pipeline.plan().order.shard.index == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert cls(built.url, ["id"]).shard().pipeline.plan().order.shard.num_shards == 2
