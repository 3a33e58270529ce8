"""Requests to one store are bounded over all processes of a machine, and no slot outlives the process that holds it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import PATIENCE_S, eventually
from s3_server import serving

from parquetry.common.storage import hedged_reads, request_slots
from parquetry.common.storage.chunk_ranges import fetch_ranges
from parquetry.common.storage.hedged_reads import hedged_read
from parquetry.common.storage.request_slots import Slots, most_requests, slots_of, using


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[str]:
    """An endpoint that no other test has. Reads that give up waiting for a slot fail the test."""
    monkeypatch.setattr(request_slots, "_directory", lambda: str(tmp_path))
    monkeypatch.setattr(request_slots, "PATIENCE_S", PATIENCE_S)
    yield f"test {tmp_path}"
    assert not [record for record in caplog.get_records("call") if "still no free slot" in record.message]


@pytest.fixture(autouse=True)
def _two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_STORE_REQUESTS", "2")


def test_a_closed_lease_cancels_what_waits_and_nothing_else(endpoint: str) -> None:
    cancelled: list[str] = []
    with slots_of(endpoint).taken() as held:
        with held.when_closed(lambda: cancelled.append("ended before")):
            pass
        with held.when_closed(lambda: cancelled.append("waits")):
            held.close()
            assert cancelled == ["waits"]
        with held.when_closed(lambda: cancelled.append("began after")):
            assert cancelled == ["waits", "began after"]
    assert cancelled == ["waits", "began after"]


class Peak:
    """Counts how many are inside at a time. The first two wait for each other, so they are inside together."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = threading.Lock()
        self._together = threading.Barrier(2)
        self._alone = iter([False, False])

    @contextmanager
    def inside(self) -> Iterator[None]:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
            is_alone = next(self._alone, True)
        if not is_alone:
            self._together.wait(PATIENCE_S)
        yield
        with self._lock:
            self.now -= 1


@contextmanager
def child_with(endpoint: str, slots: int) -> Iterator[int]:
    """Runs a forked process that takes slots and then sleeps. Yields its id."""
    ready, says = os.pipe()
    pid = os.fork()
    if pid == 0:
        found = [slots_of(endpoint).try_one() for _ in range(slots)]
        os.write(says, bytes([sum(each is not None for each in found)]))
        signal.pause()
        os._exit(0)
    assert os.read(ready, 1) == bytes([slots])
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(says)


def test_endpoints_share_a_file_but_no_slots(endpoint: str, tmp_path: Path) -> None:
    both = [slots_of(endpoint), slots_of(f"{endpoint}, another one")]
    with child_with(endpoint, 1):
        assert [slots.try_one() is not None for slots in both * 3] == [True, True, False, True, False, False]
    assert os.listdir(tmp_path) == ["requests"]


def test_a_file_that_could_not_be_opened_once_is_opened_later(tmp_path: Path) -> None:
    directory = tmp_path / "later"
    assert Slots(str(directory), "a")._file is None
    directory.mkdir()
    assert Slots(str(directory), "a")._file is not None


def eventually_takes(slots: Slots) -> int:
    found: list[int] = []

    def takes_one() -> bool:
        slot = slots.try_one()
        found.extend([] if slot is None else [slot])
        return bool(found)

    assert eventually(takes_one)
    return found[0]


def test_threads_make_no_more_requests_than_there_are_slots(endpoint: str) -> None:
    peak = Peak()

    def read() -> int:
        with peak.inside():
            time.sleep(0.005)
        return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(lambda _: hedged_read(read, "a file", endpoint=endpoint), range(20))) == 20
    assert peak.most == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns about forks in threaded processes
def test_a_killed_process_leaves_its_slots_to_others(endpoint: str) -> None:
    slots = slots_of(endpoint)
    with child_with(endpoint, 2):
        assert slots.try_one() is None
    assert {eventually_takes(slots), eventually_takes(slots)} == {0, 1}
    assert slots.try_one() is None
    slots.release(1)
    assert eventually_takes(slots) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_none_of_its_parents_slots(endpoint: str) -> None:
    slots = slots_of(endpoint)
    held = [slots.try_one(), slots.try_one()]
    assert sorted(map(str, held)) == ["0", "1"]
    ready, says = os.pipe()
    pid = os.fork()
    if pid == 0:
        found: set[int] = set()
        with suppress(BaseException):
            os.write(says, bytes([slots.try_one() is None]))
            found = {eventually_takes(slots), eventually_takes(slots)}
        os._exit(len(found))
    assert os.read(ready, 1) == bytes([True])
    for each in held:
        slots.release(int(each or 0))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    os.close(ready)
    os.close(says)


def test_a_read_inside_a_read_needs_no_second_slot(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_STORE_REQUESTS", "1")

    def read_footer() -> int:
        return hedged_read(lambda: 7, "its footer", endpoint=endpoint)

    assert hedged_read(read_footer, "a file", endpoint=endpoint) == 7


def test_a_read_that_was_given_up_returns_its_slot(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_STORE_REQUESTS", "1")
    monkeypatch.setattr(hedged_reads, "SILENT_S", 0.02)
    never = threading.Event()
    with pytest.raises(TimeoutError):
        hedged_read(lambda: never.wait(PATIENCE_S), "a file", endpoint=endpoint)
    monkeypatch.setattr(hedged_reads, "SILENT_S", PATIENCE_S)
    assert hedged_read(lambda: 7, "a file", endpoint=endpoint) == 7
    never.set()


def test_a_second_request_waits_for_a_free_slot(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hedged_reads, "SLOW_S", 0.01)
    slots = slots_of(endpoint)
    other, asked, second = slots.try_one(), [], threading.Event()
    assert other is not None

    def read() -> bool:
        asked.append(1)
        if len(asked) == 2:
            second.set()
        return second.wait(PATIENCE_S)

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(hedged_read, read, "a file", endpoint=endpoint)
        assert not second.wait(0.2)
        slots.release(other)
        assert answer.result(PATIENCE_S)
    assert len(asked) == 2


def test_ranges_are_fetched_at_once_as_far_as_slots_are_free(endpoint: str) -> None:
    peak, content = Peak(), bytes(range(100))

    class Source:
        def __enter__(self) -> Source:
            return self

        def __exit__(self, *error: object) -> None: ...

        def read_at(self, count: int, first: int) -> bytes:
            with peak.inside():
                time.sleep(0.005)
            return content[first : first + count]

    ranges = [(first, first + 7) for first in range(0, 90, 9)]
    found = hedged_read(lambda: fetch_ranges(Source, ranges), "a file", endpoint=endpoint)
    assert found == [content[first:end] for first, end in ranges]
    assert peak.most == 2
    with slots_of(endpoint).taken() as held, using(held):
        other = slots_of(endpoint).try_one()
        peak.most = 0
        assert fetch_ranges(Source, ranges) == found
        assert peak.most == 1
    assert other is not None
    slots_of(endpoint).release(other)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_stopped_process_stops_nobody_else(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(request_slots, "PATIENCE_S", 0.05)
    monkeypatch.setenv("PARQUETRY_STALL_WARNING_S", "0.01")
    with child_with(endpoint, 2):
        assert hedged_read(lambda: 7, "a file", endpoint=endpoint) == 7
    assert "one of the 2 requests that are allowed at a time" in caplog.text
    assert "asking without one" in caplog.text
    caplog.clear()


def test_a_directory_that_others_may_change_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert os.stat(request_slots._directory()).st_mode & 0o077 == 0
    request_slots._directory.cache_clear()
    monkeypatch.setattr(request_slots.os, "mkdir", lambda path, mode: None)
    monkeypatch.setattr(request_slots.os, "lstat", lambda path: os.stat(tmp_path))
    os.chmod(tmp_path, 0o777)
    try:
        assert request_slots._directory() == ""
    finally:
        request_slots._directory.cache_clear()
    alone = Slots("", "a store")
    assert sorted(slot is None for slot in (alone.try_one(), alone.try_one(), alone.try_one())) == [False, False, True]


@pytest.mark.parametrize(("given", "most"), [("7", 7), ("0", 0), ("-3", 0), ("many", 64), ("", 64)])
def test_the_number_of_slots_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, given: str, most: int) -> None:
    monkeypatch.setenv("PARQUETRY_STORE_REQUESTS", given)
    assert most_requests() == most
    if not most:
        assert {Slots("", "a store").try_one() for _ in range(100)} == {-1}


READER = """
import sys
from parquetry.common import Pipeline
print(sum(int(row["a"]) for row in Pipeline(sys.argv[1], executor="threads", workers=4).shuffle(100, seed=1)))
"""


@pytest.mark.slow
def test_processes_that_read_a_bucket_share_its_slots(tmp_path: Path) -> None:
    (tmp_path / "lake/rows").mkdir(parents=True)
    table = pa.table({"a": np.arange(600)})
    pq.write_table(table, tmp_path / "lake/rows/part.parquet", row_group_size=20)
    peak = Peak()

    def slowly(method: str, path: str) -> None:
        with peak.inside():
            time.sleep(0.01)

    with serving(tmp_path) as store:
        store.fault = slowly
        command = [sys.executable, "-W", "ignore", "-c", READER, store.url("lake/rows")]
        readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
        found = [reader.communicate(timeout=PATIENCE_S)[0] for reader in readers]
    assert [int(each) for each in found] == [sum(range(600))] * 3
    assert peak.most == 2
