"""Finds the rank of this process from the environment variables that its launcher sets."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping

from ..errors import PipelineError
from .dataclass import dataclass

_LOGGER = logging.getLogger(__name__)
_VARIABLES = (
    ("WORLD_SIZE", "RANK"),  # torchrun: docs.pytorch.org/docs/stable/elastic/run.html, "Environment Variables"
    ("HOROVOD_SIZE", "HOROVOD_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),  # Open MPI: docs.open-mpi.org, tuning-apps/environment-var
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
    ("PMI_SIZE", "PMI_RANK"),  # MPICH, Intel MPI, srun --mpi=pmi2
    ("WORLD_SIZE", "PMIX_RANK"),  # PMIx launchers (prterun) set no size
    ("SLURM_NTASKS", "SLURM_PROCID"),  # slurm.schedmd.com/srun.html, "OUTPUT ENVIRONMENT VARIABLES"
    ("SLURM_NPROCS", "SLURM_PROCID"),  # the same page: the older name of SLURM_NTASKS
    ("WORLD_SIZE", "JOB_COMPLETION_INDEX"),  # kubernetes.io: indexed jobs have no variable for their size
)
_TF_ROLES = ("chief", "master", "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process among ``size``. ``source`` names the variables that define it."""

    size: int
    index: int
    source: str


def rank_from_environment(environment: Mapping[str, str] | None = None) -> Rank | None:
    """Returns the rank that a launcher has set, or ``None``. It is the one that ``shard()`` takes.

        >>> rank_from_environment({"SLURM_PROCID": "5", "SLURM_NTASKS": "8"})
        Rank(size=8, index=5, source='SLURM_NTASKS and SLURM_PROCID')

    Args:
        environment: the variables; ``None`` means those of this process.

    Raises:
        PipelineError: the variables do not hold a valid rank.
    """
    environment = os.environ if environment is None else environment
    for size_name, index_name in _VARIABLES:
        if size_name in environment and index_name in environment:
            if (
                index_name == "SLURM_PROCID"
                and environment.get("PMIX_RANK", environment[index_name]) != (environment[index_name])
            ):
                continue  # mpirun inside a batch script, where every process inherits the script's own number, 0
            return _rank(environment[size_name], environment[index_name], f"{size_name} and {index_name}")
    if "TF_CONFIG" in environment:
        return _from_tf_config(environment["TF_CONFIG"])
    return _from_tpu_pod(environment)


def resolve_rank(num_shards: int | None, index: int | None) -> tuple[int, int]:
    """Returns the given shard, or the launcher's. A given shard that looks wrong is used, but logs a warning.

    Fewer shards than ranks are fine if they divide the number of ranks: ranks that hold parts of one model read the
    same rows. Shards numbered by the local rank are a mistake, because then every machine reads everything.

    Raises:
        PipelineError: only one of the two is given, or neither is given and there is no launcher.
    """
    if (num_shards is None) != (index is None):
        raise PipelineError(f"shard: expected num_shards and index together, got {num_shards!r} and {index!r}.")
    rank = rank_from_environment()
    if num_shards is None or index is None:
        if rank is None:
            raise PipelineError(
                "shard: expected num_shards and index, or a launcher's variables such as WORLD_SIZE and RANK; got "
                + _what_is_missing(os.environ)
            )
        return rank.size, rank.index
    if rank is not None and not _agree(rank, num_shards, index, os.environ):
        _LOGGER.warning(
            "shard: got shard %s of %s, but %s say %s of %s. Using the shard that was given.",
            index,
            num_shards,
            rank.source,
            rank.index,
            rank.size,
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


def _what_is_missing(environment: Mapping[str, str]) -> str:
    for name, size in (("JOB_COMPLETION_INDEX", "completions"), ("PMIX_RANK", "processes")):
        if name in environment:
            return f"only {name}={environment[name]}. Set WORLD_SIZE to the number of {size}."
    return "neither. Pass both, as in shard(8, 0), or start the script with torchrun, mpirun or srun."


def _from_tpu_pod(environment: Mapping[str, str]) -> Rank | None:
    """Returns the rank of a process in a TPU pod, or in several slices of one job.

    Several processes per host have ``CLOUD_TPU_TASK_ID``, numbered over all hosts of the slice, and one entry each in
    ``TPU_PROCESS_ADDRESSES`` (torch_xla, ``torch_xla/_internal/tpu.py``, ``configure_topology``). One process per host
    has ``TPU_WORKER_ID``, and its slice's hosts are in either variable, the addresses first (JAX,
    ``jax/_src/clusters/cloud_tpu_cluster.py``, ``GkeTpuCluster``).
    """
    addresses, hosts = environment.get("TPU_PROCESS_ADDRESSES"), environment.get("TPU_WORKER_HOSTNAMES")
    by_process = addresses is not None and "CLOUD_TPU_TASK_ID" in environment
    number_name = "CLOUD_TPU_TASK_ID" if by_process else "TPU_WORKER_ID"
    if number_name not in environment or (addresses is None and hosts is None):
        return None
    size_name = "TPU_WORKER_HOSTNAMES" if addresses is None else "TPU_PROCESS_ADDRESSES"
    size, number = len(environment[size_name].split(",")), environment[number_name]
    source = f"{size_name} and {number_name}"
    if not by_process and addresses is not None and hosts is not None and size > len(hosts.split(",")):
        raise PipelineError(
            f"{source}: expected one process per host, or CLOUD_TPU_TASK_ID, got {size} processes on "
            f"{len(hosts.split(','))} hosts. Set CLOUD_TPU_TASK_ID to the number of this process among all of them."
        )
    slices, slice_number = environment.get("MEGASCALE_NUM_SLICES", "1"), environment.get("MEGASCALE_SLICE_ID", "0")
    try:
        whole, index = int(slices) * size, int(slice_number) * size + int(number)
    except ValueError as error:
        raise PipelineError(f"{source}: expected integers, got slice {slice_number!r}, worker {number!r}.") from error
    return _rank(str(whole), str(index), source)


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
