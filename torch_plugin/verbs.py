"""`PipelineVerbs`: the arguments and verbs of `Pipeline` on whatever carries one; each verb returns a new carrier."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from typing_extensions import Self

from parquetry.common import Pipeline, Unischema, UnischemaField
from parquetry.common.errors import PipelineError
from parquetry.common.order.epoch import Even
from parquetry.common.pipeline.image_verbs import ImageVerbs
from parquetry.common.pipeline.pipeline import Urls
from parquetry.common.schema.element import Element
from parquetry.common.stages.base import Stage

from .meshes import has_model_parallel, part_of


class PipelineVerbs(ImageVerbs):
    """What the faces have in common.

    A subclass has ``_start``, which makes it carry a pipeline.
    """

    _pipeline: Pipeline

    def __init__(
        self,
        url_or_urls: Urls | Pipeline | None = None,
        fields: Iterable[str | UnischemaField] | None = None,
        *,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        workers: int | None = None,
        memory_limit: int | None = None,
        executor: str | None = None,
        address: Any = None,
    ) -> None:
        self._start(
            Pipeline(
                url_or_urls,
                fields,
                filesystem=filesystem,
                storage_options=storage_options,
                workers=workers,
                memory_limit=memory_limit,
                executor=executor,
                address=address,
            )
        )

    @classmethod
    def from_pipeline(cls, pipeline: Pipeline) -> Self:
        """The same over a pipeline that you have."""
        result = cls.__new__(cls)
        result._start(pipeline)
        return result

    @property
    def pipeline(self) -> Pipeline:
        """What is iterated, as an immutable value."""
        return self._pipeline

    def _start(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def _with(self, pipeline: Pipeline) -> Self:
        return type(self).from_pipeline(pipeline)

    def _with_stage(self, stage: Stage) -> Self:
        return self._with(self.pipeline._with_stage(stage))

    # --- verbs ---

    def select(self, *names: str | UnischemaField) -> Self:
        """Only the fields that the names or regexes (matched in full) select, in schema order."""
        return self._with(self.pipeline.select(*names))

    def where(self, predicate: Any, fields: Sequence[str] | None = None, *, batched: bool = False) -> Self:
        """Only the rows for which an expression, DNF tuples, or a function of ``fields`` is true."""
        return self._with(self.pipeline.where(predicate, fields, batched=batched))

    def ngram(
        self,
        fields: Mapping[int, Sequence[str]] | Sequence[str] | None = None,
        timestamp: str | UnischemaField | None = None,
        max_gap: Any = None,
        group_by: str | Sequence[str] | None = None,
        stride: int = 1,
        overlap: bool = True,
        span_row_groups: bool = True,
        *,
        length: int | None = None,
    ) -> Self:
        """Windows over consecutive rows; see `Pipeline.ngram`."""
        return self._with(
            self.pipeline.ngram(fields, timestamp, max_gap, group_by, stride, overlap, span_row_groups, length=length)
        )

    def hash_split(self, field: str, fractions: Sequence[float], index: int, seed: int | None = None) -> Self:
        """Part ``index`` of a train/validation split: rows are dealt by a hash of ``field``, so each keeps its part."""
        return self._with(self.pipeline.hash_split(field, fractions, index, seed))

    def nulls(self, policy: str, *names: str, value: Any = None) -> Self:
        """What becomes of nulls: ``"error"``, ``"drop"`` the row, ``"fill"``, or ``"mask"``; see `Pipeline.nulls`."""
        return self._with(self.pipeline.nulls(policy, *names, value=value))

    def pad(self, *names: str, shape: Sequence[int | None] | None = None, value: Any = None) -> Self:
        """Makes fields of variable shape dense, and adds their lengths as ``<name>__length``; see `Pipeline.pad`."""
        return self._with(self.pipeline.pad(*names, shape=shape, value=value))

    def fixed(self, *names: str, shape: Sequence[int]) -> Self:
        """Declares that every value of some fields has this shape."""
        return self._with(self.pipeline.fixed(*names, shape=shape))

    def permute(self, *names: str, dims: Sequence[str]) -> Self:
        """Puts the axes of fields that declare ``dims`` into another order, such as ``dims=("C", "H", "W")``."""
        return self._with(self.pipeline.permute(*names, dims=dims))

    def decimals(self, form: str, *names: str) -> Self:
        """How decimal fields are delivered: ``"text"``, ``"float64"``, or ``"scaled"`` int64."""
        return self._with(self.pipeline.decimals(form, *names))

    def shard(
        self,
        num_shards: int | None = None,
        index: int | None = None,
        even: Even = "pad",
        canonical_shards: int | None = None,
        policy: Literal["global", "rowgroup_modulo"] = "global",
        *,
        mesh: Any = None,
        group: Any = None,
    ) -> Self:
        """Part ``index`` of ``num_shards`` (the launcher's if not given); every part has the same number of rows.

        Args:
            num_shards, index, even, canonical_shards, policy: as for `Pipeline.shard`.
            mesh: instead of the numbers, the data-parallel dimensions of a ``DeviceMesh``, such as
                ``device_mesh["dp"]``. Ranks that differ in its other dimensions (tensor, context, pipeline parallel)
                read the same rows.
            group: instead of the numbers, the process group whose members get different rows.

        Raises:
            PipelineError: numbers and a mesh or group; a mesh with other dimensions; one without this process.
        """
        if mesh is not None or group is not None:
            if num_shards is not None or index is not None:
                raise PipelineError("shard: expected num_shards and index, or mesh=, or group=, got several of them.")
            return self._with(self.pipeline._sharded(*part_of(mesh, group), even, canonical_shards, policy))
        if num_shards is not None and index is not None and has_model_parallel():
            return self._with(self.pipeline._sharded(num_shards, index, even, canonical_shards, policy))
        return self._with(self.pipeline.shard(num_shards, index, even, canonical_shards, policy))

    def shuffle(
        self, buffer_size: int = 10_000, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> Self:
        """A new order in every epoch: row groups permuted globally, rows among at least ``buffer_size`` neighbours.

        ``seed=None`` draws one that workers, resumed runs, and the ranks of a process group share.
        """
        return self._with(self.pipeline.shuffle(buffer_size, seed, reshuffle_each_iteration))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Self:
        """Groups rows under a leading axis: a dict of batched tensors."""
        return self._with(self.pipeline.batch(batch_size, drop_remainder))

    def cache(self, directory: str | os.PathLike[str], max_bytes: int | None = None) -> Self:
        """Keeps fetched columns in a local directory: read once, shared by processes."""
        return self._with(self.pipeline.cache(directory, max_bytes))

    def transform(
        self,
        fn: Callable[[Any], Any],
        output: Sequence[UnischemaField] | Unischema | None = None,
        remove: Sequence[str] = (),
        batched: bool | Literal["arrow"] = False,
        drops: bool = False,
    ) -> Self:
        """Applies a function of numpy values (or Arrow batches) to every row (or batch); see `Pipeline.transform`."""
        return self._with(self.pipeline.transform(fn, output, remove, batched, drops))

    def repeat(self, count: int | None = None) -> Self:
        """``count`` passes (``None`` or -1: endless)."""
        return self._with(self.pipeline.repeat(count))

    def take(self, rows: int) -> Self:
        """The first elements only (rows; batches after ``batch()``)."""
        return self._with(self.pipeline.take(rows))

    def skip(self, rows: int) -> Self:
        """All but the first elements."""
        return self._with(self.pipeline.skip(rows))

    def with_options(self, **options: Any) -> Self:
        """A copy with other ``workers``, ``memory_limit`` or ``executor``."""
        return self._with(self.pipeline.with_options(**options))

    # --- what it gives ---

    @property
    def schema(self) -> Unischema:
        """The dataset's schema: every field that could be read."""
        return self.pipeline.schema

    @property
    def element(self) -> Element:
        """What one step gives: fields, dtypes, shapes."""
        return self.pipeline.element

    def explain(self) -> str:
        """The plan in words."""
        return self.pipeline.explain()

    def __repr__(self) -> str:
        shown, name = repr(self.pipeline), type(self).__name__
        return name + shown.removeprefix("Pipeline") if shown.startswith("Pipeline(") else f"{name}({shown})"

    def __str__(self) -> str:
        return repr(self)
