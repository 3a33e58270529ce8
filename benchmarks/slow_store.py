"""A local HTTP server that is as slow as an object store: it delays each answer and limits the transfer rate.

Serves one folder, with range requests and plain listings. Prints its URL, then answers until it is killed.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_PIECE_BYTES = 1 << 18


def main() -> None:
    """Serves forever."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency-s", type=float, default=0.03, help="delay before each answer (default: %(default)s)")
    parser.add_argument(
        "--bytes-per-s", type=float, default=100e6, help="transfer rate of each answer (default: %(default)s)"
    )
    arguments = parser.parse_args()
    with server(arguments.folder, latency_s=arguments.latency_s, bytes_per_s=arguments.bytes_per_s) as serving:
        print(f"http://127.0.0.1:{serving.server_address[1]}", flush=True)
        serving.serve_forever()


def server(folder: Path, *, latency_s: float, bytes_per_s: float) -> ThreadingHTTPServer:
    """Returns a server on a free local port."""
    handler = partial(_Handler, directory=str(folder), latency_s=latency_s, bytes_per_s=bytes_per_s)
    serving = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    serving.daemon_threads = True
    return serving


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *args: Any, latency_s: float, bytes_per_s: float, **options: Any) -> None:
        self._latency_s = latency_s
        self._bytes_per_s = bytes_per_s
        super().__init__(*args, **options)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""

    def do_HEAD(self) -> None:  # the name that http.server calls
        time.sleep(self._latency_s)
        self._send(body=False)

    def do_GET(self) -> None:  # the name that http.server calls
        time.sleep(self._latency_s)
        self._send(body=True)

    def _send(self, *, body: bool) -> None:
        path = self.translate_path(self.path)
        if os.path.isdir(path):
            listing = self.list_directory(path)
            if listing is not None and body:
                self.wfile.write(listing.read())
            return
        if not os.path.isfile(path):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        size = os.path.getsize(path)
        wanted = byte_range(self.headers.get("Range"), size)
        first, last = wanted or (0, size - 1)
        self.send_response(HTTPStatus.OK if wanted is None else HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Last-Modified", self.date_time_string(int(os.path.getmtime(path))))
        if wanted is not None:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        if body:
            self._send_bytes(path, first, last - first + 1)

    def _send_bytes(self, path: str, first: int, count: int) -> None:
        with open(path, "rb") as file:
            file.seek(first)
            while count > 0:
                piece = file.read(min(count, _PIECE_BYTES))
                count -= len(piece)
                time.sleep(len(piece) / self._bytes_per_s)
                self.wfile.write(piece)


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Returns the first and last byte of a ``Range`` header (RFC 9110, section 14.2); ``None`` if it does not apply."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if match is None or not any(match.groups()):
        return None
    first, last = match.groups()
    if not first:  # the last N bytes
        return max(0, size - int(last)), size - 1
    return int(first), min(size - 1, int(last)) if last else size - 1


if __name__ == "__main__":
    main()
