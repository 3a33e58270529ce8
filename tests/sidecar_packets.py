"""Packets of the sidecar protocol for tests of both clients: good ones as bytes that never change, and bad ones.

Run as ``python sidecar_packets.py --fd N``, this is a sidecar that answers OPEN with whatever packets the request
lists.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("data") / "sidecar" / "packets_v3.txt"
SLOT_BYTES = 4096
ENTRY = struct.Struct("<HHHHQQ8qQ")


def golden() -> dict[str, bytes]:
    """Returns the packets of version 3 by name; every build of either side must write and read them."""
    lines = [line.split() for line in GOLDEN.read_text().splitlines() if line and not line.startswith("#")]
    return {name: bytes.fromhex("".join(parts)) for name, *parts in lines}


def packet(kind: int, body: bytes = b"", **changes: int) -> bytes:
    """Returns a packet with a good header, unless ``changes`` break it."""
    header = {"magic": 0x59525150, "version": 3, "type": kind, "generation": 1 if kind > 101 else 0}
    header |= {"a": 0, "b": 0, "body_bytes": len(body), "descriptors": 0, **changes}
    return struct.pack("<IHHQQQII", *header.values()) + body


def entry(**changes: Any) -> bytes:
    """Returns a tensor entry: four int64 at byte 0 of a slot, unless ``changes`` override it."""
    values = {"field": 0, "role": 0, "dtype": 5, "ndim": 1, "offset": 0, "bytes": 32, "dims": (4,), **changes}
    dims = (*values.pop("dims"), *[0] * 8)[:8]
    return ENTRY.pack(*values.values(), *dims, 0)


OPENED = packet(101, a=1)
STARTED = packet(102, struct.pack("<QQII", 0, 6, 2, 1) + b"{ }", a=1)
SLOT = (packet(103, b=SLOT_BYTES, descriptors=1), b"")


def _batch(table: bytes = b"", **changes: int) -> list[Any]:
    """Returns a slot with ``table`` at byte 64 of its memory, and its batch."""
    return [OPENED, STARTED, (SLOT[0], table), packet(104, _header(**{"tensors": len(table) // ENTRY.size, **changes}))]


def _header(**changes: int) -> bytes:
    """Returns the header of one element without tensors, unless ``changes`` override it."""
    header = {"slot_bytes": SLOT_BYTES, "table_offset": 64, "first": 0, "tensors": 0, "elements": 1, "rows": 1}
    return struct.pack("<QQQIIQ", *(header | changes).values())


Answer = bytes | tuple[bytes, bytes]
BROKEN: dict[str, list[Answer]] = {
    "another version": [packet(101, version=1)],
    "no message": [b"HTTP/1.1 400 Bad Request\r\n\r\nsome more than forty bytes"],
    "a piece of a message": [OPENED[:17]],
    "an unknown type": [packet(99)],
    "another message than OPENED": [packet(105, generation=0)],
    "another message than STARTED": [OPENED, packet(105, generation=1)],
    "a message to the sidecar": [OPENED, STARTED, packet(2, generation=1)],
    "a message of an iteration to come": [OPENED, STARTED, packet(105, generation=2)],
    "a body that is shorter than said": [packet(101, body_bytes=60_000)],
    "a body that is longer than said": [packet(101, b"x" * 10, body_bytes=1)],
    "a descriptor that is not there": [packet(101, descriptors=1)],
    "STARTED without a body": [OPENED, packet(102)],
    "STARTED cut off": [OPENED, STARTED[:-1]],
    "STARTED with texts that are longer than it": [OPENED, packet(102, struct.pack("<QQII", 0, 0, 2**32 - 1, 1) + b"{")],
    "STARTED with texts that wrap around": [OPENED, packet(102, struct.pack("<QQII", 0, 0, 2**32 - 1, 2) + b"{")],
    "STARTED with bytes too many": [OPENED, packet(102, struct.pack("<QQII", 0, 0, 1, 1) + b"{ }")],
    "ERROR without a body": [packet(106, generation=0)],
    "ERROR with a name that is longer than it": [packet(106, struct.pack("<II", 2**31, 3) + b"bad", generation=0)],
    "ERROR in JSON": [packet(106, b'{"error": "DatasetError", "message": "old"}', generation=0)],
    "SLOT without memory": [OPENED, STARTED, packet(103, b=SLOT_BYTES)],
    "SLOT larger than its memory": [OPENED, STARTED, (packet(103, b=1 << 40, descriptors=1), b""), *_batch(slot_bytes=1 << 40)[3:]],
    "BATCH larger than its slot": _batch(slot_bytes=1 << 40),
    "BATCH of no slot": [OPENED, STARTED, _batch()[3]],
    "BATCH with a body too short": [OPENED, STARTED, SLOT, packet(104, b"abc")],
    "BATCH without a body": [OPENED, STARTED, SLOT, packet(104)],
    "BATCH with a second header cut off": [*_batch()[:3], packet(104, _header() + _header()[:-1])],
    "BATCH whose second header lies": [*_batch()[:3], packet(104, _header() + _header(table_offset=1 << 63, tensors=1))],
    "a table behind the slot": _batch(table_offset=1 << 63, tensors=1),
    "a table of any length": _batch(entry(), tensors=2**32 - 1),
    "a tensor behind the slot": _batch(entry(offset=SLOT_BYTES)),
    "a tensor at the end of all numbers": _batch(entry(offset=2**64 - 64)),
    "a tensor shorter than its shape": _batch(entry(bytes=24)),
    "a tensor of a shape without end": _batch(entry(ndim=3, dims=(2**62, 2**62, 16))),
    "a tensor of a negative shape": _batch(entry(dims=(-4,))),
    "a tensor of an unknown dtype": _batch(entry(dtype=77)),
    "a tensor of an unknown role": _batch(entry(role=6)),
}  # fmt: skip
"""Returns answers to OPEN (a packet, or a packet with its memory's content) that each cause one clear error."""


def request(answers: list[Answer]) -> str:
    """Returns the request for this sidecar."""
    pairs = [(item, None) if isinstance(item, bytes) else item for item in answers]
    return json.dumps([[packet.hex(), None if memory is None else memory.hex()] for packet, memory in pairs])


def _memory(content: bytes) -> int:
    descriptor = os.memfd_create("broken-slot")
    os.ftruncate(descriptor, SLOT_BYTES)
    os.pwrite(descriptor, content, 64)
    return descriptor


def main() -> None:
    """Sends what the request lists, and waits for the end."""
    connection = socket.socket(fileno=int(sys.argv[sys.argv.index("--fd") + 1]))
    _, (descriptor,), _, _ = socket.recv_fds(connection, 1 << 16, 1)
    for answer, memory in json.loads(os.pread(descriptor, 1 << 20, 0)):
        if memory is None:
            connection.send(bytes.fromhex(answer))
        else:
            socket.send_fds(connection, [bytes.fromhex(answer)], [_memory(bytes.fromhex(memory))])
    while connection.recv(1 << 16):
        pass


if __name__ == "__main__":
    main()
