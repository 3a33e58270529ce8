"""Values found in stored pages, compared with what Arrow reads from the same file."""

from __future__ import annotations

import os
import tempfile
import zlib
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common.base.native.kernels import locate_cells, read_cells
from parquetry.common.base.native.library import is_compiled
from parquetry.common.parquet import pages
from parquetry.common.parquet.checksums import Verify
from parquetry.common.parquet.pages import FileBytes, MemoryBytes, find_values, locate_values

pytestmark = pytest.mark.versions

PLAIN: dict[str, Any] = {"compression": "none", "use_dictionary": False}


def chunk_of(path: Path, group: int = 0, column: int = 0) -> tuple[np.ndarray, int]:
    meta = pq.read_metadata(path).row_group(group).column(column)
    content = np.fromfile(path, np.uint8)
    begin = meta.data_page_offset
    return content[begin : begin + meta.total_compressed_size], meta.num_values


def written(path: Path, values: list[bytes | None], *, width: int = -1, nullable: bool, **options: Any) -> Path:
    field = pa.field("x", pa.binary(width), nullable=nullable)
    table = pa.table([pa.array(values, field.type)], schema=pa.schema([field]))
    pq.write_table(table, path, **{**PLAIN, **options})
    return path


def find(
    chunk: np.ndarray, count: int, *, width: int | None, nullable: bool, damaged: bool = False
) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the locations of values, as found in memory and in a file with other bytes around the chunk, also by the
    compiled core, which may leave more damaged pages to Arrow, in memory and in the file.
    """
    in_memory = find_values(MemoryBytes(chunk), count, width=width, nullable=nullable)
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"before" + chunk.tobytes() + b"\x15\x00behind" * 20)
        file.flush()
        stored = FileBytes(file.fileno(), len(b"before"), len(chunk))
        in_file = find_values(stored, count, width=width, nullable=nullable)
        by_core, status = read_cells(
            file.name,
            len(b"before"),
            len(chunk),
            count,
            lambda size: np.empty(size, np.uint8),
            width=width,
            nullable=nullable,
            verify="never",
        )
        located = locate_cells(
            file.fileno(), len(b"before"), len(chunk), count, width=width, nullable=nullable, verify="never"
        )
        if is_compiled():
            assert status.st_size == os.fstat(file.fileno()).st_size
            assert by_core is None if in_memory is None else by_core is not None or damaged
            assert (located is None) == (by_core is None)
    assert (in_memory is None) == (in_file is None)
    if in_memory is not None and in_file is not None:
        np.testing.assert_array_equal(in_memory, in_file)
    if by_core is not None:
        assert by_core[2].tobytes() == chunk.tobytes()
        np.testing.assert_array_equal(in_memory, by_core[:2])
    if located is not None:
        np.testing.assert_array_equal(in_memory, located[:2])
    return in_memory


def values_at(chunk: np.ndarray, places: tuple[np.ndarray, np.ndarray]) -> list[bytes]:
    return [chunk[start:end].tobytes() for start, end in zip(*places, strict=True)]


@given(
    values=st.lists(st.binary(max_size=300), max_size=60),
    width=st.sampled_from([-1, -1, 1, 7, 64]),
    nullable=st.booleans(),
    version=st.sampled_from(["1.0", "2.0"]),
    page=st.sampled_from([1, 64, 1_000, 1 << 20]),
    checksum=st.booleans(),
    statistics=st.booleans(),
    repeat=st.booleans(),
)
def test_every_value_is_found_where_it_lies(
    tmp_path_factory: pytest.TempPathFactory,
    values: list[bytes],
    width: int,
    nullable: bool,
    version: str,
    page: int,
    checksum: bool,
    statistics: bool,
    repeat: bool,
) -> None:
    if width > 0:
        values = [value.ljust(width, b"\0")[:width] for value in values]
    if repeat and values:
        values = values[:1] * len(values)  # all the same length
    path = written(
        tmp_path_factory.mktemp("pages") / "x.parquet",
        values,
        width=width,
        nullable=nullable,
        data_page_version=version,
        data_page_size=page,
        write_batch_size=3,
        write_page_checksum=checksum,
        write_statistics=statistics,
    )
    chunk, count = chunk_of(path)
    places = find(chunk, count, width=width if width > 0 else None, nullable=nullable)
    assert places is not None
    assert values_at(chunk, places) == values
    assert all(
        find_values(MemoryBytes(chunk[:end]), count, width=None, nullable=nullable) is None for end in range(len(chunk))
    )


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("place", [0, 7, 8, 19])
def test_a_null_is_left_to_arrow(tmp_path: Path, version: str, place: int) -> None:
    values: list[bytes | None] = [b"value"] * 20
    values[place] = None
    path = written(tmp_path / "x.parquet", values, nullable=True, data_page_version=version)
    assert find(*chunk_of(path), width=None, nullable=True) is None


@pytest.mark.parametrize(
    "options", [{"compression": "snappy"}, {"use_dictionary": True}, {"column_encoding": {"x": "DELTA_BYTE_ARRAY"}}]
)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_pages_that_are_not_plain_are_left_to_arrow(tmp_path: Path, options: dict[str, Any], version: str) -> None:
    values: list[bytes | None] = [bytes([number]) * 100 for number in range(20)]
    path = written(tmp_path / "x.parquet", values, nullable=False, data_page_version=version, **options)
    assert find(*chunk_of(path), width=None, nullable=False) is None


def test_definition_levels_of_several_kinds_of_runs_are_read() -> None:
    def page(levels: bytes, count: int) -> np.ndarray:
        body = len(levels).to_bytes(4, "little") + levels + bytes(count)
        size = zigzag(len(body))
        inner = b"\x15" + zigzag(count) + b"\x15" + zigzag(0) + b"\x15" + zigzag(3) + b"\x15" + zigzag(3) + b"\x00"
        header = b"\x15" + zigzag(0) + b"\x15" + size + b"\x15" + size + b"\x2c" + inner + b"\x00"
        return np.frombuffer(header + body, np.uint8)

    def found(levels: bytes, count: int = 20) -> bool:
        return find(page(levels, count), count, width=1, nullable=True) is not None

    assert found(b"\x28\x01")  # a run of 20
    assert found(b"\x14\x01\x14\x01")  # two runs of 10
    assert found(b"\x07\xff\xff\xff")  # three groups of eight
    assert found(b"\x07\xff\xff\x0f")  # bytes after the last value have no meaning
    assert found(b"\x03\xff\x18\x01")  # a group of eight, a run of 12
    assert not found(b"\x07\xff\xff\x07")
    assert not found(b"\x28\x00")
    assert not found(b"\x14\x01")  # too few
    assert not found(b"\x07\xff\xff")
    assert not found(b"")


def stored_page(values: list[bytes], checksum: bool, filler: int) -> bytes:
    """Returns a page of values with their lengths, and a header with ``filler`` bytes in a field that nobody knows."""
    body = b"".join(len(value).to_bytes(4, "little") + value for value in values)
    crc = zlib.crc32(body)
    size, signed = zigzag(len(body)), zigzag(crc if crc < 1 << 31 else crc - (1 << 32))
    inner = b"\x15" + zigzag(len(values)) + b"\x15" + zigzag(0) + b"\x15" + zigzag(3) + b"\x15" + zigzag(3) + b"\x00"
    head = b"\x15" + zigzag(0) + b"\x15" + size + b"\x15" + size
    head += b"\x15" + signed + b"\x1c" if checksum else b"\x2c"
    return head + inner + b"\x48" + varint(filler) + bytes(filler) + b"\x00" + body


@pytest.mark.parametrize("verify", ["written", "always", "never"])
@pytest.mark.parametrize("filler", [0, 600, 20_000])
def test_the_pages_of_values_in_a_file_are_those_with_checksums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: Verify, filler: int
) -> None:
    cells, path = [[b"first" * 200, b""], [], [b"last" * 9]], tmp_path / "x"

    def located(*checksums: bool) -> tuple[np.ndarray, ...] | None:
        chunk = b"".join(map(stored_page, cells, checksums, [filler] * len(cells)))
        path.write_bytes(b"before" + chunk + b"behind" * 99)
        with path.open("rb") as file:
            found = locate_values(file.fileno(), 6, len(chunk), 3, width=None, nullable=False, verify=verify)
        if found is None:
            return None
        starts, ends, stored = found
        whole = np.frombuffer(chunk, np.uint8)
        assert values_at(whole, (starts, ends)) == [*cells[0], *cells[2]]
        for begin, end, checksum in zip(*(part.tolist() for part in stored), strict=True):
            assert zlib.crc32(chunk[begin:end]) == checksum
        return starts, ends, *stored

    for checksums in product([False, True], repeat=3):
        by_core = located(*checksums)
        with monkeypatch.context() as patch:
            patch.setattr(pages, "locate_cells", lambda *_, **__: None)
            by_python = located(*checksums)
        assert (by_core is None) == (by_python is None) == (verify == "always" and not all(checksums))
        if by_core is not None and by_python is not None:
            assert len(by_core[2]) == (0 if verify == "never" else sum(checksums))
            for core, python in zip(by_core, by_python, strict=True):
                np.testing.assert_array_equal(core, python)


def varint(number: int) -> bytes:
    result = b""
    while number > 0x7F:
        result, number = result + bytes([number & 0x7F | 0x80]), number >> 7
    return result + bytes([number])


def zigzag(number: int) -> bytes:
    return varint((number << 1) ^ (number >> 63))


@given(content=st.binary(max_size=200), count=st.integers(0, 5), nullable=st.booleans())
def test_bytes_that_are_not_pages_are_never_an_error(content: bytes, count: int, nullable: bool) -> None:
    chunk = np.frombuffer(content, np.uint8)
    places = find(chunk, count, width=None, nullable=nullable)
    assert places is None or (len(places[0]) == count and (places[1] <= len(chunk)).all())


@given(data=st.data())
def test_a_damaged_page_is_left_to_arrow_or_has_its_places_inside(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    values = [b"a" * size for size in (0, 5, 300, 2, 2)]
    version = data.draw(st.sampled_from(["1.0", "2.0"]))
    path = written(
        tmp_path_factory.mktemp("pages") / "x.parquet", list(values), nullable=True, data_page_version=version
    )
    chunk, count = chunk_of(path)
    chunk[data.draw(st.integers(0, len(chunk) - 1))] = data.draw(st.integers(0, 255))
    places = find(chunk, count, width=None, nullable=True, damaged=True)
    if places is not None:
        starts, ends = places
        assert len(starts) == count
        assert (starts <= ends).all()
        assert (ends[:-1] <= starts[1:]).all()
        assert (ends <= len(chunk)).all()
