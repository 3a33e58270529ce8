"""`gather_stats`: a loader's statistics on all ranks of the process group."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from parquetry.common.base.errors import PipelineError
from parquetry.common.base.metrics.rank_stats import RankStats
from parquetry.common.base.metrics.watching import stats_of


def gather_stats(loader: object) -> RankStats:
    """Returns the stats of a loader's running or latest epoch on each rank, and which rank waits the most.

    >>> if step % 100 == 0:  # on every rank  # doctest: +SKIP
    ...     log_stats(wandb.run if rank == 0 else None, gather_stats(loader), step)

    Collective: if ``torch.distributed`` is initialized, each rank of the default group must call this at the same step.
    Otherwise the result has this rank only.

    Args:
        loader: what you iterate: a dataset, pipe or node of this package, or a loader over one.

    Raises:
        PipelineError: the loader does not read through parquetry, or was not iterated yet.
    """
    stats = stats_of(loader)
    if stats is None:
        raise PipelineError(
            f"gather_stats: expected a parquetry dataset or a loader over one, got {type(loader).__name__}."
        )
    own = stats()
    if not (dist.is_available() and dist.is_initialized()):
        return RankStats(own=own, rank=0, ranks=(own.scalars(),))
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own.scalars())
    return RankStats(own=own, rank=dist.get_rank(), ranks=tuple(ranks))
