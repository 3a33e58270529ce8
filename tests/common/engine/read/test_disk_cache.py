"""`DiskCache`: entries come back unchanged, damage is detected, and the directory stays within its limit."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from processes import open_files
from spies import spied

from parquetry.common.engine.read import cache_entry, disk_cache
from parquetry.common.engine.read.disk_cache import DiskCache

KEY = "data/part-0.parquet\x00123\x00456\x007\x00image\x00label"


def table_of(rows: int, seed: int = 0) -> pa.Table:
    numbers = np.random.default_rng(seed).integers(0, 1 << 60, rows)
    return pa.table({"number": numbers})


def entries(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.table"))


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {".lock", ".claims"}


def entry_of(directory: Path, key: str) -> Path:
    name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return directory / f"{name}.table"


def total_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in entries(directory))


TABLES = {
    "fixed_size_binary": pa.table({"x": pa.array([b"abcd", None, b"efgh"], pa.binary(4))}),
    "large_binary": pa.table({"x": pa.array([b"a" * 1000, None, b""], pa.large_binary())}),
    "strings": pa.table({"x": pa.array(["å", None, ""]), "y": pa.array(["a", "b", "c"], pa.large_string())}),
    "dictionary": pa.table({"x": pa.array(["a", "b", "a", None]).dictionary_encode()}),
    "dictionaries that differ by chunk": pa.table(
        {"x": pa.chunked_array([pa.array(["a"]).dictionary_encode(), pa.array(["b", "c"]).dictionary_encode()])}
    ),
    "lists": pa.table(
        {"x": pa.array([[1, 2], None, []]), "y": pa.array([[1, 2], [3, 4], None], pa.list_(pa.int8(), 2))}
    ),
    "nested": pa.table({"x": pa.array([{"a": [{"b": 1.5}], "m": "t"}, None, {"a": None, "m": None}])}),
    "map": pa.table({"x": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32()))}),
    "times and decimals": pa.table(
        {
            "t": pa.array([1, None], pa.timestamp("ns", "UTC")),
            "d": pa.array([None, 5], pa.duration("us")),
            "n": pa.array([1, None], pa.int64()).cast(pa.decimal128(38, 18)),
        }
    ),
    "null and bool": pa.table({"x": pa.nulls(3), "y": [True, None, False]}),
    "chunks of unequal length": pa.table(
        {"x": pa.chunked_array([[1, 2], [3]]), "y": pa.chunked_array([[1.0], [2.0, 3.0]])}
    ),
    "slice": pa.table({"x": list(range(100)), "y": [str(i) for i in range(100)]}).slice(40, 7),
    "zero rows": pa.table({"x": pa.array([], pa.int64()), "y": pa.array([], pa.list_(pa.string()))}),
    "schema metadata": pa.table({"x": [1]}).replace_schema_metadata({b"k": b"v"}),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_comes_back_as_it_went_in(tmp_path: Path, name: str) -> None:
    DiskCache(str(tmp_path), None).put(KEY, TABLES[name])
    found = DiskCache(str(tmp_path), None).get(KEY)
    assert found is not None
    found.validate(full=True)
    assert found.equals(TABLES[name], check_metadata=True)


def test_a_key_that_was_not_kept_is_a_miss(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path / "not" / "there"), None)
    assert cache.get(KEY) is None
    cache.put(KEY, table_of(3))
    assert cache.get(KEY + "x") is None
    assert cache.get(KEY) == table_of(3)


def test_a_key_with_bytes_that_are_not_utf_8_is_a_key(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), None)
    cache.put(os.fsdecode(b"\xff"), table_of(3))
    assert cache.get(os.fsdecode(b"\xff")) == table_of(3)


def test_columns_point_into_the_content_that_was_read(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), None)
    cache.put(KEY, table_of(100_000))
    before = pa.total_allocated_bytes()
    found = cache.get(KEY)
    assert found is not None
    assert pa.total_allocated_bytes() - before < entry_of(tmp_path, KEY).stat().st_size + 10_000
    assert found.column(0).chunk(0).buffers()[1].address % 8 == 0


@pytest.mark.parametrize("how", ["truncated", "overwritten"])
def test_a_table_in_use_stays_as_it_was_when_its_entry_is(tmp_path: Path, how: str) -> None:
    cache = DiskCache(str(tmp_path), None)
    cache.put(KEY, table_of(100_000))
    found = cache.get(KEY)
    path = entry_of(tmp_path, KEY)
    if how == "truncated":
        os.truncate(path, 100)
    else:
        path.write_bytes(b"x" * path.stat().st_size)
    assert found == table_of(100_000)
    assert cache.get(KEY) is None
    assert not path.exists()


@pytest.mark.parametrize("at", [0.2, 0.8])
def test_an_entry_changed_in_place_with_its_old_time_is_fetched_again(
    tmp_path: Path, at: float, caplog: pytest.LogCaptureFixture
) -> None:
    cache = DiskCache(str(tmp_path), None)
    cache.put(KEY, table_of(1_000))
    assert cache.get(KEY) is not None
    path = entry_of(tmp_path, KEY)
    status = path.stat()
    with open(path, "r+b") as file:
        file.seek(int(at * status.st_size))
        file.write(b"changed")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert cache.get(KEY) is None
    assert f"cache entry {path} is damaged" in caplog.text


@pytest.mark.parametrize("how", ["truncated", "overwritten", "touched"])
def test_an_entry_that_changes_while_it_is_read_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    cache = DiskCache(str(tmp_path), None)
    cache.put(KEY, table_of(1_000))
    assert cache.get(KEY) is not None
    path = entry_of(tmp_path, KEY)
    read = cache_entry.read_entry

    def changes(descriptor: int, size_bytes: int) -> pa.Buffer:
        if how == "truncated":
            os.truncate(path, size_bytes - 100)
        elif how == "overwritten":
            with open(path, "r+b") as file:
                file.write(b"x" * 2_000)
        else:
            os.utime(path)
        return read(descriptor, size_bytes)

    monkeypatch.setattr(disk_cache, "read_entry", changes)
    assert cache.get(KEY) == (table_of(1_000) if how == "touched" else None)


def test_an_evicted_entry_stays_readable_for_its_holder(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), None)
    cache.put(KEY, table_of(10_000))
    found = cache.get(KEY)
    entry_of(tmp_path, KEY).unlink()
    assert found == table_of(10_000)
    assert cache.get(KEY) is None


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts descriptors in /proc")
def test_descriptors_do_not_grow_with_the_entries(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), None)
    cache.put("first", table_of(10))
    before = open_files(str(tmp_path))
    held = []
    for number in range(50):
        cache.put(str(number), table_of(10, number))
        held.append(cache.get(str(number)))
    assert open_files(str(tmp_path)) == before
    assert held == [table_of(10, number) for number in range(50)]


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 0x10
    path.write_bytes(raw)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a bit in the stream": lambda path: flip(path, 700),
    "a bit in the key": lambda path: flip(path, path.stat().st_size - 40),
    "a bit in the checksum": lambda path: flip(path, path.stat().st_size - 16),
    "a bit in the length": lambda path: flip(path, path.stat().st_size - 31),
    "a bit in the magic": lambda path: flip(path, path.stat().st_size - 1),
    "cut short": lambda path: os.truncate(path, path.stat().st_size - 100),
    "cut to a few bytes": lambda path: os.truncate(path, 5),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0" * 8),
    "foreign": lambda path: path.write_bytes(b"not ours at all, but long enough to hold a trailer"),
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("was_read_before", [False, True])
def test_a_damaged_entry_is_reported_and_removed_and_missing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, was_read_before: bool
) -> None:
    cache = DiskCache(str(tmp_path), None)
    cache.put(KEY, table_of(200))
    if was_read_before:
        cache.get(KEY)
    DAMAGE[kind](entry_of(tmp_path, KEY))
    assert cache.get(KEY) is None
    assert entries(tmp_path) == []
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "is damaged: expected" in caplog.text
    cache.put(KEY, table_of(200))
    assert cache.get(KEY) == table_of(200)


def test_every_flipped_bit_of_an_entry_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = DiskCache(str(tmp_path), None)
    cache.put("k", table_of(4))
    path = entry_of(tmp_path, "k")
    sound = path.read_bytes()
    for offset in range(len(sound)):
        path.write_bytes(sound)
        flip(path, offset)
        assert cache.get("k") is None, offset


def test_an_entry_of_another_key_is_a_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = DiskCache(str(tmp_path), None)
    cache.put("one", table_of(3))
    os.rename(entry_of(tmp_path, "one"), entry_of(tmp_path, "two"))
    assert cache.get("two") is None
    assert "of another" in caplog.text
    assert entries(tmp_path) == []


def test_the_checksum_is_compared_once_per_process_and_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    DiskCache(str(tmp_path), None).put(KEY, table_of(3))
    checked = spied(monkeypatch, disk_cache, "open_entry", lambda content, key, verify: verify)
    for _ in range(3):
        DiskCache(str(tmp_path), None).get(KEY)
    assert checked == [True, False, False]


def test_use_by_another_process_keeps_an_entry(tmp_path: Path) -> None:
    size = cache_entry.entry_bytes("a", table_of(100))
    cache = DiskCache(str(tmp_path), 3 * size)
    for number, key in enumerate("abc"):
        cache.put(key, table_of(100))
        os.utime(entry_of(tmp_path, key), (1000 + number, 1000 + number))
    assert DiskCache(str(tmp_path), None).get("a") is not None
    cache.put("d", table_of(100))
    assert {path.name for path in entries(tmp_path)} == {entry_of(tmp_path, key).name for key in "acd"}


def test_use_is_noted_now_and_then_so_that_entries_stay_verified(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), None)
    cache.put(KEY, table_of(3))
    changes = []
    for age_s in (0, 60, 3600):
        status = entry_of(tmp_path, KEY).stat()
        os.utime(entry_of(tmp_path, KEY), ns=(status.st_atime_ns - age_s * 10**9, status.st_mtime_ns - 10**13))
        before = entry_of(tmp_path, KEY).stat().st_ctime_ns
        assert cache.get(KEY) is not None
        changes.append(entry_of(tmp_path, KEY).stat().st_ctime_ns > before)
    assert changes == [False, False, True]


def test_an_entry_that_is_kept_again_counts_once(tmp_path: Path) -> None:
    size = cache_entry.entry_bytes("a", table_of(100))
    cache = DiskCache(str(tmp_path), 2 * size)
    cache.put("a", table_of(100))
    for _ in range(5):
        cache.put("b", table_of(100))
    assert {key for key in "ab" if cache.get(key) is not None} == {"a", "b"}


def test_an_entry_larger_than_the_limit_is_not_kept_and_evicts_nothing(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 2_000)
    cache.put("small", table_of(10))
    cache.put("large", table_of(1000))
    assert cache.get("large") is None
    assert cache.get("small") == table_of(10)


def test_readers_of_a_cache_without_room_do_not_wait_for_each_other(tmp_path: Path) -> None:
    crowded, roomy, large = DiskCache(str(tmp_path), 20_000), DiskCache(str(tmp_path), None), table_of(10_000)
    for number in range(3):
        crowded.put(f"large {number}", large)
    with roomy.claim("large 3"), crowded.claim("large 3") as has_waited:
        assert not has_waited
    crowded.put("small", table_of(10))
    assert crowded._refused == 0


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_with_the_name_of_an_entry_is_a_miss_and_makes_way(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), None)
    cache.put("a", table_of(5))
    path = entry_of(tmp_path, "a")
    path.unlink()
    os.mkfifo(path)
    assert cache.get("a") is None
    cache.put("a", table_of(5))
    assert cache.get("a") == table_of(5)


def test_only_stale_temporary_files_are_removed_and_foreign_files_stay(tmp_path: Path) -> None:
    live, stale = (f".parquetry-{number:032x}" for number in range(2))
    for name in (live, stale, "notes.txt"):
        (tmp_path / name).write_bytes(b"x" * 5000)
    for name in (stale, "notes.txt"):
        os.utime(tmp_path / name, (1000, 1000))
    cache = DiskCache(str(tmp_path), 12_000)
    cache.put("a", table_of(10))
    assert names(tmp_path) == {live, "notes.txt", entry_of(tmp_path, "a").name}


def test_a_full_disk_is_reported_once_and_leaves_no_piece(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = DiskCache(str(tmp_path), None)
    cache.put("a", table_of(10))

    def full(path: str, key: str, table: pa.Table) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk_cache, "write_entry", full)
    for _ in range(2):
        again = DiskCache(str(tmp_path), None)
        for key in "bcd":
            again.put(key, table_of(10))
        assert again.get("b") is None
        assert again.get("a") == table_of(10)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "No space left on device" in caplog.text
    assert names(tmp_path) == {entry_of(tmp_path, "a").name}


def test_a_directory_that_cannot_be_made_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = DiskCache(str(tmp_path / "file" / "cache"), 1000)
    for key in "ab":
        cache.put(key, table_of(1))
        assert cache.get(key) is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "continuing without it" in caplog.text


def test_a_relative_directory_means_the_same_after_a_change_of_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = DiskCache("cache", None)
    monkeypatch.chdir("/")
    cache.put("a", table_of(1))
    assert len(entries(tmp_path / "cache")) == 1


def test_threads_share_one_cache(tmp_path: Path) -> None:
    cache = DiskCache(str(tmp_path), 20_000)
    wrong: list[str] = []

    def work(seed: int) -> None:
        for number in np.random.default_rng(seed).integers(0, 12, 60).tolist():
            found = cache.get(str(number))
            if found is None:
                cache.put(str(number), table_of(300, number))
            elif not found.equals(table_of(300, number)):
                wrong.append(str(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert wrong == []
    assert 0 < total_bytes(tmp_path) <= 20_000


@pytest.mark.parametrize("offsets", [(0, 1 << 30, 2), (0, -5, 2), (2, 1, 0)])
def test_an_entry_with_false_offsets_and_a_right_checksum_counts_as_missing(
    tmp_path: Path, offsets: tuple[int, int, int], caplog: pytest.LogCaptureFixture
) -> None:
    cache = DiskCache(str(tmp_path), None)
    cache.put(KEY, pa.table({"x": ["a", "b"]}))
    path = entry_of(tmp_path, KEY)
    content = path.read_bytes()
    body, trailer = content[:-32], content[-32:]
    true = struct.pack("<3i", 0, 1, 2)
    assert true in body
    body = body.replace(true, struct.pack("<3i", *offsets))
    path.write_bytes(body + trailer[:16] + struct.pack("<Q", zlib.crc32(body)) + trailer[24:])
    assert cache.get(KEY) is None
    assert f"cache entry {path} is damaged" in caplog.text
