"""`PipelineCarrier`: base of all dataset classes: a pipeline, its verbs, and `shard` by meshes and process groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from typing_extensions import Unpack

from parquetry.common import Pipeline, Unischema, UnischemaField
from parquetry.common.base.errors import PipelineError
from parquetry.common.base.process.ranks import rank_from_environment
from parquetry.common.pipeline.constructors import Constructors, Fields
from parquetry.common.pipeline.sources import Source, Urls
from parquetry.common.pipeline.verb_aliases import VerbAliases
from parquetry.common.plan.options import OptionArguments
from parquetry.common.schema.element import Element
from parquetry.common.stages.base import Stage
from parquetry.common.stages.shard import Even, Shard

from .meshes import has_model_parallel, part_of
from .placement import rank_here

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

    from parquetry.common.pipeline.statistics import Statistics


class PipelineCarrier(Constructors, VerbAliases):
    """Wraps a pipeline; each verb returns a new carrier. Subclasses extend ``_start`` with their own attributes."""

    _pipeline: Pipeline

    def __init__(
        self,
        url_or_urls: Urls | Pipeline | None = None,
        fields: Iterable[str | UnischemaField] | None = None,
        *,
        filesystem: object = None,
        storage_options: Mapping[str, Any] | None = None,
        address: object = None,
        **options: Unpack[OptionArguments],
    ) -> None:
        self._start(
            Pipeline(
                url_or_urls,
                fields,
                filesystem=filesystem,
                storage_options=storage_options,
                address=address,
                **options,
            )
        )

    @classmethod
    def from_pipeline(cls, pipeline: Pipeline) -> Self:
        """Wraps an existing pipeline."""
        result = cls.__new__(cls)
        result._start(pipeline)
        return result

    @classmethod
    def _over(cls, source: Source, fields: Fields, options: Mapping[str, Any], stages: Sequence[Stage] = ()) -> Self:
        return cls(Pipeline._over(source, fields, {}, stages), **options)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline it iterates; immutable."""
        return self._pipeline

    def _start(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def _with(self, pipeline: Pipeline) -> Self:
        return type(self).from_pipeline(pipeline)

    def _with_stage(self, stage: Stage) -> Self:
        return self._with(self.pipeline._with_stage(stage))

    # --- verbs ---

    def shard(
        self,
        num_shards: int | None = None,
        index: int | None = None,
        even: Even = "pad",
        canonical_shards: int | None = None,
        policy: Literal["global", "rowgroup_modulo"] = "global",
        *,
        mesh: DeviceMesh | None = None,
        group: ProcessGroup | None = None,
    ) -> Self:
        """Takes part ``index`` of ``num_shards``; all parts have the same number of rows.

        Without numbers, they are the launcher's, or else those of the default process group.

        Args:
            num_shards, index, even, canonical_shards, policy: as for `Pipeline.shard`.
            mesh: in place of the numbers, the data-parallel dimensions of a ``DeviceMesh``, such as
                ``device_mesh["dp"]``. Ranks that differ in its other dimensions (tensor, context, pipeline parallel)
                read the same rows.
            group: in place of the numbers, the process group whose members get different rows.

        Raises:
            PipelineError: numbers together with a mesh or group; a mesh with other dimensions; a mesh or group that
                does not contain this process.
        """
        if mesh is not None or group is not None:
            if num_shards is not None or index is not None:
                raise PipelineError("shard: expected num_shards and index, or mesh=, or group=, got several of them.")
            return self._with_stage(Shard.of(*part_of(mesh, group), even, canonical_shards, policy))
        if num_shards is None and index is None and rank_from_environment() is None and rank_here()[0] > 1:
            num_shards, index = rank_here()  # started by hand, or Lightning has removed WORLD_SIZE after a fit
        if num_shards is not None and index is not None and has_model_parallel():  # the launcher's world is larger
            return self._with_stage(Shard.of(num_shards, index, even, canonical_shards, policy))
        return super().shard(num_shards, index, even, canonical_shards, policy)

    def with_options(self, **options: Unpack[OptionArguments]) -> Self:
        """Returns a copy with other ``workers``, ``memory_limit``, ``executor``, ``verify`` or ``max_value_bytes``."""
        return self._with(self.pipeline.with_options(**options))

    # --- output ---

    @property
    def schema(self) -> Unischema:
        """The dataset's schema: every readable field."""
        return self.pipeline.schema

    @property
    def element(self) -> Element:
        """The form of one element: fields, dtypes, shapes."""
        return self.pipeline.element

    def vocabulary(self, field: str) -> list[Any]:
        """Returns the values of a field, indexed by code; see `Pipeline.vocabulary`."""
        return self.pipeline.vocabulary(field)

    def describe(self, rows: int | None = None, seed: int = 0) -> Statistics:
        """Reads the rows and describes the values of each field; see `Pipeline.describe`."""
        return self.pipeline.describe(rows, seed)

    def explain(self) -> str:
        """Returns the plan as text."""
        return self.pipeline.explain()

    def __repr__(self) -> str:
        shown, name = repr(self.pipeline), type(self).__name__
        return name + shown.removeprefix("Pipeline") if shown.startswith("Pipeline(") else f"{name}({shown})"

    def __str__(self) -> str:
        return repr(self)
