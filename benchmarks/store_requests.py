"""Requests, bytes and stalls of epochs from a slow store: ``python -m benchmarks.store_requests rows.parquet ...``.

Reads the files through `slow_store`, with each latency, without a cache: a first epoch (planning included) and a later
one. Prints a line for each.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from parquetry.common import Pipeline
from parquetry.common.plan.selection.statistics import column_bytes

from .http_store import HttpStore
from .slow_store import server

STALL_S = 0.1
"""A consumer that waits longer for a batch is stalled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What one epoch took.

    Attributes:
        fetched, needed: bytes that the store sent, and bytes of the column chunks that were asked for.
        stalls: how often the consumer waited for longer than `STALL_S`; the first batch counts.
    """

    requests: int
    fetched: int
    needed: int
    stalls: int
    stalled_s: float
    seconds: float

    def __str__(self) -> str:
        ratio = self.fetched / max(1, self.needed)
        return (
            f"{self.seconds:6.2f} s, {self.requests:5} requests, {self.fetched / 1e6:8.1f} MB fetched ({ratio:.2f} of "
            f"what is needed), {self.stalls:3} stalls of {self.stalled_s:.2f} s in total"
        )


class CountingStore(HttpStore):
    """Counts requests and bytes, apart from other stores at the same URL."""

    cachable = False

    def __init__(self, url: str, **options: object) -> None:
        super().__init__(url, **options)
        self.requests = self.fetched = 0
        self._counting = threading.Lock()

    def _request(self, method: str, path: str, headers: dict[str, str]) -> tuple[object, bytes]:  # type: ignore[override]
        answer, body = super()._request(method, path, headers)
        with self._counting:
            self.requests += 1
            self.fetched += len(body)
        return answer, body


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="Parquet files in one folder")
    parser.add_argument("--fields", nargs="*", help="fields to read (default: all)")
    parser.add_argument("--latency-s", type=float, nargs="+", default=[0.03, 0.1])
    parser.add_argument("--batch", type=int, default=64)
    arguments = parser.parse_args()
    for latency_s in arguments.latency_s:
        for name, epoch in zip(
            ("first", "later"), epochs(arguments.files, arguments.fields, latency_s, arguments.batch), strict=True
        ):
            print(f"{latency_s * 1000:4.0f} ms, {name} epoch: {epoch}", flush=True)


def epochs(files: Sequence[Path], fields: Sequence[str] | None, latency_s: float, batch: int) -> Iterator[Epoch]:
    """Yields a first and a later epoch."""
    with serving(files[0].parent, latency_s) as url:
        store = CountingStore(url)
        rows = Pipeline([file.name for file in files], fields, filesystem=store, executor="threads")
        rows = rows.shuffle(1000, seed=1).batch(batch)
        for _ in range(2):
            yield _epoch(rows, store)
        store.close()


def _epoch(rows: Pipeline, store: CountingStore) -> Epoch:
    before, begin, waits = (store.requests, store.fetched), time.perf_counter(), []
    iterator, asked = iter(rows), begin
    for _ in iterator:
        waits.append(time.perf_counter() - asked)
        asked = time.perf_counter()
    seconds = time.perf_counter() - begin
    stalls = [wait for wait in waits if wait > STALL_S]
    names = [field.name for field in rows.element.outputs]
    needed = sum(column_bytes(rows.dataset, number, names) for number in range(len(rows.dataset.row_groups)))
    return Epoch(
        requests=store.requests - before[0],
        fetched=store.fetched - before[1],
        needed=needed,
        stalls=len(stalls),
        stalled_s=sum(stalls),
        seconds=seconds,
    )


@contextmanager
def serving(folder: Path, latency_s: float) -> Iterator[str]:
    """Serves a folder over HTTP at 100 MB/s while the block runs. Yields the URL."""
    serving = server(folder, latency_s=latency_s, bytes_per_s=100e6)
    thread = threading.Thread(target=serving.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{serving.server_address[1]}"
    finally:
        serving.shutdown()
        thread.join()
        serving.server_close()


if __name__ == "__main__":
    main()
