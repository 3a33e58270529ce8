"""The client: sends requests to a server. `ServedSource` receives the steps of one iteration."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from ...base.errors import ParquetryError, SidecarError, error_class
from ...engine.columns.batch import leading
from ...engine.run.step_source import StepRequest
from ...plan.order.cursor import NOTHING
from ...stages.base import Stage
from ..stalls import CHECK_S, ServerWatch
from .address import ServerAddress
from .decode import decode_rows, element_of_schema
from .tokens import client_token
from .wire import ERROR_KEY, POSITION_KEY, VERSION, SocketReader, StreamRequest, receive_json, send_json

_CONNECT_S = 10.0
_TIME = struct.Struct("@ll")  # of the system: seconds and microseconds


class Connection:
    """A connection to a server, which answers its requests one after the other.

    Args:
        stall_timeout: see `ServerWatch`.

    Raises:
        SidecarError: no server listens there.
    """

    def __init__(self, address: ServerAddress, *, stall_timeout: float | None = None) -> None:
        self.address = address
        self._stall_timeout = stall_timeout
        self.pid = os.getpid()
        self._token = client_token(address)
        self.socket = _connect(address)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Sends a request and returns the answer.

        Raises:
            ParquetryError: the server raised this error, which keeps its class.
            SidecarError: the server is gone, or has stalled.
        """
        if self._token is not None:
            request = {"token": self._token, **request}
        before_s = self.socket.gettimeout()
        try:
            send_json(self.socket, {"version": VERSION, **request})
            if before_s is None:
                self.socket.settimeout(CHECK_S)
            answer = receive_json(self.socket, waiting=self.watch() if before_s is None else None)
            self.socket.settimeout(before_s)
        except OSError as error:
            raise self.lost(str(error)) from error
        if answer is None:
            raise self.lost("it closed the connection")
        raise_error(answer)
        return answer

    def watch(self) -> ServerWatch:
        """Watches a wait for this server that begins now."""
        return ServerWatch(self.address.url, self._stall_timeout, partial(answers, self.address))

    def lost(self, how: str) -> SidecarError:
        """Returns the error for a server that is gone."""
        return SidecarError(
            f"server at {self.address.url}: expected more data, got the end of the connection ({how}). "
            "Restart the server, and resume from a saved state if you have one."
        )

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def answers(address: ServerAddress, within_s: float) -> bool:
    """Returns whether a server answers a new connection, or at least refuses it, within ``within_s`` seconds."""
    try:
        connection = Connection(address)
        try:
            connection.socket.settimeout(within_s)
            connection.ask({"do": "progress"})
        finally:
            connection.close()
    except ParquetryError as error:
        return not isinstance(error.__cause__, TimeoutError | BlockingIOError)
    return True


def request_of(address: ServerAddress, stages: Sequence[Stage]) -> dict[str, Any]:
    """Returns the part of a request that identifies the pipeline."""
    return {"stages": [stage.to_json() for stage in stages], "seed": address.seed}


def ask_once(address: ServerAddress, request: dict[str, Any]) -> dict[str, Any]:
    """Sends one request over a new connection and returns the answer."""
    connection = Connection(address)
    try:
        return connection.ask(request)
    finally:
        connection.close()


def open_stream(
    address: ServerAddress,
    stages: Sequence[Stage],
    stream: StreamRequest,
    *,
    stall_timeout: float | None = None,
) -> Connection:
    """Requests an Arrow stream. Returns the connection over which it arrives."""
    connection = Connection(address, stall_timeout=stall_timeout)
    try:
        connection.ask({"do": "stream", **request_of(address, stages), **stream.to_json()})
    except BaseException:
        connection.close()
        raise
    return connection


def raise_error(answer: dict[str, Any]) -> None:
    """Raises the error that an answer carries, if any."""
    if "error" in answer:
        raise error_class(str(answer["error"]))(str(answer.get("message")))


class ServedSource:
    """The steps of one iteration, produced by a server."""

    skipped, ready = NOTHING, 0

    def __init__(self, request: StepRequest, address: ServerAddress) -> None:
        self._converter = request.converter
        self.position = request.cursor.start
        stream = StreamRequest(cursor=request.cursor, shared=address.shared, strict_nulls=request.program.strict_nulls)
        self._connection: Connection | None = open_stream(
            address, request.plan.stages, stream, stall_timeout=request.options.stall_timeout
        )
        self._connection.socket.settimeout(CHECK_S)
        self._shared = address.shared
        self._ask_for_one()
        self._leaves = request.plan.element.leaves
        self._reader: Any = None

    def __next__(self) -> tuple[int, Any]:
        connection = self._connection
        if connection is None or connection.pid != os.getpid():
            raise StopIteration
        try:
            if self._reader is None:
                file = SocketReader(connection.socket, connection.watch)
                self._reader = pa.ipc.open_stream(pa.PythonFile(file, mode="r"))
                self._check_fields()
            batch, metadata = self._reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            self.close()
            raise
        except SidecarError:
            self.close()
            raise
        except (OSError, pa.ArrowException) as error:
            self.close()
            raise connection.lost(str(error)) from error
        known = {} if metadata is None else {bytes(key): bytes(metadata[key]) for key in metadata}
        if ERROR_KEY in known:
            self.close()
            raise_error(json.loads(known[ERROR_KEY]))
        self._ask_for_one()
        columns = decode_rows(self._leaves, batch, known)
        self.position = int(known[POSITION_KEY])
        [step] = self._converter(columns, 1)
        return leading(columns[0]), step

    def _ask_for_one(self) -> None:
        """Requests one more batch of a shared epoch.

        A client requests each batch separately, one ahead, so that batches do not pile up in the buffer of a slow one.
        """
        if self._shared and self._connection is not None:
            with contextlib.suppress(OSError):  # the server ended the stream; its last message says why
                self._connection.socket.sendall(b"n")

    def _check_fields(self) -> None:
        """Checks the fields of the stream, because the server may have been restarted with another pipeline."""
        received = element_of_schema(self._reader.schema).leaves
        if received != self._leaves:
            raise SidecarError(
                f"server: expected a stream of the fields {[leaf.name for leaf in self._leaves]}, unchanged since "
                f"this pipeline was created, got {[leaf.name for leaf in received]}. Create the pipeline again."
            )

    def close(self) -> None:
        """Disconnects from the server, which then stops making batches for this client. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _connect(address: ServerAddress) -> socket.socket:
    endpoint = address.endpoint
    result = None
    try:
        if endpoint.kind == "unix":
            result = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            # A timeout of Python's would make it fail at once while many clients connect.
            result.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(int(_CONNECT_S), 0))
            result.connect(endpoint.path)
            result.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIME.pack(0, 0))
        else:
            result = socket.create_connection((endpoint.host, endpoint.port), timeout=_CONNECT_S)
            result.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # the server waits for each request
            result.settimeout(None)
    except OSError as error:
        if result is not None:
            result.close()
        raise SidecarError(
            f"server at {address.url}: expected a server, got {error}. Start one with: "
            "parquetry serve --listen ADDRESS PIPELINE.json."
        ) from error
    return result
