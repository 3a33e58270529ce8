"""Values in files whose pages are checked in the pass that reads them: the same bytes, each page once, no damage."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parquetry.common import NdarrayCodec, Pipeline, TensorCodec, Unischema, UnischemaField, write_dataset
from parquetry.common.base.errors import DatasetError
from parquetry.common.engine.read import unchecked_pages
from parquetry.common.engine.read.open_file import OpenFile
from parquetry.common.engine.read.passed_pages import PassedPages, page_keys
from parquetry.common.engine.read.unchecked_pages import UncheckedPages
from parquetry.common.parquet.pages import StoredPages
from parquetry.common.storage.file_versions import local_version

CHUNK = 7  # where the chunk begins in the file


class Written:
    """A file of pages with values in them, some of which have no checksum."""

    def __init__(self, path: Path, pages: list[tuple[list[tuple[int, int]], bool]], broken: set[int]) -> None:
        random = np.random.default_rng(len(pages))
        content = bytearray(random.bytes(CHUNK))
        stored: list[tuple[int, int, int]] = []
        self.values: list[tuple[int, bytes, int]] = []  # offset, value, page
        self.broken = {page for page in broken if page < len(pages) and pages[page][1] and pages[page][0]}
        for number, (values, has_checksum) in enumerate(pages):
            content += random.bytes(11)  # a header
            begin = len(content)
            for size, gap in values:
                content += random.bytes(gap)
                self.values.append((len(content), random.bytes(size), number))
                content += self.values[-1][1]
            content += random.bytes(len(values) % 2)  # the last value may end with its page
            checksum = zlib.crc32(content[begin:]) ^ (number in self.broken)
            if has_checksum:
                stored.append((begin - CHUNK, len(content) - CHUNK, checksum))
        self.stored = StoredPages(*np.array(stored, np.int64).reshape(-1, 3).T)
        path.write_bytes(content)
        self.file = OpenFile(local_version("local", str(path), path.stat()))
        self.passed = PassedPages()

    def unchecked(self) -> UncheckedPages:
        keys = page_keys("x", CHUNK, self.stored.begins)
        return UncheckedPages(self.file, self.stored, begin=CHUNK, keys=keys, passed=self.passed, place="here")


values_of_page = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0, 4, 60])), max_size=6)


@given(
    pages=st.lists(st.tuples(values_of_page, st.booleans() | st.just(True)), min_size=1, max_size=5),
    broken=st.sets(st.integers(0, 4), max_size=1),
    piece=st.sampled_from([1, 16, 1 << 18]),
    compiled=st.booleans(),
    data=st.data(),
)
def test_values_are_read_in_any_order_and_damaged_pages_never_pass(
    tmp_path_factory: pytest.TempPathFactory,
    pages: list[tuple[list[tuple[int, int]], bool]],
    broken: set[int],
    piece: int,
    compiled: bool,
    data: st.DataObject,
) -> None:
    written = Written(tmp_path_factory.mktemp("pages") / "x", pages, broken)
    unchecked = written.unchecked()
    if not written.values or not len(written.stored.begins):
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unchecked_pages, "_PIECE_BYTES", piece)
        if not compiled:
            patch.setattr(unchecked_pages, "read_pages", lambda _, pages, __: [None] * len(pages))
        for _ in range(2):
            rows = data.draw(st.lists(st.integers(0, len(written.values) - 1), max_size=12))
            starts = np.array([written.values[row][0] for row in rows], np.int64)
            places = [memoryview(bytearray(len(written.values[row][1]))) for row in rows]
            if written.broken.intersection(written.values[row][2] for row in rows):
                for read in (lambda: unchecked.read(starts, places), lambda: unchecked.check(starts)):  # noqa: B023
                    with pytest.raises(DatasetError, match=r"here, got: the page at byte .* CRC checksum"):
                        read()
            else:
                unchecked.read(starts, places)
                assert [bytes(place) for place in places] == [written.values[row][1] for row in rows]
                unchecked.check(starts)


def test_pages_that_passed_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written(tmp_path / "x", [([(30, 4)] * 5, True)] * 4, set())
    monkeypatch.setattr(unchecked_pages, "read_pages", lambda _, pages, __: [None] * len(pages))
    read: list[int] = []
    real = os.preadv

    def preadv(*arguments: Any) -> int:
        read.append(real(*arguments))
        return read[-1]

    monkeypatch.setattr(os, "preadv", preadv)
    starts = np.array([start for start, _, _ in written.values], np.int64)
    places = [memoryview(bytearray(30)) for _ in starts]
    values, whole = 30 * len(places), int((written.stored.ends - written.stored.begins).sum())
    written.unchecked().read(starts, places)
    assert sum(read) >= values + whole
    read.clear()
    written.unchecked().read(starts, places)  # the values, and the gaps and headers between them
    assert values <= sum(read) <= whole + 4 * 11
    read.clear()
    written.unchecked().check(starts)
    assert not read


def test_an_empty_value_at_the_end_of_a_damaged_page_is_not_delivered(tmp_path: Path) -> None:
    written = Written(tmp_path / "x", [([(30, 4), (0, 4)], True), ([(30, 4)], True)], {0})
    start, _, page = written.values[1]
    assert (start, page) == (CHUNK + written.stored.ends[0], 0)
    with pytest.raises(DatasetError, match=r"here, got: the page at byte .* CRC checksum"):
        written.unchecked().read(np.array([start]), [memoryview(bytearray())])


def test_pages_are_looked_up_only_until_all_have_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shuffled batches read few values in a call, and looking up their pages costs almost as much as that."""
    written = Written(tmp_path / "x", [([(30, 4)] * 2, True)] * 3 + [([(30, 4)], False)], set())
    starts = np.array([start for start, _, _ in written.values], np.int64)
    places = [memoryview(bytearray(30)) for _ in starts]
    unchecked = written.unchecked()
    looked_up: list[int] = []
    pages_of = UncheckedPages._pages_of
    monkeypatch.setattr(UncheckedPages, "_pages_of", lambda *given: looked_up.append(1) or pages_of(*given))
    for part in (slice(0, 2), slice(0, 7), slice(0, 7)):
        unchecked.read(starts[part], places[part])
    unchecked.check(starts)
    written.unchecked().read(starts, places)
    assert [bytes(place) for place in places] == [value for _, value, _ in written.values]
    assert len(looked_up) == 2


def test_a_file_that_changes_is_not_called_damaged(tmp_path: Path) -> None:
    written = Written(tmp_path / "x", [([(30, 4)], True)], {0})
    with (tmp_path / "x").open("ab") as file:
        file.write(b"more")
    with pytest.raises(DatasetError, match="changed"):
        written.unchecked().check(np.array([written.values[0][0]]))


READERS: dict[str, Callable[[Pipeline], Pipeline]] = {
    "in order": lambda pipeline: pipeline.batch(5),
    "shuffled": lambda pipeline: pipeline.shuffle(40, seed=3).batch(5),
    "windows": lambda pipeline: pipeline.ngram(length=2, timestamp="id").batch(3),
}


@pytest.mark.parametrize("codec", [TensorCodec(), NdarrayCodec()], ids=["tensor", "ndarray"])
@pytest.mark.parametrize("reader", READERS)
def test_rows_before_a_damaged_page_arrive(tmp_path: Path, reader: str, codec: Any) -> None:
    schema = Unischema("x", [UnischemaField("id", np.int64), UnischemaField("x", np.float32, (100, 60), codec)])
    rows = [{"id": number, "x": np.full((100, 60), number, np.float32)} for number in range(200)]
    write_dataset(tmp_path, schema, rows, row_group_rows=200, compression=None)
    [file] = tmp_path.glob("*.parquet")
    content = bytearray(file.read_bytes())
    content[content.index(np.full(200, 150, np.float32).tobytes()) + 100] ^= 1
    file.write_bytes(content)
    arrived: list[Any] = []
    with pytest.raises(DatasetError, match=r"row group 0: expected readable columns \['x'\], got: .*CRC checksum"):
        arrived.extend(READERS[reader](Pipeline(tmp_path)))
    assert len(arrived) > 10 or reader == "shuffled"
    for batch in arrived:
        sweeps = batch["x"].reshape(-1, 6_000)
        assert (sweeps == sweeps[:, :1]).all()
