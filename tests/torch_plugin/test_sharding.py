"""Shards for ranks and workers: each row once, no matter who sets the shard."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ids import ids_by_element as ids
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import Shuffler
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES
from torch.utils.data.graph_settings import apply_random_seed, apply_sharding

from parquetry.common.base.errors import PipelineError
from parquetry.torch_plugin import ParquetPipe, mix
from parquetry.torch_plugin.pipe import Group, place
from parquetry.torch_plugin.placement import Placement, with_shard

DEFAULT, DISTRIBUTED, MULTIPROCESSING = SHARDING_PRIORITIES


def union(parts: list[list[Any]]) -> list[int]:
    return sorted(number for part in parts for number in part)


@pytest.mark.parametrize(
    "make",
    [
        lambda url: ParquetPipe(url, ["id"]),
        lambda url: ParquetPipe(url, ["id"]).sharding_filter(),
        lambda url: ParquetPipe(url, ["id"]).sharding_filter().shuffle(10, seed=1),
        lambda url: ParquetPipe(url, ["id"]).shuffle(10, seed=1).sharding_filter(),
        lambda url: ParquetPipe(url, ["id"]).shuffle(10, seed=1),
    ],
)
def test_apply_sharding_gives_each_row_to_one_part(url: str, make: Any) -> None:
    parts = []
    for index in range(4):
        pipe = make(url)
        assert pipe.is_shardable()
        apply_sharding(pipe, 4, index)
        assert len(pipe) == 15
        parts.append(ids(pipe))
    assert union(parts) == list(range(60))


def test_parts_have_equal_lengths_when_rows_do_not_divide(url: str) -> None:
    parts = []
    for index in range(7):
        pipe = ParquetPipe(url, ["id"]).shuffle(10, seed=1).batch(4)
        apply_sharding(pipe, 7, index)
        parts.append([number for batch in ids(pipe) for number in batch])
    assert {len(part) for part in parts} == {9}
    assert set(union(parts)) == set(range(60))


def test_ranks_and_workers_together_take_each_row_once(url: str) -> None:
    parts = []
    for rank in range(2):
        for worker in range(3):
            pipe = ParquetPipe(url, ["id"]).shuffle(10, seed=1)
            apply_sharding(pipe, 2, rank, DISTRIBUTED)
            apply_sharding(pipe, 3, worker, MULTIPROCESSING)
            parts.append(ids(pipe))
            assert len(pipe) == len(parts[-1]) == 10
    assert union(parts) == list(range(60))


def test_a_workers_batches_are_every_nth_of_its_ranks(url: str) -> None:
    def part(worker: int, workers: int) -> list[Any]:
        pipe = ParquetPipe(url, ["id"]).shuffle(10, seed=1).batch(4)
        apply_sharding(pipe, 2, 1, DISTRIBUTED)
        apply_sharding(pipe, workers, worker, MULTIPROCESSING)
        return ids(pipe)

    whole = part(0, 1)
    assert [part(0, 2), part(1, 2)] == [whole[0::2], whole[1::2]]


def test_a_place_before_the_shuffle_keeps_a_rank_on_its_part(url: str) -> None:
    def epochs(pipe: ParquetPipe) -> list[set[int]]:
        apply_sharding(pipe, 3, 0)
        return [set(ids(pipe)) for _ in range(3)]

    base = ParquetPipe(url, ["id"])
    kept = epochs(base.sharding_filter().shuffle(10, seed=1))
    assert kept[0] == kept[1] == kept[2]
    dealt = epochs(base.shuffle(10, seed=1).sharding_filter())
    assert dealt[0] != dealt[1]


def test_a_shard_of_the_users_own_stays(url: str) -> None:
    for pipe in (ParquetPipe(url, ["id"]).shard(3, 1), ParquetPipe(url, ["id"]).shard(3, 1).sharding_filter()):
        apply_sharding(pipe, 2, 0)
        assert ids(pipe) == list(range(20, 40))
    everything = ParquetPipe(url, ["id"]).shard(1, 0)
    apply_sharding(everything, 2, 0)
    assert ids(everything) == list(range(60))


def test_a_sharding_filter_can_listen_to_one_group_only(url: str) -> None:
    pipe = ParquetPipe(url, ["id"]).sharding_filter(DISTRIBUTED).batch(60)
    apply_sharding(pipe, 3, 1)
    assert ids(pipe) == [list(range(60))]
    apply_sharding(pipe, 3, 1, DISTRIBUTED)
    assert ids(pipe) == [list(range(20, 40))]


def test_take_comes_before_the_shard_and_repeat_after_it(url: str) -> None:
    parts = []
    for index in range(2):
        pipe = ParquetPipe(url, ["id"]).take(10).repeat(2).batch(3)
        apply_sharding(pipe, 2, index)
        assert [stage.verb for stage in pipe.pipeline.stages] == ["select", "take", "repeat", "batch"]
        parts.append([number for batch in ids(pipe) for number in batch])
    assert union(parts) == sorted([*range(10)] * 2)
    assert [stage.verb for stage in with_shard(pipe.pipeline, 2, 1).stages] == [
        "select",
        "take",
        "shard",
        "repeat",
        "batch",
    ]


def test_a_part_that_is_not_there_is_refused(url: str) -> None:
    with pytest.raises(PipelineError, match=r"expected instance_id in \[0, 2\), got 2"):
        apply_sharding(ParquetPipe(url), 2, 2)


def test_torchs_pipes_above_leave_the_sharding_to_the_source(url: str) -> None:
    parts = []
    for index in range(2):
        pipe = ParquetPipe(url, ["id"]).batch(5).shuffle(3)
        assert isinstance(pipe, Shuffler)
        apply_sharding(apply_random_seed(pipe, torch.Generator()), 2, index)
        parts.append([number for batch in ids(pipe) for number in batch])
    assert union(parts) == list(range(60))
    mapped = ParquetPipe(url, ["id"]).map(id_only).filter(is_even).sharding_filter()
    apply_sharding(mapped, 2, 1)
    assert list(mapped) == list(range(30, 60, 2))
    with pytest.raises(RuntimeError, match="Sharding twice"):
        apply_sharding(ParquetPipe(url, ["id"]).batch(5).shuffle(3).sharding_filter(), 2, 0)


def id_only(element: dict[str, Any]) -> Any:
    return element["id"].item()


def is_even(number: int) -> bool:
    return number % 2 == 0


@pytest.mark.parametrize(
    ("groups", "loader", "fixed", "expected"),
    [
        ({}, None, False, Placement()),
        ({}, (1, 3), False, Placement(worker=1, workers=3)),
        ({DEFAULT: (4, 2, False)}, None, False, Placement(num_shards=4, shard=2)),
        ({DEFAULT: (4, 2, False)}, (1, 2), False, Placement(num_shards=4, shard=2, worker=1, workers=2)),
        ({DEFAULT: (6, 5, True)}, (1, 2), False, Placement(num_shards=3, shard=2, worker=1, workers=2)),
        ({DEFAULT: (6, 5, True)}, (1, 2), True, Placement(worker=1, workers=2)),
        ({DEFAULT: (5, 3, True)}, (1, 2), False, Placement(num_shards=5, shard=3)),
        ({DEFAULT: (5, 3, True)}, (1, 2), True, Placement(worker=1, workers=2)),
        ({DISTRIBUTED: (3, 1, False)}, (1, 2), False, Placement(num_shards=3, shard=1, worker=1, workers=2)),
        (
            {DISTRIBUTED: (3, 1, False), DEFAULT: (2, 1, True)},
            (1, 2),
            False,
            Placement(num_shards=3, shard=1, worker=1, workers=2),
        ),
        ({MULTIPROCESSING: (4, 3, False)}, None, False, Placement(worker=3, workers=4)),
    ],
)
def test_a_placement_is_put_together_from_all_that_is_known(
    groups: Any, loader: Any, fixed: bool, expected: Placement
) -> None:
    said = {key: Group(instances=n, index=i, in_worker=w) for key, (n, i, w) in groups.items()}
    worker, workers = loader or (0, 1)
    assert place(said, Placement(worker=worker, workers=workers), fixed=fixed) == expected


@pytest.mark.parametrize("order", [lambda r, w: w * 3 + r, lambda r, w: r * 2 + w], ids=["rank-first", "worker-first"])
def test_any_numbering_of_ranks_and_workers_gives_each_part_once(order: Any) -> None:
    placements = {
        place(
            {DEFAULT: Group(instances=6, index=order(r, w), in_worker=True)},
            Placement(worker=w, workers=2),
            fixed=False,
        )
        for r in range(3)
        for w in range(2)
    }
    assert len(placements) == 6


def test_an_own_seed_in_a_sharded_pipe_is_warned_of(url: str, caplog: pytest.LogCaptureFixture) -> None:
    for seed in (1, None):
        assert not caplog.records
        pipe = ParquetPipe(url, ["id"]).shuffle(10, seed=seed)
        apply_sharding(pipe, 2, 0)
        next(iter(pipe))
    assert "pass the same seed= on all ranks" in caplog.text


def test_an_own_seed_of_a_mix_is_warned_of(url: str, caplog: pytest.LogCaptureFixture) -> None:
    for seed in (1, None):
        assert not caplog.records
        pipe = mix([ParquetPipe(url, ["id"]).shuffle(10, seed=3), ParquetPipe(url, ["id"])], seed=seed)
        apply_sharding(pipe, 2, 0)
        next(iter(pipe))
    assert "mix() picked a random seed in this process" in caplog.text


def _pipe(kind: str, url: str) -> ParquetPipe:
    """Makes a pipe with a different seed in each process."""
    if kind == "shuffle":
        return ParquetPipe(url, ["id"]).shuffle(10).batch(4)
    low, high = ParquetPipe(url, ["id"]).take(30).shuffle(5), ParquetPipe(url, ["id"]).skip(30)
    return mix([low, high], seed=8 if kind == "mix of drawn shuffles" else None, stop="all").batch(4)


def _rank(rank: int, url: str, directory: str, workers: int, kind: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2)
    pipe = _pipe(kind, url)
    loader = DataLoader(pipe, batch_size=None, num_workers=workers)
    epochs = [(len(loader), ids(loader)) for _ in range(2)]
    torch.save(epochs, f"{directory}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("kind", "workers"), [("shuffle", 2), ("mix of drawn shuffles", 0), pytest.param("mix", 2, marks=pytest.mark.slow)]
)
def test_ranks_of_a_process_group_share_seed_and_rows(url: str, tmp_path: Any, kind: str, workers: int) -> None:
    mp.start_processes(_rank, args=(url, str(tmp_path), workers, kind), nprocs=2, start_method="fork")
    both = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for epoch in range(2):
        lengths, batches = zip(*(found[epoch] for found in both), strict=True)
        assert lengths == (8, 8)
        assert [len(part) for part in batches] == [8, 8]
        assert union([batch for part in batches for batch in part]) == list(range(60))
    assert both[0][0] != both[0][1]
