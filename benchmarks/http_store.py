"""`HttpStore`: an fsspec file system over the slow store, like the client library of an object store.

Files are read in ranges, one request per range. Pickles as its URL. Threads: any; each keeps its own connection alive.
"""

from __future__ import annotations

import http.client
import threading
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem


class HttpStore(AbstractFileSystem):
    """A read-only file system.

    Args:
        url: URL of the store.
    """

    protocol = "slowstore"

    def __init__(self, url: str, **options: object) -> None:
        super().__init__(url, **options)
        self._host = urlsplit(url).netloc
        self._connections = threading.local()
        self._opened: list[http.client.HTTPConnection] = []

    def info(self, path: str, **_: object) -> dict[str, Any]:
        """Returns the size of a file; raises ``FileNotFoundError`` for anything else."""
        path = self._strip_protocol(path)
        answer, _body = self._request("HEAD", path, {})
        if answer.status != http.client.OK or answer.getheader("Content-Length") is None:
            raise FileNotFoundError(path)
        return {
            "name": path,
            "size": int(answer.getheader("Content-Length", "0")),
            "type": "file",
            "mtime": parsedate_to_datetime(answer.getheader("Last-Modified", "")).timestamp(),
        }

    def ls(self, path: str, detail: bool = True, **_: object) -> list[Any]:
        """Returns just the file itself: readers name their files."""
        found = self.info(path)
        return [found] if detail else [found["name"]]

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        """Reads a range of a file in one request."""
        size = self.info(path)["size"] if end is None or end < 0 or (start or 0) < 0 else None
        first = (start or 0) if (start or 0) >= 0 else (size or 0) + (start or 0)
        last = (size or 0) + (end or 0) if end is None or end < 0 else end
        return self.fetch(path, first, last)

    def fetch(self, path: str, start: int, end: int) -> bytes:
        """Returns bytes ``start`` to ``end`` (exclusive)."""
        if end <= start:
            return b""
        answer, body = self._request("GET", self._strip_protocol(path), {"Range": f"bytes={start}-{end - 1}"})
        if answer.status != http.client.PARTIAL_CONTENT:
            raise OSError(f"{path}: expected status 206, got {answer.status}")
        return body

    def _open(self, path: str, mode: str = "rb", **options: object) -> _File:
        # Parquet readers request exactly what they need, so reading ahead would be wasted.
        size = options.pop("size", None) or self.info(path)["size"]
        return _File(self, path, mode, **{**options, "cache_type": "none", "size": size})

    def close(self) -> None:
        """Closes the connections of all threads."""
        for connection in self._opened:
            connection.close()

    def _request(self, method: str, path: str, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        connection = getattr(self._connections, "kept", None)
        if connection is None:
            connection = self._connections.kept = http.client.HTTPConnection(self._host, timeout=60)
            self._opened.append(connection)
        connection.request(method, f"/{path.lstrip('/')}", headers=headers)
        answer = connection.getresponse()
        return answer, answer.read()


class _File(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        content: bytes = self.fs.fetch(self.path, start, end)
        return content
