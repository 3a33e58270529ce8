"""The sidecar's messages: constants, packing and unpacking; `docs/protocol.md` is the description.

Pure functions and values; the C++ side is ``tf_plugin/kernels/protocol.h``.
"""

from __future__ import annotations

import enum
import json
import struct
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from ...errors import SidecarError

MAGIC = 0x59525150
VERSION = 1
HEADER = struct.Struct("<IHHQQQII")
BATCH = struct.Struct("<QQQII")
ENTRY_BYTES = 96
MAX_DIMS = 8
MAX_BODY_BYTES = 61_440
_HEAD_CHARACTERS = 2_000
ALIGNMENT = 64


class MessageType(enum.IntEnum):
    """What a message is; numbers below 100 go to the sidecar."""

    OPEN = 1
    START = 2
    RELEASE = 3
    STOP = 4
    CLOSE = 5
    OPENED = 101
    STARTED = 102
    SLOT = 103
    BATCH = 104
    END = 105
    ERROR = 106


class Role(enum.IntEnum):
    """What a tensor is to its field."""

    DENSE = 0
    STRING_OFFSETS = 1
    STRING_DATA = 2
    RAGGED_SHAPES = 3
    RAGGED_VALUES = 4
    VALID = 5


INFINITE = -1
UNKNOWN = -2

DTYPE_CODES: dict[str, int] = {
    "bool": 1,
    "int8": 2,
    "int16": 3,
    "int32": 4,
    "int64": 5,
    "uint8": 6,
    "uint16": 7,
    "uint32": 8,
    "uint64": 9,
    "float16": 10,
    "float32": 11,
    "float64": 12,
}

ENTRY = np.dtype(
    {
        "names": ["field", "role", "dtype", "ndim", "offset", "bytes", "dims"],
        "formats": ["<u2", "<u2", "<u2", "<u2", "<u8", "<u8", ("<i8", (MAX_DIMS,))],
        "offsets": [0, 2, 4, 6, 8, 16, 24],
        "itemsize": ENTRY_BYTES,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One packet; ``a`` and ``b`` are unsigned on the wire (`signed` reads them as i64)."""

    type: MessageType
    generation: int = 0
    a: int = 0
    b: int = 0
    body: bytes = b""
    descriptor: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """The body of a BATCH message."""

    slot_bytes: int
    table_offset: int
    first_element: int
    num_tensors: int
    num_elements: int

    def pack(self) -> bytes:
        """The 32 bytes of the body."""
        return BATCH.pack(self.slot_bytes, self.table_offset, self.first_element, self.num_tensors, self.num_elements)

    @classmethod
    def unpack(cls, body: bytes) -> BatchHeader:
        """The inverse of `pack`."""
        slot_bytes, table_offset, first_element, num_tensors, num_elements = BATCH.unpack(body)
        return cls(
            slot_bytes=slot_bytes,
            table_offset=table_offset,
            first_element=first_element,
            num_tensors=num_tensors,
            num_elements=num_elements,
        )


def pack(message: Message) -> bytes:
    """The packet of a message (its descriptor travels beside it)."""
    if len(message.body) > MAX_BODY_BYTES:
        raise SidecarError(
            f"message {message.type.name}: expected a body of at most {MAX_BODY_BYTES} bytes, got {len(message.body)}."
        )
    mask = (1 << 64) - 1
    header = HEADER.pack(
        MAGIC,
        VERSION,
        message.type,
        message.generation,
        message.a & mask,
        message.b & mask,
        len(message.body),
        0 if message.descriptor is None else 1,
    )
    return header + message.body


def unpack(packet: bytes, descriptors: list[int]) -> Message:
    """The message in a packet.

    Raises:
        SidecarError: bytes that are not a message of this version.
    """
    if len(packet) < HEADER.size:
        raise SidecarError(f"sidecar message: expected at least {HEADER.size} bytes, got {len(packet)}.")
    magic, version, kind, generation, a, b, body_bytes, count = HEADER.unpack_from(packet)
    if magic != MAGIC or version != VERSION:
        raise SidecarError(
            f"sidecar message: expected protocol version {VERSION}, got magic {magic:#x} version {version}. "
            "Trainer and sidecar must run the same parquetry."
        )
    body = packet[HEADER.size :]
    if len(body) != body_bytes or count != len(descriptors):
        raise SidecarError(
            f"sidecar message {kind}: expected {body_bytes} bytes and {count} descriptors, "
            f"got {len(body)} and {len(descriptors)}."
        )
    return Message(
        type=MessageType(kind),
        generation=generation,
        a=a,
        b=b,
        body=body,
        descriptor=descriptors[0] if descriptors else None,
    )


def error_body(name: str, message: str) -> bytes:
    """The body of an ERROR message, cut to what fits: the beginning stays, and the end, where the cause is."""
    text = message.encode(errors="backslashreplace").decode()  # a lone surrogate is no UTF-8
    text = text.replace("\0", "\\0")  # TensorFlow ends a text there

    def body(text: str) -> bytes:
        return json.dumps({"error": name, "message": text}, ensure_ascii=False).encode()

    if len(text) <= MAX_BODY_BYTES and len(whole := body(text)) <= MAX_BODY_BYTES:
        return whole
    head = text[:_HEAD_CHARACTERS] + "\n[... cut ...]\n"
    starts = range(max(_HEAD_CHARACTERS, len(text) - MAX_BODY_BYTES), len(text) + 1)
    first = bisect_left(starts, -MAX_BODY_BYTES, key=lambda start: -len(body(head + text[start:])))
    return body(head + text[starts[first] :])


def signed(value: int) -> int:
    """A 64-bit field read as i64."""
    return value - (1 << 64) if value >= 1 << 63 else value
