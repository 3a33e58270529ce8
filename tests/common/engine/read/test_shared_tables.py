"""Row groups that several processes share: each is read once, and nothing is left of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from processes import PATIENCE_S

from parquetry.common.base.memory.arrow_views import stream_bytes
from parquetry.common.engine.read import shared_tables
from parquetry.common.engine.read.shared_tables import SharedTables, can_share, new_contents

pytestmark = pytest.mark.skipif(not can_share(), reason="needs memory files and locks of open files")
FORK = multiprocessing.get_context("fork")
ENOUGH = 1 << 20


@pytest.fixture
def path() -> Iterator[str]:
    descriptor = new_contents()
    yield f"/proc/{os.getpid()}/fd/{descriptor}"
    os.close(descriptor)


def bytes_of(table: pa.Table) -> int:
    """The part of the budget that a table takes."""
    return stream_bytes(table) + shared_tables._DIGEST_BYTES


def table_of(number: int, rows: int = 100) -> pa.Table:
    return pa.table(
        {
            "id": np.full(rows, number),
            "name": [f"name {number}"] * rows,
            "list": pa.array([[number, None]] * rows, pa.list_(pa.int32())),
            "kind": pa.chunked_array([pa.array(["a", "b"]).dictionary_encode(), pa.array(["c"]).dictionary_encode()])
            .take(pa.array(np.arange(rows) % 3))
            .combine_chunks(),
        }
    )


def tables_at(path: str, reader: int = 0, readers: int = 3, max_bytes: int = ENOUGH) -> SharedTables:
    return SharedTables(path, reader=reader, readers=readers, max_bytes=max_bytes)


def shared_files() -> int:
    """Returns the number of memory files that hold tables; several descriptors may belong to one."""
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            if "memfd:parquetry-table" in os.readlink(f"/proc/self/fd/{name}"):
                inodes.add(os.stat(f"/proc/self/fd/{name}").st_ino)
    return len(inodes)


def in_child(function: Any, *args: Any) -> Any:
    """Calls a function in a forked process and returns its result."""
    ours, theirs = FORK.Pipe()
    child = FORK.Process(target=lambda: theirs.send(function(*args)))
    child.start()
    assert ours.poll(PATIENCE_S)
    result = ours.recv()
    child.join(PATIENCE_S)
    return result


def test_another_process_maps_what_one_has_read(path: str) -> None:
    ours = tables_at(path)
    ours.put("key", table_of(1))
    assert in_child(lambda: tables_at(path).get("key").equals(table_of(1)))
    assert in_child(lambda: tables_at(path).get("another key")) is None
    ours.close()


def test_a_table_without_columns_or_rows_is_shared_too(path: str) -> None:
    ours, theirs = tables_at(path), tables_at(path)
    for table in (table_of(1, 0), pa.table({}), pa.table({"x": pa.nulls(3)})):
        ours.put(str(table.schema), table)
        assert theirs.get(str(table.schema)) == table
    ours.close()
    theirs.close()


def test_nobody_holds_a_table_that_all_have_taken(path: str) -> None:
    readers = [tables_at(path, number) for number in range(3)]
    before = shared_files()
    readers[0].put("key", table_of(1))
    found = [reader.get("key") for reader in readers[1:]]
    assert found == [table_of(1)] * 2
    assert readers[0].get("key") is None
    assert readers[1].get("key") is None
    del found
    assert shared_files() == before
    for reader in readers:
        reader.close()


def test_a_reader_that_takes_a_table_twice_counts_once(path: str) -> None:
    ours, theirs = tables_at(path, 0), tables_at(path, 1)
    ours.put("key", table_of(1))
    assert all(theirs.get("key") == table_of(1) for _ in range(4))
    assert ours.get("key") == table_of(1)
    ours.close()
    theirs.close()


def test_more_readers_than_bits_share_anyway(path: str) -> None:
    readers = [tables_at(path, number, 130) for number in range(130)]
    before = shared_files()
    readers[0].put("key", table_of(1))
    assert all(reader.get("key") == table_of(1) for reader in readers[1:63])
    assert readers[63].get("key") is None
    for reader in readers:
        reader.close()
    assert shared_files() == before


def test_a_mapped_table_outlives_all_holders(path: str) -> None:
    ours, theirs = tables_at(path, 0, 2), tables_at(path, 1, 2)
    ours.put("key", table_of(7))
    found = theirs.get("key")
    ours.close()
    theirs.close()
    assert found == table_of(7)


def test_the_next_reader_gets_it_from_the_last_one(path: str) -> None:
    """The one that has read it may end first."""
    ours, theirs, last = (tables_at(path, number, 4) for number in range(3))
    ours.put("key", table_of(1))
    assert theirs.get("key") == table_of(1)
    ours.close()
    assert last.get("key") == table_of(1)
    theirs.close()
    last.close()


def test_a_table_of_a_process_that_was_killed_is_read_again(path: str) -> None:
    def put_and_die() -> None:
        tables_at(path).put("key", table_of(1))
        os.kill(os.getpid(), signal.SIGKILL)

    child = FORK.Process(target=put_and_die)
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == -signal.SIGKILL
    ours, theirs = tables_at(path), tables_at(path)
    assert ours.get("key") is None
    ours.put("key", table_of(2))
    assert theirs.get("key") == table_of(2)
    ours.close()
    theirs.close()


def test_tables_of_killed_processes_take_no_room(path: str) -> None:
    size = bytes_of(table_of(1))

    def put_and_die() -> None:
        tables_at(path, max_bytes=2 * size).put(f"key {os.getpid()}", table_of(1))
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(3):
        child = FORK.Process(target=put_and_die)
        child.start()
        child.join(PATIENCE_S)
    ours = tables_at(path, max_bytes=2 * size)
    ours.put("key", table_of(1))
    assert ours.get("key") == table_of(1)
    ours.close()


def test_all_tables_together_stay_below_the_limit(path: str) -> None:
    size = bytes_of(table_of(10))
    readers = [tables_at(path, number, 4, max_bytes=3 * size + 100) for number in range(3)]
    before, found = shared_files(), 0
    for number in range(10, 60):
        reader = readers[number % 3]
        reader.put(str(number), table_of(number))
        assert shared_files() - before <= 3
        found += readers[(number + 1) % 3].get(str(number)) == table_of(number)
    assert found > 10  # older tables make room
    for reader in readers:
        reader.close()
    assert shared_files() == before


@pytest.mark.slow
def test_the_latest_of_many_small_tables_are_shared(path: str) -> None:
    ours, theirs = tables_at(path, 0), tables_at(path, 1)
    before = shared_files()
    for number in range(500):
        ours.put(str(number), table_of(number, 1))
        assert shared_files() - before <= shared_tables._SLOTS
    assert sum(theirs.get(str(number)) == table_of(number, 1) for number in range(500)) > 50
    ours.close()
    theirs.close()


def test_a_table_larger_than_the_limit_is_not_shared(path: str) -> None:
    ours = tables_at(path, max_bytes=1000)
    ours.put("key", table_of(1, 1000))
    assert ours.get("key") is None
    ours.close()


def test_readers_wait_for_the_one_that_reads(path: str) -> None:
    reads: list[int] = []
    begin = threading.Barrier(3)

    def read(reader: SharedTables) -> pa.Table:
        begin.wait()
        found = reader.get("key")
        if found is not None:
            return found
        with reader.claim("key", 100):
            found = reader.get("key")
            if found is None:
                reads.append(1)
                found = table_of(3)
                reader.put("key", found)
            return found

    readers = [tables_at(path) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(read, readers)) == [table_of(3)] * 3
    assert len(reads) == 1
    for reader in readers:
        reader.close()


def test_without_room_nobody_waits(path: str) -> None:
    ours, theirs = tables_at(path, max_bytes=10), tables_at(path, max_bytes=10)
    for number in range(4):
        with ours.claim(str(number)):
            ours.put(str(number), table_of(number))
    with theirs.claim("key"), ours.claim("key") as has_waited:
        assert not has_waited
    ours.close()
    theirs.close()


def test_another_file_of_that_name_is_not_written_to(tmp_path: Path) -> None:
    """The process that made the table of contents may have closed it, and opened something else."""
    file = tmp_path / "checkpoint"
    file.write_bytes(b"x" * 100_000)
    with file.open("r+b") as opened:
        name = f"/proc/{os.getpid()}/fd/{opened.fileno()}"
        with pytest.raises(ValueError, match="expected a table of contents, got another file"):
            tables_at(name)
    assert file.read_bytes() == b"x" * 100_000
    with pytest.raises(FileNotFoundError):
        tables_at(name)


def test_a_holder_whose_descriptor_is_another_file_now_is_not_believed(path: str) -> None:
    ours, theirs = tables_at(path), tables_at(path)
    ours.put("key", table_of(1))
    ((at, descriptor),) = ours._held.items()
    other = os.memfd_create("other")
    os.truncate(other, int(ours._slots["size"][at]))
    os.dup2(other, descriptor)
    os.close(other)
    assert theirs.get("key") is None
    ours.close()
    theirs.close()


def test_a_full_memory_is_no_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, before = tables_at(path), shared_files()
    monkeypatch.setattr(shared_tables, "_write", Mock(side_effect=OSError(28, "No space left on device")))
    ours.put("key", table_of(1))
    monkeypatch.undo()
    assert ours.get("key") is None
    assert shared_files() == before
    ours.put("key", table_of(1))
    assert ours.get("key") == table_of(1)
    ours.close()
    assert shared_files() == before


@pytest.mark.slow
def test_processes_that_take_turns_always_find_the_right_table(path: str) -> None:
    def read(worker: int) -> list[bool]:
        tables = tables_at(path, worker, 4, max_bytes=6 * bytes_of(table_of(1)))
        right = []
        for number in range(300):
            key = str(number // 2)
            with tables.claim(key):
                found = tables.get(key)
                if found is None:
                    tables.put(key, table_of(int(key)))
                else:
                    right.append(found == table_of(int(key)))
        return right

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda worker: in_child(read, worker), range(4)))
    assert all(all(right) for right in found)
    assert sum(map(len, found)) > 40


def test_a_worker_that_was_stopped_in_the_table_of_contents_stops_nobody(
    path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_tables, "PATIENCE_S", 0.1)
    stopped, other = tables_at(path, reader=0), tables_at(path, reader=1)
    with stopped._contents():
        other.put("key", table_of(1))
        assert other.get("key") is None
    assert ["this worker reads on by itself" in message for message in caplog.messages] == [True]
    other.put("key", table_of(1))
    assert stopped.get("key") == table_of(1)
