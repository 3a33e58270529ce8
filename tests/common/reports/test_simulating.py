"""`simulate` against the actual pipelines of all ranks."""

from __future__ import annotations

import json
from math import gcd
from pathlib import Path

import numpy as np
import pytest
from builders import build

from parquetry.common import Pipeline
from parquetry.common.errors import PipelineError
from parquetry.common.plan.plan import Plan
from parquetry.common.reports import describe, described_by, simulate, to_json

FILES = [[7, 5, 0, 9], [4, 13]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return build(tmp_path_factory.mktemp("built"), FILES, names=("id",)).pipeline()


@pytest.mark.parametrize("even", ["pad", "drop", "none"])
@pytest.mark.parametrize("ranks", [1, 3, 4, 7])
def test_steps_and_items_equal_the_pipelines(base: Pipeline, ranks: int, even: str) -> None:
    chain = base.shuffle(10, seed=7)
    sharded = [chain.shard(ranks, rank, even=even) for rank in range(ranks)]  # type: ignore[arg-type]
    lengths = [len(part) for part in sharded]
    (plan,) = simulate(described_by(sharded[0].batch(4)), [ranks]).plans
    assert plan.items == (min(lengths), max(lengths))
    assert plan.steps == max(len(part.batch(4)) for part in sharded)
    assert plan.repeated - plan.dropped == sum(lengths) - 38


@pytest.mark.parametrize(("ranks", "streams"), [(1, 1), (3, 3), (2, 4), (6, 4), (4, 6)])
def test_a_rank_reads_only_the_streams_it_takes(base: Pipeline, ranks: int, streams: int) -> None:
    chain = base.shuffle(10, seed=7)
    (plan,) = simulate(described_by(chain.shard(ranks, 0, canonical_shards=streams)), [ranks]).plans
    reads = []
    for rank in range(ranks):
        own = chain.shard(ranks, rank, even="none", canonical_shards=streams).plan()
        assert isinstance(own, Plan)
        order = own.epoch_order(0)
        mine = [stream for stream in range(streams) if stream % gcd(ranks, streams) == rank % gcd(ranks, streams)]
        reads.append(sum(len(np.unique(order.stream(stream).row_group)) for stream in mine))
    assert plan.row_groups == (min(reads), max(reads))
    assert plan.amplification == pytest.approx(sum(reads) / 5)


def test_memory_cache_and_mixing_follow_the_shuffle(base: Pipeline) -> None:
    shuffled = simulate(described_by(base.shuffle(10, seed=7)), [1, 2]).plans
    assert shuffled[0].block_items >= 10
    assert shuffled[0].quality is not None
    assert shuffled[1].cache_bytes[0] < shuffled[1].cache_bytes[1]
    kept = simulate(described_by(base.shard(2, 0).shuffle(10, seed=7)), [2]).plans[0]
    assert kept.cache_bytes[0] == kept.cache_bytes[1]
    natural = simulate(described_by(base), [1]).plans[0]
    assert (natural.quality, natural.block_items) == (None, 13)


def test_a_dataset_need_not_exist() -> None:
    found = simulate(describe(10_500, 1000, 100.0, buffer_size=2000, batch_size=50), [1, 4096])
    assert (found.items, found.row_groups, found.stored_bytes) == (10_500, 11, 1_050_000)
    assert found.plans[0].steps == 210
    assert found.plans[1].items == (3, 3)
    json.dumps(to_json(found))


def test_what_has_no_ranks_is_refused(base: Pipeline) -> None:
    with pytest.raises(PipelineError, match="numbers above 0"):
        describe(0, 1, 1.0)
    with pytest.raises(PipelineError, match="expected ranks and batch size >= 1"):
        simulate(describe(10, 5, 1.0), [0])
    with pytest.raises(PipelineError, match="rows or windows"):
        described_by(base.bucket("id", [5], batch_size=2))


def test_a_thousand_ranks_are_quick(tmp_path: Path) -> None:
    found = simulate(describe(2_000_000, 500, 1.0, buffer_size=10_000), [1024])
    assert found.plans[0].row_groups[1] <= 6


def test_row_groups_are_read_whole_behind_a_filter(tmp_path: Path) -> None:
    pipeline = build(tmp_path, [[100, 100]], names=("id", "vector")).pipeline()
    whole = simulate(described_by(pipeline), [1]).plans[0]
    few = simulate(described_by(pipeline.where([("id", "in", [1, 150])])), [1]).plans[0]
    assert (few.items, few.read_bytes, few.cache_bytes) == ((2, 2), whole.read_bytes, whole.cache_bytes)
