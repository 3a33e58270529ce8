"""The sidecar's side of the protocol: a client that violates it causes one clear error."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import PATIENCE_S
from sidecar_packets import packet

from parquetry.common import Pipeline
from parquetry.common.base.platform.memory_file import memory_file
from parquetry.common.plan.order.cursor import Cursor
from parquetry.common.transport.processes import python_command
from parquetry.common.transport.sidecar.channel import Channel
from parquetry.common.transport.sidecar.protocol import Message, MessageType, RemoteError, Start

OPEN, START, RELEASE = 1, 2, 3


@pytest.fixture
def request_text(tmp_path: Path) -> bytes:
    pq.write_table(pa.table({"a": range(10)}), tmp_path / "x.parquet")
    described = Pipeline(tmp_path, workers=1).batch(4).to_json()
    return json.dumps({"pipeline": described, "sys_path": sys.path}).encode()


@pytest.fixture
def sidecar() -> Any:
    """Yields a sidecar and the other end of its connection."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = python_command("parquetry.common.sidecar", "--fd", str(theirs.fileno()))
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True) as process:
        theirs.close()
        yield process, ours
        ours.close()
        process.kill()


def _open(connection: socket.socket, request: bytes, *, said: int | None = None) -> None:
    descriptor = memory_file("request")
    os.write(descriptor, request)
    size = len(request) if said is None else said
    socket.send_fds(connection, [packet(OPEN, a=size, descriptors=1)], [descriptor])
    os.close(descriptor)


BEFORE_OPEN: dict[str, tuple[Callable[[socket.socket], Any], str]] = {
    "no message": (lambda our: our.send(b"GET / HTTP/1.1"), "expected at least 40 bytes, got 14"),
    "another version": (lambda our: our.send(packet(OPEN, version=1)), "expected protocol version 3, .* version 1. Trainer"),
    "START first": (lambda our: our.send(packet(START, generation=1)), "expected OPEN first, got START"),
    "OPEN without a request": (lambda our: our.send(packet(OPEN, a=7)), "message OPEN: expected a request of 7 bytes"),
    "OPEN of any length": (lambda our: _open(our, b"{}", said=1 << 62), "expected a request of 4611686018427387904 bytes, got 2"),
    "OPEN with something else": (lambda our: _open(our, b"\x80pickle"), "message OPEN: expected a request in JSON"),
    "OPEN with a list": (lambda our: _open(our, b"[1, 2]"), "message OPEN: expected a request in JSON"),
}  # fmt: skip


@pytest.mark.parametrize("name", BEFORE_OPEN)
def test_a_client_that_does_not_speak_the_protocol_gets_an_error_on_stderr(sidecar: Any, name: str) -> None:
    process, ours = sidecar
    send, expected = BEFORE_OPEN[name]
    send(ours)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 70
    assert said.splitlines()[-1].startswith("parquetry.common.base.errors.SidecarError: ")
    assert re.search(expected, said)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (packet(RELEASE, a=5), r"message RELEASE: expected one of the slots \[\], got 5"),
        (packet(103, a=5), "expected one to a sidecar, got SLOT"),
        (packet(77), "expected one of the types .* got 77"),
    ],
)
def test_an_invalid_message_ends_the_sidecar(sidecar: Any, request_text: bytes, sent: bytes, expected: str) -> None:
    process, ours = sidecar
    _open(ours, request_text)
    ours.send(sent)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 70
    assert re.search(expected, said)


def test_a_slot_that_is_released_twice_ends_the_sidecar(sidecar: Any, request_text: bytes) -> None:
    process, ours = sidecar
    channel = Channel(ours)
    _open(ours, request_text)
    channel.send(Message(type=MessageType.START, generation=1, body=Start(cursor=Cursor(), merge=False).pack()))
    while (message := channel.receive()) is not None and message.type != MessageType.BATCH:
        if message.descriptor is not None:
            os.close(message.descriptor)
    assert message is not None
    channel.send(Message(type=MessageType.STOP, generation=1))  # otherwise it may be reused in between
    for _ in range(2):
        channel.send(Message(type=MessageType.RELEASE, generation=1, a=message.a))
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 70
    assert re.search(rf"message RELEASE: expected one of the slots .*, got {message.a}\.", said)


def test_after_an_invalid_start_others_are_still_served(sidecar: Any, request_text: bytes) -> None:
    _, ours = sidecar
    channel = Channel(ours)
    _open(ours, request_text)
    opened = channel.receive()
    assert opened is not None
    assert (opened.type, opened.a, opened.body) == (MessageType.OPENED, 3, b"")
    good = Start(cursor=Cursor(), merge=False).pack()
    for generation, body in enumerate([b'{"iteration": 0, "state": null}', good[:-1], good + b"{}"], 1):
        channel.send(Message(type=MessageType.START, generation=generation, body=body))
        answer = channel.receive()
        assert answer is not None
        assert (answer.type, answer.generation) == (MessageType.ERROR, generation)
        assert RemoteError.unpack(answer.body).name == "SidecarError"
    channel.send(Message(type=MessageType.START, generation=9, body=good))
    answer = channel.receive()
    assert answer is not None
    assert (answer.type, answer.a, answer.b) == (MessageType.STARTED, 3, 0)
