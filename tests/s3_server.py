"""An S3 server on loopback that counts requests, checks access keys, and fails as a test asks."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape


class S3Server:
    """Serves the folders below ``root`` as buckets. Answers HTTP clients, too.

    Attributes:
        log: ``(method, path, range)`` of each request.
        key: the access key that requests must be signed with; ``None`` = any.
        fault: returns a status to fail a request with, or ``None``.
        connections: the client's ports.
        hides: headers that it does not send.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log: list[tuple[str, str, str]] = []
        self.key: str | None = None
        self.fault: Callable[[str, str], int | None] = lambda method, path: None
        self.connections: set[int] = set()
        self.hides: set[str] = set()
        handler = type("Handler", (_Handler,), {"store": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.address = f"127.0.0.1:{self._server.server_address[1]}"

    def url(self, path: str, *, user: str = "KEY:secret") -> str:
        """The URL of ``bucket/path`` for pyarrow."""
        return f"s3://{user}@{path}?region=us-east-1&endpoint_override={quote(f'http://{self.address}', safe='')}"

    def count(self, path: str = ".parquet") -> Counter[str]:
        """How many requests of each method were made for paths that contain a text."""
        return Counter(method for method, asked, _ in self.log if path in asked)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def serving(root: Path) -> Iterator[S3Server]:
    store = S3Server(root)
    try:
        yield store
    finally:
        store.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: S3Server

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""

    def do_HEAD(self) -> None:  # the name that http.server calls
        self._answer()

    def do_GET(self) -> None:  # the name that http.server calls
        self._answer()

    def _answer(self) -> None:
        store, asked = self.store, urlsplit(self.path)
        path = unquote(asked.path).lstrip("/")
        store.connections.add(self.client_address[1])
        store.log.append((self.command, path, self.headers.get("Range", "")))
        signed = re.search(r"Credential=([^/]+)/", self.headers.get("Authorization", ""))
        if store.key is not None and (signed is None or signed[1] != store.key):
            self._send(403)
            return
        status = store.fault(self.command, path)
        if status is not None:
            self._send(status)
            return
        query = parse_qs(asked.query, keep_blank_values=True)
        file = store.root / path
        if "list-type" in query:
            self._send(200, _listing(store.root / path.strip("/"), query), {"Content-Type": "application/xml"})
        elif not file.is_file():
            self._send(404)
        else:
            self._send_file(file)

    def _send_file(self, file: Path) -> None:
        data, status = file.read_bytes(), os.stat(file)
        etag = f'"{_tag(file)}"'
        headers = {"ETag": etag, "Last-Modified": formatdate(status.st_mtime, usegmt=True), "Accept-Ranges": "bytes"}
        for name in self.store.hides:
            headers.pop(name, None)
        if self.headers.get("If-Match", etag) != etag:
            self._send(412)
            return
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self._send(200, data, headers)
            return
        first = int(wanted[1]) if wanted[1] else max(0, len(data) - int(wanted[2]))
        last = min(int(wanted[2]), len(data) - 1) if wanted[1] and wanted[2] else len(data) - 1
        self._send(206, data[first : last + 1], {**headers, "Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def _send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _tag(file: Path) -> str:
    status = os.stat(file)
    return hashlib.md5(f"{file}{status.st_size}{status.st_mtime_ns}".encode(), usedforsecurity=False).hexdigest()


def _listing(bucket: Path, query: dict[str, list[str]]) -> bytes:
    prefix = query.get("prefix", [""])[0]
    files = sorted(file for file in bucket.rglob("*") if file.is_file())
    items = [file for file in files if str(file.relative_to(bucket)).startswith(prefix)]
    described = "".join(
        f"<Contents><Key>{escape(str(file.relative_to(bucket)))}</Key><ETag>&quot;{_tag(file)}&quot;</ETag>"
        f"<LastModified>{time.strftime('%Y-%m-%dT%H:%M:%S.000Z', time.gmtime(file.stat().st_mtime))}</LastModified>"
        f"<Size>{file.stat().st_size}</Size></Contents>"
        for file in items
    )
    return (
        f'<?xml version="1.0"?><ListBucketResult><Name>{bucket.name}</Name><KeyCount>{len(items)}</KeyCount>'
        f"<IsTruncated>false</IsTruncated>{described}</ListBucketResult>"
    ).encode()
