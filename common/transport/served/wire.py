"""The wire format: JSON requests and answers, and the socket as a file for the Arrow stream.

A request consists of ``b"PQA1"``, its length as uint32 (little endian), and JSON. The server answers in the same form.
After the answer to ``{"do": "stream"}``, the server sends one Arrow IPC stream and closes the connection. Any other
request may be followed by more requests on the same connection. See `docs/arrow-stream.md`.

It is not Arrow Flight because tensorflow-io reads plain Arrow IPC streams from a socket.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...base.errors import ParquetryError, SidecarError, StateError
from ...base.process.dataclass import dataclass
from ...plan.order.cursor import Cursor, Origin
from ...schema.element import Element, OutputField
from ...schema.plain import integer, plain

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"PQA1"
VERSION = 1
_HEAD = struct.Struct("<4sI")
_MOST_BYTES = 16 << 20
_SHORTEST_WAIT_S = 1e-3  # a timeout of 0 would make the socket non-blocking
POSITION_KEY = b"parquetry.position"
SHAPES_KEY = b"parquetry.shapes"
SCHEMA_KEY = b"parquetry.stream"
ERROR_KEY = b"parquetry.error"
Layout = Literal["rows", "cells"]
"""The layout of batches, by its name on the wire: ``rows`` are made by `encode`, ``cells`` by `flat_columns`."""


def send_json(connection: socket.socket, value: dict[str, Any]) -> None:
    """Sends a message.

    Raises:
        OSError: the other side is gone.
    """
    body = json.dumps(value).encode()
    connection.sendall(_HEAD.pack(MAGIC, len(body)) + body)


def receive_json(
    connection: socket.socket,
    *,
    most_bytes: int = _MOST_BYTES,
    within_s: float | None = None,
    waiting: Callable[[], None] | None = None,
) -> dict[str, Any] | None:
    """Returns the next message, or ``None`` at the end of the connection. ``waiting`` is as for `receive_exactly`.

    Raises:
        SidecarError: the bytes are not a message.
        TimeoutError: the message is not complete within ``within_s`` seconds.
        OSError: the connection broke.
    """
    end_s = None if within_s is None else time.monotonic() + within_s
    head = receive_exactly(connection, _HEAD.size, end_s=end_s, waiting=waiting)
    if len(head) == 0:
        return None
    if len(head) < _HEAD.size:
        raise SidecarError(f"connection: expected a parquetry message, got only {bytes(head)!r}.")
    magic, length = _HEAD.unpack(head.tobytes())
    if magic != MAGIC or length > most_bytes:
        raise SidecarError(
            f"connection: expected a parquetry message, which begins with {MAGIC!r}, got {bytes(head)!r}. "
            "Check the address: another program may listen there."
        )
    body = receive_exactly(connection, length, end_s=end_s, waiting=waiting)
    try:
        value = json.loads(bytes(body)) if len(body) == length else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise SidecarError(f"connection: expected a JSON object of {length} bytes, got {bytes(body[:80])!r}.")
    return value


def receive_exactly(
    connection: socket.socket,
    count: int,
    *,
    end_s: float | None = None,
    waiting: Callable[[], None] | None = None,
) -> np.ndarray:
    """Receives ``count`` bytes, or fewer at the end of the connection, into a new writable array.

    ``waiting`` is called whenever the connection times out, and then the wait goes on.

    Raises:
        TimeoutError: the bytes have not arrived by ``end_s`` on the monotonic clock.
    """
    buffer = np.empty(count, np.uint8)
    view = buffer.data
    at = 0
    while at < count:
        if end_s is not None:
            connection.settimeout(max(end_s - time.monotonic(), _SHORTEST_WAIT_S))
        try:
            got = connection.recv_into(view[at:])
        except TimeoutError:
            if waiting is None:
                raise
            waiting()
            continue
        if not got:
            return buffer[:at]
        at += got
    return buffer


class SocketWriter:
    """A connection as a file that Arrow writes to. Large buffers are sent without a copy."""

    closed = False

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.broken = False

    def write(self, data: bytes | bytearray | memoryview | pa.Buffer) -> int:
        """Sends all of the data. Blocks while the receiver is slower, which is the back-pressure."""
        view = memoryview(data).cast("B")
        try:
            self._connection.sendall(view)
        except OSError:
            self.broken = True
            raise
        return len(view)

    def writable(self) -> bool:
        """Always true."""
        return True

    def flush(self) -> None:
        """Does nothing, because nothing is buffered."""

    def close(self) -> None:
        """Does nothing: the connection has another owner."""


class SocketReader:
    """A connection as a file that Arrow reads from.

    Args:
        watch: returns what to call whenever the connection times out during one read; see `receive_exactly`.
    """

    closed = False

    def __init__(self, connection: socket.socket, watch: Callable[[], Callable[[], None]] | None = None) -> None:
        self._connection = connection
        self._watch = watch

    def read(self, count: int) -> np.ndarray:
        """Returns the next ``count`` bytes.

        Raises:
            ConnectionError: the connection ended early. A complete stream ends with a marker, after which Arrow reads
                no further.
        """
        waiting = None if self._watch is None else self._watch()
        data = receive_exactly(self._connection, count, waiting=waiting)
        if len(data) < count:
            raise ConnectionError("the stream was cut off")
        return data

    def readable(self) -> bool:
        """Always true."""
        return True

    def close(self) -> None:
        """Does nothing: the connection has another owner."""


_PLACE = ("iteration", "start", "worker", "workers")


def cursor_to_json(cursor: Cursor) -> dict[str, Any]:
    """Returns the part of a pipeline's order that a stream covers, in the form of a request."""
    place = {name: getattr(cursor, name) for name in _PLACE}
    return {**place, "origin": [cursor.origin.passes, cursor.origin.rows], "skipped": 0}


def cursor_of(request: object) -> Cursor:
    """The inverse of `cursor_to_json`. Missing values default to the beginning of the first epoch.

    Raises:
        StateError: a value is not a whole number, or there is no such worker.
    """
    members: dict[str, Any] = request if isinstance(request, dict) else {"iteration": request}
    place = {name: members[name] for name in (*_PLACE, "origin") if name in members}
    worker, workers, origin = place.get("worker", 0), place.get("workers", 1), place.pop("origin", (0, 0))
    values = [*place.values(), *origin] if isinstance(origin, list | tuple) and len(origin) == 2 else [None]
    if any(integer(value, least=0) is None for value in values) or not worker < workers:
        raise StateError(
            f"stream: expected whole numbers >= 0, and a worker below the number of workers, got {place}, {origin}."
        )
    return Cursor(**place, origin=Origin(passes=origin[0], rows=origin[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """What a client asks of a pipeline.

    Attributes:
        cursor: the part of the pipeline's order that the stream covers.
        shared: whether all clients that ask for the epoch divide its batches among them.
        strict_nulls: whether a null is an error, because the client cannot represent it.
    """

    cursor: Cursor = Cursor()
    shared: bool = False
    layout: Layout = "rows"
    strict_nulls: bool = True

    def to_json(self) -> dict[str, Any]:
        """Returns the members of a request."""
        form = {"shared": self.shared, "layout": self.layout, "strict_nulls": self.strict_nulls}
        return {**cursor_to_json(self.cursor), **form}

    @classmethod
    def of(cls, request: dict[str, Any]) -> StreamRequest:
        """The inverse of `to_json`.

        Raises:
            StateError: as for `cursor_of`.
            ParquetryError: there is no such layout.
        """
        cursor, shared, layout = cursor_of(request), bool(request.get("shared")), request.get("layout", "rows")
        if layout not in ("rows", "cells"):
            raise ParquetryError(f"server: expected layout 'rows' or 'cells', got {layout!r}.")
        return cls(cursor=cursor, shared=shared, layout=layout, strict_nulls=bool(request.get("strict_nulls", True)))


def element_to_json(element: Element) -> dict[str, Any]:
    """Returns the description of an element's fields for a stream's schema."""
    fields = [
        {**asdict(output), "dtype": output.dtype.str if output.kind == "dense" else "object"}
        for output in element.outputs
    ]
    batches = {
        "batch_size": element.batch_size,
        "static_batch": element.static_batch,
        "varying_batch": element.varying_batch,
    }
    return {**batches, "form": element.form, "fields": fields}


def element_from_json(value: dict[str, Any]) -> Element:
    """The inverse of `element_to_json`."""
    outputs = []
    for field in value["fields"]:
        # An older server sends fewer entries, a newer one more.
        known = {name: field[name] for name in OutputField.__dataclass_fields__ if name in field}
        known |= {name: tuple(known[name]) for name in ("path", "shape", "dims") if known[name] is not None}
        outputs.append(OutputField(**{**known, "dtype": np.dtype(known["dtype"])}))
    return Element(
        outputs=tuple(outputs),
        batch_size=value["batch_size"],
        static_batch=value["static_batch"],
        varying_batch=bool(value.get("varying_batch")),
        form=plain(value.get("form")),
    )
