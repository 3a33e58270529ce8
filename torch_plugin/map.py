"""`ParquetMap`: a Parquet dataset as a map-style ``Dataset``, for code that picks rows by index.

It takes a pipeline, and the indices from a sampler, and returns dicts of tensors. Row ``i`` is the ``i``-th element of
an iteration over the pipeline, in every process. Only the sampler splits rows across ranks and workers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from torch.utils.data import Dataset, SequentialSampler, get_worker_info

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError
from parquetry.common.base.metrics.counters import counting
from parquetry.common.base.metrics.loader_stats import LoaderStats
from parquetry.common.base.process.exit_watch import end_with_trainer
from parquetry.common.pipeline.pipeline_iterator import ElementT
from parquetry.common.pipeline.random_access import ElementConverters, ElementReader, NumberedElements, reader_of

from .carrier import PipelineCarrier
from .copies import copies_in
from .copies import install as install_copies
from .epochs import EpochCounter, epoch_number
from .loader_passes import LoaderAware, Pass, inner_samplers, install
from .pass_counters import PassCounters
from .placement import rank_here, shard_of, shuffle_of
from .tensors import batch_to_torch, rows_to_torch

_LOG = logging.getLogger(__name__)
_SAMPLERS = "torch.utils.data.sampler"  # those that know of no ranks
_CONVERTERS = ElementConverters(batch=batch_to_torch, rows=rows_to_torch, strict_nulls=True)

install()
install_copies()


class ParquetMap(PipelineCarrier, LoaderAware, Dataset[ElementT]):
    """Rows of a Parquet dataset by index, as dicts of tensors (see `parquetry.torch_plugin.tensors`).

        >>> dataset = ParquetMap(url, ["id", "image"]).random_flip("image", seed=7)
        >>> len(dataset), dataset[3]["id"]
        (40, tensor(3))
        >>> loader = DataLoader(dataset, batch_size=8, sampler=RandomSampler(dataset))
        >>> next(iter(loader))["image"].shape
        torch.Size([8, 4, 5, 3])

    It wraps a `Pipeline` and has its verbs; each returns a new dataset. A batched pipeline returns batches by index,
    for ``DataLoader(dataset, batch_size=None, sampler=...)``.

    Reading a row reads its whole row group; each process caches the latest ones. If you do not need a sampler, use a
    `ParquetIterable`: it reads each row group once per epoch, and splits rows across ranks and workers for you.

    Each pass of a loader is a new epoch, which determines random crops and the pipeline's ``shuffle()``. Rows read
    outside a loader belong to the epoch of the latest pass, or to the one set by `set_epoch`.

    Args:
        url_or_urls, fields, filesystem, storage_options, address: as for `ParquetIterable`.
        workers: how many row groups a list of rows reads at once; ``None`` = one per processor, one in a loader worker.
        memory_limit: bytes of row groups that each process caches; ``None`` = 256 MiB.
        verify, max_value_bytes: as for `Pipeline`.
        executor: no effect: rows are made in the process that reads them.

    Raises:
        PipelineError: arguments out of range, or ``on_error="skip"``. Checks that need the dataset run when it is first
            used.
    """

    by_number = True

    def _start(self, pipeline: Pipeline) -> None:
        if pipeline.options.skips:
            raise PipelineError(
                "ParquetMap: expected on_error='raise', got 'skip': an index names one row, and no other row can "
                "replace it. Use a ParquetIterable to leave out rows that fail, or catch the error of a row."
            )
        super()._start(pipeline)
        self._epochs = EpochCounter()
        self._counting = PassCounters()
        self._readers: dict[int, ElementReader[ElementT]] = {}  # for this process; a forked worker makes its own
        self._warned = self._warned_of_ranks = False

    def __len__(self) -> int:
        """Returns the exact number of rows (or batches).

        Raises:
            TypeError: the pipeline is endless, or a function may drop rows.
        """
        return len(self._pipeline)

    if TYPE_CHECKING:

        def as_tuple(self, *parts: object) -> ParquetMap[Any]: ...

    @overload
    def __getitem__(self, index: int) -> ElementT: ...

    @overload
    def __getitem__(self, index: slice | Sequence[int] | np.ndarray) -> list[ElementT]: ...

    def __getitem__(self, index: Any) -> Any:
        """Returns a row (or batch), or a list of them, like `Pipeline.__getitem__`.

        Raises:
            IndexError: there is no such row.
            NullValueError: a null that ``nulls()`` does not handle.
            PipelineError: a served pipeline, or one with ``transform(drops=True)``, whose rows have no index.
        """
        with self._counted():
            return self._elements(index)[index]

    def __getitems__(self, indices: Sequence[int]) -> list[ElementT]:
        """Returns several rows, as ``DataLoader`` requests them for a batch; each row group is read only once."""
        with self._counted():
            return self._elements(indices)[list(indices)]

    def stats(self) -> LoaderStats:
        """Returns statistics of a loader's running or latest pass, and which side is slow: the loader or the model.

        Adds up the loader's workers. Rows that you read without a loader count toward its latest pass.

        Raises:
            PipelineError: no loader has read rows in this process.
        """
        return self._counting.stats(self._pipeline)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch (counted from 0) of the next loader pass, and of rows read before it.

        Raises:
            PipelineError: the epoch is not an integer of at least 0.
        """
        self._epochs.set(epoch_number(epoch))

    # --- called by loaders ---

    def pass_begins(self, begun: Pass) -> None:
        """Called when a loader is about to read rows: begins the next epoch.

        Raises:
            PipelineError: a sampler splits rows across ranks, but each rank numbers the rows differently, or the
                pipeline is already sharded.
        """
        self._check_sampler(begun)
        self._epochs.follow(begun.trainer)
        self._epochs.announce(begun)
        self._counting.announce(begun.workers)
        with suppress(Exception):  # errors are raised where rows are read
            _ = self._pipeline.plan().length  # selects rows once here, not in every worker

    def _check_sampler(self, begun: Pass) -> None:
        """Checks a loader's samplers against the sharding and shuffling of the pipeline."""
        samplers = list(inner_samplers(begun.samplers))
        replicas, dealer = max(((_replicas(each), type(each).__name__) for each in samplers), default=(1, ""))
        shard, shuffle, drawn = shard_of(self._pipeline), shuffle_of(self._pipeline), self._pipeline.drawn_seed
        if replicas > 1 and shard is not None and shard.num_shards > 1:
            raise PipelineError(
                f"ParquetMap: expected every row on each of {replicas} ranks, because {dealer} splits them, got a "
                f"pipeline with shard({shard.num_shards}, {shard.index}), whose part would be split again. Leave out "
                "shard()."
            )
        ordered = any(stage.decides_order and stage.drawn_seed is not None for stage in self._pipeline.stages)
        if replicas > 1 and drawn is not None and (ordered or self._pipeline.source.mixed):
            raise PipelineError(
                f"ParquetMap: expected a seed that numbers rows the same way on each of {replicas} ranks, because "
                f"{dealer} splits them, got shuffle(), weigh() or mix() without one. Write seed=, or leave "
                "it out."
            )
        if replicas == 1 and not begun.dispatched and (shard is None or shard.num_shards == 1):
            self._warn_of_every_row(samplers)
        chosen = [type(each).__name__ for each in samplers if _chooses(each)]
        if chosen and shuffle is not None and shuffle.reshuffle_each_iteration and not self._warned:
            self._warned = True
            _LOG.warning(
                "%s chooses rows by number, and shuffle() assigns the numbers to other rows in each epoch. Leave one "
                "of them out.",
                chosen[0],
            )

    def _warn_of_every_row(self, samplers: Sequence[object]) -> None:
        """Warns once if several ranks read every row, and no sampler of your own can be meant to split them."""
        ranks = rank_here()[0]
        if ranks > 1 and not self._warned_of_ranks and all(type(each).__module__ == _SAMPLERS for each in samplers):
            self._warned_of_ranks = True
            _LOG.warning(
                "ParquetMap: each of %d ranks reads every row, because neither the sampler (%s) nor shard() splits "
                "them. Pass sampler=DistributedSampler(dataset), or write dataset.shard().",
                ranks,
                ", ".join(type(each).__name__ for each in samplers),
            )

    def _waited(self, begin: float, end: float) -> None:
        """Records that the consumer of the loader waited for an element from ``begin`` to ``end``."""
        self._counting.waited(begin, end)

    def _copied(self, seconds: float) -> None:
        """Records that the consumer also waited for the copy of an element to a device."""
        self._counting.copied(seconds)

    # --- rows ---

    def _counted(self) -> AbstractContextManager[None]:
        """Counts the work of this thread toward the loader's pass."""
        in_worker = get_worker_info() is not None
        return counting(self._counting.of_worker() if in_worker else self._counting.latest)

    @property
    def draws_numbers(self) -> bool:  # type: ignore[override]  # known from the plan
        with suppress(Exception):  # errors are raised where rows are read
            return self._pipeline.plan().program.draws_numbers
        return False

    def _elements(self, index: object) -> NumberedElements[ElementT]:
        """Returns the elements of the epoch, in the copies that a loader wants of those at ``index``."""
        process = os.getpid()  # a forked worker must not use its parent's locks and threads
        if process not in self._readers:
            in_worker = get_worker_info() is not None
            if in_worker:
                end_with_trainer()
            self._readers = {process: reader_of(self._pipeline, _CONVERTERS, threads=1 if in_worker else None)}
        return NumberedElements(self._readers[process], self._epochs.current, copies_in(index))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_readers": {}}


def _replicas(sampler: object) -> int:
    """Returns how many ranks a sampler splits rows across: torch's, Lightning's, or Accelerate's."""
    return max(int(getattr(sampler, name, None) or 1) for name in ("num_replicas", "num_processes"))


def _chooses(sampler: object) -> bool:
    """Whether a sampler decides the order itself."""
    stands_on_another = hasattr(sampler, "sampler") or hasattr(sampler, "batch_sampler")
    return not stands_on_another and not isinstance(sampler, SequentialSampler) and getattr(sampler, "shuffle", True)
