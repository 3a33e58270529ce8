"""`ArrowServer`: serves one pipeline to any number of clients; `serve` starts one in this process.

`client_session` answers each client. This module holds the state that clients share, and shuts everything down.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from ..base.errors import PipelineError
from ..pipeline.pipeline import Pipeline
from ..plan.order.cursor import Cursor
from ..transport.served.address import Endpoint, ServerAddress, parse_endpoint
from ..transport.served.tokens import OwnToken, read_token
from .client_pipelines import ClientPipelines
from .client_session import ClientSession, refuse
from .endpoints import StreamEndpoint
from .limits import ClientLimits
from .listener import Listener
from .shared import SharedEpochs
from .stream_budget import StreamBudget

_LOGGER = logging.getLogger(__name__)


class ArrowServer:
    """Serves a pipeline. Use it as a context manager, or call `close`.

    Args:
        pipeline: the pipeline to serve.
        address: ``unix:PATH`` or ``tcp://127.0.0.1:PORT``; port 0 picks any free port. Clients on other machines come
            through a tunnel; see ``docs/arrow-stream.md``.
        token_file: a file whose first line is the token of clients. Without it, the server makes a token for a TCP
            port. Clients of the same user find it; others cannot read it.
        limits: how much each client may request.

    Raises:
        PipelineError: other machines could connect, or the server cannot listen on the address.
        ParquetryError: the pipeline cannot be planned.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        address: str,
        *,
        token_file: str | os.PathLike[str] | None = None,
        limits: ClientLimits | None = None,
    ) -> None:
        if pipeline.source.served:
            raise PipelineError("serve: expected a pipeline over files, got one from another server.")
        if pipeline.options.skips:
            raise PipelineError(
                "serve: expected on_error='raise', got 'skip', because clients count the rows of the order. Exclude "
                "bad rows with where()."
            )
        endpoint = parse_endpoint(address)
        self._token = None if token_file is None else read_token(os.fspath(token_file))
        self._own_token: OwnToken | None = None
        if self._token is None and endpoint.kind == "tcp":
            self._own_token = OwnToken()
            self._token = self._own_token.text
        _ = pipeline.element  # if planning fails, raise here, not to the first client
        self.limits = limits or ClientLimits()
        if self.limits.memory_bytes is not None:
            most = min(self.limits.memory_bytes, pipeline.options.memory_bytes)
            pipeline = pipeline.with_options(memory_limit=most)
        self.pipelines = ClientPipelines(pipeline, self.limits)
        self.budget = StreamBudget(self.limits)
        self.shared = SharedEpochs(self.budget)
        self._endpoints: set[StreamEndpoint] = set()
        self._lock = threading.Lock()
        self._listener = Listener(endpoint, self._handle, most=self.limits.max_connections, refuse=self._refuse)
        if self._own_token is not None:
            try:
                self._own_token.publish(self._listener.endpoint)
            except BaseException:
                self._listener.stop()
                raise
        _LOGGER.info("serving at %s", self.address)

    @property
    def endpoint(self) -> Endpoint:
        """The address it listens on."""
        return self._listener.endpoint

    @property
    def address(self) -> str:
        """The URL for clients."""
        return str(self.endpoint)

    @property
    def clients(self) -> int:
        """Number of open connections."""
        return self._listener.connections

    @property
    def token(self) -> str | None:
        """The token that clients must send; ``None`` if there is none."""
        return self._token

    def new_endpoint(self, send: Callable[[socket.socket, Cursor], None]) -> StreamEndpoint | None:
        """Opens an endpoint for a reader that cannot send requests; ``None`` if that would bypass the token."""
        if self._token is not None:
            return None
        endpoint = StreamEndpoint(send)
        with self._lock:
            self._endpoints.add(endpoint)
        return endpoint

    def end_endpoint(self, endpoint: StreamEndpoint) -> None:
        """Closes an endpoint whose client has left; its current readers can finish."""
        endpoint.close()
        endpoint.wait()
        with self._lock:
            self._endpoints.discard(endpoint)

    def drain(self) -> None:
        """Stops accepting clients, waits until all open connections have ended, and closes the server."""
        self._listener.close()
        self._listener.wait()
        self.close()

    def close(self) -> None:
        """Ends all streams and stops all work. Idempotent."""
        with self._lock:
            endpoints, self._endpoints = list(self._endpoints), set()
        self._listener.close()
        for endpoint in endpoints:
            endpoint.stop()
        self._listener.stop()
        self.shared.close()
        if self._own_token is not None:
            self._own_token.close()

    def __enter__(self) -> ArrowServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ArrowServer({self.address!r}, clients={self.clients})"

    def _handle(self, connection: socket.socket) -> None:
        ClientSession(self, connection).serve()

    def _refuse(self, connection: socket.socket) -> None:
        refuse(
            connection,
            PipelineError(
                f"server: expected at most {self.limits.max_connections} connections at once, got one more. Close "
                "iterators that you no longer need, use fewer loader workers, or start the server with a higher limit "
                "max_connections."
            ),
        )


def serve(
    pipeline: Any,
    address: str | ServerAddress = "tcp://127.0.0.1:0",
    *,
    token_file: str | os.PathLike[str] | None = None,
    limits: ClientLimits | None = None,
) -> ArrowServer:
    """Serves a pipeline, or an object that has one, from this process, for notebooks and tests.

    The pipeline's ``executor`` decides whether threads of this process or a sidecar make the batches. Clients connect
    with ``Pipeline(address=server.address)``. ``limits`` sets how much they may request.
    """
    served = getattr(pipeline, "pipeline", pipeline)
    url = address.url if isinstance(address, ServerAddress) else address
    return ArrowServer(served, url, token_file=token_file, limits=limits)
