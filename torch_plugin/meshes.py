"""This process's part of the data by device mesh or process group, and a warning if ranks need a mesh.

Ranks that hold parts of one model (tensor, context, pipeline parallel) must read the same rows. Rows are dealt only
along a mesh's data-parallel dimensions; ranks with the same position in those read the same part.
"""

from __future__ import annotations

import gc
import logging
import sys
from typing import TYPE_CHECKING

import torch.distributed as dist

from parquetry.common.errors import PipelineError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

_LOG = logging.getLogger(__name__)
_DATA = ("dp", "ddp", "data", "fsdp", "hsdp", "replicate", "shard")  # prefixes of data-parallel dimension names
_MODEL = ("tp", "tensor", "cp", "context", "sp", "sequence", "pp", "pipeline", "pipe", "model", "mp")


def part_of(mesh: DeviceMesh | None, group: ProcessGroup | None) -> tuple[int, int]:
    """Returns ``(num_shards, index)`` of this process in a mesh's data-parallel dimensions, or in a process group.

    Raises:
        PipelineError: both are given, the mesh has model-parallel dimensions, or this process is not a member.
    """
    if mesh is not None and group is not None:
        raise PipelineError("shard: expected mesh= or group=, got both. Leave one out.")
    size, index = (dist.get_world_size(group), dist.get_rank(group)) if mesh is None else _place_in_mesh(mesh)
    if index < 0:
        kind = "group" if mesh is None else "mesh"
        raise PipelineError(f"shard({kind}=...): expected a {kind} that this process belongs to, got one without it.")
    return size, index


def has_model_parallel() -> bool:
    """Whether a device mesh of this process has dimensions other than data-parallel ones."""
    return any(_model_names(mesh) for mesh in _meshes())


def warn_of_model_parallel(num_shards: int) -> None:
    """Warns if every rank reads different rows although some ranks hold parts of one model."""
    mesh = max(_meshes(), key=lambda found: len(_model_names(found)), default=None)
    held = [] if mesh is None else _model_names(mesh)
    if mesh is None or not held or num_shards != dist.get_world_size():
        return
    data = ", ".join(f'"{name}"' for name in _sizes(mesh) if name not in held)
    _LOG.warning(
        "rows are dealt to all %d ranks, but a device mesh has the dimensions %s. Ranks that hold parts of one model "
        "must read the same rows: write %s.",
        num_shards,
        _sizes(mesh),
        f"shard(mesh=device_mesh[{data}])" if data else "shard(1, 0)",
    )


def _place_in_mesh(mesh: DeviceMesh) -> tuple[int, int]:
    held = [name for name, size in _sizes(mesh).items() if size > 1 and _is(_MODEL, name)]
    if held:
        raise PipelineError(
            f"shard(mesh=...): expected data-parallel dimensions, got {_sizes(mesh)}. "
            f'Leave out {", ".join(held)}: shard(mesh=device_mesh["dp"]), with your dimension\'s name.'
        )
    place, index = mesh.get_coordinate(), 0
    if place is None:
        return mesh.size(), -1
    for axis, own in enumerate(place):
        index = index * mesh.size(axis) + int(own)
    return mesh.size(), index


def _meshes() -> list[DeviceMesh]:
    """Returns every device mesh of this process; torch has no public list of them."""
    kind = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
    if kind is None or not (dist.is_available() and dist.is_initialized()):
        return []
    return [found for found in gc.get_objects() if type(found) is kind]


def _model_names(mesh: DeviceMesh) -> list[str]:
    """Returns the dimensions along which ranks hold parts of one model, judging by their names."""
    sizes = _sizes(mesh)
    if len(sizes) == 1:
        return [name for name, size in sizes.items() if size > 1 and _is(_MODEL, name)]
    return [name for name, size in sizes.items() if size > 1 and not _is(_DATA, name)]


def _sizes(mesh: DeviceMesh) -> dict[str, int]:
    names = mesh.mesh_dim_names or range(mesh.ndim)
    return {str(name): mesh.size(axis) for axis, name in enumerate(names)}


def _is(kinds: tuple[str, ...], name: str) -> bool:
    return any(name.lower() == kind or name.lower().startswith(f"{kind}_") for kind in kinds)
