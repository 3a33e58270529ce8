"""TFRecord files in TensorFlow's format, encoded by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from parquetry.common.apps.tools.tfrecord import _checksum


def varint(value: int) -> bytes:
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values: Sequence[Any], *, packed: bool = True) -> bytes:
    """Encodes a ``tf.train.Feature`` of the values' kind."""
    if isinstance(values[0], bytes):
        return message(1, b"".join(message(1, value) for value in values))
    if isinstance(values[0], float):
        parts = [struct.pack("<f", value) for value in values]
        return message(2, message(1, b"".join(parts)) if packed else b"".join(varint(1 << 3 | 5) + p for p in parts))
    parts = [varint(value) for value in values]
    return message(3, message(1, b"".join(parts)) if packed else b"".join(varint(1 << 3) + part for part in parts))


def example(features: dict[str, bytes]) -> bytes:
    entries = [message(1, message(1, name.encode()) + message(2, content)) for name, content in features.items()]
    return message(1, b"".join(entries))


def framed(*records: bytes) -> bytes:
    out = b""
    for record in records:
        length = struct.pack("<Q", len(record))
        out += length + struct.pack("<I", _checksum(length)) + record + struct.pack("<I", _checksum(record))
    return out
