"""`ArrowServer`: serves one pipeline to any number of clients; `serve` starts one in this process.

A client's requests are answered by `requests`; here is what they share, and how all of it ends.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from ..errors import PipelineError
from ..order.cursor import Cursor
from ..pipeline.pipeline import Pipeline
from ..transport.served.address import Endpoint, ServerAddress, parse_endpoint
from ..transport.served.security import OwnToken, Security
from ..transport.source import DEFAULT_MEMORY_BYTES
from .endpoints import StreamEndpoint
from .limits import ClientLimits
from .listener import Listener
from .requests import Client
from .shared import SharedEpochs
from .variants import Variants

_LOGGER = logging.getLogger(__name__)


class ArrowServer:
    """A served pipeline; use it as a context manager, or call `close`.

    Args:
        pipeline: what is served.
        address: ``unix:PATH`` or ``tcp://HOST:PORT`` (port 0 = any free one).
        token_file, tls_cert_file, tls_key_file: needed where other machines can connect. Without a token file, clients
            of a TCP port of this machine need a token that only processes of this user can read, and find by
            themselves.
        limits: what each client may ask for.

    Raises:
        PipelineError: an address that would let other machines in, or that cannot be listened on.
        ParquetryError: what planning the pipeline raises.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        address: str,
        *,
        token_file: str | os.PathLike[str] | None = None,
        tls_cert_file: str | os.PathLike[str] | None = None,
        tls_key_file: str | os.PathLike[str] | None = None,
        limits: ClientLimits | None = None,
    ) -> None:
        if pipeline.address is not None:
            raise PipelineError("serve: expected a pipeline over files, got one that is served by another server.")
        if pipeline.options.skips:
            raise PipelineError(
                "serve: expected on_error='raise', got 'skip': clients count rows of the order. Leave bad rows out "
                "with where()."
            )
        endpoint = parse_endpoint(address)
        security = Security(
            token_file=_text(token_file), tls_cert_file=_text(tls_cert_file), tls_key_file=_text(tls_key_file)
        )
        security.check(endpoint)
        self._token, context = security.token(), security.context()
        self._own_token: OwnToken | None = None
        if self._token is None and endpoint.kind == "tcp":
            self._own_token = OwnToken()
            self._token = self._own_token.text
        self._has_tls = context is not None
        _ = pipeline.element  # a pipeline that cannot be planned is told here, not to the first client
        self.limits = limits or ClientLimits()
        if self.limits.memory_bytes is not None:
            most = min(self.limits.memory_bytes, pipeline.options.memory_limit or DEFAULT_MEMORY_BYTES)
            pipeline = pipeline.with_options(memory_limit=most)
        self.variants = Variants(pipeline, self.limits)
        self.shared = SharedEpochs()
        self._endpoints: set[StreamEndpoint] = set()
        self._lock = threading.Lock()
        self._listener = Listener(endpoint, self._handle, context=context, most=self.limits.max_connections)
        if self._own_token is not None:
            try:
                self._own_token.publish(self._listener.endpoint)
            except BaseException:
                self._listener.stop()
                raise
        _LOGGER.info("serving at %s", self.address)

    @property
    def endpoint(self) -> Endpoint:
        """Where it listens."""
        found = self._listener.endpoint
        return Endpoint(kind=found.kind, path=found.path, host=found.host, port=found.port, tls=self._has_tls)

    @property
    def address(self) -> str:
        """The URL that clients name."""
        return str(self.endpoint)

    @property
    def clients(self) -> int:
        """Connections that are open."""
        return self._listener.connections

    @property
    def token(self) -> str | None:
        """What clients must know; ``None`` = nothing."""
        return self._token

    def new_endpoint(self, send: Callable[[socket.socket, Cursor], None]) -> StreamEndpoint | None:
        """An endpoint for a reader that cannot say anything; ``None`` where it would get past the token or TLS."""
        if self._token is not None or self._has_tls:
            return None
        endpoint = StreamEndpoint(send)
        with self._lock:
            self._endpoints.add(endpoint)
        return endpoint

    def end_endpoint(self, endpoint: StreamEndpoint) -> None:
        """Its client is gone: no new readers; those that read may finish."""
        endpoint.close()
        endpoint.wait()
        with self._lock:
            self._endpoints.discard(endpoint)

    def drain(self) -> None:
        """Accepts nobody any more, and waits until the streams that run have ended."""
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
        Client(self, connection).serve()


def serve(
    pipeline: Any,
    address: str | ServerAddress = "tcp://127.0.0.1:0",
    *,
    token_file: str | os.PathLike[str] | None = None,
    tls_cert_file: str | os.PathLike[str] | None = None,
    tls_key_file: str | os.PathLike[str] | None = None,
    limits: ClientLimits | None = None,
) -> ArrowServer:
    """Serves a pipeline (or what carries one) from this process, for notebooks and tests.

    Its batches are made in this process's threads, or in a sidecar, as the pipeline's ``executor`` says. ``address``
    of the result is what clients name: ``Pipeline(address=server.address)``. ``limits`` says what each of them may ask
    for.
    """
    served = getattr(pipeline, "pipeline", pipeline)
    url = address.url if isinstance(address, ServerAddress) else address
    return ArrowServer(
        served, url, token_file=token_file, tls_cert_file=tls_cert_file, tls_key_file=tls_key_file, limits=limits
    )


def _text(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)
