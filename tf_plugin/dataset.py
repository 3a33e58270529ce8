"""`ParquetDataset`: a `tf.data.Dataset` that wraps a `Pipeline`, so that tf.data's own verbs become part of the plan.

A verb is pushed into the pipeline where its semantics match tf.data's. Otherwise (after `map`, after another `batch`,
or with a count that is only known when the graph runs) tf.data's own op runs. Nothing is read and no op is created
until you ask for elements or their spec.
"""

from __future__ import annotations

import inspect
import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from parquetry.common import Pipeline
from parquetry.common import mix as mix_pipelines
from parquetry.common.base.errors import PipelineError, StateError
from parquetry.common.base.metrics.counters import Counters
from parquetry.common.base.metrics.loader_stats import LoaderStats
from parquetry.common.pipeline.constructors import Constructors, Fields
from parquetry.common.pipeline.pipeline_iterator import sidecar_request
from parquetry.common.pipeline.resumes import warn_of_lost_rest
from parquetry.common.pipeline.sources import Source
from parquetry.common.pipeline.step_iterator import chain_of, skipped_rows
from parquetry.common.pipeline.verbs import Verbs
from parquetry.common.plan.options import OptionArguments
from parquetry.common.plan.order.cursor import Cursor
from parquetry.common.plan.order.mixing import Stop, Weights
from parquetry.common.plan.state import read_state, state_of
from parquetry.common.schema.element import Element
from parquetry.common.schema.field import Unischema
from parquetry.common.stages.base import Stage

from .arguments import graph_seed, known_urls, static, static_drop_remainder, static_text
from .arrow_feed import ArrowFeed
from .arrow_versions import Transport, arrow_reader, check_transport
from .build import load_ops
from .devices import prefetched_to
from .elements import in_one_tensor, leaves_of
from .iterator import EagerIterator, WithoutAutotune
from .source import NOTHING, Deferred, new_dataset_key, request_without_secrets, sidecar_command, source_dataset

if TYPE_CHECKING:
    from typing import Self, Unpack

    from parquetry.common.pipeline.statistics import Statistics

SHARD_HINT = tf.data.experimental.SHARD_HINT


def _plain(cls: type[ParquetDataset]) -> type[ParquetDataset]:
    """Keeps AutoGraph from converting the verbs: in a function, it would convert everything they call, even Arrow.

    ``filter`` is not exempt, because AutoGraph must convert the function that a user passes to it.
    """
    plain = tf.autograph.experimental.do_not_convert
    verbs = {name for base in (cls, *Constructors.__mro__[:-1], *Verbs.__mro__[:-1]) for name in vars(base)}
    for name in verbs - {"filter"}:
        method = inspect.getattr_static(cls, name)
        if not name.startswith("_") and inspect.isfunction(method):
            setattr(cls, name, plain(method))
        elif not name.startswith("_") and isinstance(method, classmethod):
            setattr(cls, name, classmethod(plain(method.__func__)))
    return cls


@_plain
class ParquetDataset(Constructors, Verbs, tf.data.Dataset):
    """Rows of a Parquet dataset as nested dicts of tensors, keyed by field name.

        >>> dataset = ParquetDataset(url, ["id", "image"]).shuffle(16, seed=7).batch(8, drop_remainder=True)
        >>> dataset.element_spec["image"]
        TensorSpec(shape=(8, 4, 5, 3), dtype=tf.uint8, name=None)
        >>> for batch in dataset.prefetch(2).take(1): print(batch["id"].shape)
        (8,)

    Args:
        url_or_urls: a directory, a file, a pattern such as ``"data/2024-*.parquet"``, or a list of these; URLs or local
            paths. Or a `Pipeline`, or a tensor of URLs, as in ``urls.interleave(lambda url: ParquetDataset(url,
            like=first_url))``.
        fields: names or regular expressions of the fields to read; ``None`` = all.
        filesystem: a ``pyarrow.fs`` or fsspec filesystem.
        storage_options: options for the filesystem of the URL.
        workers: number of threads or processes that decode; ``None`` = one per processor.
        memory_limit: the bytes of fetched data in flight; ``None`` = 1 GiB. Larger row groups are read in slices, into
            temporary files.
        executor: where user functions run, see `Pipeline`.
        on_error: ``"raise"`` (the default), or ``"skip"`` to skip rows that fail, see ``docs/bad-rows.md``.
        max_errors: with ``"skip"``, how many rows of an epoch may fail: a number, or a fraction (0.0 to 1.0).
        verify: which page checksums are verified: ``"written"`` (= ``None``), those present; ``"always"``, all, and a
            page without one is an error; ``"never"``, none.
        restarts: how many times in a row a dead sidecar is restarted, see `Options`; ``None`` = 3.
        stall_timeout: seconds after which a stalled sidecar process is replaced, see `Options`; ``None`` = never.
        max_value_bytes: limit for one decoded value; variable-shape values of one field may use 16 times this per
            batch. ``None`` = 1 GiB.
        transport: ``"native"``: the C++ op and shared memory; ``"arrow"``: Arrow IPC streams, read by tensorflow-io
            (TensorFlow 2.16) or pyarrow (2.17), an error with other versions; see ``docs/arrow-stream.md``.
        address: with ``transport="arrow"``: a server that makes the batches, in place of a URL.
        like: a URL, `Pipeline` or `ParquetDataset` with the same elements, for URLs that are only known when the graph
            runs. The stages of a pipeline or dataset apply to the new URL too. Reading files with other fields, dtypes
            or shapes is an error.

    Raises:
        ParquetryError: invalid arguments, or the dataset does not exist.
    """

    def __init__(
        self,
        url_or_urls: Any = None,
        fields: Any = None,
        *,
        filesystem: Any = None,
        storage_options: Mapping[str, Any] | None = None,
        transport: Transport = "native",
        address: Any = None,
        like: Any = None,
        **options: Unpack[OptionArguments],
    ) -> None:
        keywords: dict[str, Any] = {"filesystem": filesystem, "storage_options": storage_options, "address": address}
        keywords.update(options)
        url = known_urls(url_or_urls, like)
        if like is None:
            self._carry(Pipeline(url, fields, **keywords), transport=transport)
        elif tf.is_tensor(url):
            pipeline = Pipeline(getattr(like, "pipeline", like), fields, **keywords).check_movable("like")
            self._carry(pipeline, transport=transport, deferred=Deferred(urls=url))
        else:
            pipeline = Pipeline(getattr(like, "pipeline", like), fields, **keywords).with_urls(url)
            self._carry(pipeline, transport=transport)

    @classmethod
    def from_pipeline(cls, pipeline: Pipeline, *, transport: Transport = "native") -> ParquetDataset:
        """Returns a dataset over an existing pipeline, such as one made by `mix`."""
        return _carrying(cls, pipeline, transport=transport)

    @classmethod
    def _over(
        cls, source: Source, fields: Fields, options: Mapping[str, Any], stages: Sequence[Stage] = ()
    ) -> ParquetDataset:
        return cls(Pipeline._over(source, fields, {}, stages), **options)

    def _with(self, pipeline: Pipeline, **changes: Any) -> ParquetDataset:
        kept = {"transport": self._transport, "options": self._options_attr, "deferred": self._deferred}
        return _carrying(type(self), pipeline, **{**kept, **changes})

    def _with_stage(self, stage: Stage) -> ParquetDataset:
        return self._with(self._pipeline._with_stage(stage))

    def _carry(
        self,
        pipeline: Pipeline,
        *,
        transport: Transport,
        state: str = "",
        options: tf.data.Options | None = None,
        deferred: Deferred = NOTHING,
    ) -> None:
        # A missing compiler or unsupported versions raise here, where the dataset is created, not where it is read.
        check_transport(transport, pipeline)
        self._transport: Transport = transport
        self._deferred = deferred
        # As in tf.data, a dataset belongs to the function that creates it: each call creates it again.
        self._function = tf.compat.v1.get_default_graph() if tf.inside_function() else None
        self._feed: ArrowFeed | None = None
        self._pipeline = pipeline
        self._state = self._begins_at = state
        self._built: tf.data.Dataset | None = None
        self._without_autotune: WithoutAutotune | None = None
        self._dataset_key = ""
        self._request: Any = ""
        self._command: list[str] = []
        super().__init__(None)
        if options is not None:
            self._options_attr = options
        if deferred.shard is not None or _is_part(pipeline):
            self._options_attr = _OWN_SHARD.merge(self._options_attr)

    # --- called by tf.data ---

    def __iter__(self) -> Any:
        """Like `tf.data.Dataset.__iter__`. Eager iteration runs less Python, and errors have no TensorFlow prefix."""
        if not tf.executing_eagerly():
            return super().__iter__()
        if self._transport == "arrow":  # its map can be tuned
            return EagerIterator(self)
        if self._without_autotune is None:
            self._without_autotune = WithoutAutotune(
                self._dataset(), read_ahead=True, inline=self._is_flat, watch=self._watch
            )
        return iter(self._without_autotune)

    def _inputs(self) -> list[tf.data.Dataset]:
        return []

    @property
    def _variant_tensor(self) -> tf.Tensor:
        return self._dataset()._variant_tensor

    @property
    def element_spec(self) -> Any:
        """The nested `tf.TypeSpec` of an element; see `tf.data.Dataset.element_spec`."""
        return self._dataset().element_spec

    def _dataset(self) -> tf.data.Dataset:
        # Created on first use, because an intermediate step (before select, for example) may not be a valid dataset.
        if self._built is None:
            with self._home():
                built = self._arrow() if self._transport == "arrow" else self._native()
                self._built = (
                    built if self._options_attr == tf.data.Options() else built.with_options(self._options_attr)
                )
        return self._built

    @property
    def _is_flat(self) -> bool:
        """Whether the op gives elements as they are, so that no function of tf.data puts their parts together."""
        return all(in_one_tensor(leaf) is not None for leaf in leaves_of(self._pipeline.element))

    def _home(self) -> AbstractContextManager[Any]:
        """The graph for this dataset's ops: the function that created it, or else outside all traced functions."""
        if self._function is None or self._transport == "arrow":
            result: AbstractContextManager[Any, bool | None] = tf.init_scope()
            return result
        inside = self._function is tf.compat.v1.get_default_graph()
        return nullcontext() if inside else self._function.as_default()

    def _arrow(self) -> tf.data.Dataset:
        self._feed = ArrowFeed(self._pipeline, arrow_reader(), state=self._state)
        return self._feed.dataset

    def _native(self) -> tf.data.Dataset:
        element = self._pipeline.element
        request = sidecar_request(self._pipeline, element if self._deferred else None)
        self._command = sidecar_command(request, self._pipeline.options)
        request = request_without_secrets(request)  # the graph holds it
        self._dataset_key = "" if self._made_again else new_dataset_key(request)
        self._request = self._deferred.request(request)
        return source_dataset(
            element, self._request, dataset_key=self._dataset_key, state=self._state, command=self._command
        )

    @property
    def _made_again(self) -> bool:
        """Whether each run of the graph creates the dataset again, so that no count survives from run to run."""
        return self._function is not None or bool(self._deferred)

    def _refuse_made_again(self, verb: str) -> None:
        if self._made_again:
            raise PipelineError(
                f"{verb}: expected a dataset created outside of functions, got one that a function creates again in "
                "each call. Create it outside of the function."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        self._deferred.refuse("pickle")
        return _restore, (type(self), self._pipeline, self._state, self._transport, self._options_attr)

    # --- the pipeline and its state ---

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline that this dataset reads.

        Raises:
            PipelineError: parts of it are only known when the graph runs.
        """
        self._deferred.refuse("pipeline")
        return self._pipeline

    def describe(self, rows: int | None = None, seed: int = 0) -> Statistics:
        """Reads the rows and describes the values of each field; see `Pipeline.describe`."""
        return self.pipeline.describe(rows, seed)

    def explain(self) -> str:
        """Describes the plan: files, row groups, what prunes them, bytes, rows, steps."""
        return self.pipeline.explain()

    @property
    def element(self) -> Element:
        """The fields of one step with their dtypes, shapes and units; ``element_spec`` has no units."""
        return self.pipeline.element

    @property
    def schema(self) -> Unischema:
        """The dataset's schema: every readable field."""
        return self.pipeline.schema

    def vocabulary(self, field: str) -> list[Any]:
        """Returns the values of a field, indexed by code; see `Pipeline.vocabulary`."""
        return self.pipeline.vocabulary(field)

    def state_dict(self, elements: int) -> dict[str, Any]:
        """Returns the state after ``elements`` elements of the latest iterator.

            >>> dataset = ParquetDataset(url).shuffle(10_000, seed=7).batch(64).load_state_dict(state)  # doctest: +SKIP
            >>> for taken, batch in enumerate(dataset.prefetch(2), 1):  # doctest: +SKIP
            ...     train(batch)
            ...     state = dataset.state_dict(taken)

        Any dataset class can resume from it (`ParquetPipe`, `Pipeline`, or `load_state_dict` here). You pass the count
        because tf.data reads ahead and cannot know how many elements you used. A `tf.train.Checkpoint` of the iterator
        stores the elements that were read ahead instead.

        Args:
            elements: the number of elements that you took from the iterator, also if it began at a loaded state. It
                is the same count as that of `ParquetIterable.state_after`.

        Raises:
            StateError: ``elements`` is below 0.
            tf.errors.FailedPreconditionError: no iterator has returned an element since the state was loaded and
                ``elements`` is not 0, or the element is too far back.
            PipelineError: a function creates the dataset again in each call.
        """
        self._refuse_made_again("state_dict")
        if operator.index(elements) < 0:
            raise StateError(f"state_dict: expected a number of elements >= 0, got {elements}.")
        try:
            return self._progress(elements)[0]
        except tf.errors.FailedPreconditionError as error:
            if elements or "an iterator that has begun, got none" not in error.message:
                raise
        # An iterator begins with its first element, so the first iterator will begin here.
        return json.loads(self._begins_at) if self._begins_at else self._fresh_state()

    def stats(self) -> LoaderStats:
        """Returns statistics of the running or latest epoch, and which side is slow: the loader or its consumer.

        The op measures the wait. If ``prefetch`` or ``map`` follows, that stage is the consumer: if it waits little,
        the rest of the tf.data pipeline or the model is the slower side.

        Raises:
            PipelineError: the dataset was not iterated in this process, a function creates it again in each call, or
                it has no sidecar (``transport="arrow"``).
        """
        self._refuse_made_again("stats")
        self._dataset()
        if self._feed is not None:
            raise PipelineError('stats: expected transport="native", got "arrow", whose batches a server makes.')
        descriptor = int(load_ops().parquetry_parquet_dataset_counters(dataset_key=self._dataset_key))
        if descriptor < 0:
            raise PipelineError(
                "stats: expected a dataset that was iterated in this process, got one that was not. Ask for stats() "
                "while an epoch runs or after it."
            )
        try:
            counters = Counters(descriptor)
        finally:
            os.close(descriptor)
        return LoaderStats.of(counters.totals(), chain_of(self._pipeline), skipped_rows(self._pipeline, counters))

    @property
    def _watch(self) -> Callable[[bool], None]:
        """A function to call before and after an iterator's first element. It does not keep the dataset alive.

        It warns if the iterator began although the one that took a state was not at its end. Of iterators in graphs, as
        in Keras, the op warns itself.
        """
        return partial(_watch_for_lost_rest, "" if self._made_again or self._feed is not None else self._dataset_key)

    def _fresh_state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(state_of(self._pipeline.plan(), Cursor()).to_json())
        return state

    def start_next_at(self, state: Mapping[str, Any] | str) -> None:
        """Makes the next iterator of this dataset, and of datasets that tf.data derived from it, resume from ``state``.

        Like `load_state_dict`, but for a dataset that is already in use, such as in a callback of ``model.fit``. Later
        iterators are the epochs that follow.

        Raises:
            PipelineError: a function creates the dataset again in each call.
        """
        self._refuse_made_again("start_next_at")
        self._dataset()
        position = read_state(state)
        text = position.to_json()
        if self._feed is not None:
            self._feed.start_next_at(text)
            self._begins_at = text
            return
        load_ops().parquetry_parquet_dataset_set_state(
            dataset_key=self._dataset_key, state=text, iteration=position.iteration
        )
        self._begins_at = text

    def _progress(self, elements: int) -> tuple[dict[str, Any], int]:
        """Returns the state, and the elements the latest iterator had left at its start (-1 endless, -2 unknown)."""
        self._dataset()
        if self._feed is not None:
            return self._feed.progress(elements)
        state, remaining = load_ops().parquetry_parquet_dataset_state(dataset_key=self._dataset_key, elements=elements)
        return json.loads(state.numpy()), int(remaining)

    def load_state_dict(self, state: Mapping[str, Any] | str) -> ParquetDataset:
        """Makes the next iterator resume from ``state``; later iterators are the epochs that follow. Returns itself.

        This also applies to datasets that tf.data derived from this one. The state may come from any dataset class; the
        iterator raises an error if it belongs to another dataset or pipeline.

        Raises:
            PipelineError: a function creates the dataset again in each call.
        """
        self._refuse_made_again("load_state_dict")
        text = read_state(state).to_json()
        if self._feed is None and self._built is not None:
            self.start_next_at(text)
        else:  # the dataset's own server is started again, because the state may have another seed
            self._built = self._without_autotune = self._feed = None
            self._state = self._begins_at = text
        return self

    def cardinality(self, name: str | None = None) -> tf.Tensor:
        """Like `tf.data.Dataset.cardinality`: the number of elements of a whole iteration.

        Raises:
            tf.errors.OpError: the plan cannot be made. tf.data's own datasets cannot report this, and return "unknown".
        """
        self._dataset()
        if self._feed is not None:
            return tf.constant(self._feed.cardinality, tf.int64)
        return load_ops().parquetry_parquet_dataset_cardinality(
            request=self._request, dataset_key=self._dataset_key, command=self._command, name=name
        )

    def prefetch_to_device(self, device: object, buffer_size: int = 2) -> tf.data.Dataset:
        """Returns the elements on a device; up to ``buffer_size`` of them are ready there before your step needs them.

            >>> batches = dataset.batch(64).prefetch_to_device("/gpu:0")  # doctest: +SKIP
            >>> for batch in batches: train(batch)  # doctest: +SKIP

        This calls tf.data's ``prefetch_to_device``, so it must come last: no tf.data op can follow, the length is
        unknown, and ``tf.train.Checkpoint`` refuses its iterators. Save `state_dict` instead, with the number of
        elements you took. Ragged tensors stay on the host until they are used; ``pad()`` makes them dense. On
        ``"/cpu:0"``, it works as `tf.data.Dataset.prefetch`, which has none of these limits.

        Args:
            device: a name such as ``"/gpu:0"``, or a ``tf.config.LogicalDevice``.
            buffer_size: the number of elements on the device, or ``tf.data.AUTOTUNE``.

        Raises:
            PipelineError: there is no such device, ``buffer_size`` is out of range, or there are text fields and the
                device is not a CPU: TensorFlow keeps text on the host.
        """
        return prefetched_to(self, device, buffer_size)

    # --- tf.data's verbs: pushed into the pipeline by `Verbs`, or run by tf.data's own op ---
    # (tf.data's op returns a plain `tf.data.Dataset`; for type checkers, all of them return a `ParquetDataset`)

    def filter(self, predicate: object, name: str | None = None) -> Self:
        """Like `tf.data.Dataset.filter`; expressions, DNF tuples, ``contains`` and ``hash_split`` go into the plan."""
        if not callable(predicate):
            return self.where(predicate)
        return tf.data.Dataset.filter(self, predicate, name=name)

    def with_options(
        self,
        options: tf.data.Options | None = None,
        name: str | None = None,
        **pipeline_options: Unpack[OptionArguments],
    ) -> ParquetDataset:
        """Like `tf.data.Dataset.with_options`; keyword arguments are the pipeline's `Options`.

        Later verbs still become part of the plan, and keep the options.
        """
        pipeline = self._pipeline.with_options(**pipeline_options) if pipeline_options else self._pipeline
        merged = self._options_attr if options is None else self._options_attr.merge(options)
        merged._set_mutable(False)
        return self._with(pipeline, options=merged)

    def shard(  # type: ignore[override]  # tf.data's own arguments
        self,
        num_shards: Any = None,
        index: Any = None,
        name: str | None = None,
        *,
        even: str | None = None,
        canonical_shards: int | None = None,
        policy: str | None = None,
    ) -> Self:
        """Like `tf.data.Dataset.shard`, but reads only this shard, and every shard has the same number of elements.

        Args:
            num_shards, index: numbers or scalar tensors, which may be unknown until the graph runs. If you pass
                neither, they come from the launcher's environment, see `Pipeline.shard`. With
                `tf.data.experimental.SHARD_HINT`, this is tf.data's own shard.
            even: ``"pad"`` (the default), ``"drop"`` or ``"none"``, see `Pipeline.shard`. If the numbers are unknown
                until the graph runs, the default is ``"none"``: each row is in one shard, as in tf.data.
            canonical_shards: the order is the same for every number of shards that divides this.
            policy: ``"global"`` (the default), or ``"rowgroup_modulo"`` for whole row groups, as in Petastorm.
        """
        options: dict[str, Any] = {"even": even, "canonical_shards": canonical_shards, "policy": policy}
        chosen = {key: value for key, value in options.items() if value is not None}
        if num_shards is None or index is None:
            return super().shard(num_shards, index, **chosen)
        numbers = static(num_shards, "shard", "num_shards"), static(index, "shard", "index")
        if SHARD_HINT not in numbers and (chosen or self._pipeline.accepts("shard")):
            if None not in numbers:
                return super().shard(*numbers, **chosen)
            if self._transport == "native":
                pipeline = self._pipeline.shard_given_later(**chosen)
                return self._with(pipeline, deferred=replace(self._deferred, shard=(num_shards, index)))
        if chosen:
            raise PipelineError(
                f"shard: expected numbers that are known now with {sorted(chosen)}, got {num_shards!r} and {index!r}. "
                "Leave these arguments out: tf.data's own shard is used then."
            )
        return tf.data.Dataset.shard(self, num_shards, index, name=name)

    def shuffle(  # type: ignore[override]  # tf.data's own arguments
        self,
        buffer_size: object,
        seed: object = None,
        reshuffle_each_iteration: bool | None = True,
        name: str | None = None,
    ) -> Self:
        """Like `tf.data.Dataset.shuffle`, but also permutes all row groups.

        Without a seed, this picks a random one, from `tf.random.set_seed`'s sequence if you called that.
        """
        size = static(buffer_size, "shuffle", "buffer_size")
        static_seed = graph_seed() if seed is None else static(seed, "shuffle", "seed")
        known = static_seed is not None or seed is None
        if size is not None and size > 0 and known and self._pipeline.accepts("shuffle"):
            reshuffle = True if reshuffle_each_iteration is None else bool(reshuffle_each_iteration)
            return super().shuffle(size, static_seed, reshuffle)
        return tf.data.Dataset.shuffle(self, buffer_size, seed, reshuffle_each_iteration, name=name)

    def cache(  # type: ignore[override]  # tf.data's own arguments
        self, filename: Any = "", name: str | None = None, *, directory: Any = None, max_bytes: int | None = None
    ) -> Self:
        """Caches elements in memory with tf.data's cache, or fetched columns in a directory if you give one.

        See `Pipeline.cache`, also for ``max_bytes``.
        """
        place = static_text(filename) if directory is None else directory
        if place is None or (place == "" and max_bytes is None):
            return tf.data.Dataset.cache(self, filename, name=name)
        options = {} if max_bytes is None else {"max_bytes": max_bytes}
        if directory is not None or options or self._pipeline.accepts("cache"):
            return super().cache(place, **options)
        return tf.data.Dataset.cache(self, filename, name=name)

    def batch(
        self,
        batch_size: object,
        drop_remainder: object = False,
        num_parallel_calls: object = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Self:
        """Like `tf.data.Dataset.batch`, but decodes straight into the batch. Variable shapes become ragged tensors.

        Raises:
            PipelineError: the elements are batches of different sizes (`bucket`), which tf.data cannot stack.
        """
        size, drop = static(batch_size, "batch", "batch_size"), static_drop_remainder(drop_remainder)
        refused = any(stage.makes_batches for stage in self._pipeline.stages)
        if size is not None and drop is not None and (refused or self._pipeline.accepts("batch")):
            return super().batch(size, drop)
        return tf.data.Dataset.batch(self, batch_size, drop_remainder, num_parallel_calls, deterministic, name=name)

    def repeat(self, count: object = None, name: str | None = None) -> Self:
        """Like `tf.data.Dataset.repeat`."""
        static_count = -1 if count is None else static(count, "repeat", "count")
        if static_count is not None and self._pipeline.accepts("repeat"):
            return super().repeat(None if static_count < 0 else static_count)
        return tf.data.Dataset.repeat(self, count, name=name)

    def take(self, count: object, name: str | None = None) -> Self:
        """Like `tf.data.Dataset.take`."""
        static_count = static(count, "take", "count")
        if static_count is not None and static_count >= 0 and self._pipeline.accepts("take"):
            return super().take(static_count)
        return tf.data.Dataset.take(self, count, name=name)

    def skip(self, count: object, name: str | None = None) -> Self:
        """Like `tf.data.Dataset.skip`."""
        static_count = static(count, "skip", "count")
        if static_count is not None and static_count >= 0 and self._pipeline.accepts("skip"):
            return super().skip(static_count)
        return tf.data.Dataset.skip(self, count, name=name)

    def prefetch(self, buffer_size: object, name: str | None = None) -> Any:
        """Like `tf.data.Dataset.prefetch`. With a fixed size, it runs without tf.data's autotuner; see
        `WithoutAutotune`.
        """
        size = static(buffer_size, "prefetch", "buffer_size")
        prefetched = tf.data.Dataset.prefetch(self, buffer_size if size is None else size, name=name)
        fixed = size is not None and size > 0 and self._transport == "native" and prefetched is not self
        if not fixed:
            return prefetched
        return WithoutAutotune(prefetched, read_ahead=False, inline=self._is_flat, watch=self._watch)


def mix(
    datasets: Sequence[ParquetDataset | Pipeline],
    weights: Weights | None = None,
    seed: int | None = None,
    stop: Stop = "first",
) -> ParquetDataset:
    """Mixes the rows of several datasets in one deterministic, weighted order; see `parquetry.common.mix`.

    Without a seed, this picks a random one, from `tf.random.set_seed`'s sequence if you called that.
    """
    chosen = graph_seed() if seed is None else seed
    return ParquetDataset.from_pipeline(mix_pipelines(datasets, weights=weights, seed=chosen, stop=stop))


def _without_auto_sharding() -> tf.data.Options:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


_OWN_SHARD = _without_auto_sharding()
"""The options of a dataset that is a rank's part. `tf.distribute` would deal these rows to the ranks again."""


def _is_part(pipeline: Pipeline) -> bool:
    """Whether the rows are one part of several; for a mix, those of a source."""
    own = (getattr(stage, "num_shards", 1) for stage in pipeline.stages)
    return any(shards > 1 for shards in own) or any(map(_is_part, pipeline.source.sources))


def _watch_for_lost_rest(dataset_key: str, begins: bool) -> None:
    """Warns if another iteration has begun before the end of a resumed one. An empty key = no dataset."""
    if dataset_key and bool(load_ops().parquetry_parquet_dataset_lost_rest(dataset_key=dataset_key, begins=begins)):
        warn_of_lost_rest(None)


def _carrying(cls: type[ParquetDataset], pipeline: Pipeline, **settings: Any) -> ParquetDataset:
    dataset = cls.__new__(cls)
    dataset._carry(pipeline, **settings)
    return dataset


def _restore(
    cls: type[ParquetDataset], pipeline: Pipeline, state: str, transport: Transport, options: tf.data.Options
) -> ParquetDataset:
    return _carrying(cls, pipeline, transport=transport, state=state, options=options)
