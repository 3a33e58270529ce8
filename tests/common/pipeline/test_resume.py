"""Stopping and resuming: at every step, over every stage, with other rank counts; and states of other pipelines."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from builders import Built, build, built_once
from cases import every_case
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples
from resume_cases import CASES, RESUME_NAMES

from parquetry.common import Pipeline, mix
from parquetry.common.apps.testing import assert_resumable
from parquetry.common.base.errors import EmptySelectionError, StateError
from parquetry.common.pipeline.pipeline_iterator import batch_to_numpy
from parquetry.common.pipeline.step_iterator import StepIterator
from parquetry.common.plan.state import shares_read

built = built_once([[3, 1, 4], [2], [0], [5, 2]], names=RESUME_NAMES)


@pytest.mark.parametrize("executor", ["threads", pytest.param("sidecar", marks=pytest.mark.nightly)])
@every_case("name", CASES)
def test_every_stage_resumes_exactly_at_every_step(built: Built, name: str, executor: str) -> None:
    assert_resumable(lambda: iter(CASES[name](built.pipeline(executor=executor, workers=1))))


@every_case("name", ["shuffle and batch over two passes", "shuffled windows"])
def test_a_state_brings_back_its_own_epoch(built: Built, name: str) -> None:
    pipeline = CASES[name](built.pipeline())
    assert_resumable(lambda: iter(pipeline))  # each iter() is another epoch


@pytest.mark.slow
def test_an_endless_pipeline_resumes_in_any_pass(built: Built) -> None:
    assert_resumable(lambda: iter(built.pipeline("id").shuffle(5, seed=3).repeat().batch(4)), steps=14)


def test_a_cache_changes_nothing(built: Built, tmp_path: Path) -> None:
    assert_resumable(lambda: iter(built.pipeline().cache(tmp_path).shuffle(5, seed=3).batch(4)))


def test_a_mix_resumes_exactly(built: Built) -> None:
    def pipeline() -> Pipeline:
        one, other = built.pipeline("id").shuffle(4, seed=1), built.pipeline("id").where(pc.field("id") > 9).repeat(2)
        return mix([one, other], weights=[2, 1], seed=5, stop="all").batch(4)

    assert_resumable(lambda: iter(pipeline().with_options(executor="threads")))


def test_the_sidecar_resumes_exactly(built: Built) -> None:
    assert_resumable(lambda: iter(built.pipeline(executor="sidecar").shuffle(4, seed=1).repeat(2).batch(4)))


def test_a_state_of_threads_resumes_in_the_sidecar_and_back(built: Built) -> None:
    def pipeline(executor: str) -> Pipeline:
        return built.pipeline("id", executor=executor).shuffle(4, seed=1).batch(3)

    whole = [batch["id"].tolist() for batch in pipeline("threads")]
    for one, other in (("threads", "sidecar"), ("sidecar", "threads")):
        first = iter(pipeline(one))
        taken = [next(first)["id"].tolist() for _ in range(2)]
        second = iter(pipeline(other))
        second.load_state_dict(first.state_dict())
        first.close()
        assert taken + [batch["id"].tolist() for batch in second] == whole


@every_case("batch", [None, 3])
def test_each_loader_worker_goes_on_with_its_own_part(built: Built, batch: int | None) -> None:
    pipeline = built.pipeline("id").shuffle(4, seed=1)
    pipeline = pipeline if batch is None else pipeline.batch(batch)

    class Worker:
        """One loader worker's iterator."""

        def __init__(self, worker: int) -> None:
            self.steps = StepIterator(pipeline, 0, strict_nulls=True, worker=worker, workers=2)
            self.rows: list[Any] = []
            self.consumed = 0

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            if not self.rows:
                _, columns = next(self.steps)
                ids = batch_to_numpy(self.steps.element, columns)["id"]
                self.rows = [ids] if self.steps.element.batched else list(ids)
            self.consumed += 1
            return self.rows.pop(0)

        def state_dict(self) -> str:
            return self.steps.state(self.consumed)

        def load_state_dict(self, state: str) -> None:
            self.consumed = self.steps.restore(state)

    for worker in range(2):
        assert_resumable(lambda worker=worker: Worker(worker))


def test_a_state_is_small_json_whatever_the_position(built: Built) -> None:
    pipeline = (
        built.pipeline().where(pc.field("id") > 0).shuffle(10_000, seed=2**62).shard(3, 2, canonical_shards=12).batch(2)
    )
    iterator = iter(pipeline)
    for _ in iterator:
        text = json.dumps(iterator.state_dict())
        assert len(text) < 1024
    again = iter(pipeline)
    again.load_state_dict(text)  # also as text
    assert list(again) == []


# --- other numbers of ranks ---


CHAINS: dict[str, Callable[[Pipeline], Pipeline]] = {
    "as stored": lambda p: p,
    "shuffled": lambda p: p.shuffle(3, seed=7),
    "filtered": lambda p: p.where(pc.field("id") > 1).shuffle(3, seed=7),
}
EVEN = ["pad", "drop", "none"]
RANKS = [
    *((2, 1), (3, 1), (3, 2), (1, 2), (1, 3), (2, 3), (4, 1), (2, 5)),
    *((1, 2, 1), (1, 2, 1, 1), (1, 2, 1, 3, 1), (2, 1, 2, 1), (1, 3, 2, 1)),
]
"""Numbers of ranks, one after the other."""


def check_ranks(
    rows: Pipeline,
    ranks: Sequence[int],
    steps: Sequence[int],
    *,
    even: Any,
    canonical: int | None = None,
    passes: int = 1,
    together: int | None = None,
) -> None:
    """Checks that ranks deal out the rows of one rank in turn, and that other ranks do so with exactly those that are left.

    Args:
        ranks: numbers of ranks, one after the other.
        steps: how many elements each of them takes; the last ranks take all.
        canonical: the canonical shards that the pipelines choose.
        together: the rows of a global batch; ``None`` = no batches.
    """

    def of_rank(number: int, rank: int, canonical: int | None) -> Pipeline:
        sharded = rows.shard(number, rank, even=even, canonical_shards=canonical)
        return sharded if passes == 1 else sharded.repeat(passes)

    if any(shares_read(ranks[0], number) > 2 for number in ranks):
        canonical = canonical or ranks[0]  # otherwise what is left would be cut anew
    shards = canonical or ranks[0]
    alone = [int(row["id"]) for row in of_rank(1, 0, shards)]
    length = len(alone) // passes
    wholes = [alone[at : at + length] for at in range(0, len(alone), length)]
    dealt = _Dealt(wholes, [0] * passes, ranks[0], even)
    offset = asked = 0  # the rows that each of these ranks took and was asked for
    state: Any = None
    for number, most in zip(ranks, [*steps, None], strict=True):
        if number != dealt.number:
            starts = dealt.starts_after(offset) if asked else dealt.starts
            dealt, offset, asked = _Dealt(wholes, starts, number, even), 0, 0
        size = 1 if together is None else max(1, together // number)
        states, taken = [], 0
        for rank in range(number):
            pipeline = of_rank(number, rank, canonical)
            iterator = iter(pipeline if together is None else pipeline.batch(size))
            if state is not None:
                iterator.load_state_dict(state)
                assert iterator.state_dict()["canonical_shards"] == shards
            found = [row for step in itertools.islice(iterator, most) for row in step["id"].reshape(-1).tolist()]
            expected = dealt.rows_of(rank)[offset:]
            assert found == expected[: None if most is None else most * size], f"rank {rank} of {number} in {ranks}"
            taken = max(taken, len(found))
            states.append(iterator.state_dict())
            iterator.close()
        state, offset, asked = states[-1], offset + taken, asked + (most or 0) * size


@dataclass
class _Dealt:
    """What ranks have left of each pass, one row after the other to each rank in turn."""

    wholes: list[list[int]]
    starts: list[int]
    number: int
    even: str

    def __post_init__(self) -> None:
        self._lefts = [self._made_even(whole[start:]) for whole, start in zip(self.wholes, self.starts, strict=True)]

    def _made_even(self, left: list[int]) -> list[int]:
        if self.even == "drop":
            return left[: len(left) // self.number * self.number]
        missing = -len(left) % self.number if self.even == "pad" else 0
        return [*left, *itertools.islice(itertools.cycle(left), missing)]

    def rows_of(self, rank: int) -> list[int]:
        return [row for left in self._lefts for row in left[rank :: self.number]]

    def starts_after(self, taken: int) -> list[int]:
        """Returns where each pass goes on once each rank took some rows; what a pass dropped is gone with its end."""
        starts = []
        for whole, start, left in zip(self.wholes, self.starts, self._lefts, strict=True):
            rounds = -(-len(left) // self.number)
            here = min(taken, rounds)
            starts.append(len(whole) if here == rounds else start + here * self.number)
            taken -= here
        return starts


@every_case(
    ("ranks", "even", "chain", "batched"),
    [
        (ranks, even, [*CHAINS][(one + other) % 3], (one + other) % 2 == 1)
        for one, ranks in enumerate(RANKS)
        for other, even in enumerate(EVEN)
    ],
)
def test_any_other_numbers_of_ranks_take_exactly_the_rows_that_are_left(
    built: Built, ranks: tuple[int, ...], even: str, chain: str, batched: bool
) -> None:
    rows = CHAINS[chain](built.pipeline("id", executor="threads", workers=1))
    if batched:
        check_ranks(rows, ranks, [1] * (len(ranks) - 1), even=even, canonical=2, together=4)
    else:
        check_ranks(rows, ranks, [2] * (len(ranks) - 1), even=even)


@pytest.mark.slow
@every_case("ranks", [(4, 2), (3, 1), (2, 5)])
def test_other_numbers_of_ranks_take_exactly_the_rows_that_are_left_in_the_sidecar(
    built: Built, ranks: tuple[int, ...]
) -> None:
    rows = CHAINS["shuffled"](built.pipeline("id", executor="sidecar", workers=1))
    check_ranks(rows, ranks, [2] * (len(ranks) - 1), even="none")


@pytest.mark.slow
@examples(40)
@given(data=st.data())
def test_ranks_take_exactly_the_rows_that_are_left_in_every_order(built: Built, data: st.DataObject) -> None:
    even = data.draw(st.sampled_from(EVEN), "even")
    ranks = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 12]), min_size=2, max_size=4), "ranks")
    steps = data.draw(st.lists(st.integers(0, 2), min_size=len(ranks) - 1, max_size=len(ranks) - 1), "steps")
    chain = data.draw(st.sampled_from([*CHAINS]), "chain")
    check_ranks(
        CHAINS[chain](built.pipeline("id", executor="threads", workers=1)),
        ranks,
        steps,
        even=even,
        canonical=data.draw(st.sampled_from([None, 2, 3, 12]), "canonical shards"),
        passes=1 if even == "none" else data.draw(st.integers(1, 2), "passes"),
        together=data.draw(st.sampled_from([None, 12]), "global batch"),
    )


def test_ranks_whose_passes_differ_in_length_are_refused_other_ranks_after_the_first(built: Built) -> None:
    def pipeline(ranks: int) -> Pipeline:
        return built.pipeline("id").shuffle(3, seed=7).shard(ranks, 0, even="none", canonical_shards=2).repeat(2)

    first = iter(pipeline(2))
    for taken in range(12):
        if taken == 8:
            iter(pipeline(1)).load_state_dict(first.state_dict())
        next(first)
    with pytest.raises(StateError, match="are at different rows"):
        iter(pipeline(1)).load_state_dict(first.state_dict())


@pytest.mark.parametrize(("executor", "batch"), [("threads", None), ("threads", 3), ("sidecar", 3)])
def test_when_a_rank_ends_one_step_early_no_rank_has_rows_left(built: Built, executor: str, batch: int | None) -> None:
    def iterator(number: int, rank: int) -> Any:
        pipeline = built.pipeline("id", executor=executor, workers=1)
        pipeline = pipeline.shuffle(3, seed=7).shard(number, rank, even="none")
        return iter(pipeline if batch is None else pipeline.batch(batch))

    ranks = {rank: iterator(5, rank) for rank in (range(5) if executor == "threads" else (0, 4))}
    assert len({len(list(rank)) for rank in ranks.values()}) == 2
    for rank, ended in ranks.items():
        others = (1, 2) if executor == "threads" else (1,)
        for number, index in [(5, rank), *((other, index) for other in others for index in range(other))]:
            resumed = iterator(number, index)
            resumed.load_state_dict(ended.state_dict())
            assert list(resumed) == []


def test_an_iterator_that_was_closed_has_not_ended(built: Built) -> None:
    iterator = iter(built.pipeline("id").shard(5, 4, even="none"))
    next(iterator)
    iterator.close()
    assert list(iterator) == []
    assert iterator.state_dict()["consumed"] == 1


def test_canonical_shards_that_were_chosen_are_not_changed_by_a_state(built: Built) -> None:
    state = iter(built.pipeline("id").shard(4, 0)).state_dict()
    with pytest.raises(
        StateError, match="saved for a different canonical_shards: this pipeline has 6, the state has 4"
    ):
        iter(built.pipeline("id").shard(2, 0, canonical_shards=6)).load_state_dict(state)


def test_another_batch_size_continues_at_the_same_row(built: Built) -> None:
    whole = [int(row["id"]) for row in built.pipeline("id").shuffle(3, seed=7)]
    first = iter(built.pipeline("id").shuffle(3, seed=7).batch(4))
    next(first)
    second = iter(built.pipeline("id").shuffle(3, seed=7).batch(5))
    second.load_state_dict(first.state_dict())
    assert [number for batch in second for number in batch["id"].tolist()] == whole[4:]


@every_case(
    "change",
    [lambda p: p.take(9).shard(2, 0), lambda p: p.shard(2, 0).skip(1), lambda p: p.shard(2, 0).batch(2).take(3)],
)
def test_stages_without_a_common_position_refuse_other_ranks(built: Built, change: Any) -> None:
    first = iter(change(built.pipeline("id").shuffle(3, seed=7)))
    next(first)
    second = iter(change(built.pipeline("id").shuffle(3, seed=7)).with_options())
    second.load_state_dict(first.state_dict())  # the same ranks always work
    state = {**first.state_dict(), "shards": [0, 3]}
    with pytest.raises(StateError, match="give ranks no common position"):
        iter(change(built.pipeline("id").shuffle(3, seed=7))).load_state_dict(state)


# --- states of other pipelines ---


@every_case(
    ("other", "message"),
    [
        (lambda p: p.shuffle(5, seed=1).batch(4).repeat(3), r"saved for a different pipeline \(stages that decide which rows come in which order\)"),
        (lambda p: p.where(pc.field("id") > 2).shuffle(4, seed=1).batch(4), "saved for a different pipeline"),
        (lambda p: p.shuffle(4, seed=2).batch(4), "saved for a different shuffle seed: this pipeline has 2, the state has 1"),
        (lambda p: p.shuffle(4, seed=1).shard(1, 0, canonical_shards=3).batch(4), "saved for a different canonical_shards: this pipeline has 3"),
        (lambda p: p.batch(4), "saved for a different shuffle seed: this pipeline has None, the state has 1"),
    ],
)  # fmt: skip
def test_a_state_of_another_pipeline_is_refused_with_the_difference(built: Built, other: Any, message: str) -> None:
    state = iter(built.pipeline("id").shuffle(4, seed=1).batch(4)).state_dict()
    with pytest.raises(StateError, match=message):
        iter(other(built.pipeline("id"))).load_state_dict(state)


def test_a_state_of_another_dataset_is_refused(built: Built, tmp_path: Path) -> None:
    other = build(tmp_path, [[3, 1, 4], [2], [0], [5, 3]], names=RESUME_NAMES)
    with pytest.raises(StateError, match="saved for a different dataset"):
        iter(other.pipeline()).load_state_dict(iter(built.pipeline()).state_dict())


def test_a_dataset_that_was_moved_is_the_same_dataset(tmp_path: Path) -> None:
    here = build(tmp_path / "here", [[3, 2]], names=("id",))
    iterator = iter(here.pipeline())
    next(iterator)
    state = iterator.state_dict()
    (tmp_path / "here").rename(tmp_path / "there")
    again = iter(Pipeline(str(tmp_path / "there"), executor="threads"))
    again.load_state_dict(state)
    assert [int(row["id"]) for row in again] == [1, 2, 3, 4]


@every_case(
    ("change", "message"),
    [
        (
            lambda state: {**state, "version": 99},
            "saved for a different format version: this pipeline has 2, the state has 99",
        ),
        (lambda state: {**state, "worker": 1, "workers": 2}, "saved for a different number of loader workers"),
        (lambda state: {**state, "consumed": -1}, "expected whole numbers >= 0"),
        (lambda state: {**state, "consumed": "3"}, "expected consumed to be a 64-bit integer, got '3'"),
        (lambda state: {**state, "iteration": -1}, "expected whole numbers >= 0"),
        (lambda state: {k: v for k, v in state.items() if k != "seed"}, r"expected what state_dict\(\) returned, got"),
        (lambda state: {}, r"expected what state_dict\(\) returned, got"),
        (lambda state: "not JSON", r"expected what state_dict\(\) returned, got 'not JSON'"),
        (lambda state: [1, 2], r"expected what state_dict\(\) returned, got"),
        (lambda state: None, r"expected what state_dict\(\) returned, got"),
        *((lambda state, value=value: value, "expected") for value in (3, "", "[]", "[" * 100_000, b"\xff\xfe", "NaN")),
        *((lambda state, value=value: value, "expected") for value in ('{"version": 1}', [("a", 1)], object())),
    ],
)
def test_values_that_are_not_states_are_refused(built: Built, change: Any, message: str) -> None:
    state = iter(built.pipeline("id")).state_dict()
    with pytest.raises(StateError, match=message):
        iter(built.pipeline("id")).load_state_dict(change(state))


def test_an_iterator_that_has_begun_takes_no_state(built: Built) -> None:
    iterator = iter(built.pipeline("id"))
    state = iterator.state_dict()
    next(iterator)
    with pytest.raises(StateError, match=r"expected a fresh iterator, got one that has begun. Call iter\(\) again"):
        iterator.load_state_dict(state)


def test_stages_that_change_no_row_do_not_belong_to_the_state(built: Built, tmp_path: Path) -> None:
    first = iter(built.pipeline("id").shuffle(4, seed=1))
    next(first)
    again = iter(built.pipeline("id", workers=3, memory_limit=1000).cache(tmp_path).shuffle(4, seed=1))
    again.load_state_dict(first.state_dict())
    assert [int(row["id"]) for row in again] == [int(row["id"]) for row in first]


def test_the_state_of_an_empty_selection_can_be_taken(built: Built) -> None:
    iterator = iter(built.pipeline("id").where(pc.field("id") < 0))
    state = iterator.state_dict()
    with pytest.raises(EmptySelectionError, match="expected at least one item"):
        next(iterator)
    assert state["consumed"] == 0
