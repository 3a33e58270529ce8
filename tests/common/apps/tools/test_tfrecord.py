"""TFRecord files: TensorFlow's files are read without TensorFlow, and damage is detected."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tfrecords import example, feature, framed, message

from parquetry.common.apps.tools.tfrecord import _checksum, tfrecord_rows
from parquetry.common.base.errors import DatasetError


def rows(data: bytes) -> list[dict[str, Any]]:
    return list(tfrecord_rows(pa.BufferReader(data), "x"))  # type: ignore[arg-type]


def test_the_checksum_is_masked_crc32c() -> None:
    assert _checksum(b"123456789") == 0xC78AB0E5


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_features_of_every_kind_are_read(packed: bool, compress: Any) -> None:
    numbers = [0, 1, -1, 127, 128, 2**63 - 1, -(2**63), 300]
    data = framed(
        example({"b": feature([b"x", b"", b"\xff"]), "a": feature([1.5, -2.0], packed=packed)}),
        example({"n": feature(numbers, packed=packed), "none": b"", "empty": message(3, b"")}),
        b"",
    )
    first, second, third = rows(compress(data))
    assert list(first) == ["a", "b"]
    assert first["b"] == [b"x", b"", b"\xff"]
    assert first["a"].tolist() == [1.5, -2.0]
    assert first["a"].dtype == np.float32
    assert second["n"].tolist() == numbers
    assert second["n"].dtype == np.int64
    assert "none" not in second
    assert second["empty"].tolist() == []
    assert third == {}


@pytest.mark.parametrize("kind", [bytes, gzip.compress])
@pytest.mark.parametrize("left", [4, 13, 30, -1])
def test_a_file_that_is_cut_short_is_an_error(kind: Any, left: int) -> None:
    data = kind(framed(example({"a": feature([1, 2])}), example({"a": feature([b"x" * 50])})))
    with pytest.raises(DatasetError, match=r"file x, record \d: expected a whole record|wrong checksum"):
        rows(data[:left])


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("claimed", [20 << 30, 1 << 60, (1 << 64) - 1])
def test_a_length_that_a_record_claims_sets_no_memory_aside(compress: Any, claimed: int) -> None:
    length = struct.pack("<Q", claimed)
    data = compress(framed(b"") + length + struct.pack("<I", _checksum(length)) + b"x" * 5000)
    tracemalloc.start()
    try:
        with pytest.raises(
            DatasetError, match=r"file x, record 1: expected a whole record, but it is cut short\. Write"
        ):
            rows(data)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [10, 5000])
def test_a_content_that_changed_is_an_error(size: int) -> None:
    data = bytearray(framed(b"", example({"a": feature([b"x" * size])})))
    data[-9] ^= 1
    with pytest.raises(
        DatasetError, match="file x, record 1: expected a whole record, but its content has a wrong checksum"
    ):
        rows(bytes(data))


def test_a_damaged_gzip_is_an_error_that_names_the_file() -> None:
    whole = gzip.compress(framed(*[example({"a": feature([b"%d" % n])}) for n in range(300)]))
    for place in (10, len(whole) // 2, -9, -6, -1):
        data = bytearray(whole)
        data[place] ^= 0xFF
        with pytest.raises(DatasetError, match=r"file x, record \d+: expected a"):
            rows(bytes(data))
    for tail in (b"PAR1", whole[:10]):
        with pytest.raises(DatasetError, match=r"file x, record 300: expected a whole record, but it is (damaged|cut)"):
            rows(whole + tail)
    assert len(rows(whole + bytes(100))) == 300
    assert len(rows(whole + whole)) == 600


def test_other_files_are_refused() -> None:
    with pytest.raises(DatasetError, match="file x, record 0: expected a TFRecord"):
        rows(b"PAR1" * 10)
    for wrong in (b"\xff", b"hello world", message(1, b"\xff" * 20), message(1, message(1, message(2, b"\x0b")))):
        with pytest.raises(DatasetError, match=r"file x, record 0: expected a tf.train.Example, got \d+ other bytes"):
            rows(framed(wrong))
    with pytest.raises(DatasetError, match="SequenceExample"):
        rows(framed(example({"a": feature([1])}) + message(2, b"")))


def test_an_empty_file_has_no_records() -> None:
    assert rows(b"") == []
    assert list(tfrecord_rows(io.BytesIO(b""), "x")) == []
