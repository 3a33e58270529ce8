"""`SidecarSource`: the steps of one iteration, produced by a sidecar."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from ...base.errors import ELEMENT_ERRORS, PipelineError, SidecarError
from ...base.metrics.counters import Count
from ...engine.run.step_source import RunSource, StepRequest, StepRun
from ...plan.options import RESTARTS
from ...plan.state import state_of
from .client import SidecarClient, SidecarDiedError
from .idle_pool import IDLE
from .protocol import Start
from .request import open_request

_LOGGER = logging.getLogger(__name__)


class SidecarSource(RunSource):
    """The steps of one iteration, produced by a sidecar."""

    def __init__(self, request: StepRequest) -> None:
        super().__init__(request)
        options = request.options
        self._outputs = request.plan.element.leaves
        self._counters = request.counters
        self._request = open_request(
            request.describe(), request.versions(), request.program, options.parallelism
        ).encode()
        self._plan = request.plan
        self._cursor = request.cursor
        self._restarts = RESTARTS if options.restarts is None else options.restarts
        self._stall_timeout = options.stall_timeout
        self._restarted = 0  # in a row
        self._died_at = -1
        self._closed = False
        self._client: SidecarClient | None = None
        self._lock = threading.RLock()  # reentrant: a finalizer may close it in any method here
        self._is_waiting = False  # a thread waits for the client's next message
        try:
            self._begin()
        except SidecarDiedError as error:
            self._begin_again(error)

    def _begin(self) -> None:
        """Begins after the last step that was returned."""
        client = self._client = IDLE.take(self._request, self._stall_timeout)
        try:
            with self._waiting(client):
                cursor = replace(self._cursor, start=self.position, skipped=self.skipped)
                state = state_of(self._plan, cursor).to_json() if self.skipped else None
                client.start(Start(cursor=cursor, merge=True, state=state), self._counters.descriptor)
                self._changes = client.skipped
        except BaseException:
            self._release()
            raise

    def _begin_again(self, death: SidecarError) -> None:
        """Replaces a sidecar that died.

        Raises:
            SidecarError: it died too often at this element.
            ParquetryError: an error from planning.
        """
        error = death
        while not self._closed:
            self._release()
            if self.position != self._died_at:
                self._died_at, self._restarted = self.position, 0
            if self._restarted >= self._restarts:
                often = f"\nIt was started again {self._restarted} times at element {self.position}."
                raise SidecarError(f"{error}{often if self._restarted else ''}") from error
            self._restarted += 1
            self._counters.row()[Count.RESTARTS] += 1
            _LOGGER.warning(
                "%s Starting another at element %d, %d of %d in a row.",
                str(error).partition(" Last stderr output")[0],
                self.position,
                self._restarted,
                self._restarts,
            )
            try:
                self._begin()
            except SidecarError as again:
                error = again
            else:
                return

    def _receive(self) -> None:
        client = self._client
        if client is None:
            raise StopIteration
        try:
            with self._waiting(client):
                received = client.next_batches(self._outputs)
        except ELEMENT_ERRORS:
            if client.failed_at is None:
                self.close()
            else:
                self.position = client.failed_at
                self._note_skipped()
            raise
        except SidecarDiedError as error:
            if self._closed:
                raise SidecarError(str(error)) from error
            self._begin_again(error)
            return
        if received is None:
            self.close()
            raise StopIteration
        self._counters.row()[Count.DELIVERED_BYTES] += received[-1][0].table_offset
        self.position = received[0][0].first_element
        begin = time.perf_counter()
        if self._batched:
            parts = [
                (columns, header.num_elements, header.num_rows // max(header.num_elements, 1))
                for header, columns in received
            ]
        else:
            parts = [(columns, 1, header.num_elements) for header, columns in received]
        self._run = StepRun(self._converter, parts)
        self._counters.row()[Count.HAND_OVER_S] += time.perf_counter() - begin

    def close(self) -> None:
        """Ends the iteration and keeps the sidecar for the next one. Idempotent.

        If another thread waits for the sidecar, its wait ends with a `PipelineError`, and that thread gives it back.
        """
        self._closed = True
        self._release()

    @contextmanager
    def _waiting(self, client: SidecarClient) -> Iterator[None]:
        """Keeps `_release` from giving the client to another iteration while this thread reads its messages."""
        with self._lock:
            if self._client is not client:  # another thread has just closed this, and given the client away
                raise PipelineError("iteration was closed.")
            self._is_waiting = True
        try:
            yield
        finally:
            self._is_waiting = False
            if self._closed:
                self._release()

    def _release(self) -> None:
        with self._lock:
            client = self._client
            if client is not None and self._is_waiting:
                client.end_wait()
                return
            self._client = None
        if client is not None and client.pid == os.getpid():
            client.stop()
            IDLE.give(client)
