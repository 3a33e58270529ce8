"""Column chunks are fetched from a store in few requests, and Arrow reads them as if the file were local."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.spec import AbstractBufferedFile
from hypothesis import given
from hypothesis import strategies as st
from memory_store import Store
from processes import PATIENCE_S

from parquetry.common import Pipeline
from parquetry.common.storage import chunk_ranges
from parquetry.common.storage.chunk_ranges import ChunkFile, fetch_ranges, joined, requested_ranges

COLUMNS, ROW_GROUPS, ROWS = 22, 3, 500


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a file with numbers, dictionary-encoded text, and lists."""
    rng = np.random.default_rng(0)
    rows = ROW_GROUPS * ROWS
    columns: dict[str, Any] = {f"c{number}": rng.standard_normal(rows) for number in range(COLUMNS)}
    columns["text"] = [f"text {row % 7}" for row in range(rows)]
    columns["lists"] = [[row] * (row % 5) for row in range(rows)]
    columns["record"] = [{"a": row, "b": {"c": str(row)}} for row in range(rows)]
    path = tmp_path_factory.mktemp("chunks") / "part.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=ROWS)
    return path


class CountingStore(Store):
    """Records each range that is read."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ranges: list[tuple[int, int]] = []

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        opened, ranges = super()._open(path, mode, **options), self.ranges
        real = opened.read

        def read(size: int = -1) -> bytes:
            ranges.append((opened.tell(), size))
            return bytes(real(size))

        opened.read = read
        return opened


@pytest.mark.parametrize(
    "fields", [["c0", "c7", "c21"], ["c3", "text", "lists"], ["record.a", "record.b.c"], None], ids=str
)
@pytest.mark.parametrize("gap", [0, 1 << 20])
def test_each_row_group_is_fetched_in_few_requests(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: list[str] | None, gap: int
) -> None:
    for name in ("SMALL_GAP_BYTES", "MOST_GAP_BYTES"):
        monkeypatch.setattr(chunk_ranges, name, gap)
    store = CountingStore(name=str(tmp_path), says="tag")
    store.put_file_bytes("data/part.parquet", stored.read_bytes())
    local = Pipeline(str(stored), fields).batch(100)
    pipeline = Pipeline("data", fields, filesystem=store, executor="threads").batch(100)
    len(pipeline)  # reads the footer
    few = "1.0 requests a row group" if gap or fields is None else "requests a row group"
    assert few in pipeline.explain()
    store.ranges.clear()
    batches = list(pipeline)
    for found, expected in zip(batches, local, strict=True):
        assert found.keys() == expected.keys()
        for name in found:
            assert repr(found[name]) == repr(expected[name])
    runs = 2  # the first row group, and the two after it
    assert runs <= len(store.ranges) <= ROW_GROUPS * (1 if gap or fields is None else 3)


class BufferedStore(Store):
    """Its files would read megabytes ahead, as in most fsspec stores."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.fetched: list[int] = []

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        store = self

        class File(AbstractBufferedFile):
            def _fetch_range(self, start: int, end: int) -> bytes:
                store.fetched.append(end - start)
                return store.files[path][start:end]

        options.pop("autocommit", None)
        return File(self, path, mode, **options)


class PlainStore(BufferedStore):
    """Has no options for its files."""

    def _open(
        self, path: str, mode: str = "rb", block_size: Any = None, cache_options: Any = None, autocommit: bool = True
    ) -> Any:
        return super()._open(path, mode)


@pytest.mark.parametrize(("kind", "most"), [(BufferedStore, 20_000), (PlainStore, 1 << 30)])
def test_no_block_is_read_ahead(stored: Path, tmp_path: Path, kind: type[BufferedStore], most: int) -> None:
    store = kind(name=str(tmp_path), says="tag")
    store.put_file_bytes("data/part.parquet", stored.read_bytes())
    pipeline = Pipeline("data", ["c5"], filesystem=store, executor="threads")
    assert [row["c5"] for row in pipeline] == [row["c5"] for row in Pipeline(str(stored), ["c5"])]
    store.fetched.clear()
    list(pipeline)
    assert sum(store.fetched) <= most


@given(
    ranges=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 60)).map(lambda pair: (pair[0], sum(pair)))),
    small=st.integers(0, 30),
    gap=st.integers(0, 60),
    most=st.integers(1, 200),
)
def test_joined_ranges_cover_what_was_asked_for_and_little_else(
    ranges: list[tuple[int, int]], small: int, gap: int, most: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_ranges, "SMALL_GAP_BYTES", small)
        patch.setattr(chunk_ranges, "MOST_GAP_BYTES", gap)
        patch.setattr(chunk_ranges, "MOST_RANGE_BYTES", most)
        requests = joined(ranges)
    assert requests == sorted(requests)
    for first, end in ranges:
        assert any(begin <= first and end <= stop for begin, stop in requests)
    needed = {byte for first, end in ranges for byte in range(first, end)}
    longest = 0
    for begin, stop in requests:
        gap_bytes = 0
        for byte in range(begin, stop):
            gap_bytes = 0 if byte in needed else gap_bytes + 1
            longest = max(longest, gap_bytes)
    fetched = sum(stop - begin for begin, stop in requests)
    assert longest <= max(small, gap)
    assert longest <= small or fetched <= 1.5 * len(needed)


def test_several_ranges_come_from_a_native_file_in_order(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(10_000)
    (tmp_path / "file").write_bytes(content)
    wanted = [(5, 90), (100, 101), (4000, 9999)]

    def opened() -> Any:
        return pa.OSFile(str(tmp_path / "file"))

    assert fetch_ranges(opened, wanted) == [content[first:end] for first, end in wanted]
    with pytest.raises(OSError, match="expected 2 bytes at 9999, but got 1"):
        fetch_ranges(opened, [(9999, 10_001)])


KB = 1 << 10


@pytest.mark.parametrize(
    ("chunk_bytes", "gaps", "requests"),
    [
        (100 * KB, [300 * KB, 300 * KB], 3),  # 3 of 41 columns
        (100 * KB, [60 * KB, 300 * KB], 2),
        (5 * KB, [60 * KB] * 9, 1),  # however little is needed, so small gaps cost less than requests
        (1000 * KB, [700 * KB, 900 * KB], 2),
        (1000 * KB, [600 * KB, 500 * KB], 1),
        (1000 * KB, [800 * KB, 800 * KB], 3),  # as many gaps of one size are not closed by chance
        (9000 * KB, [1100 * KB, 1000 * KB], 2),
        (100 * KB, [], 1),
    ],
)
def test_gaps_are_closed_that_cost_less_than_a_request(chunk_bytes: int, gaps: list[int], requests: int) -> None:
    begins = np.cumsum([0, *(chunk_bytes + gap for gap in gaps)]).tolist()
    assert len(joined([(begin, begin + chunk_bytes) for begin in begins])) == requests


def test_nothing_is_requested_beyond_the_end_of_a_file() -> None:
    assert requested_ranges([(500_000, 600_000), (4, 10)], 600_000) == [(4, 110), (500_000, 600_000)]
    assert requested_ranges([], 600_000) == []


class WaitingStore(CountingStore):
    """Its reads wait for each other, so they must be under way at once."""

    together: Any = None

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        opened = super()._open(path, mode, **options)
        real = opened.read

        def read(size: int = -1) -> bytes:
            if self.together is not None:
                self.together.wait(PATIENCE_S)
            return bytes(real(size))

        opened.read = read
        return opened


def test_the_ranges_of_an_fsspec_file_are_fetched_at_once(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SMALL_GAP_BYTES", "MOST_GAP_BYTES"):
        monkeypatch.setattr(chunk_ranges, name, 0)
    store = WaitingStore(name=str(tmp_path), says="tag")
    store.put_file_bytes("data/part.parquet", stored.read_bytes())
    pipeline = Pipeline("data", ["c0", "c7", "c21"], filesystem=store, executor="threads").batch(100)
    len(pipeline)
    store.together = threading.Barrier(3)
    assert len(list(pipeline)) == ROW_GROUPS * ROWS // 100


def test_only_what_was_fetched_can_be_read() -> None:
    file = ChunkFile(100)
    file.hold([(10, 20), (50, 60)], [bytes(range(10, 20)), bytes(range(50, 60))])
    file.seek(12)
    assert bytes(file.read(3)) == bytes([12, 13, 14])
    assert file.tell() == 15
    assert file.seek(-1, 2) == 99
    for position, size in ((5, 3), (18, 4), (20, 1), (59, 2), (99, 1)):
        file.seek(position)
        with pytest.raises(OSError, match="lie outside of the column chunks"):
            file.read(size)
    file.seek(100)
    assert bytes(file.read(5)) == b""
