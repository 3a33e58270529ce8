"""The slow HTTP store, and the file system over it: ranges as RFC 9110 says."""

from __future__ import annotations

import pickle
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.http_store import HttpStore
from benchmarks.slow_store import byte_range, server


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Of a store with one file of a hundred bytes."""
    (tmp_path / "numbers").write_bytes(bytes(range(100)))
    with server(tmp_path, latency_s=0.0, bytes_per_s=1e9) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_address[1]}"
        serving.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, None),
        ("bytes=0-9", (0, 9)),
        ("bytes=90-", (90, 99)),
        ("bytes=-10", (90, 99)),
        ("bytes=95-200", (95, 99)),
        ("bytes=-", None),
        ("rows=0-9", None),
    ],
)
def test_a_range_header_gives_first_and_last_byte(header: str | None, expected: tuple[int, int] | None) -> None:
    assert byte_range(header, 100) == expected


def test_the_store_serves_files_and_ranges_of_them(url: str) -> None:
    request = urllib.request.Request(f"{url}/numbers", headers={"Range": "bytes=10-12"})
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 206
        assert answer.headers["Content-Range"] == "bytes 10-12/100"
        assert answer.read() == bytes([10, 11, 12])
    with urllib.request.urlopen(f"{url}/numbers") as answer:
        assert answer.status == 200
        assert answer.read() == bytes(range(100))


def test_the_file_system_reads_ranges_and_survives_pickling(url: str) -> None:
    store = pickle.loads(pickle.dumps(HttpStore(url)))
    assert store.info("numbers")["size"] == 100
    assert store.cat_file("numbers", 5, 8) == bytes([5, 6, 7])
    assert store.cat_file("numbers", -2) == bytes([98, 99])
    with store.open("numbers", "rb") as file:
        file.seek(50)
        assert file.read(2) == bytes([50, 51])
    with pytest.raises(FileNotFoundError, match="letters"):
        store.info("letters")
