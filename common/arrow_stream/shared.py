"""`SharedEpochs`: epochs whose batches are divided among several clients; each batch goes to exactly one of them.

Epochs are identified by number. A client joins an epoch at its current position; an epoch that has ended yields nothing
more. Batches that were sent to a client that died are not sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from ..order.cursor import Cursor
from ..pipeline.pipeline import Pipeline
from .sending import Step, open_steps


class SharedEpoch:
    """One epoch of one pipeline. Thread-safe."""

    def __init__(self, pipeline: Pipeline, epoch: int, *, strict_nulls: bool) -> None:
        self._steps = open_steps(pipeline, Cursor(iteration=epoch), strict_nulls=strict_nulls)
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self.clients = 0
        self.finished = False

    def next(self) -> Step | None:
        """Returns the next step, or ``None`` at the end. An error is raised to every client."""
        with self._lock:
            if self._error is not None:
                raise self._error
            try:
                count, columns = next(self._steps)
            except StopIteration:
                self.finished = True
                return None
            except Exception as error:
                self._error = error
                raise
            return count, columns, self._steps.position

    def close(self) -> None:
        """Stops all work. Idempotent."""
        with self._lock:
            self.finished = True
            self._steps.close()


class SharedEpochs:
    """The shared epochs of all pipelines. Thread-safe."""

    def __init__(self) -> None:
        self._epochs: dict[tuple[str, int], SharedEpoch] = {}
        self._finished: dict[str, int] = {}
        self._lock = threading.Lock()

    def steps(
        self, key: str, pipeline: Pipeline, epoch: int, *, strict_nulls: bool, asked: Callable[[], bool]
    ) -> Iterator[Step]:
        """Yields this client's part of an epoch: the steps that it asks for before another client does.

        Args:
            key: identifies the pipeline.
            pipeline: the pipeline to read.
            epoch: the number of the epoch.
            strict_nulls: as for `open_steps`.
            asked: waits until the client asks for a step; returns False if it left instead.
        """
        shared = self._join(f"{key} {strict_nulls}", pipeline, epoch, strict_nulls=strict_nulls)
        if shared is None:
            return
        try:
            while asked() and (step := shared.next()) is not None:
                yield step
        finally:
            self._leave(shared)

    def close(self) -> None:
        """Stops all work. Idempotent."""
        with self._lock:
            left, self._epochs = list(self._epochs.values()), {}
        for epoch in left:
            epoch.close()

    def _join(self, key: str, pipeline: Pipeline, epoch: int, *, strict_nulls: bool) -> SharedEpoch | None:
        with self._lock:
            if epoch <= self._finished.get(key, -1):
                return None
            if (key, epoch) not in self._epochs:
                self._epochs[key, epoch] = SharedEpoch(pipeline, epoch, strict_nulls=strict_nulls)
            shared = self._epochs[key, epoch]
            shared.clients += 1
            over = self._over(key, epoch)
        for earlier in over:
            earlier.close()
        return shared

    def _over(self, key: str, epoch: int) -> list[SharedEpoch]:
        """Removes and returns earlier epochs that have no readers left."""
        over = []
        for name, number in list(self._epochs):
            earlier = self._epochs[name, number]
            if name == key and number < epoch and earlier.clients == 0:
                over.append(self._epochs.pop((name, number)))
                self._finished[key] = max(number, self._finished.get(key, -1))
        return over

    def _leave(self, shared: SharedEpoch) -> None:
        with self._lock:
            shared.clients -= 1
            if shared.finished:
                for (key, number), epoch in list(self._epochs.items()):
                    if epoch is shared:
                        del self._epochs[key, number]
                        self._finished[key] = max(number, self._finished.get(key, -1))
        if shared.finished:
            shared.close()
