"""1,500 connections that send garbage do not change a server's answers, memory, threads or descriptors."""

from __future__ import annotations

import random
import socket
import sys
import threading
from pathlib import Path

import psutil
import pytest
from builders import build
from processes import settled

from parquetry.common import Pipeline
from parquetry.common.server import ArrowServer, serve
from parquetry.common.transport.served.wire import MAGIC

_FRAMES = 1_500


@pytest.mark.slow
def test_garbage_leaves_a_server_as_it_was(tmp_path: Path) -> None:
    built = build(tmp_path, [[20]], names=("id",))
    with serve(built.pipeline("id").batch(4)) as server:
        draw = random.Random(7)
        _send(server, draw, frames=20)  # creates everything that is created once
        assert len(list(Pipeline(address=server.address))) == 5
        _until_nobody()
        process = psutil.Process()
        descriptors, threads, blocks = process.num_fds(), threading.active_count(), sys.getallocatedblocks()
        for _ in range(3):  # other tests' threads may allocate meanwhile, but a leak shows every time
            _send(server, draw, frames=_FRAMES)
            grown, blocks = sys.getallocatedblocks() - blocks, sys.getallocatedblocks()
            if grown < _FRAMES:
                break
        assert grown < _FRAMES  # less than one object per connection
        assert settled(process.num_fds, descriptors) <= descriptors
        assert settled(threading.active_count, threads) <= threads
        assert len(list(Pipeline(address=server.address))) == 5


def _send(server: ArrowServer, draw: random.Random, *, frames: int) -> None:
    whole = b'{"version": 1, "do": "describe", "token": "%s"}' % str(server.token).encode()
    for _ in range(frames):
        body = bytearray(whole)
        for _ in range(draw.randrange(1, 4)):
            body[draw.randrange(len(body))] = draw.randrange(256)
        body = draw.choice([bytes(body), draw.randbytes(draw.randrange(64)), b"[" * 5_000, b'{"do": 1e999}'])
        length = draw.choice([len(body), len(body), draw.randrange(1 << 32)])
        head = draw.choice([MAGIC, MAGIC, MAGIC, draw.randbytes(4)]) + length.to_bytes(4, "little")
        with socket.create_connection((server.endpoint.host, server.endpoint.port)) as stranger:
            stranger.sendall(head + body)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
    _until_nobody()


def _until_nobody() -> None:
    for thread in threading.enumerate():
        if thread.name in ("parquetry-client", "parquetry-planning"):
            thread.join()
