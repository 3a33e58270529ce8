"""Mixes keep the order of their sources, and a seed reproduces a mix."""

from __future__ import annotations

import doctest
import inspect
import json
import pickle
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from drive_rows import drive_once
from ids import ids

from parquetry.common import Pipeline, mix
from parquetry.common.apps.testing import assert_resumable, assert_same
from parquetry.common.base.errors import PipelineError, SchemaError, StateError
from parquetry.common.pipeline.pipeline_iterator import PipelineIterator
from parquetry.common.plan.order.mixing import SOURCE_SHIFT
from parquetry.common.plan.state import plan_hash

drive = drive_once(executor="threads", workers=2)


def test_a_mix_gives_every_row_of_its_sources_in_their_own_order(drive: Pipeline) -> None:
    low, high = drive.where(pc.field("id") < 15), drive.where(pc.field("id") >= 15).shuffle(10, seed=4)
    mixed = mix([low, high], weights=[1, 2], seed=5, stop="all")
    found = ids(mixed)
    assert len(mixed) == 40
    assert [number for number in found if number < 15] == list(range(15))
    assert [number for number in found if number >= 15] == ids(high.with_seed(4))
    assert found != sorted(found)
    assert ids(mix([low, high.with_seed(4)], weights=[1, 2], seed=5, stop="all").batch(6)) == found


def test_a_mix_stops_at_the_first_source_that_has_no_more(drive: Pipeline) -> None:
    low, high = drive.take(5), drive.skip(5)
    found = ids(mix([low, high], seed=1))
    assert len(found) == len(mix([low, high], seed=1))
    assert found.count(4) <= 1
    assert len(found) < 40


def test_a_mix_holds_windows_and_variable_shapes(drive: Pipeline) -> None:
    windows = drive.select("id", "points", "name").ngram(length=2, group_by="drive")
    batch = next(iter(mix([windows, windows.skip(3)], seed=3, stop="all").batch(9)))
    for place, (first, second) in enumerate(batch["id"].tolist()):
        assert second == first + 1
        assert [cell.shape for cell in batch["points"][place]] == [(first % 4, 3), (second % 4, 3)]


def test_a_mix_without_a_seed_warns_where_ranks_would_differ(drive: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    mix([drive, drive], seed=1).shard(2, 0)
    mix([drive, drive]).shard(1, 0)
    mix([drive.shuffle(5, seed=1), drive], seed=1).shard(2, 0)
    mix([drive.shard(2, 0), drive.shard(2, 0)], seed=3)
    assert not caplog.records
    for make in (
        lambda: mix([drive, drive]).shard(2, 0),
        lambda: mix([drive.shuffle(5), drive], seed=1).shard(2, 0),
        lambda: mix([drive.shard(2, 0), drive.shard(2, 0)]),
    ):
        caplog.clear()
        make()
        assert "mix(seed=None) picked the random seed" in caplog.text


@pytest.mark.slow
def test_one_seed_brings_back_a_mix_in_which_nobody_chose_one(drive: Pipeline) -> None:
    def mixed() -> Pipeline:
        return mix([drive.select("id").shuffle(7), drive.select("id").shuffle(7)], stop="all")

    one, other = mixed(), mixed()
    assert one != other
    assert one.drawn_seed is not None
    assert other.with_seed(one.drawn_seed) == one
    again = Pipeline.from_json(one.to_json())
    assert again == one
    assert again.drawn_seed == one.drawn_seed
    iterator = iter(one)
    for _ in range(17):
        next(iterator)
    for executor in ("threads", "sidecar"):
        resumed = iter(mixed().with_options(executor=executor))
        resumed.load_state_dict(iterator.state_dict())
        assert [row["id"] for row in resumed] == [row["id"] for row in one.skip(17)]
    chosen = mix([drive.select("id").shuffle(7, seed=1), drive.select("id")], seed=2, stop="all")
    assert chosen.drawn_seed is None
    with pytest.raises(StateError, match="saved for a different"):
        iter(chosen).load_state_dict(iterator.state_dict())


def test_sources_of_a_mix_must_have_equal_fields(drive: Pipeline) -> None:
    with pytest.raises(SchemaError, match="mix: expected equal fields in all pipelines"):
        _ = mix([drive.select("id"), drive.select("price")]).element
    with pytest.raises(PipelineError, match=r"got one with batch\(\)"):
        mix([drive.batch(2), drive.batch(2)])
    with pytest.raises(PipelineError, match="one positive weight for each of 2 pipelines"):
        mix([drive, drive], weights=[1, 0])
    with pytest.raises(PipelineError, match="the sources of a mix determine its order"):
        mix([drive, drive]).shuffle(3)


SCHEDULE = [(0, [1, 0]), (10, [1, 1]), (25, [1, 6])]


def scheduled(drive: Pipeline, **options: Any) -> Pipeline:
    sources = [drive.select("id").take(20), drive.select("id").skip(20).shuffle(8, seed=2)]
    return mix(sources, weights=options.pop("weights", SCHEDULE), seed=4, stop=options.pop("stop", "all"))


def test_a_schedule_counts_the_rows_of_all_ranks_and_survives_restarts(drive: Pipeline) -> None:
    whole = ids(scheduled(drive))
    assert whole[:10] == list(range(10))
    assert sorted(whole) == list(range(40))
    low = [sum(number < 20 for number in part) / len(part) for part in (whole[10:25], whole[25:35])]
    assert low[0] > low[1]
    for ranks in (2, 3):
        parts = [ids(scheduled(drive).shard(ranks, rank, even="none")) for rank in range(ranks)]
        assert parts == [whole[rank::ranks] for rank in range(ranks)]
    assert_resumable(lambda: iter(scheduled(drive).batch(7)))
    assert ids(scheduled(drive).at_epoch(0)[[39, 12, 5]]) == [whole[39], whole[12], whole[5]]
    twice = ids(scheduled(drive).repeat(2))
    assert twice[40:50] == list(range(10)), "each pass begins at row 0"


def test_a_schedule_is_a_part_of_the_value(drive: Pipeline) -> None:
    one = scheduled(drive)
    again = pickle.loads(pickle.dumps(one))
    assert again == one
    assert Pipeline.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert ids(again) == ids(scheduled(drive).with_options(executor="sidecar"))
    assert "weights=[(0, [1.0, 0.0]), (10, [1.0, 1.0]), (25, [1.0, 6.0])]" in str(one)
    said = one.explain()
    assert "drawn 100%/0% from row 0, 50%/50% from row 10, 14%/86% from row 25, seed 4; it ends when all are" in said
    assert "it ends when a drawn source has no more rows" in scheduled(drive, stop="first").explain()
    assert mix([drive, drive], [1, 2], seed=1) == mix([drive, drive], [(0, [1, 2])], seed=1)
    for other in ([1, 1], [(0, [1, 0]), (11, [1, 1]), (25, [1, 6])], [(0, [1, 0]), (10, [1, 1]), (25, [1, 5])]):
        with pytest.raises(StateError, match="saved for a different pipeline"):
            iter(one).load_state_dict(iter(scheduled(drive, weights=other)).state_dict())


def test_a_state_of_constant_weights_equals_that_of_earlier_releases(drive: Pipeline) -> None:
    plan = mix([drive.select("id"), drive.select("id")], [1, 2], seed=1).plan()
    assert plan_hash(plan) == "bfb7d2be6ba34fd6"


def test_the_example_in_the_docstring_gives_what_it_says(drive: Pipeline) -> None:
    example = doctest.DocTestParser().get_doctest(
        inspect.getdoc(mix) or "", {"drive": drive, "mix": mix, "pc": pc}, "mix", None, 0
    )
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert not said, "".join(said)


def nested(drive: Pipeline) -> Pipeline:
    drive = drive.select("id", "image")
    inner = mix([drive.take(9).random_flip("image", seed=1), drive.skip(20).shuffle(6, seed=2)], [1, 2], 3, "all")
    return mix([drive.skip(9).take(11), inner.repeat(2).skip(4)], [(0, [1, 0]), (5, [1, 3])], seed=4, stop="all")


def test_a_mix_of_mixes_draws_from_their_order(drive: Pipeline) -> None:
    mixed = nested(drive)
    inner = mixed.source.sources[1]
    alone = mix([drive.take(11), drive.repeat(2).take(len(inner))], [(0, [1, 0]), (5, [1, 3])], seed=4, stop="all")
    assert len(mixed) == len(alone) == 11 + 2 * 29 - 4
    first, second = iter(range(9, 20)), iter(ids(inner))
    assert len(mixed.leaves) == 3
    view = alone.plan().row_view.resolve(np.arange(len(alone)))[1] >> SOURCE_SHIFT
    assert ids(mixed) == [next(second) if source else next(first) for source in view.tolist()]


def test_a_mix_of_mixes_is_dealt_batched_resumed_and_sent_as_any(drive: Pipeline) -> None:
    mixed = nested(drive)
    whole = list(PipelineIterator(mixed, 1))
    dealt = [list(PipelineIterator(mixed.shard(2, rank, even="none"), 1)) for rank in range(2)]
    assert_same([dealt[number % 2][number // 2] for number in range(len(whole))], whole)
    assert_same(mixed.at_epoch(1)[::-1], whole[::-1])
    again = Pipeline.from_json(json.loads(json.dumps(mixed.to_json())))
    assert again == pickle.loads(pickle.dumps(mixed)) == mixed
    assert_same(list(PipelineIterator(again.with_options(executor="sidecar", workers=2), 1)), whole)
    assert_resumable(lambda: iter(nested(drive).batch(16)))
    assert mixed.versions == [drive.dataset.version] * 3
    assert mixed.explain().count("storage:") == 3
    assert plan_hash(mixed.plan()) != plan_hash(mix([drive, drive], seed=4, stop="all").plan())


def test_one_seed_brings_back_a_mix_of_mixes(drive: Pipeline) -> None:
    def made() -> Pipeline:
        return mix([mix([drive.shuffle(7), drive]), drive.shuffle(7)], seed=1)

    one, other = made(), made()
    assert one.drawn_seed not in (None, other.drawn_seed)
    assert other.with_seed(one.drawn_seed) == one


@pytest.mark.parametrize(("ranks", "others"), [(2, 3), (3, 2), (1, 4), (4, 1)])
@pytest.mark.parametrize("taken", [0, 2, 5, 6, 9, 13])
def test_a_mix_resumes_with_other_ranks_where_the_others_stopped(
    drive: Pipeline, ranks: int, others: int, taken: int
) -> None:
    sources = [drive.select("id").take(8).repeat(2), drive.select("id").skip(32).shuffle(6, seed=2)]
    mixed = mix(sources, [(0, [1, 0]), (5, [1, 3])], seed=4, stop="all")
    taken = min(taken, 48 // ranks)
    iterator = iter(mixed.shard(ranks, 0).repeat(2))
    for _ in range(taken):
        next(iterator)
    left = []
    for rank in range(others):
        resumed = iter(mixed.shard(others, rank).repeat(2))
        left.append(ids(resumed.load_state_dict(iterator.state_dict())))
    gone = taken * ranks
    first = 24 - gone if gone < 24 else 0  # remaining rows of the first pass, dealt evenly
    rest = ids(mixed.repeat(2))[gone:]
    passes = [rest[:first], rest[first:]]
    padded = [number for part in passes for number in [*part, *part[: -len(part) % others]]]
    assert [part[number] for number in range(len(left[0])) for part in left] == padded


def test_an_endless_mix_resumes_with_other_ranks_and_batches(drive: Pipeline) -> None:
    drive = drive.select("id")
    mixed = mix([drive.take(8).repeat(), drive.skip(30).repeat()], [(0, [1, 0]), (9, [1, 3])], seed=4)
    iterator = iter(mixed.shard(2, 1).batch(4))
    for _ in range(3):
        next(iterator)
    left = []
    for rank in range(3):
        resumed = iter(mixed.shard(3, rank).batch(2)).load_state_dict(iterator.state_dict())
        left.append([next(resumed)["id"].tolist() for _ in range(4)])
        resumed.close()
    iterator.close()
    assert [part[k][j] for k in range(4) for j in range(2) for part in left] == ids(mixed[24:48])
