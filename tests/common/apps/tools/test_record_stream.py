"""`RecordStream`: every compression, and records that claim more data than there is."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tracemalloc
import zlib
from collections.abc import Callable

import pyarrow as pa
import pytest

from parquetry.common.apps.tools.record_stream import DamageError, RecordStream


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


COMPRESSIONS = pytest.mark.parametrize("compress", [bytes, gzip.compress, bz2.compress, lzma.compress, zstd])
DATA = bytes(range(256)) * 40


@COMPRESSIONS
def test_parts_are_read_forwards(compress: Callable[[bytes], bytes]) -> None:
    stream = RecordStream(pa.BufferReader(compress(DATA)))  # type: ignore[arg-type]
    assert (stream.read(3), stream.tell()) == (DATA[:3], 3)
    stream.seek(1000)
    assert stream.read(24) == DATA[1000:1024]
    assert stream.read_up_to(1 << 20) == DATA[1024:]
    assert (stream.tell(), stream.read_up_to(1), stream.read(0)) == (len(DATA), b"", b"")


@COMPRESSIONS
def test_parts_of_a_compressed_file_may_follow_each_other(compress: Callable[[bytes], bytes]) -> None:
    assert RecordStream(io.BytesIO(compress(b"abc") + compress(b"def"))).read(6) == b"abcdef"


@COMPRESSIONS
@pytest.mark.parametrize("size", [len(DATA) + 1, 20 << 30, 1 << 60])
def test_more_than_there_is_sets_no_memory_aside(compress: Callable[[bytes], bytes], size: int) -> None:
    data = compress(DATA)
    tracemalloc.start()
    try:
        with pytest.raises(DamageError, match=r"^it is cut short. Write it again.$"):
            RecordStream(io.BytesIO(data)).read(size)
        with pytest.raises(DamageError, match=r"cut short"):
            RecordStream(io.BytesIO(data)).seek(size)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, zstd])
def test_a_compressed_file_that_ends_early_is_cut_short_or_damaged(compress: Callable[[bytes], bytes]) -> None:
    for left in (-1, -9, 20):
        stream = RecordStream(io.BytesIO(compress(DATA)[:left]))
        with pytest.raises(DamageError, match=r"cut short|damaged: .*[Tt]runcated"):
            stream.read(len(DATA) + 1)


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress, zstd])
def test_compressed_bytes_that_are_wrong_are_damage(compress: Callable[[bytes], bytes]) -> None:
    data = bytearray(compress(zlib.compress(DATA)))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(DamageError, match=r"it is damaged: .* Write it again|cut short"):
        RecordStream(io.BytesIO(bytes(data))).read(1 << 20)


def test_places_behind_are_damage_and_a_failing_store_is_reported() -> None:
    stream = RecordStream(io.BytesIO(DATA))
    stream.seek(9)
    with pytest.raises(DamageError, match=r"damaged: it has a part of negative size"):
        stream.seek(8)

    class Failing(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            raise OSError(5, "no answer")

    with pytest.raises(DamageError, match=r"it cannot be read: .*no answer"):
        RecordStream(Failing())  # type: ignore[arg-type]
