"""The process group that this process trains in: its rank, and numbers that all ranks share without a collective."""

from __future__ import annotations

import torch.distributed as dist


def rank_here() -> tuple[int, int]:
    """``(world_size, rank)`` of the default group; ``(1, 0)`` without one."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size(), dist.get_rank()
    return 1, 0


def shared_number(name: str, proposed: int) -> int | None:
    """The number that the first rank to ask proposed; ``None`` where the group has no store.

    No rank waits for another, so that one rank may ask alone.
    """
    try:
        store = dist.distributed_c10d._get_default_store()
        return int(store.compare_set(f"parquetry/{name}", "", str(proposed)))
    except (AttributeError, RuntimeError, ValueError):  # a backend of another kind
        return None
