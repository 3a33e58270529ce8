"""Runs a function in the processes of a gloo group (two, if nothing else is said), started as by a launcher."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


def in_two_ranks(function: Callable[..., Any], *args: Any) -> list[Any]:
    """Returns each rank's result, which ``torch.save`` must be able to save."""
    return in_ranks(RANKS, function, *args)


def in_ranks(ranks: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Returns the result of each of ``ranks`` ranks, which ``torch.save`` must be able to save."""
    with tempfile.TemporaryDirectory() as directory:
        mp.start_processes(_rank, args=(ranks, directory, function, args), nprocs=ranks, start_method="fork")
        return [torch.load(Path(directory, str(rank)), weights_only=False) for rank in range(ranks)]


def _rank(rank: int, ranks: int, directory: str, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="29400", ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=ranks)
    torch.save(function(*args), Path(directory, str(rank)))
    dist.barrier()
    dist.destroy_process_group()
