"""A Hugging Face Hub on loopback with one dataset, with the files of a folder.

It answers the part of the Hub's API that ``hf://`` paths use: https://huggingface.co/docs/hub/api.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from benchmarks.slow_store import byte_range

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_example"
NAME = "user/rows"


class Hub:
    """The dataset ``user/rows``. Requests need the token `TOKEN`.

    Attributes:
        url: its address, for ``HF_ENDPOINT``.
        counts: the number of requests, by method and kind: "GET resolve".
        failures: statuses that the next requests for a file's bytes get.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.counts: Counter[str] = Counter()
        self.failures: list[HTTPStatus] = []
        self.url = ""

    def entries(self, path: str, recursive: bool) -> list[dict[str, Any]]:
        """Returns what is in a folder of the dataset, as the API describes it."""
        found = (self.root / path).rglob("*") if recursive else (self.root / path).iterdir()
        return [self.entry(each) for each in sorted(found)]

    def entry(self, path: Path) -> dict[str, Any]:
        """Describes one file or folder."""
        name = path.relative_to(self.root).as_posix()
        if path.is_dir():
            return {"type": "directory", "oid": hashlib.sha1(name.encode()).hexdigest(), "size": 0, "path": name}
        content = path.read_bytes()
        large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        oid = hashlib.sha1(content).hexdigest()
        return {"type": "file", "oid": oid, "size": len(content), "path": name, "lfs": large}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, *arguments: object) -> None:
        """Keeps quiet."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        parts = [unquote(part) for part in address.path.strip("/").split("/")]
        where = parts[1:] if parts[0] == "api" else parts
        kind = where[3] if len(where) > 3 else "info"
        self.hub.counts[f"{self.command} {kind}"] += 1
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._refuse(HTTPStatus.UNAUTHORIZED, "Invalid username or password.")
        elif where[:1] != ["datasets"] or "/".join(where[1:3]) != NAME:
            self._refuse(HTTPStatus.NOT_FOUND, "Repository not found", "RepoNotFound")
        elif len(where) > 4 and where[4] not in ("main", COMMIT):
            self._refuse(HTTPStatus.NOT_FOUND, "Invalid rev id", "RevisionNotFound")
        elif kind in ("info", "revision"):
            self._send_json({"id": NAME, "sha": COMMIT, "private": True, "tags": [], "downloads": 0, "likes": 0})
        elif kind == "tree":
            path, query = "/".join(where[5:]), parse_qs(address.query)
            if not (self.hub.root / path).is_dir():
                self._refuse(HTTPStatus.NOT_FOUND, "No such folder", "EntryNotFound")
            else:
                self._send_json(self.hub.entries(path, query.get("recursive", ["false"])[0].lower() == "true"))
        elif kind == "paths-info":
            is_json = "json" in self.headers.get("Content-Type", "")
            wanted = json.loads(body)["paths"] if is_json else parse_qs(body.decode()).get("paths", [])
            paths = [self.hub.root / path for path in wanted]
            self._send_json([self.hub.entry(path) for path in paths if path.exists()])
        else:
            self._send_file(self.hub.root / "/".join(where[5:]))

    def _send_file(self, path: Path) -> None:
        if self.command == "GET" and self.hub.failures:
            self._refuse(self.hub.failures.pop(0), "Try again")
            return
        if not path.is_file():
            self._refuse(HTTPStatus.NOT_FOUND, "Entry not found", "EntryNotFound")
            return
        content = path.read_bytes()
        wanted = byte_range(self.headers.get("Range"), len(content))
        self.send_response(HTTPStatus.OK if wanted is None else HTTPStatus.PARTIAL_CONTENT)
        if wanted is not None:
            first, last = wanted
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            content = content[first : last + 1]
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{self.hub.entry(path)["lfs"]["oid"]}"')
        self._send(content)

    def _send_json(self, value: object) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/json")
        self._send(json.dumps(value).encode())

    def _refuse(self, status: HTTPStatus, text: str, code: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", text)
        self.send_header("Content-Type", "application/json")
        self._send(json.dumps({"error": text}).encode())

    def _send(self, content: bytes) -> None:
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def hub_of(root: Path) -> Iterator[Hub]:
    """Serves a folder as the dataset ``user/rows`` until the block ends."""
    hub = Hub(root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
