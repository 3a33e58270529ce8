"""A `StatefulDataLoader`'s state, also that of several workers, continues on another number of ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import Built, built_once
from torchdata.stateful_dataloader import StatefulDataLoader

from parquetry.common.base.errors import StateError
from parquetry.torch_plugin import ParquetIterable, rank_state

ROWS, BATCH, STOP = 120, 5, 4
built = built_once([[20, 13], [7, 20], [30, 30]])
CASES = [
    *((1, 0, 2), (2, 0, 1), (1, 1, 2), (2, 2, 1), (3, 0, 4), (3, 2, 4)),
    pytest.param(2, 2, 4, marks=pytest.mark.slow),
]
"""Ranks before, loader workers, ranks after."""


def loader(built: Built, workers: int, *, batched: bool = True) -> Any:
    rows = ParquetIterable(built.url, ["id"]).shuffle(20, seed=3)
    if not batched:
        return StatefulDataLoader(rows, batch_size=BATCH, num_workers=workers)
    return StatefulDataLoader(rows.batch(BATCH), batch_size=None, num_workers=workers)


def resumed(state: dict[str, Any], *args: Any, **options: Any) -> Any:
    found = loader(*args, **options)
    found.load_state_dict(state)
    return found


def ids_of(batches: Any) -> list[int]:
    return [number for batch in batches for number in batch["id"].tolist()]


def stopped(on_rank: Any, ranks: int, steps: int, *args: Any, **options: Any) -> tuple[list[int], dict[str, Any]]:
    """Returns what all ranks have seen after some steps, and the state of one of them."""
    taken: list[int] = []
    for rank in range(ranks):
        on_rank(rank, ranks)
        found = loader(*args, **options)
        assert len(found) > steps  # torch remembers the length in the state
        iterator = iter(found)
        taken += ids_of(next(iterator) for _ in range(steps))
        state = found.state_dict()
    return taken, state


@pytest.mark.parametrize(("before", "workers", "after"), CASES)
def test_the_rest_of_an_epoch_and_the_next_one_are_dealt_anew(
    built: Built, on_rank: Any, before: int, workers: int, after: int
) -> None:
    taken, state = stopped(on_rank, before, STOP, built, workers)
    following: list[int] = []
    lengths = set()
    for rank in range(after):
        on_rank(rank, after)
        rest = resumed(state, built, workers)
        steps = list(rest)
        lengths.add(len(steps))
        taken += ids_of(steps)
        following += ids_of(rest)
    assert len(lengths) == 1
    assert sorted(taken) == sorted(following) == list(range(ROWS))
    assert following != taken


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_finished_epoch_is_followed_by_the_next_on_other_ranks(
    built: Built, on_rank: Any, workers: int, before: int, after: int
) -> None:
    on_rank(0, before)
    whole = loader(built, workers)
    assert len(ids_of(whole)) == ROWS // before
    state = whole.state_dict()
    on_rank(0, after)
    following = resumed(state, built, workers)
    assert len(set(ids_of(following))) == ROWS // after
    assert rank_state(following.state_dict())["iteration"] == 2


def test_a_state_that_was_continued_elsewhere_says_the_same_position(built: Built, on_rank: Any) -> None:
    taken, state = stopped(on_rank, 2, STOP, built, 2)
    on_rank(0, 1)
    rest = ids_of(resumed(state, built, 2))
    assert sorted(taken + rest) == list(range(ROWS))
    assert ids_of(resumed(state, built, 2)) == rest
    dataset = ParquetIterable(built.url, ["id"]).shuffle(20, seed=3).batch(BATCH)
    dataset.load_state_dict(json.dumps(rank_state(state)))
    assert ids_of(dataset) == rest


def test_the_state_of_a_continued_epoch_continues_it_again(built: Built, on_rank: Any) -> None:
    taken, state = stopped(on_rank, 2, STOP, built, 2)
    on_rank(0, 1)
    alone = resumed(state, built, 2)
    iterator = iter(alone)
    taken += ids_of(next(iterator) for _ in range(STOP))
    state = alone.state_dict()
    for rank in range(2):
        on_rank(rank, 2)
        taken += ids_of(resumed(state, built, 2))
    assert sorted(taken) == list(range(ROWS))


def test_positions_that_cannot_be_joined_are_refused(built: Built, on_rank: Any) -> None:
    _, state = stopped(on_rank, 2, 3, built, 2, batched=False)
    on_rank(0, 1)
    with pytest.raises(StateError, match=r"state of 1 rank, or one .*, got one of 2 ranks: .* Use batch\(\)"):
        next(iter(resumed(state, built, 2, batched=False)))
