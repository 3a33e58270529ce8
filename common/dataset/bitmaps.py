"""Decodes the roaring bitmaps of row numbers in the deletion vectors of Delta and Iceberg tables.

The input is a 64-bit bitmap in the portable format (https://github.com/RoaringBitmap/RoaringFormatSpec). The output is
its numbers in ascending order, as int64. Malformed bytes raise an error and never decode to wrong numbers.

pyroaring would be one more compiled requirement in place of 90 lines, and it accepts containers whose counts do not fit
their values.
"""

from __future__ import annotations

import struct

import numpy as np

from ..schema.ragged import concat_ranges

_NO_RUNS = 12346
_WITH_RUNS = 12347
_OFFSETS_FROM = 4
_ARRAY_LIMIT = 4096
_BITMAP_BYTES = 8192


def decode_bitmap64(data: bytes, most: int) -> np.ndarray:
    """Decodes a 64-bit bitmap: a series of 32-bit bitmaps, each preceded by the upper half that its numbers share.

    Args:
        most: the most numbers that it may hold. A few bytes can claim billions.

    Raises:
        ValueError: the bytes do not follow the format, or hold more numbers.
    """
    reader = _ByteReader(data, most)
    parts = []
    for _ in range(reader.number("<Q")):
        high = reader.number("<I")
        if high >= 1 << 31:
            raise ValueError(f"expected row numbers of 63 bits, got {high} as the upper half of one")
        parts.append(_decode_bitmap32(reader) + (high << 32))
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


class _ByteReader:
    """Reads bytes from front to back."""

    def __init__(self, data: bytes, most: int) -> None:
        self._data = data
        self._left = most
        self._place = 0

    def take(self, count: int) -> bytes:
        """Returns the next ``count`` bytes."""
        taken = self._data[self._place : self._place + count]
        if len(taken) != count:
            raise ValueError(f"expected {count} bytes at {self._place}, got {len(taken)}")
        self._place += count
        return taken

    def hold(self, count: int) -> None:
        """Raises `ValueError` if ``count`` more numbers are too many."""
        self._left -= count
        if self._left < 0:
            raise ValueError("more rows than it should hold")

    def number(self, form: str) -> int:
        """Returns the next number, in a `struct` format."""
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def array(self, dtype: str, count: int) -> np.ndarray:
        """Returns the next ``count`` numbers."""
        return np.frombuffer(self.take(np.dtype(dtype).itemsize * count), dtype=dtype)


def _decode_bitmap32(reader: _ByteReader) -> np.ndarray:
    cookie = reader.number("<I")
    if cookie & 0xFFFF == _WITH_RUNS:
        containers = (cookie >> 16) + 1
        flags = np.unpackbits(reader.array("u1", (containers + 7) // 8), bitorder="little")[:containers].astype(bool)
    elif cookie == _NO_RUNS:
        containers = reader.number("<I")
        flags = np.zeros(min(containers, 1 << 16), dtype=bool)
    else:
        raise ValueError(f"expected the cookie {_NO_RUNS} or {_WITH_RUNS}, got {cookie}")
    if containers > 1 << 16:
        raise ValueError(f"expected at most 65536 containers, got {containers}")
    header = reader.array("<u2", 2 * containers).reshape(containers, 2).astype(np.int64)
    if cookie == _NO_RUNS or containers >= _OFFSETS_FROM:
        reader.take(4 * containers)  # where each container begins; unused, because they are contiguous
    reader.hold(int(header[:, 1].sum()) + len(header))
    parts = [
        _decode_container(reader, int(count) + 1, bool(is_run)) + (key << 16)
        for (key, count), is_run in zip(header, flags, strict=True)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _decode_container(reader: _ByteReader, count: int, is_run: bool) -> np.ndarray:
    if is_run:
        runs = reader.array("<u2", 2 * reader.number("<H")).reshape(-1, 2).astype(np.int64)
        lengths = runs[:, 1] + 1
        if lengths.sum() != count:
            raise ValueError(f"expected a container of {count} numbers, got {lengths.sum()}")
        values = concat_ranges(runs[:, 0], lengths)
    elif count <= _ARRAY_LIMIT:
        values = reader.array("<u2", count).astype(np.int64)
    else:
        values = np.flatnonzero(np.unpackbits(reader.array("u1", _BITMAP_BYTES), bitorder="little"))
    if len(values) != count:
        raise ValueError(f"expected a container of {count} numbers, got {len(values)}")
    result: np.ndarray = values
    return result
