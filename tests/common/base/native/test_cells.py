"""Values of pages read by the compiled core: their bytes, and the checksums of whole pages, or nothing."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import examples

from parquetry.common.base.native.parquet import WantedPage, read_pages

CONTENT = np.random.default_rng(1).bytes(3_000)


@pytest.fixture(scope="module")
def descriptor(tmp_path_factory: pytest.TempPathFactory) -> int:
    path = tmp_path_factory.mktemp("cells") / "x"
    path.write_bytes(CONTENT)
    return os.open(path, os.O_RDONLY)


def wanted(begin: int, end: int, places: list[tuple[int, int]]) -> WantedPage:
    return WantedPage(begin, end, [(place, memoryview(bytearray(size))) for place, size in places])


@st.composite
def pages(draw: st.DrawFn) -> list[WantedPage]:
    found = []
    for _ in range(draw(st.integers(0, 4))):
        cuts = sorted(draw(st.lists(st.integers(0, len(CONTENT)), min_size=2, max_size=10)))
        begin, *inner, end = cuts
        places = [(first, last - first) for first, last in zip(inner[::2], inner[1::2], strict=False)]
        found.append(wanted(begin, end, places))
    return found


@examples(200)
@given(pages=pages(), spare=st.sampled_from([1, 100, 300, 4_096]))
def test_values_and_checksums_match_the_file(descriptor: int, pages: list[WantedPage], spare: int) -> None:
    checksums = read_pages(descriptor, pages, np.empty(spare, np.uint8))
    assert checksums == [zlib.crc32(CONTENT[page.begin : page.end]) for page in pages]
    for page in pages:
        for place, memory in page.places:
            assert memory == CONTENT[place : place + len(memory)]


@pytest.mark.parametrize(
    "page",
    [
        wanted(2_990, 3_010, []),  # ends after the file
        wanted(10, 20, [(12, 9)]),  # a value ends after the page
        wanted(10, 20, [(8, 4)]),  # or begins before it
        wanted(10, 20, [(15, 2), (16, 2)]),  # or in the value before it
    ],
)
def test_pages_that_cannot_be_read_have_no_checksum(descriptor: int, page: WantedPage) -> None:
    good = wanted(0, 50, [(10, 4)])
    assert read_pages(descriptor, [page, good], np.empty(64, np.uint8)) == [None, zlib.crc32(CONTENT[:50])]
    assert good.places[0][1] == CONTENT[10:14]


def test_unreadable_files_have_no_checksums(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    assert read_pages(folder, [wanted(0, 50, [(1, 2)])], np.empty(64, np.uint8)) == [None]
    os.close(folder)
