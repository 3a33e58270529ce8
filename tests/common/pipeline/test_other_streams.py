"""Other numbers of ranks that do not fit the streams of a state: what is left is cut anew, and stays exact."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders import Built, built_once
from cases import every_case
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common import Pipeline
from parquetry.common.base.errors import StateError
from parquetry.common.engine.read.fetch import Fetcher
from parquetry.common.plan.order.cursor import Cursor
from parquetry.common.plan.state import resume, shares_read, state_of

built = built_once([[7, 1, 9], [6], [0], [8, 9]], names=("id", "codes"))

CHAINS: dict[str, tuple[Callable[[Pipeline], Pipeline], Callable[[Pipeline], Pipeline]]] = {
    "as stored": (lambda p: p, lambda p: p),
    "shuffled": (lambda p: p.shuffle(6, seed=7), lambda p: p),
    "whole row groups": (lambda p: p.shuffle(1, seed=7), lambda p: p.batch(3)),
    "one block": (lambda p: p.shuffle(1000, seed=7), lambda p: p),
    "filtered": (lambda p: p.where(pc.field("id") > 4).shuffle(6, seed=7), lambda p: p.batch(2)),
    "skipped and taken": (lambda p: p.skip(3).take(31).shuffle(6, seed=7), lambda p: p),
    "windows": (lambda p: p.ngram(length=2).shuffle(6, seed=7), lambda p: p),
    "weights": (lambda p: p.weigh(pc.add(pc.field("id"), 1), 55, seed=1).shuffle(9, seed=2), lambda p: p),
    "classes": (lambda p: p.select("id").balance("id").shuffle(9, seed=2), lambda p: p),
    "shard first": (lambda p: p, lambda p: p.shuffle(6, seed=7)),
    "buckets": (lambda p: p.nulls("drop", "codes").shuffle(6, seed=1).bucket("codes", [1, 2], batch_size=2), lambda p: p),
}  # fmt: skip
"""What comes before ``shard()``, and what comes after it."""


def ids_of(elements: Any) -> list[int]:
    return [int(number) for element in elements for number in np.reshape(element["id"], -1)]


def run(
    rows: Pipeline, chain: str, ranks: Sequence[int], steps: Sequence[int], *, even: Any = "none", passes: int = 1
) -> tuple[list[int], list[list[int]], str]:
    """Returns the ids that all ranks take together, the steps of each rank of the last number, and the last state."""
    before, after = CHAINS[chain]
    taken: list[int] = []
    state: Any = None
    lengths: list[list[int]] = []
    for number, most in zip(ranks, [*steps, None], strict=True):
        states, each = [], []
        for rank in range(number):
            own = before(rows).shard(number, rank, even=even)
            iterator = iter(after(own if passes == 1 else own.repeat(passes)))
            if state is not None:
                iterator.load_state_dict(state)
            elements = list(itertools.islice(iterator, most))
            taken += ids_of(elements)
            states.append(iterator.state_dict())
            each.append(len(elements))
            iterator.close()
        lengths.append(each)
        state = states[-1]
        assert len(json.dumps(state)) < 1024
    return taken, lengths, state


def uninterrupted(rows: Pipeline, chain: str, number: int, passes: int = 1) -> Counter[int]:
    return Counter(run(rows, chain, [number], [], passes=passes)[0])


def rows_of(built: Built) -> Pipeline:
    return built.pipeline("id", "codes", executor="threads", workers=1)


@every_case(
    ("chain", "ranks"),
    [(chain, [(5, 4, 3), (2, 5), (1, 3), (3, 5, 2, 1), (4, 3, 4)][number % 5]) for number, chain in enumerate(CHAINS)],
)
def test_each_row_comes_once_on_numbers_of_ranks_that_do_not_fit(
    built: Built, chain: str, ranks: tuple[int, ...]
) -> None:
    taken, lengths, state = run(rows_of(built), chain, ranks, [1, 1, 1][: len(ranks) - 1])
    assert Counter(taken) == uninterrupted(rows_of(built), chain, ranks[0])
    assert max(lengths[-1]) - min(lengths[-1]) <= 1
    assert state["cuts"]


@pytest.mark.slow
@examples(40)
@given(data=st.data())
def test_each_row_comes_once_on_any_numbers_of_ranks(built: Built, data: st.DataObject) -> None:
    chain = data.draw(st.sampled_from([*CHAINS]), "chain")
    ranks = data.draw(st.lists(st.integers(1, 7), min_size=2, max_size=5), "ranks")
    steps = data.draw(st.lists(st.integers(0, 2), min_size=len(ranks) - 1, max_size=len(ranks) - 1), "steps")
    passes = data.draw(st.integers(1, 2), "passes")
    even = data.draw(st.sampled_from(["pad", "drop", "none"] if passes == 1 else ["pad"]), "even")
    taken, lengths, _ = run(rows_of(built), chain, ranks, steps, even=even, passes=passes)
    whole = uninterrupted(rows_of(built), chain, ranks[0], passes)
    if even == "none":
        assert Counter(taken) == whole or any(len(set(each)) > 1 for each in lengths[:-1])
    else:
        assert len(set(lengths[-1])) == 1
    if even == "pad":
        assert not whole - Counter(taken) or chain in ("weights", "classes")


def test_later_passes_have_a_stream_for_each_rank(built: Built) -> None:
    rows = rows_of(built).take(39).shuffle(6, seed=7)
    first = iter(rows.shard(3, 0).repeat(2))
    next(first)
    for rank in range(5):
        resumed = ids_of(iter(rows.shard(5, rank).repeat(2)).load_state_dict(first.state_dict()))
        own = ids_of(rows.shard(5, rank).repeat(2))
        assert resumed[-8:] == own[8:]
        later = iter(rows.shard(5, rank).repeat(2)).load_state_dict(first.state_dict())
        ids_of(later)
        assert ids_of(iter(rows.shard(4, 0).repeat(2)).load_state_dict(later.state_dict())) == []


def test_numbers_that_fit_keep_the_order(built: Built) -> None:
    assert [shares_read(8, ranks) for ranks in (1, 2, 4, 8, 16, 24, 6, 5)] == [1, 1, 1, 1, 2, 3, 3, 5]
    rows = rows_of(built).shuffle(6, seed=7)
    first = iter(rows.shard(4, 0))
    next(first)
    for ranks in (1, 2, 4, 8):
        resumed = iter(rows.shard(ranks, 0)).load_state_dict(first.state_dict())
        assert "cuts" not in resumed.state_dict()
        assert resumed.state_dict()["canonical_shards"] == 4
        whole = ids_of(rows.shard(1, 0, canonical_shards=4))
        assert ids_of(resumed) == (whole[4::ranks] if ranks < 8 else ids_of(resumed) or whole[4::8])


def test_back_on_the_old_number_before_a_step_is_the_old_order(built: Built) -> None:
    rows = rows_of(built).shuffle(6, seed=7)
    first = iter(rows.shard(4, 0))
    next(first)
    state = first.state_dict()
    other = iter(rows.shard(3, 0)).load_state_dict(state)
    assert other.state_dict()["cuts"] == [[4, 3]]
    again = iter(rows.shard(4, 0)).load_state_dict(other.state_dict())
    assert ids_of(again) == ids_of(first)


def test_a_cut_before_the_first_row_is_a_fresh_start(built: Built) -> None:
    rows = rows_of(built).shuffle(6, seed=7)
    state = iter(rows.shard(4, 0)).state_dict()
    for rank in range(3):
        resumed = iter(rows.shard(3, rank)).load_state_dict(state)
        assert resumed.state_dict()["canonical_shards"] == 3
        assert ids_of(resumed) == ids_of(rows.shard(3, rank))


def test_given_canonical_shards_keep_global_batches_and_warn(built: Built, caplog: pytest.LogCaptureFixture) -> None:
    rows = rows_of(built).shuffle(6, seed=7)
    first = iter(rows.shard(4, 0, canonical_shards=4))
    next(first)
    resumed = [
        ids_of(iter(rows.shard(3, rank, canonical_shards=4)).load_state_dict(first.state_dict())) for rank in range(3)
    ]
    whole = ids_of(rows.shard(1, 0, canonical_shards=4))
    assert [row for step in zip(*resumed, strict=True) for row in step] == whole[4:]
    assert "each reads about 3 times its share, because what is left is dealt from 4 streams" in caplog.text
    assert "canonical_shards=4 is not a multiple of 3 ranks" in rows.shard(3, 0, canonical_shards=4).explain()


def test_a_state_that_was_cut_needs_a_pipeline_that_can_be_cut(built: Built) -> None:
    rows = rows_of(built).shuffle(6, seed=7)
    first = iter(rows.shard(4, 0))
    next(first)
    state = iter(rows.shard(3, 0)).load_state_dict(first.state_dict()).state_dict()
    with pytest.raises(StateError, match=r"cut into 3 streams.*canonical_shards is given"):
        iter(rows.shard(3, 0, canonical_shards=4)).load_state_dict(state)
    for cuts in ([[40, 3]], [[0, 3]], [[4, 0]], [[1, 2]] * 17):
        with pytest.raises(StateError):
            iter(rows.shard(3, 0)).load_state_dict({**state, "cuts": cuts})


def test_ranks_that_skip_failures_continue_what_was_cut(built: Built) -> None:
    rows = rows_of(built).shuffle(6, seed=7)
    starts = [iter(rows.shard(4, rank, even="none")) for rank in range(4)]
    taken = ids_of(next(start) for start in starts)
    state = starts[0].state_dict()
    for rank in range(3):
        skipping = rows.with_options(on_error="skip").shard(3, rank, even="none")
        iterator = iter(skipping).load_state_dict(state)
        taken += ids_of(itertools.islice(iterator, 2))
        own = iterator.state_dict()
        assert (own["skipped"], own["cuts"]) == (0, [[4, 3]])
        taken += ids_of(iter(skipping).load_state_dict(own))
    assert sorted(taken) == sorted(ids_of(rows))


def test_joined_tokens_keep_their_order_and_warn(built: Built, caplog: pytest.LogCaptureFixture) -> None:
    rows = rows_of(built).nulls("drop", "codes").concat(2, "codes")
    first = iter(rows.shard(4, 0))
    next(first)
    resumed = iter(rows.shard(3, 0)).load_state_dict(first.state_dict())
    assert "cuts" not in resumed.state_dict()
    assert "the items of concat() span rows" in caplog.text


def test_a_pass_is_cut_only_so_often(built: Built, caplog: pytest.LogCaptureFixture) -> None:
    rows = rows_of(built).weigh(pc.add(pc.field("id"), 1), 500, seed=1).shuffle(6, seed=7)
    state: Any = state_of(rows.shard(5, 0).plan(), Cursor(start=1)).to_json()
    for number in range(20):
        ranks = 5 if number % 2 else 7
        _, found = resume(rows.shard(ranks, 0), lambda made: made.plan(), state)
        state = replace(found, consumed=1).to_json()
    assert len(json.loads(state)["cuts"]) == 16
    assert len(state) < 1024
    assert "it was cut anew 16 times in this pass" in caplog.text
    left = [ids_of(iter(rows.shard(ranks, rank)).load_state_dict(state)) for rank in range(ranks)]
    assert len(set(map(len, left))) == 1


@pytest.mark.parametrize(("before", "after"), [(16, 15), (15, 16), (8, 7), (2, 16)])
def test_a_resumed_rank_reads_two_shares_at_most(tmp_path: Any, before: int, after: int) -> None:
    row_groups = 96
    pq.write_table(pa.table({"id": np.arange(row_groups * 8)}), tmp_path / "0.parquet", row_group_size=8)
    rows = Pipeline(str(tmp_path), executor="threads", workers=1).shuffle(8, seed=3)
    state = state_of(rows.shard(before, 0).plan(), Cursor(start=row_groups * 2 // before)).to_json()
    fetch = Fetcher.fetch
    for rank in range(0, after, 5):
        read: Counter[int] = Counter()

        def counting(fetcher: Fetcher, row_group: int, *arguments: Any, read: Counter[int] = read) -> Any:
            read[row_group] += 1
            return fetch(fetcher, row_group, *arguments)

        with mock.patch.object(Fetcher, "fetch", counting):
            assert ids_of(iter(rows.shard(after, rank)).load_state_dict(state))
        assert sum(read.values()) <= 2 * row_groups / after + 4


def test_packed_items_come_once_on_numbers_of_ranks_that_do_not_fit(tmp_path: Any) -> None:
    lengths = np.random.default_rng(0).integers(1, 5, 2000)
    codes = [[number + 1] * int(length) for number, length in enumerate(lengths)]
    pq.write_table(pa.table({"codes": codes}), tmp_path / "0.parquet", row_group_size=20)

    def rank(number: int, index: int) -> Pipeline:
        packed = Pipeline(str(tmp_path), executor="threads").shuffle(40, seed=1).pack_rows(8, "codes")
        return packed.shard(number, index, even="none")

    def items(elements: Any) -> list[tuple[int, ...]]:
        return [tuple(element["codes"].tolist()) for element in elements]

    state: Any = None
    taken: list[tuple[int, ...]] = []
    for number, most in ((5, 30), (4, 7), (3, None)):
        iterators = [iter(rank(number, index)) for index in range(number)]
        for iterator in iterators:
            if state is not None:
                iterator.load_state_dict(state)
            taken += items(itertools.islice(iterator, most))
        state = iterators[0].state_dict()
    assert state["cuts"] == [[150, 4], [178, 3]]
    assert Counter(taken) == Counter(item for index in range(5) for item in items(rank(5, index)))
