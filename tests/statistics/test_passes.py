"""Passes: each has an order and crops of its own, whatever repeats it, and goes on with them after a state."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import build

from parquetry.common import Pipeline, UnischemaField, mix
from parquetry.common.plan.order.mixing import MixView, Phase
from parquetry.common.plan.order.positions import Epoch, RepeatView, RowView, ShardView, Slice, pass_numbers

SMALL, LARGE = 8, 30


def _epoch(items: int) -> RowView:
    return Epoch(items, 1, "none")


def _mixed(small: RowView, large: RowView) -> MixView:
    return MixView([small, large], [0, 1], [Phase(0, (1.0, 1.0))], 1, "first")


_SMALL_AGAIN = RepeatView(_epoch(SMALL), None)
REPEATED: dict[str, Callable[[], Any]] = {
    "one dataset": lambda: _epoch(SMALL),
    "endless": lambda: _SMALL_AGAIN,
    "endless, cut": lambda: Slice(ShardView(_SMALL_AGAIN, 2, 1, "pad"), 3, 60),
    "a small source beside a large one": lambda: _mixed(_SMALL_AGAIN, _epoch(LARGE)),
    "such a mix, repeated": lambda: RepeatView(_mixed(_SMALL_AGAIN, _epoch(LARGE)), 3),
    "such a mix, repeated without end": lambda: RepeatView(_mixed(_SMALL_AGAIN, _epoch(LARGE)), None),
    "such a mix, repeated beside a larger one": lambda: _mixed(
        RepeatView(_mixed(_SMALL_AGAIN, _epoch(LARGE)), None), _epoch(8 * LARGE)
    ),
}


@pytest.mark.parametrize("name", REPEATED)
def test_no_two_passes_share_a_number(name: str) -> None:
    view = REPEATED[name]()
    numbers = np.arange(view.length or 400)
    seen: dict[tuple[int, int], int] = {}
    for iteration in (0, 1, 2, 3, 1 << 40):
        passes, index = view.resolve(numbers)
        of_small = index < SMALL
        keys = pass_numbers(iteration, passes, view)[of_small]
        for key, place in zip(keys.tolist(), index[of_small].tolist(), strict=True):
            seen[key, place] = seen.get((key, place), 0) + 1
    assert set(seen.values()) == {1}


def test_the_first_iterator_counts_its_passes() -> None:
    passes, _ = _SMALL_AGAIN.resolve(np.arange(5 * SMALL))
    assert pass_numbers(0, passes, _SMALL_AGAIN).tolist() == np.repeat(range(5), SMALL).tolist()
    mixed = _mixed(_SMALL_AGAIN, _epoch(LARGE))
    whole = np.arange(mixed.length or 0)
    again = RepeatView(mixed, 2).resolve(np.arange(2 * len(whole)))[0]
    assert np.array_equal(
        again, np.concatenate([pass_numbers(turn, mixed.resolve(whole)[0], mixed) for turn in (0, 1)])
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pipeline, Pipeline]:
    small, large = (tmp_path_factory.mktemp(name) for name in ("small", "large"))
    shown: list[Path] = [small, large]
    built = [build(path, [[4, 4], [rows - 8]], names=["id"]) for path, rows in zip(shown, (12, 90), strict=True)]
    return built[0].pipeline("id").shuffle(12, seed=1), built[1].pipeline("id").shuffle(30, seed=2)


def _passes_of_small(mixed: Pipeline, iterations: int) -> list[tuple[int, ...]]:
    """Returns the order of each whole pass over the small source, whose rows have a key of their own."""
    orders = []
    for _ in range(iterations):
        ids = [int(row["id"]) for row in mixed if row["small"]]
        orders += [tuple(ids[first : first + 12]) for first in range(0, len(ids) - 11, 12)]
    return orders


def _marked(pipeline: Pipeline, small: bool) -> Pipeline:
    return pipeline.transform(lambda row: {**row, "small": small}, [UnischemaField("small", np.bool_)])


def _once(mixed: Pipeline) -> Pipeline:
    return mixed


REPEATS = [
    pytest.param(_once, 3, id="alone"),
    pytest.param(lambda mixed: mixed.repeat(3), 3, id="repeated"),  # its passes are not cut where the source's begin
    pytest.param(_once, 100, id="many iterators", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("after", "iterators"), REPEATS)
def test_a_small_source_beside_a_large_one_never_repeats_an_order(sources: Any, after: Any, iterators: int) -> None:
    small, large = sources
    mixed = after(mix([_marked(small.repeat(), True), _marked(large, False)], seed=5))
    orders = _passes_of_small(mixed, iterators)
    assert len(orders) > 5 * iterators
    assert len(set(orders)) == len(orders)
    pairs = [np.corrcoef(np.argsort(one), np.argsort(other))[0, 1] for one, other in itertools.pairwise(orders)]
    assert abs(np.mean(pairs)) < 4 / np.sqrt(11 * len(pairs))  # 1 / sqrt(rows - 1) is the deviation of one pair


def test_other_ranks_continue_the_same_passes(sources: Any) -> None:
    small, large = sources
    mixed = mix([small.repeat(), large], seed=5)
    length = len(mixed)
    again = mixed.shard(1, 0).repeat(3)
    list(again.take(1))
    whole = [int(row["id"]) for row in again]
    for taken in (4, length + 3):
        iterator = iter(again.batch(1))
        for _ in range(taken):
            next(iterator)
        state = iterator.state_dict()
        iterator.close()
        parts = []
        for rank in range(2):
            resumed = iter(mixed.shard(2, rank).repeat(3).batch(1)).load_state_dict(state)
            parts.append([int(element["id"][0]) for element in resumed])
        left = [number for step in zip(*parts, strict=True) for number in step]
        rest, passes = whole[taken:], 3 - taken // length
        first = len(rest) - (passes - 1) * length
        cut = [rest[:first], *(rest[first + k * length : first + (k + 1) * length] for k in range(passes - 1))]
        assert left == [number for part in cut for number in [*part, *part[: len(part) % 2]]]
