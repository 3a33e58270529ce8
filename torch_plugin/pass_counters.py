"""`PassCounters`: the counters of a dataset's passes, in the training process and in loader workers, and their verdict.
`gather_stats`: a loader's statistics on all ranks of the process group.

Workers are forked or unpickled from the dataset, and so find the memory where the training process adds up. A pass
without workers, and an iterator outside a loader, have their own counters.
"""

from __future__ import annotations

import logging
import os
import weakref
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from parquetry.common import Pipeline
from parquetry.common.base.errors import PipelineError
from parquetry.common.base.metrics.counters import SIZE_BYTES, Count, Counters
from parquetry.common.base.metrics.loader_stats import LoaderStats
from parquetry.common.base.metrics.stats_log import RankStats
from parquetry.common.base.metrics.tracing import spool
from parquetry.common.base.metrics.watching import stats_of
from parquetry.common.base.platform.memory_file import memory_file, shared_path
from parquetry.common.pipeline.step_iterator import chain_of, skipped_rows

from .iterator import ElementIterator

_LOG = logging.getLogger(__name__)
_WORTH_SAYING_S = 1.0
_LONGEST_PASSING_S = 5.0
"""A single wait that takes longer than this has another cause than the passing of a batch, such as a stopped worker."""
_MOST_WAIT = 2.0
"""If the loop waited more than this many times as long as all work took, one thread would have been faster."""


class PassCounters:
    """The counters of one dataset."""

    def __init__(self) -> None:
        self._workers = 0  # those that do nothing but the dataset's work
        self._through_workers = False
        self._taken = 0
        self._waited_s = 0.0  # after the first element of each worker, which takes the worker's start
        self._has_warned = False
        self._latest: Counters | None = None
        self._shared: Counters | None = None
        self._path: str | None = None  # where a spawned worker finds the shared counters
        self._token = b""  # how it recognizes them
        self._iterator: weakref.ref[ElementIterator[Any]] | None = None

    @property
    def latest(self) -> Counters | None:
        """In the training process: the counters of the latest pass."""
        return self._latest

    def announce(self, workers: int, *, alone: bool = False) -> None:
        """Called when a loader begins a pass with ``workers`` workers.

        Args:
            alone: whether they do nothing but the dataset's work.
        """
        self._workers, self._taken, self._waited_s = workers if alone else 0, 0, 0.0
        if workers and self._shared is None:
            with suppress(OSError, ValueError):  # without such memory each worker counts for itself
                self._shared = shared_counters()
                assert self._shared.descriptor is not None
                self._path = shared_path(self._shared.descriptor)
                self._token = self._shared.token
        self._latest = self._shared if workers and self._shared is not None else Counters()
        self._latest.begin()
        self._iterator = None
        self._through_workers = workers > 0

    def waited(self, begin: float, end: float) -> None:
        """Records that the loader's consumer waited for an element."""
        self._taken += 1
        if self._taken > self._workers and end - begin < _LONGEST_PASSING_S:
            self._waited_s += end - begin
        if self._latest is not None:
            self._latest.waited(end - begin, end, through_workers=self._through_workers)

    def copied(self, seconds: float) -> None:
        """Records that the consumer also waited for the copy of an element to a device."""
        if self._latest is not None:
            self._latest.copied(seconds)

    def ended(self, name: str) -> None:
        """Called at the end of a loader's pass. Warns once if its workers cost more than they bring."""
        if not self._workers or self._latest is None or self._has_warned or self._waited_s < _WORTH_SAYING_S:
            return
        totals = self._latest.totals()
        work_s = sum(totals[count] for count in (Count.STORE_S, Count.PARQUET_S, Count.DECODE_S, Count.TRANSFORM_S))
        if self._waited_s <= _MOST_WAIT * work_s:
            return
        self._has_warned = True
        _LOG.warning(
            "%s: the loader's %d workers cost more than they bring: your loop waited %.1f s for them in this epoch, "
            "although all reading and decoding took only %.1f s. The rest is the passing of batches between processes. "
            "With num_workers=0 the dataset decodes in threads of its own, ahead of your loop.",
            name,
            self._workers,
            self._waited_s,
            work_s,
        )

    def of_worker(self) -> Counters:
        """In a loader worker: returns the counters that the training process adds up."""
        if self._shared is None and self._path is not None:
            with suppress(OSError, ValueError):  # unpickled later in another process: it counts for itself
                self._shared = Counters.at(self._path, self._token)
        if self._shared is None:
            self._shared = Counters()
        return self._shared

    def of_iterator(self, *, announced: bool) -> Counters:
        """In the training process: returns the counters of the announced pass, or new ones."""
        if not announced or self._latest is None:
            self._latest = Counters()
        return self._latest

    def iterates(self, iterator: ElementIterator[Any]) -> None:
        """Registers the latest iterator of this process."""
        self._iterator = weakref.ref(iterator)

    def stats(self, pipeline: Pipeline) -> LoaderStats:
        """Returns statistics of the latest pass over a pipeline.

        Raises:
            PipelineError: there was no pass in this process.
        """
        iterator = None if self._iterator is None else self._iterator()
        if iterator is not None:
            return iterator.stats()
        if self._latest is None:
            raise PipelineError(
                "stats: expected a dataset that was iterated in this process, got one that was not. Call stats() "
                "during or after an epoch, on the dataset that the loop iterates, not on another one in its chain."
            )
        return LoaderStats.of(self._latest.totals(), chain_of(pipeline), skipped_rows(pipeline, self._latest))

    def __getstate__(self) -> dict[str, Any]:
        own = {"_latest": None, "_shared": None, "_iterator": None}
        return {**self.__dict__, **own}


def shared_counters() -> Counters:
    """Returns counters in memory that other processes can open."""
    descriptor = memory_file("counters", SIZE_BYTES)
    try:
        counters = Counters(descriptor)
    finally:
        os.close(descriptor)
    counters.trace(spool())
    return counters


def gather_stats(loader: object) -> RankStats:
    """Returns the stats of a loader's running or latest epoch on each rank, and which rank waits the most.

    >>> if step % 100 == 0:  # on every rank  # doctest: +SKIP
    ...     log_stats(wandb.run if rank == 0 else None, gather_stats(loader), step)

    Collective: if ``torch.distributed`` is initialized, each rank of the default group must call this at the same step.
    Otherwise the result has this rank only.

    Args:
        loader: what you iterate: a dataset, pipe or node of this package, or a loader over one.

    Raises:
        PipelineError: the loader does not read through parquetry, or was not iterated yet.
    """
    stats = stats_of(loader)
    if stats is None:
        raise PipelineError(
            f"gather_stats: expected a parquetry dataset or a loader over one, got {type(loader).__name__}."
        )
    own = stats()
    if not (dist.is_available() and dist.is_initialized()):
        return RankStats(own=own, rank=0, ranks=(own.scalars(),))
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, own.scalars())
    return RankStats(own=own, rank=dist.get_rank(), ranks=tuple(ranks))
