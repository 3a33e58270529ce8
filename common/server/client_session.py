"""`ClientSession`: the server's side of one connection, which answers requests one after another.

If a request fails, the answer is the error, and the connection stays open. `docs/arrow-stream.md` describes the
messages.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from ..base.errors import ParquetryError, PipelineError, SidecarError
from ..pipeline.pipeline import Pipeline
from ..plan.order.cursor import START, Cursor
from ..plan.plan import Plan
from ..plan.state import plan_hash
from ..schema.plain import integer
from ..transport.served.tokens import same_token
from ..transport.served.wire import (
    VERSION,
    StreamRequest,
    cursor_of,
    cursor_to_json,
    element_to_json,
    receive_json,
    send_json,
)
from .client_pipelines import ClientPipelines, accepted
from .endpoints import StreamEndpoint
from .limits import ClientLimits, within
from .sending import error_to_json, own_steps, send_stream
from .shared import SharedEpochs
from .stream_budget import StreamBudget

_REST_S, _REST_PIECES = 1.0, 16


class Serving(Protocol):
    """What `ClientSession` needs from the server; `ArrowServer` implements it."""

    pipelines: ClientPipelines
    budget: StreamBudget
    shared: SharedEpochs
    limits: ClientLimits

    @property
    def token(self) -> str | None:
        """The token that clients must send; ``None`` if there is none."""

    def new_endpoint(self, send: Callable[[socket.socket, Cursor], None]) -> StreamEndpoint | None:
        """Opens an endpoint for a reader that cannot send requests."""

    def end_endpoint(self, endpoint: StreamEndpoint) -> None:
        """Closes an endpoint whose client has left."""


class ClientSession:
    """Answers one client until it leaves."""

    def __init__(self, server: Serving, connection: socket.socket) -> None:
        self._server = server
        self._connection = connection
        self._endpoint: StreamEndpoint | None = None
        self._let_in = False

    def serve(self) -> None:
        """Handles requests until the client leaves or its stream has ended."""
        limits = self._server.limits
        within_s: float | None = limits.hello_s  # silent connections must not use up max_connections
        try:
            while (request := self._receive(within_s)) is not None:
                self._connection.settimeout(limits.idle_s)
                if not self._answer(request):
                    return
                within_s = limits.idle_s if self._endpoint is None else None  # the reader has its own connection
                self._connection.settimeout(None)
        finally:
            if self._endpoint is not None:
                self._server.end_endpoint(self._endpoint)

    def _receive(self, within_s: float | None) -> dict[str, Any] | None:
        try:
            most_bytes = self._server.limits.max_request_bytes
            return receive_json(self._connection, most_bytes=most_bytes, within_s=within_s)
        except SidecarError as error:
            refuse(self._connection, error, to_stranger=not self._let_in)
            return None

    def _answer(self, request: dict[str, Any]) -> bool:
        """Answers a request; returns False if it was the last one."""
        try:
            self._check(request)
            if request.get("do") == "stream":
                self._stream(request)
                return False
            answer = self._answers(request)
        except Exception as error:
            send_json(self._connection, error_to_json(error, to_stranger=not self._let_in))
            return self._let_in
        send_json(self._connection, answer)
        return True

    def _check(self, request: dict[str, Any]) -> None:
        if not self._let_in and not same_token(self._server.token, request.get("token")):
            raise PipelineError(
                "server: expected its token, got another or none. Give ServerAddress(token_file=...) with the file "
                "that the server was started with. Without such a file, only processes of the server's user, on the "
                "same machine and with the same /tmp, can read its token."
            )
        self._let_in = True
        if request.get("version") != VERSION:
            raise PipelineError(
                f"server: expected version {VERSION} of the stream's requests, got {request.get('version')!r}. "
                "Use one version of parquetry on both sides."
            )

    def _answers(self, request: dict[str, Any]) -> dict[str, Any]:
        do = request.get("do")
        if do == "progress":
            latest = None if self._endpoint is None else self._endpoint.latest
            return {"latest": None if latest is None else cursor_to_json(latest)}
        if do == "start_next_at":
            return self._start_next_at(request)
        if do == "endpoint":
            _, pipeline = self._planned(request)
            return self._open_endpoint(pipeline, request)
        return within(self._server.limits.plan_s, lambda: self._about(str(do), request))

    def _about(self, do: str, request: dict[str, Any]) -> dict[str, Any]:
        """Answers a question about a pipeline."""
        _, pipeline = self._server.pipelines.of(request)
        if do == "describe":
            return describe(pipeline)
        if do == "length":
            return {"length": pipeline.plan().length}
        if do == "explain":
            return {"text": pipeline.explain()}
        if do == "origin_after":
            return self._origin_after(pipeline, request)
        raise PipelineError(f"server: expected a request of the stream's protocol, got {do!r}.")

    def _planned(self, request: dict[str, Any]) -> tuple[str, Pipeline]:
        """Plans the pipeline of a request; returns its key and the pipeline."""

        def plan() -> tuple[str, Pipeline]:
            key, pipeline = self._server.pipelines.of(request)
            pipeline.plan()
            return key, pipeline

        return within(self._server.limits.plan_s, plan)

    def _origin_after(self, pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
        plan = pipeline.plan()
        if not isinstance(plan, Plan):
            raise PipelineError("server: a mix can resume only on the same number of ranks.")
        start = cursor_of({"origin": request.get("origin")}).origin
        shards, rows = integer(request.get("num_shards"), least=1), integer(request.get("rows"), least=0)
        if shards is None or rows is None:
            raise PipelineError(
                f"server: expected num_shards from 1 and rows from 0, got {request.get('num_shards')!r} and "
                f"{request.get('rows')!r}."
            )
        after = plan.origin_after(start, shards, rows)
        return {"origin": [after.passes, after.rows]}

    # --- streams ---

    def _stream(self, request: dict[str, Any]) -> None:
        key, pipeline = self._planned(request)
        stream = StreamRequest.of(request)
        element = pipeline.element
        if stream.shared:
            _check_shareable(pipeline, stream.cursor)
            steps = self._server.shared.steps(key, pipeline, stream, asked=self._is_asked)
        else:
            steps = own_steps(pipeline, stream, self._server.budget)
        send_json(self._connection, {"stream": True})
        send_stream(self._connection, element, steps, stream.layout)
        self._connection.shutdown(socket.SHUT_WR)

    def _is_asked(self) -> bool:
        """Waits until the client asks for a batch; returns False if it left instead."""
        try:
            return bool(self._connection.recv(1))
        except TimeoutError:
            raise PipelineError(
                f"server: expected the client to ask for a batch within {self._server.limits.idle_s:g} s, got nothing. "
                "Start the server with a higher limit idle_s."
            ) from None

    def _open_endpoint(self, pipeline: Pipeline, request: dict[str, Any]) -> dict[str, Any]:
        stream = StreamRequest.of(request)

        def send(connection: socket.socket, cursor: Cursor) -> None:
            connection.settimeout(self._server.limits.idle_s)
            steps = own_steps(pipeline, replace(stream, cursor=cursor), self._server.budget)
            send_stream(connection, pipeline.element, steps, stream.layout)

        if self._endpoint is None:
            self._endpoint = self._server.new_endpoint(send)
        if self._endpoint is None:
            return {"endpoint": None}
        return {"endpoint": str(self._endpoint.endpoint)}

    def _start_next_at(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._endpoint is None:
            raise PipelineError("server: expected an endpoint that was opened on this connection, got none.")
        self._endpoint.start_next_at(cursor_of(request.get("numbers")))
        return {}


def refuse(connection: socket.socket, error: ParquetryError, *, to_stranger: bool = True) -> None:
    """Sends an error to a client that will be disconnected."""
    connection.settimeout(_REST_S)
    send_json(connection, error_to_json(error, to_stranger=to_stranger))
    connection.shutdown(socket.SHUT_WR)
    for _ in range(_REST_PIECES):  # closing a socket with unread bytes would discard our answer
        if not connection.recv(1 << 16):
            return


def describe(pipeline: Pipeline) -> dict[str, Any]:
    """Returns what a client must know about a pipeline to plan with it."""
    plan = pipeline.plan()
    shard = plan.order.shard
    return {
        "element": element_to_json(plan.element),
        "fingerprint": plan.fingerprint,
        "hashes": [plan_hash(plan), plan_hash(plan, order_only=True)],
        "seed": plan.seed,
        "seed_is_drawn": plan.seed_is_drawn,
        "shard": None if shard is None else shard.to_json(),
        "drops": plan.program.drops,
        "undivided": None if shard is None else plan.undivided,
        "mixed": pipeline.source.mixed,
        "accepts": accepted(pipeline),
    }


def _check_shareable(pipeline: Pipeline, cursor: Cursor) -> None:
    shard = pipeline.plan().order.shard
    if shard is not None or cursor.workers != 1 or cursor.start or cursor.origin != START:
        raise PipelineError(
            "shared epoch: expected a client without a shard, a loader worker's part or a state, because clients take "
            "batches in the order in which they ask. Use shared=False for those."
        )
