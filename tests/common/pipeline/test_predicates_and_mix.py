"""Column predicates, mixing, ranks from the environment, and Arrow transforms, each against plain Python."""

from __future__ import annotations

import json
import logging
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from drive_rows import ROWS, ids, write_drive

from parquetry.common import Pipeline, UnischemaField, contains, hash_split, mix
from parquetry.common.errors import PipelineError, SchemaError, StateError, TransformError
from parquetry.common.ranks import rank_from_environment


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return Pipeline(write_drive(tmp_path_factory.mktemp("predicates")), executor="threads", workers=2)


def test_contains_finds_members_of_lists(drive: Pipeline) -> None:
    assert ids(drive.where(contains("tags", "t1"))) == [row["id"] for row in ROWS if "t1" in row["tags"]]
    either = [row["id"] for row in ROWS if {"t0", "t1"} & set(row["tags"])]
    assert ids(drive.where(contains("tags", "t0", "t1"))) == either
    both = [row["id"] for row in ROWS if {"t0", "t1"} <= set(row["tags"])]
    assert ids(drive.where(contains("tags", "t0", "t1", every=True))) == both
    with pytest.raises(PipelineError, match="expected a field of lists"):
        ids(drive.where(contains("id", 1)))


@pytest.mark.parametrize("field", ["id", "name", "price"])
def test_the_parts_of_a_hash_split_cover_every_row_once(drive: Pipeline, field: str) -> None:
    parts = [ids(drive.hash_split(field, [0.5, 0.3, 0.2], part, seed=3)) for part in range(3)]
    assert sorted(chain.from_iterable(parts)) == list(range(40))
    assert parts == [ids(drive.where(hash_split(field, (0.5, 0.3, 0.2), part, 3))) for part in range(3)]


def test_a_row_keeps_its_part_whatever_file_it_lies_in(drive: Pipeline, tmp_path: Path) -> None:
    from drive_rows import SCHEMA

    from parquetry.common import write_dataset

    write_dataset(tmp_path / "again", SCHEMA, ROWS[::-1], row_group_rows=3)
    again = Pipeline(tmp_path / "again", executor="threads")
    assert sorted(ids(again.hash_split("name", [0.7, 0.3], 1))) == sorted(ids(drive.hash_split("name", [0.7, 0.3], 1)))


def test_a_split_by_a_partition_reads_nothing(drive: Pipeline) -> None:
    report = drive.hash_split("drive", [0.5, 0.5], 0).plan().selection.reports[0]
    assert report.read == 0
    assert report.pruned + report.proven == report.row_groups


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


def test_the_shards_of_a_mix_are_its_rows_dealt(drive: Pipeline) -> None:
    def mixed() -> Pipeline:
        return mix([drive.take(11), drive.skip(11)], seed=2, stop="all")

    everything = ids(mixed())
    assert [ids(mixed().shard(3, rank, even="none")) for rank in range(3)] == [everything[rank::3] for rank in range(3)]


def test_a_mix_holds_windows_and_variable_shapes(drive: Pipeline) -> None:
    windows = drive.select("id", "points", "name").ngram(length=2, group_by="drive")
    batch = next(iter(mix([windows, windows.skip(3)], seed=3, stop="all").batch(9)))
    for place, (first, second) in enumerate(batch["id"].tolist()):
        assert second == first + 1
        assert [cell.shape for cell in batch["points"][place]] == [(first % 4, 3), (second % 4, 3)]


def test_a_mix_without_a_seed_warns_where_ranks_would_differ(drive: Pipeline, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "parquetry"):
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
        with caplog.at_level(logging.WARNING, "parquetry"):
            caplog.clear()
            make()
        assert "mix(seed=None) drew the seed" in caplog.text


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
    with pytest.raises(StateError, match="it belongs to another"):
        iter(chosen).load_state_dict(iterator.state_dict())


def test_sources_of_a_mix_must_have_equal_fields(drive: Pipeline) -> None:
    with pytest.raises(SchemaError, match="mix: expected equal fields in all pipelines"):
        _ = mix([drive.select("id"), drive.select("price")]).element
    with pytest.raises(PipelineError, match=r"got one with batch\(\)"):
        mix([drive.batch(2), drive.batch(2)])
    with pytest.raises(PipelineError, match="one positive weight for each of 2 pipelines"):
        mix([drive, drive], weights=[1, 0])
    with pytest.raises(PipelineError, match="a mix has the order that its sources give it"):
        mix([drive, drive]).shuffle(3)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "2", "WORLD_SIZE": "4"}, (4, 2)),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, (2, 1)),
        ({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4"}, (4, 3)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (2, 0)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, (8, 5)),
        ({"RANK": "2", "WORLD_SIZE": "4", "SLURM_PROCID": "5", "SLURM_NTASKS": "8"}, (4, 2)),
        (
            {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a", "b"]}, "task": {"type": "evaluator", "index": 0}})},
            None,
        ),
        (
            {
                "TF_CONFIG": json.dumps(
                    {
                        "cluster": {"chief": ["a"], "worker": ["b", "c"], "ps": ["d"]},
                        "task": {"type": "worker", "index": 1},
                    }
                )
            },
            (3, 2),
        ),
        ({}, None),
    ],
)
def test_ranks_are_read_from_launchers(environment: dict[str, str], expected: tuple[int, int] | None) -> None:
    found = rank_from_environment(environment)
    assert (None if found is None else (found.size, found.index)) == expected


def test_a_shard_without_arguments_is_the_launchers_rank(
    drive: Pipeline, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(PipelineError, match="or a launcher's variables such as WORLD_SIZE and RANK"):
        drive.shard()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert drive.shard() == drive.shard(4, 1)
    with caplog.at_level(logging.WARNING):
        drive.shard(3, 0)
    assert "WORLD_SIZE and RANK say 1 of 4" in caplog.text
    monkeypatch.setenv("RANK", "9")
    with pytest.raises(PipelineError, match="expected a rank below the size"):
        drive.shard()


@pytest.mark.parametrize(
    ("shard", "environment", "warns"),
    [
        ((4, 3), {}, False),
        ((2, 1), {}, False),  # two ranks hold one model
        ((1, 0), {}, False),
        ((2, 1), {"LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "1"}, True),  # each machine would read everything
        ((2, 1), {"LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3"}, False),
        ((4, 0), {}, True),
        ((3, 0), {}, True),
        ((8, 3), {}, True),
    ],
)
def test_shards_that_look_like_a_mistake_warn(
    drive: Pipeline,
    shard: tuple[int, int],
    environment: dict[str, str],
    warns: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in {"RANK": "3", "WORLD_SIZE": "4", **environment}.items():
        monkeypatch.setenv(name, value)
    drive.shard(*shard)
    assert ("WORLD_SIZE and RANK say 3 of 4" in caplog.text) is warns


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.append_column("double", pc.multiply(batch.column("id"), 2))


@pytest.mark.parametrize("executor", ["threads", "sidecar"])
def test_a_function_may_work_on_arrow_batches(drive: Pipeline, executor: str) -> None:
    pipeline = drive.select("id", "name", "points", "tags").with_options(executor=executor, workers=1)
    changed = pipeline.transform(doubled, output=[UnischemaField("double", np.int64)], batched="arrow")
    rows = list(changed)
    assert [int(row["double"]) for row in rows] == [2 * number for number in range(40)]
    assert [row["name"] for row in rows] == [row["name"] for row in ROWS]
    assert all(np.array_equal(row["points"], ROWS[n]["points"]) for n, row in enumerate(rows))
    assert [row["tags"].tolist() for row in rows] == [row["tags"] for row in ROWS]


def test_an_arrow_function_is_held_to_its_declaration(drive: Pipeline) -> None:
    with pytest.raises(TransformError, match="Declare new fields in output"):
        list(drive.select("id").transform(doubled, batched="arrow"))
    with pytest.raises(TransformError, match="expected 40 rows as it was given, got 1"):
        list(drive.select("id").transform(lambda batch: batch.slice(0, 1), batched="arrow").batch(40))
    with pytest.raises(TransformError, match="expected a pyarrow RecordBatch or Table, got int"):
        list(drive.select("id").transform(lambda batch: 3, batched="arrow"))
