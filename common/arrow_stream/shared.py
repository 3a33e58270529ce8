"""`SharedEpochs`: epochs whose batches several clients take in turn, each batch by exactly one of them.

An epoch is named by its number. A client that asks for one joins it where it is; one that has ended gives nothing more.
What a client had been sent when it died is not given again.
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
        """The next step; ``None`` at the end. An error is every client's."""
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
    """The epochs of all pipelines that clients share. Thread-safe."""

    def __init__(self) -> None:
        self._epochs: dict[tuple[str, int], SharedEpoch] = {}
        self._finished: dict[str, int] = {}
        self._lock = threading.Lock()

    def steps(
        self, key: str, pipeline: Pipeline, epoch: int, *, strict_nulls: bool, asked: Callable[[], bool]
    ) -> Iterator[Step]:
        """This client's part of an epoch: what it asks for before the others do.

        Args:
            asked: waits until the client wants a step; False if it left instead.
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
        """Takes out the earlier epochs that nobody reads any more: a later one has begun."""
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
