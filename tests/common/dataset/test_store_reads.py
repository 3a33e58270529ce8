"""Row groups that are neighbors in a file and read together are fetched from a store in the same requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFile
from memory_store import Store
from processes import PATIENCE_S
from s3_server import S3Server, serving
from spies import spied

from benchmarks.http_store import HttpStore
from parquetry.common import Pipeline
from parquetry.common.base.errors import DatasetError
from parquetry.common.dataset.dataset import StoredDataset
from parquetry.common.engine.read import fetch
from parquetry.common.storage import hedged_reads, latencies, retries
from parquetry.common.storage.chunk_ranges import PADDING_BYTES
from parquetry.common.storage.retries import ATTEMPTS

GROUPS, ROWS = 40, 1000
FILE = "part.parquet"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lake") / FILE
    ids = np.arange(GROUPS * ROWS)
    table = pa.table({"id": ids, "noise": np.random.default_rng(0).integers(0, 1 << 60, len(ids))})
    options = {"row_group_size": ROWS, "use_dictionary": False, "compression": "none"}
    pq.write_table(table, path, **options, write_page_checksum=True)
    return path


@pytest.fixture
def server(file: Path) -> Iterator[S3Server]:
    with serving(file.parent) as store:
        yield store


@pytest.fixture(autouse=True)
def _no_waits_and_hedges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_WAIT_S", 0.0)
    for name in ("SLOW_S", "SILENT_S", "QUESTION_S"):
        monkeypatch.setattr(hedged_reads, name, PATIENCE_S)  # on a busy machine, a request may take long
    monkeypatch.setattr(latencies, "FLOOR_S", PATIENCE_S)


def bounds(file: Path, column: int = 0) -> list[int]:
    """Returns where a column of each row group begins."""
    footer = pq.read_metadata(file)
    return [footer.row_group(number).column(column).data_page_offset for number in range(GROUPS)]


def ranges_of(server: S3Server) -> list[list[int]]:
    """Returns the first and last byte of each request, in the order of the file."""
    texts = [text.removeprefix("bytes=") for method, _, text in server.log if method == "GET"]
    return sorted([int(number) for number in text.split("-")] for text in texts)


def row_groups_of(server: S3Server, file: Path) -> list[int]:
    """Returns how many row groups each request was for, in the order of the file."""
    return [sum(first <= begin <= last - PADDING_BYTES for begin in bounds(file)) for first, last in ranges_of(server)]


def over_http(server: S3Server, *fields: str, **options: Any) -> Pipeline:
    store = HttpStore(f"http://{server.address}")
    return Pipeline([FILE], list(fields) or None, filesystem=store, executor="threads", workers=1, **options)


def ids_of(rows: Pipeline, server: S3Server) -> list[int]:
    """Reads an epoch, whose requests are then those in the log."""
    assert len(rows) == GROUPS * ROWS
    server.log.clear()
    return [row["id"] for row in rows]


def test_an_epoch_in_order_joins_ever_more_row_groups_in_a_request(server: S3Server, file: Path) -> None:
    assert ids_of(over_http(server), server) == list(range(GROUPS * ROWS))
    assert row_groups_of(server, file) == [1, 2, 4, 8, 16, 9]
    fetched = sum(last + 1 - first for first, last in ranges_of(server))
    assert fetched <= file.stat().st_size + 6 * PADDING_BYTES


def test_a_job_that_needs_several_row_groups_joins_them(server: S3Server, file: Path) -> None:
    rows = over_http(server).batch(10 * ROWS)
    assert len(rows) == GROUPS // 10
    server.log.clear()
    assert [first for batch in rows for first in batch["id"][::ROWS].tolist()] == list(range(0, GROUPS * ROWS, ROWS))
    counts = row_groups_of(server, file)
    assert counts[0] == 10
    assert sum(counts) == GROUPS
    assert len(counts) <= 8


def test_a_request_for_several_row_groups_is_limited(
    server: S3Server, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    footer = pq.read_metadata(file)
    stored = sum(footer.row_group(0).column(number).total_compressed_size for number in range(2))
    monkeypatch.setattr(fetch, "RUN_BYTES", int(5.5 * stored))
    assert ids_of(over_http(server), server) == list(range(GROUPS * ROWS))
    assert row_groups_of(server, file) == [1, 2, 4, *[5] * 6, 3]


def test_row_groups_that_fill_the_memory_are_fetched_one_by_one(server: S3Server, file: Path) -> None:
    assert ids_of(over_http(server, memory_limit=200_000), server) == list(range(GROUPS * ROWS))
    assert row_groups_of(server, file) == [1] * GROUPS


def test_a_shuffle_block_joins_its_neighbors(server: S3Server, file: Path) -> None:
    rows = over_http(server).shuffle(GROUPS * ROWS, seed=1)
    assert sorted(ids_of(rows, server)) == list(range(GROUPS * ROWS))
    assert row_groups_of(server, file) == [GROUPS]


def test_shuffled_row_groups_are_not_fetched_before_their_turn(server: S3Server, file: Path) -> None:
    rows = over_http(server).shuffle(ROWS, seed=1)
    assert sorted(ids_of(rows, server)) == list(range(GROUPS * ROWS))
    counts = row_groups_of(server, file)
    assert sum(counts) == GROUPS
    assert len(counts) > GROUPS * 0.8


def test_row_groups_that_a_filter_leaves_out_are_not_fetched(server: S3Server, file: Path) -> None:
    first, last = 10 * ROWS, 12 * ROWS
    rows = over_http(server).where((pc.field("id") < first) | (pc.field("id") >= last))
    assert len(rows) == GROUPS * ROWS - (last - first)
    server.log.clear()
    assert [row["id"] for row in rows] == [*range(first), *range(last, GROUPS * ROWS)]
    assert row_groups_of(server, file) == [1, 2, 4, 3, 16, 12]


def test_bytes_between_the_columns_of_joined_row_groups_are_not_fetched(
    server: S3Server, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parquetry.common.storage.chunk_ranges.SMALL_GAP_BYTES", 1000)
    assert ids_of(over_http(server, "id"), server) == list(range(GROUPS * ROWS))
    ranges = ranges_of(server)
    needed = GROUPS * (bounds(file, 1)[0] - bounds(file)[0])
    assert sum(last + 1 - first for first, last in ranges) <= 1.5 * needed + len(ranges) * PADDING_BYTES
    assert len(ranges) > GROUPS // 2


def test_joined_row_groups_need_only_the_columns_that_are_read_of_a_footer(
    server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = spied(monkeypatch, StoredDataset, "group_footer", lambda dataset, row_group, names=None: names)
    assert ids_of(over_http(server, "id"), server) == list(range(GROUPS * ROWS))
    assert len(ranges_of(server)) < GROUPS
    assert {*asked} <= {frozenset(), frozenset({"id"})}


class FaultyStore(Store):
    """A store that fails for ranges of one file."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ranges: list[tuple[int, int]] = []
        self.fault: Callable[[int, int], Exception | None] = lambda first, end: None

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        store = self

        class File(MemoryFile):
            def read(self, size: int = -1) -> bytes:
                first, content = self.tell(), bytes(super().read(size))
                store.ranges.append((first, first + len(content)))
                error = store.fault(first, first + len(content))
                if error is not None:
                    raise error
                return content

        return File(self, path, self.files[path])


@pytest.fixture
def store(file: Path, tmp_path: Path) -> FaultyStore:
    result = FaultyStore(name=str(tmp_path), says="tag")
    result.put_file_bytes(f"data/{FILE}", file.read_bytes())
    return result


def read_until_error(store: FaultyStore) -> tuple[list[int], str]:
    ids: list[int] = []
    with pytest.raises(DatasetError) as raised:
        ids.extend(row["id"] for row in Pipeline("data", filesystem=store, executor="threads", workers=1))
    return ids, str(raised.value)


def test_an_error_names_the_row_group_that_is_damaged(store: FaultyStore, file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[bounds(file)[5] + 500] ^= 1
    store.put_file_bytes(f"data/{FILE}", bytes(content))
    ids, error = read_until_error(store)
    assert ids == list(range(len(ids)))
    assert 0 < len(ids) <= 5 * ROWS
    assert "row group 5: expected readable columns ['id']" in error


def test_an_error_names_the_row_group_that_the_store_does_not_send(store: FaultyStore, file: Path) -> None:
    place = bounds(file)[5] + 2 * PADDING_BYTES  # Arrow's readers may read on a little after row group 4
    store.fault = lambda first, end: PermissionError("no") if first <= place < end else None
    ids, error = read_until_error(store)
    assert ids == list(range(len(ids)))
    assert 0 < len(ids) <= 5 * ROWS
    assert "row group 5: " in error


def test_row_groups_are_fetched_one_by_one_if_joined_requests_fail(store: FaultyStore, file: Path) -> None:
    group_bytes = 2 * (bounds(file)[1] - bounds(file)[0])
    rows = Pipeline("data", filesystem=store, executor="threads", workers=1)
    assert len(rows) == GROUPS * ROWS
    store.fault = lambda first, end: OSError("too much") if end - first > group_bytes else None
    assert [row["id"] for row in rows] == list(range(GROUPS * ROWS))


@pytest.mark.parametrize("failures", [1, 2, ATTEMPTS - 1])
def test_a_busy_store_delays_joined_row_groups(store: FaultyStore, failures: int) -> None:
    rows = Pipeline("data", filesystem=store, executor="threads", workers=1).shuffle(GROUPS * ROWS, seed=1)
    assert len(rows) == GROUPS * ROWS
    left = iter(range(failures))
    store.fault = lambda first, end: None if next(left, None) is None else TimeoutError()
    iterator = iter(rows)
    assert sorted(row["id"] for row in iterator) == list(range(GROUPS * ROWS))
    assert iterator.stats().retries >= min(failures, 2)
