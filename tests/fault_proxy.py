"""A proxy on loopback, between a client and an HTTP server, that spoils the answers to reads as a test asks."""

from __future__ import annotations

import json
import re
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_CONTROL = "/control-of-the-proxy"
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_HOPS = {"connection", "keep-alive", "transfer-encoding", "content-length", "date", "server"}


class Proxy:
    """A process that forwards requests to ``upstream`` (host:port), and spoils answers to reads of Parquet files.

    It is a process of its own, because pyarrow may wait for Google Cloud Storage with Python's lock held.
    """

    def __init__(self, upstream: str) -> None:
        command = [sys.executable, __file__, upstream]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = f"127.0.0.1:{int(self._process.stdout.readline())}"

    def spoil(self, *faults: str, always: str = "") -> None:
        """Spoils the next answers, each with one of `FAULTS` (``""`` = not at all), and all later ones with ``always``."""
        self._control("POST", json.dumps([faults, always]))

    def spoilt(self) -> int:
        """Returns how many answers were spoilt since `spoil`."""
        return self._control("GET")["spoilt"]

    def count(self) -> Counter[str]:
        """Returns how many requests of each method came for Parquet files since `spoil`."""
        return Counter(self._control("GET")["log"])

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _control(self, method: str, body: str = "") -> Any:
        connection = HTTPConnection(self.address, timeout=60)
        connection.request(method, _CONTROL, body)
        found = json.loads(connection.getresponse().read())
        connection.close()
        return found


@contextmanager
def proxy_of(upstream: str) -> Iterator[Proxy]:
    proxy = Proxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.lock = threading.Lock()
        self.faults: list[str] = []
        self.always = ""
        self.log: Counter[str] = Counter()
        self.spoilt = 0

    def next_fault(self) -> str:
        with self.lock:
            fault = self.faults.pop(0) if self.faults else self.always
            self.spoilt += bool(fault)
            return fault

    def control(self, body: bytes) -> bytes:
        with self.lock:
            if body:
                self.faults, self.always = json.loads(body)
                self.log, self.spoilt = Counter(), 0
            return json.dumps({"log": self.log, "spoilt": self.spoilt}).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""

    def do_GET(self) -> None:  # the name that http.server calls
        self._forward()

    def do_HEAD(self) -> None:  # the name that http.server calls
        self._forward()

    do_POST = do_HEAD  # noqa: N815

    def _forward(self) -> None:
        if self.path == _CONTROL:
            self.status, self.fields = 200, {}
            self.replace(self.server.control(self.rfile.read(int(self.headers.get("Content-Length", "0")))))
            self.answer()
            return
        upstream = HTTPConnection(self.server.upstream, timeout=60)
        upstream.request(self.command, self.path, headers=dict(self.headers.items()))
        answer = upstream.getresponse()
        self.status, self.content = answer.status, answer.read()
        self.fields = {name: value for name, value in answer.getheaders() if name.lower() not in _HOPS}
        self.size = len(self.content) if self.command == "GET" else int(answer.getheader("Content-Length", "0"))
        upstream.close()
        is_file = ".parquet" in self.path
        if is_file:
            self.server.log[self.command] += 1
        # In the JSON API of Google Cloud Storage, the same path without alt=media is the object's metadata.
        is_data = is_file and self.command == "GET" and self.content[:1] != b"{"
        fault = self.server.next_fault() if is_data else ""
        with suppress(ConnectionError):
            FAULTS[fault](self) if fault else self.answer()

    def answer(self, sent: ReadableBuffer | None = None) -> None:
        """Sends the answer; ``sent`` in place of its content, without another Content-Length."""
        self.send_response(self.status)
        for name, value in self.fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(self.size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.content if sent is None else sent)

    def replace(self, content: bytes) -> None:
        self.content, self.size = content, len(content)


def _failed(status: int) -> Callable[[_Handler], None]:
    def fail(handler: _Handler) -> None:
        handler.status, handler.fields = status, {"Content-Type": "application/xml"}
        handler.replace(_SLOW_DOWN if status == 503 else b"")
        handler.answer()

    return fail


def _reset(handler: _Handler) -> None:
    handler.close_connection = True
    handler.answer(handler.content[: len(handler.content) // 2])
    handler.wfile.flush()
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # RST, not FIN
    handler.connection.close()


def _cut(handler: _Handler) -> None:
    handler.close_connection = True
    handler.answer(handler.content[: len(handler.content) // 2])


def _silent(handler: _Handler) -> None:
    handler.close_connection = True
    threading.Event().wait()


def _short(handler: _Handler) -> None:
    handler.replace(handler.content[: len(handler.content) // 2])
    handler.answer()


def _long(handler: _Handler) -> None:
    handler.replace(handler.content + b"more")
    handler.answer()


def _misnamed(handler: _Handler) -> None:
    """Names another range, for the right bytes."""
    _shift(handler)
    handler.answer()


def _other_bytes(handler: _Handler) -> None:
    """Sends as many bytes of another place, and says so."""
    _shift(handler)
    handler.replace(handler.content[1:] + b"\0")
    handler.answer()


def _shift(handler: _Handler) -> None:
    for name, value in handler.fields.items():
        if name.lower() == "content-range":
            first, last, total = map(int, re.findall(r"\d+", value))
            handler.fields[name] = f"bytes {first + 1}-{last + 1}/{total}"


def _whole(handler: _Handler) -> None:
    """Ignores the range that was asked for."""
    upstream = HTTPConnection(handler.server.upstream, timeout=60)
    kept = {name: value for name, value in handler.headers.items() if name.lower() != "range"}
    upstream.request("GET", handler.path, headers=kept)
    handler.status = 200
    handler.replace(upstream.getresponse().read())
    upstream.close()
    handler.fields = {name: value for name, value in handler.fields.items() if name.lower() != "content-range"}
    handler.answer()


FAULTS: dict[str, Callable[[_Handler], None]] = {
    "500": _failed(500),
    "503": _failed(503),
    "reset": _reset,
    "cut": _cut,
    "silent": _silent,
    "short": _short,
    "long": _long,
    "misnamed": _misnamed,
    "other bytes": _other_bytes,
    "whole": _whole,
}

if __name__ == "__main__":
    serving = _Server(sys.argv[1])
    print(serving.server_address[1], flush=True)
    serving.serve_forever()
