"""Helpers for the tests of served pipelines: short sockets, tunnels, servers in separate processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from faces import plain
from processes import PATIENCE_S

from parquetry.common import Pipeline
from parquetry.common.server import ArrowServer


@contextmanager
def socket_url() -> Iterator[str]:
    """Returns the address of a new socket; its path is short enough for any system."""
    with tempfile.TemporaryDirectory(prefix="pq-", dir="/tmp") as directory:
        yield f"unix:{directory}/s"


@contextmanager
def tunnel_to(server: ArrowServer) -> Iterator[str]:
    """Forwards connections to a server over TCP, as ``ssh -L`` does; yields the address of the tunnel."""

    def copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def forward() -> None:
        with suppress(OSError):  # the tunnel was closed
            while True:
                near = listening.accept()[0]
                far = socket.create_connection((server.endpoint.host, server.endpoint.port))
                opened.extend((near, far))
                for ends in ((near, far), (far, near)):
                    threads.append(threading.Thread(target=copy, args=ends))
                    threads[-1].start()

    threads, opened = [threading.Thread(target=forward)], list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threads[0].start()
        yield f"tcp://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()
    for connection in opened:
        connection.close()


def elements(pipeline: Any) -> list[Any]:
    """Returns all elements as plain Python."""
    return [plain(element) for element in pipeline]


@contextmanager
def server_process(pipeline: Pipeline, directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs ``parquetry serve``; yields the process and the address it prints."""
    file = directory / "pipeline.json"
    file.write_text(json.dumps(pipeline.to_json()))
    command = [sys.executable, "-m", "parquetry", "serve", str(file), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONDEVMODE": "1"}
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("serving at "), process.communicate(timeout=PATIENCE_S)[1]
            yield process, line.removeprefix("serving at ").strip()
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=PATIENCE_S)
