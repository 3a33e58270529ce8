"""Filters find the same rows in files of writers that are known for wrong bounds."""

from __future__ import annotations

import decimal
import re
import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import footer_edits as edits
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parquetry.common import Pipeline
from parquetry.common.base.errors import EmptySelectionError
from parquetry.common.dataset import index_format
from parquetry.common.dataset.index_writer import write_index
from parquetry.common.parquet.chunk_statistics import footer_statistics
from parquetry.common.parquet.writers import WRITERS, WrongBounds, trusted_bounds

pytestmark = pytest.mark.versions

WIDTH = 16
KIND = pa.decimal128(38, 0)
BASE = 0x11223344556677_0000  # so that the bytes of a bound occur nowhere else in a footer
OLD = ("parquet-mr version 1.8.1", "parquet-mr version 1.9.0-cdh6.3", "parquet-cpp version 1.2.1")
OFFSETS = st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=6)


def stored(value: int) -> bytes:
    return value.to_bytes(WIDTH, "big", signed=True)


def write_old(path: Path, groups: list[list[int]], writer: str, bounded: bool = True) -> None:
    """Writes decimals as an old writer did: with its name, and (``bounded``) the bounds of signed bytes."""
    values = [decimal.Decimal(value) for group in groups for value in group]
    places = range(len(values))
    odd = [place % 2 == 1 for place in places]
    table = pa.table({"id": pa.array(places, pa.int64()), "price": pa.array(values, KIND), "odd": odd})
    with pq.ParquetWriter(path, table.schema, use_dictionary=False) as made:
        for group in groups:
            made.write_table(table.slice(0, len(group)))
            table = table.slice(len(group))
    content = path.read_bytes()
    size = struct.unpack("<I", content[-8:-4])[0]
    footer = content[-8 - size : -8]
    name = pq.read_metadata(path).created_by.encode()
    assert len(writer) <= len(name)
    footer = footer.replace(name, writer.encode().ljust(len(name)))
    wrong = {}
    for group in groups if bounded else []:
        ordered = sorted(group, key=lambda value: np.frombuffer(stored(value), np.int8).tolist())
        wrong |= dict(zip(map(stored, (min(group), max(group))), map(stored, (ordered[0], ordered[-1])), strict=True))
    if wrong:
        footer = re.sub(b"|".join(map(re.escape, wrong)), lambda found: wrong[found[0]], footer)
    path.write_bytes(content[: -8 - size] + footer + content[-8:])


def ids(path: Path, condition: pc.Expression) -> list[int]:
    try:
        return [int(row["id"]) for row in Pipeline(path).where(condition)]
    except EmptySelectionError:
        return []


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(OFFSETS, st.integers(0, 0xFFFF), st.sampled_from(OLD), st.booleans())
def test_a_filter_by_decimals_of_an_old_writer_finds_every_row(
    offsets: list[int], asked: int, writer: str, indexed: bool
) -> None:
    values = [BASE + offset for offset in offsets]
    asked = asked if asked % 3 else offsets[0]
    with TemporaryDirectory() as directory:
        write_old(Path(directory) / "old.parquet", [values], writer)
        if indexed:
            write_index(directory)
        bound = pa.scalar(decimal.Decimal(BASE + asked), KIND)
        for condition, expected in (
            (pc.field("price") == bound, [offset == asked for offset in offsets]),
            (pc.field("price") < bound, [offset < asked for offset in offsets]),
            (pc.field("price") > bound, [offset > asked for offset in offsets]),
        ):
            assert ids(Path(directory), condition) == np.flatnonzero(expected).tolist()


def bounds(path: Path) -> list[tuple[Any, Any]]:
    found = footer_statistics([pq.read_metadata(path)], ["price"], KIND)
    if found.minimum is None or found.maximum is None:
        return []
    return list(zip(found.minimum.to_pylist(), found.maximum.to_pylist(), strict=True))


def test_bounds_that_are_equal_count_whoever_wrote_them(tmp_path: Path) -> None:
    groups = [[BASE + 1, BASE + 1], [BASE + 5, BASE + 200]]
    write_old(tmp_path / "old.parquet", groups, OLD[0])
    assert bounds(tmp_path / "old.parquet") == [(BASE + 1, BASE + 1), (None, None)]
    write_old(tmp_path / "new.parquet", groups, "parquet-mr version 1.10.0", bounded=False)
    assert bounds(tmp_path / "new.parquet") == [(BASE + 1, BASE + 1), (BASE + 5, BASE + 200)]


def test_an_index_that_knew_fewer_writers_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kind = pa.timestamp("us")
    table = pa.table({"id": [0, 1], "t": pa.array([5, 9], kind), "text": ["a", "b"]})
    pq.write_table(table, tmp_path / "a.parquet")
    name_writer(tmp_path / "a.parquet", "Parquet.Net version 4.25.0 (build 3)", 1, *map(count, (28_805, 28_809)))
    description = index_format.IndexDescription
    to_bytes = description.to_bytes
    monkeypatch.setattr(index_format.zlib, "crc32", lambda data: 0)
    with monkeypatch.context() as earlier:
        earlier.setattr(
            description, "to_bytes", lambda self: to_bytes(self).replace(b'"by_writer": 2', b'"by_writer": 1')
        )
        earlier.setattr("parquetry.common.parquet.chunk_statistics.trusted_bounds", lambda *_: "all")
        write_index(tmp_path)
    assert ids(tmp_path, pc.field("t") == pa.scalar(9, kind)) == [1]
    assert "got one of another release. The footers of all files are read instead" in caplog.text


def count(value: int) -> bytes:
    return value.to_bytes(8, "little", signed=True)


def name_writer(path: Path, writer: str, column: int, least: bytes, most: bytes) -> None:
    """Gives a file another writer, and a column other bounds."""

    def change(footer: edits.Struct) -> None:
        footer[edits.WRITER] = edits.BINARY, writer.encode()
        for stated in edits.statistics_of(footer, column):
            stated[edits.MIN], stated[edits.MAX] = (edits.BINARY, least), (edits.BINARY, most)

    edits.edit(path, change)


FALSE_BOUNDS = {
    "signed bytes": ("parquet-cpp-arrow version 3.0.0", KIND, [1, 128, 256], stored(128), stored(256)),
    "joined as unsigned bytes": ("Polars", KIND, [-5, 3, 1], stored(1), stored(3)),
    "the maximum of a page": (
        "Arrow2 - Native Rust implementation of Arrow",
        pa.int64(),
        [1, 9, 5],
        count(1),
        count(5),
    ),
    "hours off": ("Parquet.Net version 4.25.0 (build 3)", pa.timestamp("ms"), [5, 9], count(28_805), count(28_809)),
    "another unit": ("Parquet.Net version 5.1.1 (build 3)", pa.timestamp("us"), [5000, 9000], count(5), count(9)),
    "the largest number": ("parquet-go version 18.0.0", pa.uint64(), [1, 2**64 - 1], count(-1), count(-1)),
}


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("what", FALSE_BOUNDS)
def test_rows_are_found_that_false_bounds_leave_out(what: str, indexed: bool, tmp_path: Path) -> None:
    writer, kind, values, least, most = FALSE_BOUNDS[what]
    numbers = [decimal.Decimal(value) for value in values] if kind == KIND else values
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": range(len(values)), "v": pa.array(numbers, kind)}), path)
    name_writer(path, writer, 1, least, most)
    if indexed:
        write_index(tmp_path)
    for place, number in enumerate(numbers):
        assert ids(tmp_path, pc.field("v") == pa.scalar(number, kind)) == [place]


TRUSTED = [
    ("parquet-mr version 1.9.0 (build 3)", "BYTE_ARRAY", "DECIMAL", "equal"),
    ("parquet-mr version 1.9.0 (build 3)", "FIXED_LEN_BYTE_ARRAY", "DECIMAL", "equal"),
    ("parquet-mr version 1.9.0 (build 3)", "INT64", "DECIMAL", "all"),
    ("parquet-mr version 1.9.0 (build 3)", "BYTE_ARRAY", "STRING", "all"),  # Arrow leaves these out
    ("parquet-mr", "BYTE_ARRAY", "DECIMAL", "none"),
    ("parquet-mr version 1.7.0 (build 3)", "BYTE_ARRAY", "STRING", "none"),
    ("parquet-mr version 1.7.0 (build 3)", "INT32", "NONE", "all"),
    ("parquet-mr version 1.10.1-databricks", "BYTE_ARRAY", "DECIMAL", "all"),
    ("parquet-mr version 2.0.0", "BYTE_ARRAY", "DECIMAL", "all"),
    ("parquet-cpp version 1.2.1", "FIXED_LEN_BYTE_ARRAY", "DECIMAL", "equal"),
    ("parquet-cpp version 1.5.1-SNAPSHOT", "FIXED_LEN_BYTE_ARRAY", "DECIMAL", "equal"),
    ("parquet-cpp-arrow version 3.0.0", "FIXED_LEN_BYTE_ARRAY", "DECIMAL", "equal"),
    ("parquet-cpp-arrow version 3.0.0", "INT64", "DECIMAL", "all"),
    ("parquet-cpp-arrow version 4.0.0", "FIXED_LEN_BYTE_ARRAY", "DECIMAL", "all"),
    ("parquet-cpp-arrow version 26.0.1", "FIXED_LEN_BYTE_ARRAY", "DECIMAL", "all"),
    ("parquet-rs version 59.3.0", "BYTE_ARRAY", "DECIMAL", "equal"),
    ("parquet-rs version 59.3.0", "FIXED_LEN_BYTE_ARRAY", "DECIMAL", "all"),
    ("Polars", "FIXED_LEN_BYTE_ARRAY", "DECIMAL", "none"),
    ("Polars", "INT64", "NONE", "all"),
    ("Arrow2 - Native Rust implementation of Arrow", "INT32", "DATE", "none"),
    ("Arrow2 - Native Rust implementation of Arrow", "DOUBLE", "NONE", "none"),
    ("Arrow2 - Native Rust implementation of Arrow", "BYTE_ARRAY", "STRING", "all"),
    ("Parquet.Net version 4.25.0 (build 3)", "INT64", "TIMESTAMP", "none"),
    ("Parquet.Net version LocalDev (build Local)", "INT64", "TIME", "none"),
    ("Parquet.Net version 4.25.0 (build 3)", "INT32", "DATE", "all"),
    ("Parquet.Netting", "INT64", "TIMESTAMP", "all"),
    ("parquet-go version 18.0.0", "INT32", "UINT_16", "none"),
    ("parquet-go version 18.0.0", "INT32", "INT_16", "all"),
    ("hyparquet", "INT32", "DECIMAL", "none"),
    ("hyparquet", "INT64", "DECIMAL", "all"),
    ("DuckDB version v1.1.0", "FIXED_LEN_BYTE_ARRAY", "DECIMAL", "all"),
    ("", "FIXED_LEN_BYTE_ARRAY", "DECIMAL", "none"),
    (None, "BYTE_ARRAY", "STRING", "none"),
    ("", "INT32", "UINT_32", "none"),
    ("", "INT64", "NONE", "all"),
]


@pytest.mark.parametrize(("writer", "physical", "logical", "trusted"), TRUSTED)
def test_bounds_are_trusted_by_their_writer(writer: str | None, physical: str, logical: str, trusted: str) -> None:
    column = SimpleNamespace(physical_type=physical, logical_type=SimpleNamespace(type=logical), converted_type=logical)
    assert trusted_bounds(SimpleNamespace(created_by=writer), column) == trusted


@pytest.mark.parametrize("entry", WRITERS, ids=lambda entry: entry.name)
def test_each_writer_has_a_source_and_a_test(entry: WrongBounds) -> None:
    assert entry.source.startswith("https://")
    outcomes = {trusted for writer, *_, trusted in TRUSTED if entry.wrote(writer or "")}
    assert entry.trusted in outcomes
    assert "all" in outcomes or entry.name == "parquet-cpp"
