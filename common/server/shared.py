"""`SharedEpochs`: epochs whose batches are divided among several clients; each batch goes to exactly one of them.

Epochs are identified by number. A client joins an epoch at its current position; an epoch that has ended yields nothing
more. The work for an epoch stops when its last client leaves. The next client continues it where it was left. Batches
that were sent to a client that died are not sent again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from ..base.errors import SidecarError
from ..pipeline.pipeline import Pipeline
from ..plan.order.cursor import Cursor
from ..transport.served.wire import StreamRequest
from .epoch_log import EpochLog
from .sending import SentStep, open_steps
from .stream_budget import StreamBudget, StreamShare


class SharedEpoch:
    """One epoch of one pipeline, from the position of a stream on. Thread-safe."""

    def __init__(self, pipeline: Pipeline, stream: StreamRequest, share: StreamShare) -> None:
        self._steps = open_steps(pipeline.with_options(memory_limit=share.memory_bytes), stream)
        self._share = share
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self.position = stream.cursor.start
        self.clients = 0
        self.finished = False

    def next(self) -> SentStep | None:
        """Returns the next step, or ``None`` at the end. An error is raised to every client."""
        with self._lock:
            return self._next()

    def _next(self) -> SentStep | None:
        if self._error is not None:
            raise self._error
        try:
            count, columns = next(self._steps)
        except StopIteration:
            if not self._steps.ended:
                raise SidecarError("server: expected more of a shared epoch, but the server is closing.") from None
            self.finished = True
            return None
        except Exception as error:
            self._error = error
            raise
        self.position = self._steps.position
        return count, columns, self.position

    def close(self) -> None:
        """Stops all work, also while another thread waits for a step. Idempotent."""
        self._steps.close()
        self._share.close()


class SharedEpochs:
    """The shared epochs of all pipelines. Thread-safe."""

    def __init__(self, budget: StreamBudget) -> None:
        self._budget = budget
        self._epochs: dict[tuple[str, int], SharedEpoch] = {}
        self._log = EpochLog()
        self._lock = threading.Lock()
        self._closed = False

    def steps(
        self, key: str, pipeline: Pipeline, stream: StreamRequest, *, asked: Callable[[], bool]
    ) -> Iterator[SentStep]:
        """Yields this client's part of an epoch: the steps that it asks for before another client does.

        Args:
            key: identifies the pipeline; short, because it is kept.
            stream: what the client asks for; only the iteration of its cursor matters.
            asked: waits until the client asks for a step; returns False if it left instead.

        Raises:
            PipelineError: the maximum number of streams is open. All clients of an epoch count as one.
        """
        name = f"{key} {stream.strict_nulls}", stream.cursor.iteration
        shared = self._join(name, pipeline, stream)
        if shared is None:
            return
        try:
            while asked() and (step := shared.next()) is not None:
                yield step
        finally:
            self._leave(name, shared)

    def close(self) -> None:
        """Stops all work. Idempotent."""
        with self._lock:
            self._closed = True
            left = list(self._epochs.values())
        for epoch in left:
            epoch.close()

    def _join(self, name: tuple[str, int], pipeline: Pipeline, stream: StreamRequest) -> SharedEpoch | None:
        """Returns the epoch, or ``None`` if it has ended."""
        with self._lock:
            if self._closed:
                raise SidecarError("server: expected to join a shared epoch, but the server is closing.")
            shared = self._epochs.get(name)
            if shared is None:
                position = self._log.position(*name)
                if position is None:
                    return None
                share = self._budget.open_stream(pipeline.options.memory_bytes)
                try:
                    start = Cursor(iteration=stream.cursor.iteration, start=position)
                    shared = SharedEpoch(pipeline, replace(stream, cursor=start), share)
                except BaseException:
                    share.close()
                    raise
                self._epochs[name] = shared
            shared.clients += 1
            return shared

    def _leave(self, name: tuple[str, int], shared: SharedEpoch) -> None:
        with self._lock:
            shared.clients -= 1
            if shared.clients:
                return
            del self._epochs[name]
            in_use = {key for key, _ in self._epochs}
            if shared.finished:
                self._log.end(*name, in_use=in_use)
            else:
                self._log.leave(*name, shared.position, in_use=in_use)
        shared.close()
