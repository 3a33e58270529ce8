"""Finds the rank of this process from the environment variables that its launcher sets."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass

from .errors import PipelineError

_LOGGER = logging.getLogger(__name__)
_VARIABLES = (
    ("WORLD_SIZE", "RANK"),
    ("HOROVOD_SIZE", "HOROVOD_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),
    ("SLURM_NTASKS", "SLURM_PROCID"),
    ("WORLD_SIZE", "JOB_COMPLETION_INDEX"),
)
_TF_ROLES = ("chief", "master", "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process among ``size``. ``source`` names the variables that define it."""

    size: int
    index: int
    source: str


def rank_from_environment(environment: Mapping[str, str]) -> Rank | None:
    """Returns the rank that a launcher has set, or ``None``.

    Raises:
        PipelineError: the variables do not hold a valid rank.
    """
    for size_name, index_name in _VARIABLES:
        if size_name in environment and index_name in environment:
            return _rank(environment[size_name], environment[index_name], f"{size_name} and {index_name}")
    if "TF_CONFIG" in environment:
        return _from_tf_config(environment["TF_CONFIG"])
    if "TPU_WORKER_HOSTNAMES" in environment and "TPU_WORKER_ID" in environment:
        return _from_tpu_pod(environment)
    return None


def resolve_rank(num_shards: int | None, index: int | None) -> tuple[int, int]:
    """Returns the given shard, or the launcher's. A given shard that looks wrong is used, but logs a warning.

    Fewer shards than ranks are fine if they divide the number of ranks: ranks that hold parts of one model read the
    same rows. Shards numbered by the local rank are a mistake, because then every machine reads everything.

    Raises:
        PipelineError: only one of the two is given, or neither is given and there is no launcher.
    """
    if (num_shards is None) != (index is None):
        raise PipelineError(f"shard: expected num_shards and index together, got {num_shards!r} and {index!r}.")
    found = rank_from_environment(os.environ)
    if num_shards is None or index is None:
        if found is None:
            pod = os.environ.get("JOB_COMPLETION_INDEX")
            raise PipelineError(
                "shard: expected num_shards and index, or a launcher's variables such as WORLD_SIZE and RANK; got "
                + (
                    "neither. Pass both, as in shard(8, 0), or start the script with torchrun, mpirun or srun."
                    if pod is None
                    else f"only JOB_COMPLETION_INDEX={pod}. Set WORLD_SIZE to the number of completions."
                )
            )
        return found.size, found.index
    if found is not None and not _agree(found, num_shards, index, os.environ):
        _LOGGER.warning(
            "shard: got shard %s of %s, but %s say %s of %s. Using the shard that was given.",
            index,
            num_shards,
            found.source,
            found.index,
            found.size,
        )
    return num_shards, index


def _agree(found: Rank, num_shards: int, index: int, environment: Mapping[str, str]) -> bool:
    if found.size == 1 or (num_shards, index) == (found.size, found.index):
        return True
    local = environment.get("LOCAL_WORLD_SIZE"), environment.get("LOCAL_RANK")
    return (
        num_shards > 0
        and num_shards < found.size
        and found.size % num_shards == 0
        and local
        != (
            str(num_shards),
            str(index),
        )
    )


def _rank(size: str, index: str, source: str) -> Rank:
    try:
        rank = Rank(size=int(size), index=int(index), source=source)
    except ValueError as error:
        raise PipelineError(f"{source}: expected integers, got {size!r} and {index!r}.") from error
    if not 0 <= rank.index < rank.size:
        raise PipelineError(f"{source}: expected a rank below the size, got rank {index} of {size}.")
    return rank


def _from_tpu_pod(environment: Mapping[str, str]) -> Rank:
    """Returns the rank of a host in a TPU pod, or in several slices of one job, with one process per host."""
    hosts = len(environment["TPU_WORKER_HOSTNAMES"].split(","))
    slices, number = environment.get("MEGASCALE_NUM_SLICES", "1"), environment.get("MEGASCALE_SLICE_ID", "0")
    worker, source = environment["TPU_WORKER_ID"], "TPU_WORKER_HOSTNAMES and TPU_WORKER_ID"
    try:
        index = int(number) * hosts + int(worker)
        return _rank(str(int(slices) * hosts), str(index), source)
    except ValueError as error:
        raise PipelineError(f"{source}: expected integers, got slice {number!r}, worker {worker!r}.") from error


def _from_tf_config(text: str) -> Rank | None:
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster", {}), config.get("task", {})
        sizes = [(role, len(cluster.get(role, []))) for role in _TF_ROLES]
        before = 0
        for role, count in sizes:
            if role == task.get("type"):
                total = sum(size for _, size in sizes)
                return _rank(str(total), str(before + int(task["index"])), "TF_CONFIG")
            before += count
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(f"TF_CONFIG: expected TensorFlow's cluster description, got {text[:100]!r}.") from error
    return None  # a parameter server or evaluator reads no data
