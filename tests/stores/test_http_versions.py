"""A file on a plain HTTP server is read in one version: each answer says which one it belongs to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_server import S3Server, serving

from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError
from parquetry.common.engine.read import fetch
from parquetry.common.storage import checked_files, http_ranges, retries

ROWS = 120
FILE = "part.parquet"


def write(path: Path, first: int) -> None:
    """Writes a file whose size is the same for any number below ``ROWS``."""
    table = pa.table({"id": np.arange(first, first + ROWS)})
    pq.write_table(table, path, row_group_size=20, use_dictionary=False, compression="none")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.001)
    write(tmp_path / FILE, 0)
    with serving(tmp_path) as store:
        yield store


def pipeline(store: S3Server) -> Pipeline:
    return Pipeline([f"http://{store.address}/{FILE}"], executor="threads", workers=1)


def replacing(path: Path, at: int) -> Callable[[str, str], None]:
    """Returns a `S3Server.fault` that replaces a file just before its ``at``-th read is answered."""
    reads = []

    def replace(method: str, asked: str) -> None:
        reads.append(method)
        if reads.count("GET") == at:
            size = path.stat().st_size
            write(path.with_suffix(".new"), 7)
            os.utime(path.with_suffix(".new"), (2e9, 2e9))
            os.replace(path.with_suffix(".new"), path)
            assert path.stat().st_size == size

    return replace


@pytest.mark.parametrize("hides", [set(), {"ETag"}, {"Last-Modified"}], ids=str)
@pytest.mark.parametrize("at", [1, 3, 6])
def test_bytes_of_two_versions_are_never_mixed(
    store: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, hides: set[str]
) -> None:
    monkeypatch.setattr(fetch, "RUN_BYTES", 0)  # so each row group takes a request
    store.hides = hides
    rows = pipeline(store)
    assert len(rows) == ROWS
    store.fault = replacing(tmp_path / FILE, at)
    found: list[int] = []
    with pytest.raises(
        DatasetError, match=rf"{FILE}: expected the version .* It changed since the pipeline was planned"
    ):
        found.extend(int(row["id"]) for row in rows)
    assert found == list(range(len(found)))
    assert len(found) <= 20 * (at - 1)


def test_a_file_that_shrinks_has_changed(store: S3Server, tmp_path: Path) -> None:
    rows = pipeline(store)
    assert len(rows) == ROWS
    store.hides = {"ETag", "Last-Modified"}
    content = (tmp_path / FILE).read_bytes()
    (tmp_path / FILE).write_bytes(content[: len(content) // 2])
    with pytest.raises(DatasetError, match=rf"{FILE}: .* It changed since the pipeline was planned"):
        list(rows)


def test_only_the_listing_asks_for_headers_alone(store: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checked_files, "RECHECK_S", 0.0)
    rows = pipeline(store)
    assert len(rows) == ROWS
    assert store.count() == {"HEAD": 1, "GET": 1}  # the listing, and the footer
    for _ in range(2):
        assert [int(row["id"]) for row in rows] == list(range(ROWS))
    assert store.count() == {"HEAD": 1, "GET": 1 + 2}  # a job needs all row groups, so one request fetches them


def test_answers_that_tell_no_version_are_followed_by_a_question(store: S3Server) -> None:
    rows = pipeline(store)
    assert len(rows) == ROWS
    store.hides = {"ETag", "Last-Modified"}
    assert [int(row["id"]) for row in rows] == list(range(ROWS))
    assert store.count()["HEAD"] > 1


def test_a_server_without_ranges_is_an_error_if_files_are_large(
    store: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from s3_server import _Handler

    monkeypatch.setattr(_Handler, "parse_request", _without_range(_Handler.parse_request))
    rows = pipeline(store)
    assert [int(row["id"]) for row in rows] == list(range(ROWS))
    monkeypatch.setattr(http_ranges, "_MOST_WHOLE_BYTES", 100)
    with pytest.raises(DatasetError, match=r"row group 0: cannot be read, .*Read the files from a server that answers"):
        list(rows)


def _without_range(parse: Callable[..., bool]) -> Callable[..., bool]:
    def parsed(handler: object) -> bool:
        found = parse(handler)
        if found:
            del handler.headers["Range"]  # type: ignore[attr-defined]
        return found

    return parsed
