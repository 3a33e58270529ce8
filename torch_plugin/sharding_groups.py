"""What ``apply_sharding`` of ``torch.utils.data.graph_settings`` says of a DataPipe's part. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES

from .placement import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """What one call of ``apply_sharding`` said.

    Attributes:
        instances, index: this is part ``index`` of ``instances``.
        in_worker: it was called in a loader worker.
    """

    instances: int
    index: int
    in_worker: bool


def place(groups: Mapping[int, Group], unsaid: Placement, *, fixed: bool) -> Placement:
    """Puts together what is known.

    Args:
        groups: by sharding priority.
        unsaid: what holds where they say nothing.
        fixed: whether the pipeline has a shard stage of its own, which stays as it is.
    """
    result, workers = unsaid, unsaid.workers
    distributed, default = groups.get(SHARDING_PRIORITIES.DISTRIBUTED), groups.get(SHARDING_PRIORITIES.DEFAULT)
    if distributed is not None:
        result = replace(result, num_shards=distributed.instances, shard=distributed.index)
    elif default is not None and not default.in_worker:
        result = replace(result, num_shards=default.instances, shard=default.index)
    elif default is not None and default.instances % workers == 0:
        # The loader's own call: ranks and workers in one number, ranks counting fastest. Whatever order a caller counts
        # in, splitting the number this way gives each part to exactly one of them.
        ranks = default.instances // workers
        result = replace(result, num_shards=ranks, shard=default.index % ranks, worker=default.index // ranks)
    elif default is not None and not fixed:
        result = Placement(num_shards=default.instances, shard=default.index)
    local = groups.get(SHARDING_PRIORITIES.MULTIPROCESSING)
    if local is not None:
        result = replace(result, worker=local.index, workers=local.instances)
    return replace(result, num_shards=1, shard=0) if fixed else result
