"""Splits rows by device mesh or process group, and warns if the ranks need a mesh.

Ranks that hold parts of one model (tensor, context, pipeline parallel) must read the same rows. So rows are split only
along a mesh's data-parallel dimensions, and ranks with the same position in these dimensions read the same part. The
parts of a dimension's name say whether it is data parallel: ``dp_shard_cp`` is data parallel (``dp``, ``shard``) and
context parallel (``cp``). The words are those of PyTorch, torchtitan (``torchtitan/distributed/parallel_dims.py``),
Megatron and DeepSpeed. If another mesh of this process shows that two ranks hold parts of
one model, splitting rows between them is an error. If a name is ambiguous, a dimension that you pass to
``shard(mesh=)`` counts as data parallel.
"""

from __future__ import annotations

import gc
import logging
import re
import sys
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING

import torch.distributed as dist

from parquetry.common.base.errors import PipelineError
from parquetry.common.base.process.dataclass import dataclass

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

_LOG = logging.getLogger(__name__)
_DATA = frozenset({"dp", "ddp", "data", "fsdp", "hsdp", "replicate", "shard", "batch"})
_MODEL = frozenset(
    {"tp", "tensor", "cp", "context", "sp", "seq", "sequence", "pp", "pipe", "pipeline", "stage", "mp", "model", "etp"}
)
_EXPERT = frozenset({"ep", "expert", "experts", "moe", "edp", "efsdp"})
_FLATTENED = frozenset({"loss"})  # torchtitan's: the data-parallel dimensions together with cp


class Meaning(Enum):
    """What ranks that differ only in one dimension of a mesh read.

    Attributes:
        DATA: different rows.
        MODEL: the same rows, because each holds a part of one model.
        BOTH: dimensions of both kinds were flattened into this one.
        EXPERT: expert parallel: usually different rows, but that depends on the model.
        UNKNOWN: the name does not say.
    """

    DATA = "data"
    MODEL = "model"
    BOTH = "both"
    EXPERT = "expert"
    UNKNOWN = "unknown"


_OPEN = (Meaning.EXPERT, Meaning.UNKNOWN)
_sharded_along: set[tuple[str, frozenset[int]]] = set()  # dimensions that were passed to shard(mesh=), with their ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One dimension of a mesh.

    Attributes:
        name: of the dimension; its number if the mesh has no names.
        role: what its ranks read.
        ranks: this process's rank, and those that differ from it only in this dimension.
    """

    name: str
    role: Meaning
    axis: int
    ranks: frozenset[int]


def part_of(mesh: DeviceMesh | None, group: ProcessGroup | None) -> tuple[int, int]:
    """Returns ``(num_shards, index)`` of this process in a mesh's data-parallel dimensions, or in a process group.

    Raises:
        PipelineError: both are given; ``mesh`` is not a mesh; this process is not a member; the mesh has model-parallel
            dimensions, or ranks that hold parts of one model; or its names leave that open.
    """
    if mesh is not None and group is not None:
        raise PipelineError("shard: expected mesh= or group=, got both. Leave one out.")
    if mesh is not None and not hasattr(mesh, "get_coordinate"):
        raise PipelineError(
            f"shard(mesh=...): expected a DeviceMesh, got {mesh!r:.300}. Make one with init_device_mesh(), or pass "
            "numbers: shard(num_shards, index)."
        )
    size, index = (dist.get_world_size(group), dist.get_rank(group)) if mesh is None else _place_in_mesh(mesh)
    if index < 0:
        kind = "group" if mesh is None else "mesh"
        raise PipelineError(f"shard({kind}=...): expected a {kind} that contains this process, got one that does not.")
    return size, index


def has_model_parallel() -> bool:
    """Whether a device mesh of this process has dimensions other than data-parallel ones."""
    return any(each.role is not Meaning.DATA for mesh in _meshes() for each in _judged(mesh))


def warn_of_model_parallel(num_shards: int) -> None:
    """Warns if every rank reads different rows although some ranks hold parts of one model, or may do so."""
    meshes = _meshes()
    if not meshes or num_shards != dist.get_world_size():
        return
    data = [_ranks_of_data(mesh) for mesh in meshes]
    candidates = []
    for mesh in meshes:
        judged = _judged(mesh)
        doubtful = [
            each
            for each in judged
            if each.role is Meaning.MODEL or (each.role is not Meaning.DATA and not _is_within(each.ranks, data))
        ]
        if doubtful:
            roles = [each.role for each in judged]
            order = roles.count(Meaning.MODEL), -roles.count(Meaning.BOTH), roles.count(Meaning.DATA)
            candidates.append((order, mesh, judged))
    if candidates:
        _, mesh, judged = max(candidates, key=lambda each: each[0])
        _LOG.warning(
            "rows are dealt to all %d ranks, but a device mesh has the dimensions %s. Ranks that hold parts of one "
            "model must read the same rows: %s.",
            num_shards,
            _sizes(mesh),
            _advice(mesh, judged),
        )


def _place_in_mesh(mesh: DeviceMesh) -> tuple[int, int]:
    place, index = mesh.get_coordinate(), 0
    dimensions = [each for each in _dimensions(mesh) if len(each.ranks) > 1]
    _check_names(mesh, dimensions)
    if place is None:
        return mesh.size(), -1
    _check_ranks(mesh)
    _check_flattened(mesh, dimensions)
    for axis, own in enumerate(place):
        index = index * mesh.size(axis) + int(own)
    _sharded_along.update((each.name, each.ranks) for each in dimensions)
    return mesh.size(), index


def _check_names(mesh: DeviceMesh, dimensions: list[Dimension]) -> None:
    held = [each.name for each in dimensions if each.role is Meaning.MODEL]
    if held:
        data = [each.name for each in dimensions if each.role is not Meaning.MODEL]
        raise PipelineError(
            f"shard(mesh=...): expected data-parallel dimensions, got {_sizes(mesh)}. Leave out {', '.join(held)}: "
            f"{_by_mesh(data or ['dp'])}{'' if data else ', with the name of your dimension'}."
        )


def _check_ranks(mesh: DeviceMesh) -> None:
    """Refuses ranks that hold parts of one model, whatever the dimension's name, if another mesh says so."""
    own = _ranks(mesh)
    for other in _meshes():
        dimensions = _dimensions(other)
        for each in dimensions:
            together = sorted(own & each.ranks)
            if each.role is Meaning.MODEL and len(together) > 1:
                data = [one.name for one in dimensions if one.role is Meaning.DATA and one.ranks & own]
                raise PipelineError(
                    f"shard(mesh=...): expected ranks that read different rows, got {_sizes(mesh)} with the ranks "
                    f"{together}, which hold parts of one model along {each.name!r} of the mesh {_sizes(other)}. "
                    f"Write {_by_mesh(data) if data else 'shard(1, 0): all ranks read the same rows'}. If that mesh is "
                    "another model's, pass a process group: shard(group=...)."
                )


def _check_flattened(mesh: DeviceMesh, dimensions: list[Dimension]) -> None:
    """Refuses names that join both kinds, unless other dimensions show that these ranks are data parallel."""
    joined = [each for each in dimensions if each.role is Meaning.BOTH]
    data = [_ranks_of_data(other) for other in _meshes()]
    if any(not _is_within(each.ranks, data) for each in joined):
        raise PipelineError(
            f"shard(mesh=...): expected data-parallel dimensions, got {_sizes(mesh)}. The name "
            f"{_quoted(each.name for each in joined)} joins data- and model-parallel dimensions, and no mesh shows "
            f"which of these ranks hold parts of one model. {_by_mesh(['dp'])} needs the dimensions before they are "
            f"flattened; if all ranks read different rows, write shard(group=mesh.get_group())."
        )


def _advice(mesh: DeviceMesh, judged: list[Dimension]) -> str:
    """Returns what to write where rows are dealt to all ranks."""
    if not mesh.mesh_dim_names:
        return (
            'name its dimensions, as in init_device_mesh(..., mesh_dim_names=("dp", "tp")), and pass the '
            "data-parallel ones to shard(mesh=)"
        )
    names = {role: [each.name for each in judged if each.role is role] for role in Meaning}
    data, doubtful, joined = names[Meaning.DATA], [*names[Meaning.EXPERT], *names[Meaning.UNKNOWN]], names[Meaning.BOTH]
    if joined:
        return (
            f"{_quoted(joined)} joins data- and model-parallel dimensions. Make a mesh that has them apart, and write "
            "shard(mesh=) with its data-parallel ones"
        )
    if doubtful:
        wide = [each.name for each in judged if each.role is not Meaning.MODEL]
        return (
            f"write {_by_mesh(wide)} if ranks along {_quoted(doubtful)} read different rows, which the name does not "
            f"say, or {_by_mesh(data)} if they read the same"
        )
    return f"write {_by_mesh(data)}"


def _judged(mesh: DeviceMesh) -> list[Dimension]:
    """Returns the dimensions with several ranks; none if there is only one and its name says nothing."""
    dimensions = [each for each in _dimensions(mesh) if len(each.ranks) > 1]
    return [] if len(dimensions) == 1 and dimensions[0].role in _OPEN else dimensions


def _dimensions(mesh: DeviceMesh) -> list[Dimension]:
    place = mesh.get_coordinate()
    if place is None:
        return []
    result = []
    for axis, name in enumerate(_sizes(mesh)):
        line: tuple[int | slice, ...] = (*place[:axis], slice(None), *place[axis + 1 :])
        ranks = frozenset(mesh.mesh[line].tolist())
        is_sharded = (name, ranks) in _sharded_along
        result.append(Dimension(name=name, role=Meaning.DATA if is_sharded else role_of(name), axis=axis, ranks=ranks))
    return result


def _ranks_of_data(mesh: DeviceMesh) -> frozenset[int]:
    """Returns this process's rank and those that differ from it in data-parallel dimensions only."""
    place = mesh.get_coordinate()
    if place is None:
        return frozenset()
    data = {each.axis for each in _dimensions(mesh) if each.role is Meaning.DATA}
    plane = tuple(slice(None) if axis in data else own for axis, own in enumerate(place))
    return frozenset(mesh.mesh[plane].flatten().tolist())


def _is_within(ranks: frozenset[int], data: list[frozenset[int]]) -> bool:
    return any(ranks <= each for each in data)


def _ranks(mesh: DeviceMesh) -> frozenset[int]:
    return frozenset(mesh.mesh.flatten().tolist())


def _meshes() -> list[DeviceMesh]:
    """Returns every device mesh of this process; torch has no public list of them."""
    kind = getattr(sys.modules.get("torch.distributed.device_mesh"), "DeviceMesh", None)
    if kind is None or not (dist.is_available() and dist.is_initialized()):
        return []
    return [item for item in gc.get_objects() if type(item) is kind]


def _sizes(mesh: DeviceMesh) -> dict[str, int]:
    names = mesh.mesh_dim_names or range(mesh.ndim)
    return {str(name): mesh.size(axis) for axis, name in enumerate(names)}


def _by_mesh(names: list[str]) -> str:
    return f"shard(mesh=device_mesh[{_quoted(names)}])" if names else "shard(1, 0)"


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def role_of(name: str) -> Meaning:
    """Returns the role of a dimension, judging by the parts of its name.

    >>> role_of("dp_replicate"), role_of("tensor_parallel"), role_of("dp_shard_cp"), role_of("ep")
    (<Meaning.DATA: 'data'>, <Meaning.MODEL: 'model'>, <Meaning.BOTH: 'both'>, <Meaning.EXPERT: 'expert'>)
    """
    parts = words_of(name)
    if parts & _EXPERT:
        parts -= {"model"}  # Megatron's expert_model_parallel
        if "tensor" in parts and not parts & _DATA:
            return Meaning.MODEL  # expert_tensor_parallel: an expert is split
    if parts & _FLATTENED or (parts & _MODEL and parts & (_DATA | _EXPERT)):
        return Meaning.BOTH
    if parts & _MODEL:
        return Meaning.MODEL
    if parts & _EXPERT:
        return Meaning.EXPERT
    return Meaning.DATA if parts & _DATA else Meaning.UNKNOWN


def words_of(name: str) -> set[str]:
    """Returns the words in a name, without numbers: ``dp_shard2`` and ``dpShard`` have ``dp`` and ``shard``."""
    return set(re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()))
