"""`gather_stats`: each rank's statistics, and the rank that waits the most."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader
from two_ranks import in_two_ranks

from parquetry import RankStats
from parquetry.common.base.errors import PipelineError
from parquetry.torch_plugin import ParquetIterable, gather_stats


def test_one_process_is_the_only_rank(url: str) -> None:
    loader = DataLoader(ParquetIterable(url, ["id"]).batch(7), batch_size=None)
    list(loader)
    gathered = gather_stats(loader)
    assert (gathered.rank, gathered.slowest, len(gathered.ranks)) == (0, 0, 1)
    assert gathered.own.rows == gathered.ranks[0]["rows"] == 60
    with pytest.raises(PipelineError, match="gather_stats: expected a parquetry dataset"):
        gather_stats([1])


def _gather(url: str) -> Any:
    data = ParquetIterable(url, ["id"]).batch(4)
    iterator = iter(data)
    next(iterator)
    counters = data._counting.latest
    assert counters is not None
    counters.waited(100.0 * dist.get_rank(), time.perf_counter() + 1000)  # rank 1 waits a tenth of the time
    return gather_stats(data)


@pytest.mark.slow
def test_all_ranks_learn_which_one_waits_the_most(url: str) -> None:
    for rank, gathered in enumerate(in_two_ranks(_gather, url)):
        assert isinstance(gathered, RankStats)
        assert (gathered.rank, gathered.slowest) == (rank, 1)
        waits = [scalars["wait_share_other"] for scalars in gathered.ranks]
        assert waits == pytest.approx([0, 0.1], abs=0.02)
        assert gathered.scalars()["slowest_wait_share_other"] == waits[1]
        assert gathered.own.waits.other == pytest.approx(100.0 * rank, abs=2)  # less what jobs took meanwhile
