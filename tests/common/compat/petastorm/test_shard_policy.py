"""``shard(policy="rowgroup_modulo")``: Petastorm's shard membership on a `Pipeline`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from parquetry.common import Pipeline, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import EmptySelectionError, PipelineError
from parquetry.common.compat.petastorm import make_reader

COUNT, GROUP = 50, 7


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    schema = Unischema("rows", [UnischemaField("id", np.int64), UnischemaField("ts", np.int64)])
    write_dataset(tmp_path / "rows", schema, [{"id": i, "ts": i} for i in range(COUNT)], row_group_rows=GROUP)
    return Pipeline(tmp_path / "rows", executor="threads", workers=2)


def ids(pipeline: Any) -> list[int]:
    return [int(row["id"] if "id" in row else row[0]["id"]) for row in pipeline]


def part(shards: int, index: int) -> list[int]:
    return [i for i in range(COUNT) if i // GROUP % shards == index]


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_row_group_i_belongs_to_part_i_modulo_the_number(pipeline: Pipeline, shards: int) -> None:
    for index in range(shards):
        mine = pipeline.shard(shards, index, policy="rowgroup_modulo")
        assert ids(mine) == part(shards, index)
        assert len(mine) == len(part(shards, index))
        assert sorted(ids(mine.shuffle(9, seed=4))) == part(shards, index)
        with make_reader(pipeline.urls[0], cur_shard=index, shard_count=shards) as reader:
            assert sorted(int(row.id) for row in reader) == part(shards, index)


@pytest.mark.parametrize("first", [True, False])
def test_membership_does_not_depend_on_filters_nor_on_their_place(pipeline: Pipeline, first: bool) -> None:
    condition = pc.field("id") >= 9
    if first:
        chosen = pipeline.where(condition).shard(3, 1, policy="rowgroup_modulo")
    else:
        chosen = pipeline.shard(3, 1, policy="rowgroup_modulo").where(condition)
    assert ids(chosen) == [i for i in part(3, 1) if i >= 9]


def test_windows_belong_to_the_part_of_their_first_row(pipeline: Pipeline) -> None:
    pairs = {0: ["id"], 2: ["id"]}
    dealt = [
        ids(pipeline.shard(3, index, policy="rowgroup_modulo").ngram(pairs, timestamp="ts", max_gap=1))
        for index in range(3)
    ]
    assert dealt == [[i for i in part(3, index) if i < COUNT - 2] for index in range(3)]


def test_take_and_skip_cut_where_they_stand(pipeline: Pipeline) -> None:
    assert ids(pipeline.shard(2, 1, policy="rowgroup_modulo").skip(3).take(6)) == part(2, 1)[3:9]
    assert ids(pipeline.take(10).shard(2, 1, policy="rowgroup_modulo")) == [7, 8, 9]
    assert ids(pipeline.shard(2, 1, policy="rowgroup_modulo").repeat(2)) == part(2, 1) * 2
    batches = list(pipeline.shard(2, 0, policy="rowgroup_modulo").batch(10))
    assert [len(batch["id"]) for batch in batches] == [10, 10, 8]


def test_it_goes_to_json_and_the_other_executor(pipeline: Pipeline) -> None:
    mine = pipeline.shard(2, 1, policy="rowgroup_modulo").where(pc.field("id") > 20)
    assert Pipeline.from_json(mine.to_json()) == mine
    assert ids(mine.with_options(executor="sidecar", workers=1)) == [i for i in part(2, 1) if i > 20]
    assert "shard_row_groups" in mine.explain()


def test_a_part_without_row_groups_is_empty(pipeline: Pipeline) -> None:
    with pytest.raises(EmptySelectionError, match="shard_row_groups"):
        ids(pipeline.shard(9, 8, policy="rowgroup_modulo"))


def test_rows_are_dealt_once_and_before_batches(pipeline: Pipeline) -> None:
    mine = pipeline.shard(2, 1, policy="rowgroup_modulo")
    with pytest.raises(PipelineError, match="expected at most one"):
        mine.shard(2, 0)
    with pytest.raises(PipelineError, match="expected at most one"):
        pipeline.shard(2, 0).shard(2, 0, policy="rowgroup_modulo")
    with pytest.raises(PipelineError, match=r"must come before batch\(\)"):
        pipeline.batch(2).shard(2, 0, policy="rowgroup_modulo")
    with pytest.raises(PipelineError, match="expected policy="):
        pipeline.shard(2, 0, policy="bogus")  # type: ignore[arg-type]
