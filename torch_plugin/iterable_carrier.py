"""`IterableCarrier`: base of the iterable classes; adds ``mesh=`` and ``prefetch_to_device`` to `PipelineCarrier`.

``mesh=`` splits rows at the same point as a process group does for a dataset without ``shard()``: after the shuffle and
before batching. So, unlike the position of a ``shard()`` call, the position of ``mesh=`` does not affect the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, cast

from typing_extensions import Unpack

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.base.errors import PipelineError
from parquetry.common.pipeline.sources import Urls
from parquetry.common.plan.options import OptionArguments
from parquetry.common.stages.base import Decision, Stage

from .carrier import PipelineCarrier
from .meshes import part_of
from .placement import shard_of
from .prefetch import DevicePrefetcher, prefetch_to_device

if TYPE_CHECKING:
    import torch
    from torch.distributed.device_mesh import DeviceMesh

Part = tuple[int, int]
"""``(num_shards, index)``."""


class IterableCarrier(PipelineCarrier):
    """Wraps a pipeline whose rows may be dealt along a device mesh."""

    _mesh_part: Part | None

    def __init__(
        self,
        url_or_urls: Urls | Pipeline | None = None,
        fields: Iterable[str | UnischemaField] | None = None,
        *,
        filesystem: object = None,
        storage_options: Mapping[str, Any] | None = None,
        address: object = None,
        mesh: DeviceMesh | None = None,
        **options: Unpack[OptionArguments],
    ) -> None:
        super().__init__(
            url_or_urls,
            fields,
            filesystem=filesystem,
            storage_options=storage_options,
            address=address,
            **options,
        )
        if mesh is not None:
            check_not_sharded(self._pipeline)
            self._deal_along(part_of(mesh, None))

    def prefetch_to_device(self, device: torch.device | str | int, depth: int = 2) -> DevicePrefetcher:
        """Returns a loader of the same elements on ``device``, copied ahead of your step.

            >>> with pipe.batch(64).prefetch_to_device("cuda") as batches:  # doctest: +SKIP
            ...     for batch in batches:
            ...         train(batch["image"], batch["label"])

        It is not a verb: call it last. See `parquetry.torch_plugin.prefetch_to_device`, also for loaders over this.

        Args:
            device: a ``torch.device``, or its name or index.
            depth: how many elements are copied ahead of the one you took.

        Raises:
            PipelineError: torch has no such device, or ``depth`` is below 1.
        """
        return prefetch_to_device(cast("Iterable[Any]", self), device, depth)

    def _start(self, pipeline: Pipeline) -> None:
        super()._start(pipeline)
        self._mesh_part = None

    def _with(self, pipeline: Pipeline) -> Self:
        result = super()._with(pipeline)
        result._deal_along(self._mesh_part)
        return result

    def _with_stage(self, stage: Stage) -> Self:
        if self._mesh_part is not None and stage.decides is Decision.PART:
            raise _sharded_twice("another shard()")
        return super()._with_stage(stage)

    def _deal_along(self, part: Part | None) -> None:
        """Takes a part of the ranks; ``None`` = by process group, or by the pipeline's own ``shard``."""
        self._mesh_part = part


def check_not_sharded(pipeline: Pipeline) -> None:
    """Checks that a pipeline can be dealt along a mesh.

    Raises:
        PipelineError: it already has a shard.
    """
    if shard_of(pipeline) is not None:
        raise _sharded_twice("a pipeline with shard()")


def part_of_sources(sources: Iterable[object]) -> Part | None:
    """Returns the part that all datasets of a mix have by ``mesh=``.

    Raises:
        PipelineError: their parts differ.
    """
    parts = {getattr(source, "_mesh_part", None) for source in sources}
    if len(parts) > 1:
        raise PipelineError(
            "mix: expected datasets that all have the same mesh=, got different ones, or some without. Leave mesh= out "
            "and write mix(...).shard(mesh=...)."
        )
    return parts.pop() if parts else None


def _sharded_twice(got: str) -> PipelineError:
    return PipelineError(
        f"mesh=...: expected rows to be split across ranks only once, got {got} as well. Leave one of them out."
    )
