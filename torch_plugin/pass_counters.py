"""`PassCounters`: what a dataset's passes count, in the training process and in the workers of its loaders.

Workers are forked or unpickled from the dataset, and so find the memory in which the training process adds up. A pass
without workers, and an iterator outside of a loader, have counters of their own.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from typing import Any

from parquetry.common import Pipeline
from parquetry.common.counting.counters import Counters
from parquetry.common.counting.loader_stats import LoaderStats
from parquetry.common.counting.tracing import spool
from parquetry.common.errors import PipelineError
from parquetry.common.pipeline.iteration import chain_of, skipped_rows
from parquetry.common.transport.sidecar.channel import memory_file

from .iterator import ElementIterator


class PassCounters:
    """The counters of one dataset."""

    def __init__(self) -> None:
        self._latest: Counters | None = None
        self._shared: Counters | None = None
        self._path: str | None = None  # where a worker that was not forked finds the shared ones
        self._token = b""  # ... and how it knows them
        self._iterator: weakref.ref[ElementIterator[Any]] | None = None

    @property
    def latest(self) -> Counters | None:
        """In the training process: those of the latest pass."""
        return self._latest

    def announce(self, workers: int) -> None:
        """A loader begins a pass with so many workers."""
        if workers and self._shared is None:
            with suppress(OSError, ValueError):  # without such memory each worker counts for itself
                self._shared = shared_counters()
                self._path = f"/proc/{os.getpid()}/fd/{self._shared.descriptor}"
                self._token = self._shared.token
        self._latest = self._shared if workers and self._shared is not None else Counters()
        self._latest.begin()
        self._iterator = None

    def waited(self, begin: float, end: float) -> None:
        """The loader's consumer waited for an element."""
        if self._latest is not None:
            self._latest.waited(end - begin, end)

    def of_worker(self) -> Counters:
        """In a loader worker: those that the training process adds up."""
        if self._shared is None and self._path is not None:
            with suppress(OSError, ValueError):  # unpickled elsewhere, long after: it counts for itself
                self._shared = Counters.at(self._path, self._token)
        if self._shared is None:
            self._shared = Counters()
        return self._shared

    def of_iterator(self, *, announced: bool) -> Counters:
        """In the training process: those of the pass that a loader announced, or new ones."""
        if not announced or self._latest is None:
            self._latest = Counters()
        return self._latest

    def iterates(self, iterator: ElementIterator[Any]) -> None:
        """The latest iterator of this process."""
        self._iterator = weakref.ref(iterator)

    def stats(self, pipeline: Pipeline) -> LoaderStats:
        """What the latest pass over a pipeline did so far.

        Raises:
            PipelineError: there was none in this process.
        """
        iterator = None if self._iterator is None else self._iterator()
        if iterator is not None:
            return iterator.stats()
        if self._latest is None:
            raise PipelineError(
                "stats: expected a dataset that was iterated in this process, got one that was not. Ask for stats() "
                "while an epoch runs or after it, and the dataset that the loop iterates, not another of its chain."
            )
        return LoaderStats.of(self._latest.totals(), chain_of(pipeline), skipped_rows(pipeline, self._latest))

    def __getstate__(self) -> dict[str, Any]:
        return {"_latest": None, "_shared": None, "_path": self._path, "_token": self._token, "_iterator": None}


def shared_counters() -> Counters:
    """Counters in memory that other processes can open."""
    descriptor = memory_file("counters")
    try:
        counters = Counters(descriptor)
    finally:
        os.close(descriptor)
    counters.trace(spool())
    return counters
