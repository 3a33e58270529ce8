"""Real ranks: processes of a gloo group, identified by the launcher's variables."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from typing import Any

import pyarrow.compute as pc
import pytest
import torch
from ids import ids_by_element as ids
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from two_ranks import in_ranks

from parquetry.torch_plugin import ParquetNode, ParquetPipe, rank_state

pytestmark = pytest.mark.slow
GLOBAL_BATCH = 8
FILTERED = [number for number in range(60) if number >= 23]  # 37 rows: not divisible by any number of ranks


def _global_order(url: str, face: Any = ParquetPipe) -> Any:
    return face(url, ["id"]).shuffle(10, seed=5).shard(canonical_shards=4).batch(GLOBAL_BATCH // _ranks())


def _ranks() -> int:
    return int(os.environ["WORLD_SIZE"])


def _measure(url: str) -> dict[str, Any]:
    """Returns what one rank sees in every kind of loop."""
    found: dict[str, Any] = {}
    for even in ("pad", "drop"):
        pipe = ParquetPipe(url, ["id"]).where(pc.field("id") >= 23).shuffle(10, seed=5).shard(even=even).batch(4)
        found[even] = len(pipe), ids(pipe)
    found["direct"] = ids(_global_order(url))
    found["node"] = ids(_global_order(url, ParquetNode))
    found["workers"] = ids(DataLoader(_global_order(url), batch_size=None, num_workers=2))
    loader = DataLoader(ParquetPipe(url, ["id"]).shuffle(10).batch(4), batch_size=None)  # the loader provides the rank
    found["unsaid"] = ids(loader)
    return found


def _measure_states(url: str) -> dict[str, Any]:
    """Stops epochs after two steps, in a loader that provides the rank."""
    found: dict[str, Any] = {}
    unsaid = ParquetPipe(url, ["id"]).shuffle(10, seed=5).batch(4)
    stateful = StatefulDataLoader(unsaid, batch_size=None, num_workers=2)
    iterator = iter(stateful)
    head = [next(iterator)["id"].tolist() for _ in range(2)]
    fresh = ParquetPipe(url, ["id"]).shuffle(10, seed=5).batch(4)
    fresh.load_state_dict(rank_state(stateful.state_dict()))
    found["resumed"] = head, ids(DataLoader(fresh, batch_size=None, num_workers=1))
    counted = ParquetPipe(url, ["id"]).shuffle(10, seed=5).batch(4)
    counted.load_state_dict(unsaid.state_after(2))
    found["counted"] = ids(DataLoader(counted, batch_size=None))
    return found


def _train(url: str) -> int:
    """Trains a small model under DDP, whose ranks wait for each other at each step; a rank with fewer would hang."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    pipe = ParquetPipe(url, ["id"]).where(pc.field("id") >= 23).shuffle(10, seed=5).batch(4)
    steps = 0
    for batch in DataLoader(pipe, batch_size=None):
        model(batch["id"].float()[:, None]).sum().backward()
        steps += 1
    return steps


def _found(url: str) -> dict[str, Any]:
    found = {**_measure(url), "steps": _train(url)}
    if _ranks() == 2:
        found.update(_measure_states(url))
    return found


def _flat(parts: Any) -> list[int]:
    return [number for batches in parts for batch in batches for number in batch]


def _global_batches(parts: list[list[list[int]]]) -> list[Counter[int]]:
    """Returns the rows of each step across all ranks."""
    return [Counter(number for batch in step for number in batch) for step in zip(*parts, strict=True)]


def test_processes_of_a_group_take_each_row_once_in_equal_steps(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    expected = [Counter(batch) for batch in ids(_global_order(url))]
    assert sum(expected, Counter()) == Counter(range(60))
    assert "fork" in multiprocessing.get_all_start_methods()
    for ranks in (2, 4):
        found = in_ranks(ranks, _found, url)
        for kind in ("direct", "node", "workers"):
            assert _global_batches([rank[kind] for rank in found]) == expected
        for even, rows in (("pad", -(-37 // ranks)), ("drop", 37 // ranks)):
            assert [(steps, len(batches)) for steps, batches in (rank[even] for rank in found)] == [
                (-(-rows // 4), -(-rows // 4))
            ] * ranks
        padded, dropped = (Counter(_flat(rank[even][1] for rank in found)) for even in ("pad", "drop"))
        assert set(padded) == set(FILTERED)
        assert padded.total() == ranks * -(-37 // ranks)
        assert set(dropped) < set(FILTERED)
        assert dropped.total() == len(dropped) == ranks * (37 // ranks)
        assert sorted(_flat(rank["unsaid"] for rank in found)) == list(range(60))
        assert len({rank["steps"] for rank in found}) == 1
        resumed = [rank["resumed"] for rank in found if "resumed" in rank]
        assert len(resumed) == (2 if ranks == 2 else 0)
        assert [rest for _, rest in resumed] == [rank["counted"] for rank in found if "resumed" in rank]
        assert sorted(_flat(head + rest for head, rest in resumed)) == (list(range(60)) if resumed else [])
