"""`ParquetPipe`: a Parquet dataset as a native PyTorch DataPipe whose verbs are pushed down into the read plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow.compute as pc
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.datapipe import DataChunk
from torch.utils.data.datapipes.iter.combinatorics import ShufflerIterDataPipe
from torch.utils.data.datapipes.iter.grouping import BatcherIterDataPipe
from typing_extensions import Self

from parquetry.common import Pipeline, UnischemaField
from parquetry.common.pipeline import Urls

from .derived import DerivedVerbs
from .loader import install
from .placement import with_shard_at_end
from .source import PipelineSource

install()


class ParquetPipe(PipelineSource, DerivedVerbs, IterDataPipe):
    """Rows of a Parquet dataset as dicts of tensors (see `parquetry.torch_plugin.tensors` for the forms of each field).

    It carries a `Pipeline` and has its verbs; each returns a new pipe. The DataPipe verbs ``filter``, ``shuffle``,
    ``sharding_filter`` and ``batch`` are pushed down into the plan while their meaning allows it; after that, and for
    all other verbs (``zip``, ``unbatch``, ...), torch's own take over.

    In a ``DataLoader`` worker a pipe gives that worker's part. In a process group it gives the rank's part: of its own
    ``shard()`` if it has one (``shard(1, 0)`` = everything), else of the rank that the loader reports.

    Args:
        url_or_urls: a URL or local path of a directory or a Parquet file, or a list of them.
        fields: names or regexes of the fields wanted; ``None`` = all.
        filesystem: a ``pyarrow.fs`` or fsspec filesystem to use instead of the URL's own.
        storage_options: options for an fsspec filesystem.
        workers: threads or processes that decode; ``None`` = one for each processor, one in a ``DataLoader`` worker.
        memory_limit: bytes of fetched data in flight; ``None`` = 1 GiB.
        executor: ``"threads"`` or ``"sidecar"``; ``None`` = threads, but the sidecar for pipelines with user functions
            that are not iterated in a ``DataLoader`` worker.
        address: instead of a URL, a server that makes the batches; see `Pipeline`.

    Raises:
        PipelineError: arguments out of range. Everything that needs the dataset is checked when it is first used.
    """

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
        super().__init__()
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
        """A pipe over a pipeline."""
        result = cls.__new__(cls)
        result._start(pipeline)
        return result

    # --- DataPipe verbs ---

    def filter(
        self, filter_fn: Any, input_col: Any = None, *, fields: Sequence[str] | None = None, batched: bool = False
    ) -> Any:
        """Only the elements for which ``filter_fn`` is true.

        Args:
            filter_fn: a ``pyarrow.compute.Expression`` or DNF tuples (pushed down), or a function.
            input_col: for a function of an element's tensors: the key, or keys, that it is called with.
            fields: for a function of stored values: pushed down, and only these fields are read for it.
            batched: the pushed-down function gets a dict of arrays.
        """
        if callable(filter_fn) and not isinstance(filter_fn, pc.Expression) and fields is None:
            return super().filter(filter_fn, input_col)
        return self.where(filter_fn, fields, batched=batched)

    def shuffle(
        self,
        buffer_size: int = 10_000,
        seed: int | None = None,
        reshuffle_each_iteration: bool = True,
        *,
        unbatch_level: int = 0,
    ) -> Any:
        """A new order in every epoch: row groups permuted globally, rows among at least ``buffer_size`` neighbours.

        ``seed=None`` draws one that workers, resumed runs, and the ranks of a process group share. After ``batch()`` or
        another shuffle, and with ``unbatch_level``, this is torch's own shuffle of elements.
        """
        if unbatch_level or (seed is None and not self.pipeline.accepts("shuffle")):
            return ShufflerIterDataPipe(self, buffer_size=buffer_size, unbatch_level=unbatch_level)
        result = self._with(self.pipeline.shuffle(buffer_size, seed, reshuffle_each_iteration))
        result._seed_shared = False
        return result

    def sharding_filter(self, sharding_group_filter: Any = None) -> Self:
        """Marks where ``apply_sharding`` deals the elements to ranks; without it that is before ``batch()``.

        Before ``shuffle()`` a rank keeps its part, after it it gets a new one in every epoch. Changes nothing on a pipe
        that is sharded or batched already.

        Args:
            sharding_group_filter: the one sharding priority to listen to; ``None`` = all. A loader worker takes its
                part in any case.
        """
        result = self._with(self.pipeline)
        if self.pipeline.accepts("shard"):
            result = self._with(with_shard_at_end(self.pipeline))
            result._sharding = True
        result._only_group = sharding_group_filter
        return result

    def batch(
        self, batch_size: int, drop_last: bool = False, wrapper_class: Any = None, *, drop_remainder: bool | None = None
    ) -> Any:
        """Groups rows under a leading axis: a dict of batched tensors.

        On batches, and with ``wrapper_class``, it is torch's own batch: lists of elements.
        """
        drop = drop_last if drop_remainder is None else drop_remainder
        if wrapper_class is not None or not self.pipeline.accepts("batch"):
            return BatcherIterDataPipe(self, batch_size, drop, wrapper_class or DataChunk)
        return self._with(self.pipeline.batch(batch_size, drop))

    def cycle(self, count: int | None = None) -> Self:
        """The same as ``repeat``."""
        return self.repeat(count)

    def header(self, limit: int | None = 10) -> Self:
        """The first ``limit`` elements (``None`` = all)."""
        return self._with(self.pipeline) if limit is None else self.take(limit)

    def _with(self, pipeline: Pipeline) -> Self:
        result = type(self).from_pipeline(pipeline)
        result._groups = dict(self._groups)
        result._seed_shared = self._seed_shared
        result._sharding = self._sharding
        result._only_group = self._only_group
        result._canonical_shards = self._canonical_shards
        result._shuffling = self._shuffling
        return result
