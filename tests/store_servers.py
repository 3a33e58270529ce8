"""Servers of other projects that answer as S3 and Google Cloud Storage do, on loopback. Each has a bucket ``lake``."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import pyarrow.fs as pafs
from processes import PATIENCE_S


@contextmanager
def moto_s3() -> Iterator[str]:
    """Yields the address of a server for S3."""
    from moto.backends import get_backend
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"{host}:{port}"
    pafs.S3FileSystem(endpoint_override=f"http://{address}", allow_bucket_creation=True).create_dir("lake")
    yield address
    server.stop()
    for backends in get_backend("s3").values():
        for backend in backends.values():
            backend.reset()  # or the next server of this process would have the same buckets


def s3_url(address: str) -> str:
    return f"s3://lake/rows?endpoint_override={quote(f'http://{address}', safe='')}"


@contextmanager
def gcs_emulator() -> Iterator[str]:
    """Yields the address of a server for Google Cloud Storage."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "gcp_storage_emulator", "start", "--in-memory", "--default-bucket", "lake"]
    command += ["--host", "127.0.0.1", "--port", str(port)]  # a process, because pyarrow waits with Python's lock held
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_S
    while not _answers(port):
        assert server.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield f"127.0.0.1:{port}"
    server.kill()
    server.wait()


def gs_url(address: str, **options: object) -> str:
    more = "".join(f"&{name}={value}" for name, value in options.items())
    return f"gs://anonymous@lake/rows?scheme=http&endpoint_override={quote(address, safe='')}{more}"


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
