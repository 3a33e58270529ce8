"""Reads TFRecord files of ``tf.train.Example`` without TensorFlow.

The input is a stream. The output is the features of each record: lists of bytes, or arrays of float32 or int64. A file
that is truncated or is not TFRecord raises an error. Format: https://www.tensorflow.org/tutorials/load_data/tfrecord
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib import import_module
from typing import BinaryIO, TypeAlias

import numpy as np

from ...base.errors import DatasetError, missing_package
from ...parquet.thrift import unsigned
from .record_stream import DamageError, RecordStream

Feature: TypeAlias = list[bytes] | np.ndarray
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def tfrecord_rows(stream: BinaryIO, where: str) -> Iterator[dict[str, Feature]]:
    """Yields the features of each record by name. Features with no value list are left out.

    Verifies the checksums of each record's length and content.

    Raises:
        DatasetError: the file is not TFRecord, is truncated or damaged, or a record is not a ``tf.train.Example``; or
            google_crc32c is not installed.
    """
    try:
        import_module("google_crc32c")
    except ImportError as error:
        raise DatasetError(f"TFRecord {missing_package(error, 'google_crc32c', 'tfrecord')}") from error
    for number, record in enumerate(_records(stream, where)):
        try:
            yield _example(memoryview(record))
        except (ValueError, IndexError, struct.error) as error:
            raise DatasetError(
                f"file {where}, record {number}: expected a tf.train.Example, got {len(record)} other bytes: {error}."
            ) from error


def _records(file: BinaryIO, where: str) -> Iterator[bytes]:
    number = 0
    try:
        stream = RecordStream(file)
        while start := stream.read_up_to(1):
            length, checksum = struct.unpack("<QI", header := start + stream.read(11))
            if _checksum(header[:8]) != checksum:
                raise DatasetError(
                    f"file {where}, record {number}: expected a TFRecord (plain or compressed), got a length with a "
                    "wrong checksum. The file has another format, or is damaged."
                )
            record = stream.read(length)
            if _checksum(record) != int.from_bytes(stream.read(4), "little"):
                raise DamageError("its content has a wrong checksum. Write it again.")
            yield record
            number += 1
    except DamageError as error:
        raise DatasetError(f"file {where}, record {number}: expected a whole record, but {error}") from error


def _checksum(data: bytes) -> int:
    """Computes the masked CRC-32C that TFRecord uses."""
    from google_crc32c import value as crc32c  # in an extra

    value: int = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


# --- protocol buffers: https://protobuf.dev/programming-guides/encoding ---


def _example(data: memoryview) -> dict[str, Feature]:
    features: dict[str, Feature] = {}
    for number, message in _fields(data):
        if number == 2:
            raise ValueError("a tf.train.SequenceExample, whose feature lists do not fit into a row")
        for _, entry in _fields(_message(message)):
            parts = dict(_fields(_message(entry)))
            value = _feature(_message(parts[2])) if 2 in parts else None
            if value is not None:
                features[bytes(_message(parts.get(1, memoryview(b"")))).decode()] = value
    return dict(sorted(features.items()))  # the stored order is arbitrary


def _feature(data: memoryview) -> Feature | None:
    for number, content in _fields(data):
        parts = [part for _, part in _fields(_message(content))]
        if number == 1:
            return [bytes(_message(part)) for part in parts]
        if number == 2:
            floats = [np.frombuffer(_message(part), "<f4") for part in parts]
            return np.concatenate(floats).astype(np.float32) if floats else np.zeros(0, np.float32)
        if number == 3:
            integers = [np.array([part], np.uint64) if isinstance(part, int) else _varints(part) for part in parts]
            return np.concatenate(integers).view(np.int64) if integers else np.zeros(0, np.int64)
    return None


def _message(value: memoryview | int) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number instead of a message")
    return value


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Yields the number and content of each field in a message. Varints are integers, other contents are bytes."""
    at = 0
    while at < len(data):
        key, at = unsigned(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = unsigned(data, at)
            yield key >> 3, value & 0xFFFFFFFFFFFFFFFF
            continue
        if kind == _BYTES:
            size, at = unsigned(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of unknown kind {kind}")
        if at + size > len(data):
            raise ValueError("a field longer than its message")
        yield key >> 3, data[at : at + size]
        at += size


def _varints(data: memoryview) -> np.ndarray:
    """Decodes consecutive varints as uint64."""
    content = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(content < 0x80)
    if not len(content):
        return np.zeros(0, np.uint64)
    if not len(ends) or ends[-1] != len(content) - 1:
        raise ValueError("a number that is cut short")
    starts = np.concatenate([[0], ends[:-1] + 1])
    if (ends - starts).max() > 9:
        raise ValueError("a number of more than 64 bits")
    place = np.arange(len(content)) - np.repeat(starts, ends - starts + 1)
    shifted = (content & 0x7F).astype(np.uint64) << (7 * place).astype(np.uint64)
    result: np.ndarray = np.bitwise_or.reduceat(shifted, starts)
    return result
