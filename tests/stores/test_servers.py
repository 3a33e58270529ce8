"""Each kind of store, served on loopback, gives every reader the rows of a local dataset, in the same order."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from builders import Built, build, make_row
from faces import plain
from store_servers import gcs_emulator, gs_url, moto_s3, s3_url
from torch.utils.data import DataLoader

from benchmarks.slow_store import byte_range
from parquetry.common import Pipeline, write_dataset
from parquetry.common.dataset import store_reads
from parquetry.torch_plugin import ParquetIterable

FILES = [[20, 13], [7, 0, 30], [30]]
NAMES = ("id", "speed", "tags", "image")

Read = Callable[..., list[Any]]


def by_threads(*args: Any, **options: Any) -> list[Any]:
    return [plain(row) for row in shuffled(Pipeline(*args, executor="threads", **options))]


def by_a_sidecar(*args: Any, **options: Any) -> list[Any]:
    return [plain(row) for row in shuffled(Pipeline(*args, executor="sidecar", workers=2, **options))]


def by_loader_workers(*args: Any, **options: Any) -> list[Any]:
    rows = shuffled(ParquetIterable(*args, **options))
    return [plain(row) for row in DataLoader(rows, batch_size=None, num_workers=2)]


READERS = [by_threads, by_a_sidecar, by_loader_workers]


def shuffled(rows: Any) -> Any:
    return rows.select(*NAMES).nulls("fill", "speed", value=-1).shuffle(20, seed=3)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("rows") / "data", FILES, names=NAMES)


@pytest.fixture(scope="module")
def expected(built: Built) -> list[Any]:
    return by_threads(built.url)


# --- S3 and Google Cloud Storage ---


@pytest.fixture(scope="module")
def s3(built: Built) -> Iterator[str]:
    """The URL of the dataset in a bucket, written by `write_dataset`."""
    with moto_s3() as address:
        yield written(s3_url(address), built)


@pytest.fixture(scope="module")
def gs(built: Built) -> Iterator[str]:
    """The URL of the dataset in a bucket, written by `write_dataset`."""
    with gcs_emulator() as address:
        yield written(gs_url(address), built)


def written(url: str, built: Built) -> str:
    write_dataset(url, built.schema, (make_row(n, NAMES) for n in range(len(built.rows))), row_group_rows=20, files=3)
    return url


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("store", ["s3", "gs"])
def test_a_bucket_that_was_written_gives_the_rows_in_order(
    store: str, reader: Read, built: Built, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(store)
    rows = reader(url)
    assert rows == by_threads(url)
    assert sorted(rows, key=lambda row: row["id"]) == sorted(by_threads(built.url), key=lambda row: row["id"])


@pytest.mark.parametrize("store", ["s3", "gs"])
def test_filters_ranks_and_states_work_on_a_bucket(store: str, request: pytest.FixtureRequest) -> None:
    def ranks() -> list[Any]:
        rows = Pipeline(request.getfixturevalue(store), ["id"]).where([("id", ">=", 30)]).shuffle(9, seed=1)
        return [rows.shard(2, rank) for rank in range(2)]

    seen = []
    for rows, again in zip(ranks(), ranks(), strict=True):
        iterator = iter(rows)
        seen += [int(next(iterator)["id"]) for _ in range(11)]
        resumed = iter(again)
        resumed.load_state_dict(iterator.state_dict())
        seen += [int(row["id"]) for row in resumed]
    assert sorted(seen) == list(range(30, sum(map(sum, FILES))))


@pytest.mark.parametrize("store", ["s3", "gs"])
def test_a_bucket_that_is_not_there_is_named(store: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(store).replace("lake/rows", "nowhere/rows")
    with pytest.raises(OSError, match="nowhere"):
        len(Pipeline(url))


# --- HTTP ---


FAILING = (3, 6)
"""Which requests for a file fail: the first ones come before the plan."""


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder with range requests. Two requests for each file fail, in the ways of ``faults``, one after the other.

    A read is made three times, so it succeeds even if both fall into it.
    """

    protocol_version = "HTTP/1.1"
    faults: tuple[str, ...] = ()
    lock = threading.Lock()
    requests: ClassVar[Counter[str]] = Counter()
    failed = 0
    sent = 0

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing."""

    def do_HEAD(self) -> None:  # the name that http.server calls
        self._answer(body=False)

    def do_GET(self) -> None:  # the name that http.server calls
        self._answer(body=True)

    def _fault(self) -> str:
        cls = type(self)
        with cls.lock:
            cls.requests[self.path] += 1
            if not cls.faults or cls.requests[self.path] not in FAILING:
                return ""
            cls.failed += 1
            return cls.faults[cls.failed % len(cls.faults)]

    def _answer(self, *, body: bool) -> None:
        fault = self._fault()
        path = self.translate_path(self.path)
        if fault == "busy":
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "Slow Down")
            return
        if fault == "reset":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if not os.path.isfile(path):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        data = Path(path).read_bytes()
        wanted = byte_range(self.headers.get("Range"), len(data))
        first, last = wanted or (0, len(data) - 1)
        self.send_response(HTTPStatus.OK if wanted is None else HTTPStatus.PARTIAL_CONTENT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{len(data)}"')
        self.send_header("Content-Length", str(last - first + 1))
        if wanted is not None:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        if body:
            with type(self).lock:
                type(self).sent += last + 1 - first
            cut = fault == "cut"
            self.wfile.write(data[first : (first + last) // 2 if cut else last + 1])
            self.close_connection = cut


@pytest.fixture
def http(built: Built) -> Iterator[Callable[..., list[str]]]:
    """Returns a function that serves the dataset, and returns the URLs of its files."""
    servers, faulty = [], []

    def sent() -> int:
        return sum(server.RequestHandlerClass.func.sent for server in servers)

    def serve(*faults: str) -> list[str]:
        handler = type("Faulty", (Handler,), {"faults": faults, "lock": threading.Lock(), "requests": Counter()})
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=built.url))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        faulty.extend([handler] if faults else [])
        names = sorted(path.name for path in Path(built.url).glob("[!_.]*.parquet"))
        return [f"http://127.0.0.1:{server.server_address[1]}/{name}" for name in names]

    serve.sent = sent  # type: ignore[attr-defined]
    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()
    assert all(handler.failed >= 3 for handler in faulty)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("faults", [(), ("busy",), ("reset",), ("cut",), ("busy", "reset", "cut")], ids=str)
def test_http_gives_the_rows_in_order_whatever_fails_in_between(
    http: Callable[..., list[str]], reader: Read, faults: tuple[str, ...], expected: list[Any]
) -> None:
    assert reader(http(*faults)) == expected


@pytest.mark.parametrize("faults", [(), ("busy", "reset", "cut")], ids=str)
def test_large_row_groups_come_through_temporary_files(
    http: Callable[..., list[str]], faults: tuple[str, ...], expected: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reads, "_PIECE_BYTES", 1000)  # many pieces for each column chunk
    rows = shuffled(Pipeline(http(*faults), executor="threads", memory_limit=1))
    assert "and is read in slices into a temporary file" in rows.explain()
    assert [plain(row) for row in rows] == expected


def test_loader_workers_download_each_row_group_once(http: Callable[..., list[str]], expected: list[Any]) -> None:
    sent: Callable[[], int] = http.sent  # type: ignore[attr-defined]
    needed = []
    for workers in (0, 4):
        before = sent()
        rows = shuffled(ParquetIterable(http()))
        assert [plain(row) for row in DataLoader(rows, batch_size=None, num_workers=workers)] == expected
        needed.append(sent() - before)
    assert needed[1] < 1.5 * needed[0]  # the last row groups again if a worker has ended


def test_a_file_that_http_does_not_have_is_named(http: Callable[..., list[str]]) -> None:
    urls = http()
    with pytest.raises(OSError, match=r"part-999\.parquet"):
        len(Pipeline([*urls, urls[0].rsplit("/", 1)[0] + "/part-999.parquet"]))
