"""A `ParquetIterable` in a process group: one sharding rule, no group of its own, nothing left behind."""

from __future__ import annotations

import threading
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ids import ids
from torch.utils.data import ChainDataset, DataLoader, IterableDataset

from parquetry.torch_plugin import ParquetIterable, ParquetNode, ParquetPipe, mix

pytestmark = pytest.mark.slow
RANKS = 2


class Wrapped(IterableDataset):
    """A user-defined dataset."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __iter__(self) -> Any:
        yield from self.inside


def _make(url: str, face: Any = ParquetIterable) -> Any:
    return face(url, ["id"]).shuffle(10).batch(4)  # each process draws its own seed


def _dealt(url: str) -> dict[str, list[int]]:
    """Reads the same rows with every kind of loop."""
    two = {"batch_size": None, "num_workers": 2}
    return {
        "bare": ids(_make(url)),
        "bare pipe": ids(_make(url, ParquetPipe)),
        "node": ids(_make(url, ParquetNode)),
        "loader": ids(DataLoader(_make(url), batch_size=None)),
        "workers": ids(DataLoader(_make(url), **two)),
        "inside": ids(DataLoader(Wrapped(_make(url)), batch_size=None)),
        "inside, workers": ids(DataLoader(Wrapped(_make(url)), **two)),
        "chain, workers": ids(DataLoader(ChainDataset([_make(url, ParquetPipe)]), **two)),
        "spawned": ids(DataLoader(_make(url), **two | {"num_workers": 1}, multiprocessing_context="spawn")),
    }


def _counts() -> tuple[int, int]:
    return psutil.Process().num_fds(), threading.active_count()


def _rank(rank: int, url: str, directory: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=RANKS)
    alone = ids(DataLoader(_make(url), batch_size=None)) if rank == 1 else []  # no other rank takes part
    found: dict[str, Any] = {"alone": alone, "dealt": _dealt(url)}
    found["everything"] = ids(ParquetIterable(url, ["id"]).shard(1, 0).batch(4))
    mine = [ParquetIterable(url, ["id"]).where([("id", sign, 30)]).shard(RANKS, rank) for sign in ("<", ">=")]
    found["mix of parts"] = ids(DataLoader(mix(mine, seed=1, stop="all").batch(4), batch_size=None))
    loader = DataLoader(_make(url), batch_size=None)
    list(loader)
    before = _counts()
    epochs = [tuple(ids(loader)) for _ in range(50)]
    found["growth"] = [after - was for after, was in zip(_counts(), before, strict=True)]
    found["epochs"] = len(set(epochs))
    torch.save(found, f"{directory}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(url: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Returns what each of two ranks saw."""
    directory = str(tmp_path_factory.mktemp("ranks"))
    mp.start_processes(_rank, args=(url, directory), nprocs=RANKS, start_method="fork")
    return [torch.load(f"{directory}/{rank}.pt", weights_only=True) for rank in range(RANKS)]


def test_every_kind_of_loop_takes_the_same_part_of_its_rank(ranks: Any) -> None:
    for found in ranks:
        for kind, part in found["dealt"].items():
            assert part == found["dealt"]["bare"], kind
        assert found["everything"] == list(range(60))
    assert sorted(ranks[0]["mix of parts"] + ranks[1]["mix of parts"]) == list(range(60))
    assert sorted(ranks[0]["dealt"]["bare"] + ranks[1]["dealt"]["bare"]) == list(range(60))


def test_a_loader_may_run_on_one_rank_alone(ranks: Any) -> None:
    assert ranks[1]["alone"] == ranks[1]["dealt"]["bare"]


def test_epochs_in_a_process_group_leave_no_descriptor_and_no_thread_behind(ranks: Any) -> None:
    for found in ranks:
        assert max(found["growth"]) < 25  # out of 50 epochs; threads may end at any time
        assert found["epochs"] == 50
