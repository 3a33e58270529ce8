"""`PassCounters`: the counters of a dataset's passes, in the training process and in loader workers.

Workers are forked or unpickled from the dataset, and so find the memory where the training process adds up. A pass
without workers, and an iterator outside a loader, have their own counters.
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
        self._path: str | None = None  # where a spawned worker finds the shared counters
        self._token = b""  # how it recognizes them
        self._iterator: weakref.ref[ElementIterator[Any]] | None = None

    @property
    def latest(self) -> Counters | None:
        """In the training process: the counters of the latest pass."""
        return self._latest

    def announce(self, workers: int) -> None:
        """Called when a loader begins a pass with ``workers`` workers."""
        if workers and self._shared is None:
            with suppress(OSError, ValueError):  # without such memory each worker counts for itself
                self._shared = shared_counters()
                self._path = f"/proc/{os.getpid()}/fd/{self._shared.descriptor}"
                self._token = self._shared.token
        self._latest = self._shared if workers and self._shared is not None else Counters()
        self._latest.begin()
        self._iterator = None

    def waited(self, begin: float, end: float) -> None:
        """Records that the loader's consumer waited for an element."""
        if self._latest is not None:
            self._latest.waited(end - begin, end)

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
        return {"_latest": None, "_shared": None, "_path": self._path, "_token": self._token, "_iterator": None}


def shared_counters() -> Counters:
    """Returns counters in memory that other processes can open."""
    descriptor = memory_file("counters")
    try:
        counters = Counters(descriptor)
    finally:
        os.close(descriptor)
    counters.trace(spool())
    return counters
