"""Helpers for the tests of served pipelines: short sockets, certificates, servers in separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from faces import plain
from processes import PATIENCE_S

from parquetry.common import Pipeline

TLS = Path(__file__).parents[2] / "data" / "tls"  # made for these tests: only valid for 127.0.0.1


@contextmanager
def socket_url() -> Iterator[str]:
    """Returns the address of a new socket; its path is short enough for any system."""
    with tempfile.TemporaryDirectory(prefix="pq-", dir="/tmp") as directory:
        yield f"unix:{directory}/s"


def elements(pipeline: Any) -> list[Any]:
    """Returns all elements as plain Python."""
    return [plain(element) for element in pipeline]


@contextmanager
def server_process(pipeline: Pipeline, directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs ``python -m parquetry.common.sidecar serve``; yields the process and the address it prints."""
    file = directory / "pipeline.json"
    file.write_text(json.dumps(pipeline.to_json()))
    command = [sys.executable, "-m", "parquetry.common.sidecar", "serve", str(file), *arguments]
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
