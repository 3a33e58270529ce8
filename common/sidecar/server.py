"""The reader process: opens the requests of its client and runs one iteration after the other.

A client may send another OPEN (see `may_share_process`) instead of starting another process.

Each START creates an `Iteration`. It ends when everything is sent, on STOP, on the next START, or on an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..base.errors import SidecarError
from ..plan.options import RESTARTS
from ..transport.sidecar.channel import Channel, read_request, received_counters
from ..transport.sidecar.protocol import Message, MessageType, Start
from ..transport.sidecar.request import requested_versions
from ..transport.sidecar.request_secrets import naming_withheld
from ..transport.sidecar.worker_process import WorkerProcess
from .connection import ClientConnection, SlotPool
from .iteration import Iteration
from .opened_request import OpenedRequest, prepare, requested_pipeline

_MOST_RESTARTS = (1 << 32) - 1


class Server:
    """Serves one client.

    Args:
        channel: the client's connection; when it ends, the process ends.
        started: workers that already run.
    """

    def __init__(
        self, channel: Channel, start: Callable[[], WorkerProcess], started: Sequence[WorkerProcess] = ()
    ) -> None:
        self._client = ClientConnection(channel)
        self._slots = SlotPool(self._client)
        self._start_worker = start
        self._started = list(started)
        self._request: dict[str, Any] = {}
        self._opened_request: OpenedRequest | None = None
        self._iteration: Iteration | None = None
        self._has_begun = False

    def serve(self, first: Message | None = None) -> None:
        """Handles messages until CLOSE or the end of the connection. ``first`` was already received.

        Raises:
            SidecarError: a message violates the protocol.
        """
        while True:
            message, first = first or self._client.receive(), None
            if message is None or message.type == MessageType.CLOSE:
                return
            if message.type == MessageType.OPEN:
                if not self._open(message):
                    return
            elif message.type == MessageType.START:
                self._start(message)
            elif message.type == MessageType.RELEASE:
                self._slots.release(message.a)
            elif message.type == MessageType.STOP:
                self._stop()
            else:
                raise SidecarError(f"sidecar message: expected one to a sidecar, got {message.type.name}.")

    def close(self) -> None:
        """Stops everything and ends the worker processes. Idempotent."""
        self._stop()
        if self._opened_request is not None:
            self._opened_request.runner.close()
        for process in self._started:
            process.end()

    def _open(self, message: Message) -> bool:
        try:
            request = read_request(message)
            assert message.descriptor is not None  # otherwise `read_request` would have raised
            os.close(message.descriptor)
            if self._opened_request is not None:
                if request["sys_path"] != self._request["sys_path"]:
                    return False  # modules already imported may come from other files
                self._forget()
            self._request = request
            paths = request["sys_path"]
            sys.path[:] = [*paths, *(path for path in sys.path if path not in paths)]
            with naming_withheld(request):
                pipeline = requested_pipeline(request)
                self._opened_request = prepare(pipeline, request, self._start_worker, self._started)
            self._started = []
            cardinality = self._opened_request.plan.cardinality
            options = pipeline.options
        except Exception as error:
            self._client.send_error(0, error)
            return False
        restarts = min(RESTARTS if options.restarts is None else options.restarts, _MOST_RESTARTS)
        opened = restarts | round(1000 * (options.stall_timeout or 0)) << 32
        self._client.send(Message(type=MessageType.OPENED, generation=message.generation, a=cardinality, b=opened))
        return True

    def _forget(self) -> None:
        """Ends everything that served the previous request."""
        self._stop()
        if self._opened_request is not None:
            self._opened_request.runner.close()
        self._opened_request = None
        self._has_begun = False
        self._slots.shrink()

    def _start(self, message: Message) -> None:
        self._stop()
        try:
            start = Start.unpack(message.body)
            counters = received_counters(message)
            opened_request = self._up_to_date()
            if "urls" not in self._request:  # one file of several that a graph names may well have no rows
                opened_request.plan.check_not_empty()
            self._iteration = Iteration(
                self._client,
                self._slots,
                opened_request,
                generation=message.generation,
                start=start,
                most_slots=message.a,
                counters=counters,
            )
        except Exception as error:
            self._client.send_error(message.generation, error)
            return
        self._iteration.start()

    def _up_to_date(self) -> OpenedRequest:
        """Returns the planned pipeline. Prepares it again if files changed and the request names no versions."""
        opened_request = self._opened_request
        if opened_request is None:
            raise SidecarError("message START: expected OPEN before it.")
        if requested_versions(self._request) is None and self._has_begun:
            pipeline = requested_pipeline(self._request)
            if pipeline.versions != opened_request.versions:
                opened_request.runner.close()
                self._opened_request = opened_request = prepare(pipeline, self._request, self._start_worker)
        if self._has_begun:
            for fetcher in opened_request.fetchers:
                fetcher.begin_pass()
        self._has_begun = True
        return opened_request

    def _stop(self) -> None:
        if self._iteration is not None:
            self._iteration.stop()
            self._iteration = None
