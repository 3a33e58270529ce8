"""A dataset without ``shard()`` resumes on another number of processes, one included."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from builders import Built, built_once
from cases import every_case
from torch.utils.data import DataLoader

from parquetry.common.base.errors import StateError
from parquetry.torch_plugin import ParquetIterable, ParquetNode, ParquetPipe

ROWS, BATCH = 120, 4
built = built_once([[20, 13], [7, 20], [30, 30]])


CHAINS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "as stored": (lambda rows: rows, lambda rows: rows.batch(BATCH)),
    "shuffled": (lambda rows: rows.shuffle(20, seed=3), lambda rows: rows.batch(BATCH)),
    "filtered": (lambda rows: rows.where([("id", ">=", 24)]).shuffle(20, seed=3), lambda rows: rows.batch(BATCH)),
    "repeated": (lambda rows: rows.shuffle(20, seed=3), lambda rows: rows.repeat(2).batch(BATCH)),
    "rows": (lambda rows: rows.shuffle(20, seed=3), lambda rows: rows),
}
"""What comes before ``shard()``, and what comes after it."""


def chained(rows: Any, name: str, *part: int) -> Any:
    """Returns a chain over the rows, with a ``shard()`` if a part is given."""
    before, after = CHAINS[name]
    return after(before(rows).shard(*part) if part else before(rows))


def ids_of(elements: Any) -> list[int]:
    return [int(number) for element in elements for number in element["id"].reshape(-1)]


def taken_by_each(rank_of: Callable[[int, int], Any], ranks: Sequence[int]) -> list[list[int]]:
    """Returns what each rank takes: three elements, and all that are left if its number of ranks is the last one.

    Args:
        rank_of: makes the dataset, or its iterator, from the number of ranks and the rank.
        ranks: the numbers of ranks, one after the other; each continues at the first state of the one before.
    """
    found: list[list[int]] = []
    state = None
    for phase, count in enumerate(ranks):
        states = []
        for rank in range(count):
            rows = rank_of(count, rank)
            if state is not None:
                rows.load_state_dict(state)
            elif isinstance(rows, ParquetNode):
                rows.reset()
            found.append(ids_of(itertools.islice(rows, None if phase == len(ranks) - 1 else 3)))
            states.append(rows.state_dict())
        state = states[0]
    return found


@pytest.mark.parametrize("cls", [ParquetIterable, ParquetPipe, ParquetNode])
@every_case("explicit", [False, True])
@every_case(
    ("chain", "ranks"),
    [
        ("as stored", (1, 2, 1)),
        ("shuffled", (2, 3)),
        ("shuffled", (1, 3, 2, 1, 1)),
        ("filtered", (3, 2)),
        ("repeated", (3, 1)),
        ("rows", (1, 3)),
    ],
)
def test_other_ranks_take_what_a_pipeline_gives_them(
    built: Built, on_rank: Any, cls: Any, explicit: bool, chain: str, ranks: tuple[int, ...]
) -> None:
    """Also with a ``shard()`` that you write only where there are several ranks."""

    def rank_of(count: int, rank: int) -> Any:
        on_rank(*((0, 1) if explicit else (rank, count)))
        return chained(cls(built.url, ["id"]), chain, *((count, rank) if explicit and count > 1 else ()))

    found = taken_by_each(rank_of, ranks)
    assert found == taken_by_each(lambda *part: iter(chained(built.pipeline("id"), chain, *part)), ranks)
    assert set(itertools.chain(*found)) == set(ids_of(chained(built.pipeline("id"), chain)))


ELSEWHERE: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "before the shuffle": (lambda rows: rows, lambda rows: rows.shuffle(20, seed=3)),
    "before skip": (lambda rows: rows, lambda rows: rows.skip(40)),
    "before take": (lambda rows: rows, lambda rows: rows.take(40)),
    "between take and shuffle": (lambda rows: rows.take(80), lambda rows: rows.shuffle(20, seed=3)),
    "after repeat": (lambda rows: rows.shuffle(20, seed=3).repeat(2), lambda rows: rows),
}
"""Places of ``shard()`` that give another order than the one that a process group gets."""


@every_case("place", ELSEWHERE)
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


@every_case("ranks", [1, 2])
def test_a_chain_that_no_shard_may_follow_resumes_its_own_state(built: Built, ranks: int) -> None:
    def chain() -> ParquetIterable:
        rows = ParquetIterable(built.url, ["id"], executor="threads")
        rows = rows if ranks == 1 else rows.shard(ranks, 0)
        return rows.transform(lambda row: row if row["id"] % 3 else None, drops=True).shuffle(20, seed=1).batch(BATCH)

    whole = ids_of(chain())
    rows = chain()
    iterator = iter(rows)
    taken = ids_of(next(iterator) for _ in range(3))
    again = chain()
    again.load_state_dict(rows.state_dict())
    assert taken + ids_of(again) == whole


def test_one_process_continues_the_order_of_several_ranks(built: Built, on_rank: Any) -> None:
    rows = chained(ParquetIterable(built.url, ["id"]), "shuffled")
    on_rank(0, 2)
    iterator = iter(rows)
    next(iterator)
    state = rows.state_dict()
    on_rank(0, 1)
    alone = chained(ParquetIterable(built.url, ["id"]), "shuffled")
    alone.load_state_dict(state)
    explicit = ids_of(built.pipeline("id").shuffle(20, seed=3).shard(1, 0, canonical_shards=2).batch(BATCH))
    assert (
        ids_of(iter(chained(ParquetIterable(built.url, ["id"]), "shuffled")).load_state_dict(state))
        == (explicit[2 * BATCH :])
    )
    assert ids_of(alone) == explicit[2 * BATCH :]
    following = ids_of(DataLoader(alone, batch_size=None))
    assert sorted(following) == list(range(ROWS))
    again = alone.state_dict()
    assert again["canonical_shards"] == 2
    for ranks in (1, 2):
        on_rank(0, ranks)
        chained(ParquetIterable(built.url, ["id"]), "shuffled").load_state_dict(again)


def test_another_order_is_still_refused(built: Built, on_rank: Any) -> None:
    on_rank(0, 2)
    state = chained(ParquetIterable(built.url, ["id"]), "shuffled").state_dict()
    on_rank(0, 1)
    other = ParquetIterable(built.url, ["id"]).shuffle(21, seed=3).batch(BATCH)
    with pytest.raises(StateError, match="saved for a different pipeline"):
        other.load_state_dict(state)
    before_shuffle = ParquetIterable(built.url, ["id"]).shard(2, 0).shuffle(20, seed=3).batch(BATCH)
    with pytest.raises(StateError, match="saved for a different pipeline"):
        before_shuffle.load_state_dict(chained(ParquetIterable(built.url, ["id"]), "shuffled").state_dict())


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
