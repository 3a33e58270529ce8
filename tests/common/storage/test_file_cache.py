"""Files that appear whole or not at all, and directories that stay within a limit."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.fs as pafs
import pytest

from parquetry.common.base.process import locks
from parquetry.common.storage import file_cache
from parquetry.common.storage.file_cache import FileCache
from parquetry.common.storage.whole_files import (
    cache_root,
    new_directory,
    open_lock,
    release,
    remove_leftovers,
    whole_file,
)


def digest(number: int) -> str:
    return f"{number:032x}"


def put(files: FileCache, number: int, size: int) -> bool:
    return files.keep(digest(number), size, lambda path: Path(path).write_bytes(b"x" * size))


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {".lock"}


def numbers(directory: Path) -> set[int]:
    return {int(name.partition(".")[0], 16) for name in names(directory)}


def age(path: Path, seconds: float) -> None:
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def killed(program: str, *arguments: object) -> None:
    """Runs a program that kills itself with SIGKILL."""
    source = "import os, signal\n" + program
    done = subprocess.run([sys.executable, "-c", source, *map(str, arguments)], check=False)
    assert done.returncode == -signal.SIGKILL


_KILLED_WHILE_WRITING = """
import sys
from parquetry.common.storage.file_cache import FileCache

def write(path):
    open(path, "wb").write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

FileCache(sys.argv[1], ".x", max_bytes=10_000).keep("0" * 32, 6_000, write)
"""


def test_a_file_appears_with_its_last_byte(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with whole_file(str(path)) as hidden:
        Path(hidden).write_text("new")
        assert path.read_text() == "old"
        assert os.path.basename(hidden).startswith(".parquetry-")
    assert path.read_text() == "new"
    assert names(tmp_path) == {"file"}


def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail(filesystem: pafs.FileSystem | None) -> None:
        with whole_file(str(path), filesystem) as hidden:
            Path(hidden).write_text("half")
            raise KeyboardInterrupt

    for filesystem in (None, pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("file")))):
        with pytest.raises(KeyboardInterrupt):
            fail(filesystem)
        assert path.read_text() == "old"
        assert names(tmp_path) == {"file"}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_nothing_and_what_was_kept_stays(tmp_path: Path, number: int) -> None:
    files = FileCache(tmp_path, ".x", max_bytes=10_000)
    put(files, 1, 4_000)

    def write(path: str) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    for _ in range(3):
        with pytest.raises(OSError, match=os.strerror(number)):
            files.keep(digest(2), 4_000, write)
    assert numbers(tmp_path) == {1}
    assert put(files, 3, 6_000)  # the failed one no longer counts
    assert numbers(tmp_path) == {1, 3}


def test_a_disk_that_is_full_at_once_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(_KILLED_WHILE_WRITING, tmp_path)
    (left,) = names(tmp_path)
    age(tmp_path / left, 100)
    opened = os.open

    def full(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL:
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, flags, mode)

    monkeypatch.setattr(file_cache.os, "open", full)
    with pytest.raises(OSError, match="No space left"):
        put(FileCache(tmp_path, ".x"), 1, 10)
    assert names(tmp_path) == set()


def test_files_of_a_killed_writer_count_until_the_next_one_removes_them(tmp_path: Path) -> None:
    killed(_KILLED_WHILE_WRITING, tmp_path)
    (left,) = names(tmp_path)
    assert left.endswith("-6000")
    assert not put(FileCache(tmp_path, ".x", max_bytes=10_000), 1, 5_000)
    assert put(FileCache(tmp_path, ".x", max_bytes=10_000), 2, 4_000)
    assert names(tmp_path) == {left, f"{digest(2)}.x"}
    age(tmp_path / left, 100)
    assert put(FileCache(tmp_path, ".x", max_bytes=10_000), 3, 5_000)
    assert numbers(tmp_path) == {2, 3}


def test_an_unfinished_file_stays_while_its_writer_lives(tmp_path: Path) -> None:
    files = FileCache(tmp_path, ".x", max_bytes=10_000)

    def write(path: str) -> None:
        Path(path).write_bytes(b"x" * 10)
        age(Path(path), 48 * 3600)
        assert put(FileCache(tmp_path, ".x", max_bytes=10_000), 2, 4_000)
        remove_leftovers(pafs.LocalFileSystem(), str(tmp_path))
        assert not put(FileCache(tmp_path, ".x", max_bytes=10_000), 3, 9_000)

    assert files.keep(digest(1), 6_000, write)
    assert numbers(tmp_path) == {1, 2}


@pytest.mark.parametrize("step", ["created", "opened", "locked by the other"])
def test_a_directory_that_another_writer_takes_for_a_leftover_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    real, disturbed, others = os.open, [], []

    def open_disturbed(path: str, *arguments: Any, **options: Any) -> int:
        if disturbed or ".parquetry-" not in os.fspath(path):
            return real(path, *arguments, **options)
        disturbed.append(path)
        if step == "created":
            remove_leftovers(pafs.LocalFileSystem(), str(tmp_path))
        descriptor = real(path, *arguments, **options)
        if step == "opened":
            remove_leftovers(pafs.LocalFileSystem(), str(tmp_path))
        elif step == "locked by the other":
            others.append(real(path, os.O_RDONLY))
            fcntl.flock(others[0], fcntl.LOCK_EX)
        return descriptor

    monkeypatch.setattr(os, "open", open_disturbed)
    path, owner = new_directory(str(tmp_path))
    assert disturbed != [path]
    remove_leftovers(pafs.LocalFileSystem(), str(tmp_path))
    assert os.path.isdir(path)
    release(owner)
    remove_leftovers(pafs.LocalFileSystem(), str(tmp_path))
    assert not os.path.exists(path)
    for descriptor in others:
        os.close(descriptor)


def test_a_new_directory_that_is_always_removed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    with pytest.raises(FileNotFoundError, match="other writers remove"):
        new_directory(str(tmp_path))


def test_leftovers_where_there_are_no_locks_go_after_a_day(tmp_path: Path) -> None:
    filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("file")))
    young, old, deep = (tmp_path / f".parquetry-{digest(number)}" for number in range(3))
    young.write_text("")
    old.write_text("")
    age(old, 25 * 3600)
    deep.mkdir()
    (deep / "part").write_text("")
    age(deep, 25 * 3600)
    (tmp_path / ".parquetry-copy").mkdir()
    age(tmp_path / ".parquetry-copy", 25 * 3600)
    remove_leftovers(filesystem, str(tmp_path))
    assert names(tmp_path) == {young.name, deep.name, ".parquetry-copy"}
    age(deep / "part", 25 * 3600)
    remove_leftovers(filesystem, str(tmp_path))
    assert names(tmp_path) == {young.name, ".parquetry-copy"}


def test_the_files_not_used_for_longest_make_room(tmp_path: Path) -> None:
    by_number = FileCache(tmp_path / "number", ".x", max_files=3)
    by_bytes = FileCache(tmp_path / "bytes", ".x", max_bytes=350)
    for files, directory in ((by_number, tmp_path / "number"), (by_bytes, tmp_path / "bytes")):
        for number in range(5):
            assert put(files, number, 100)
        assert numbers(directory) == {2, 3, 4}
        os.utime(files.path(digest(2)))
        put(files, 5, 100)
        assert numbers(directory) == {2, 4, 5}


def test_recently_used_files_are_kept_for_the_spare_time(tmp_path: Path) -> None:
    files = FileCache(tmp_path, ".x", max_bytes=150, spare_s=60)
    assert all(put(files, number, 100) for number in range(3))
    age(tmp_path / f"{digest(1)}.x", 100)
    assert put(files, 3, 1000)
    assert numbers(tmp_path) == {0, 2, 3}


@pytest.mark.parametrize("spare_s", [0, 100])
def test_files_from_before_the_clock_was_set_back_make_room(tmp_path: Path, spare_s: int) -> None:
    files = FileCache(tmp_path, ".x", max_bytes=100, spare_s=spare_s)
    for number in range(4):
        assert put(files, number, 25)
        age(tmp_path / f"{digest(number)}.x", -3600)
    assert put(files, 9, 50)
    if spare_s:  # nobody knows when they were used, so they are spared once
        assert numbers(tmp_path) == {0, 1, 2, 3, 9}
        for path in tmp_path.glob("*.x"):
            age(path, spare_s + 1)
        assert put(files, 10, 50)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.x")) <= 100


def test_all_who_may_write_to_the_directory_may_use_its_lock(tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    directory.chmod(0o775)
    put(FileCache(directory, ".x"), 1, 10)
    assert (directory / ".lock").stat().st_mode & 0o777 == 0o660
    assert (directory / f"{digest(1)}.x").stat().st_mode & 0o777 == 0o600


def test_a_damaged_lock_file_only_costs_a_look(tmp_path: Path) -> None:
    files = FileCache(tmp_path, ".x", max_bytes=250)
    for number in range(5):
        (tmp_path / ".lock").write_text("rubbish")
        put(files, number, 100)
    assert numbers(tmp_path) == {3, 4}


def test_clearing_leaves_other_files_alone(tmp_path: Path) -> None:
    files = FileCache(tmp_path / "d", ".x")
    files.clear()
    put(files, 1, 10)
    (tmp_path / "d" / "notes.txt").write_text("")
    files.clear()
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["notes.txt"]
    (tmp_path / "d" / "notes.txt").unlink()
    put(files, 1, 10)
    files.clear()
    assert not (tmp_path / "d").exists()


_WRITER = """
import fcntl
import os
import random
import sys
from parquetry.common.storage.file_cache import FileCache

directory, limit, draw = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))


def taken():
    with open(os.path.join(directory, ".lock")) as lock:  # nobody makes room or takes it meanwhile
        fcntl.flock(lock, fcntl.LOCK_EX)
        sizes = {}
        for entry in os.scandir(directory):
            try:
                sizes[entry.inode()] = 0 if entry.name == ".lock" else entry.stat().st_size
            except FileNotFoundError:
                pass
        return sum(sizes.values())


files = FileCache(directory, ".x", max_bytes=limit)
for _ in range(120):
    size = draw.randrange(1, limit // 4)

    def write(path):
        with open(path, "wb") as file:
            for start in range(0, size, 1000):
                file.write(b"x" * min(1000, size - start))
                file.flush()
                assert taken() <= limit

    files.keep(f"{draw.randrange(20):032x}", size, write)
"""


@pytest.mark.slow
def test_eight_processes_together_stay_within_the_limit_at_any_time(tmp_path: Path) -> None:
    limit = 40_000
    command = [sys.executable, "-W", "error::UserWarning", "-c", _WRITER, str(tmp_path), str(limit)]
    running = [subprocess.Popen([*command, str(seed)], stderr=subprocess.PIPE, text=True) for seed in range(8)]
    assert [process.communicate()[1] for process in running] == [""] * 8
    assert all(name.endswith(".x") for name in names(tmp_path))
    assert limit / 2 < sum((tmp_path / name).stat().st_size for name in names(tmp_path)) <= limit


def test_bytes_that_were_saved_are_loaded_unless_they_are_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FileCache(tmp_path / "kept", ".bin")
    name = digest(0)
    assert files.load(name, bytes) is None
    files.save(name, b"[1]")
    os.utime(files.path(name), ns=(1, 1))
    assert files.load(name, json.loads) == [1]
    assert os.stat(files.path(name)).st_mtime_ns > 1
    assert caplog.text == ""
    files.save(name, b"{")
    assert files.load(name, json.loads) is None
    files.save(name, b"[1]")
    Path(files.path(name)).write_bytes(Path(files.path(name)).read_bytes()[:-1])
    assert files.load(name, json.loads) is None
    assert caplog.text.count("kept file is damaged") == 2
    (tmp_path / "file").write_bytes(b"")
    FileCache(tmp_path / "file", ".bin").save(name, b"")
    assert "could not be kept" in caplog.text


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE_S", 0.1)
    monkeypatch.setattr(locks, "_given_up", set())


def hold(path: Path) -> int:
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


@pytest.mark.usefixtures("impatient")
def test_a_lock_that_somebody_holds_forever_costs_one_wait_and_names_the_holder(tmp_path: Path) -> None:
    files = FileCache(tmp_path, ".x", max_bytes=1_000)
    put(files, 1, 10)
    held = hold(tmp_path / ".lock")
    with pytest.raises(TimeoutError, match=rf"{tmp_path}/.lock' is locked by process {os.getpid()} for"):
        put(files, 2, 10)
    with pytest.raises(TimeoutError, match="was not free before"):
        put(files, 2, 10)
    assert numbers(tmp_path) == {1}
    os.close(held)
    assert put(files, 2, 10)
    assert numbers(tmp_path) == {1, 2}


@pytest.mark.usefixtures("impatient")
def test_a_lock_that_is_taken_while_a_file_is_written_leaves_nothing(tmp_path: Path) -> None:
    held = []

    def write(path: str) -> None:
        Path(path).write_bytes(b"x")
        held.append(hold(tmp_path / ".lock"))

    with pytest.raises(TimeoutError, match="is locked by"):
        FileCache(tmp_path, ".x").keep(digest(1), 1, write)
    os.close(held[0])
    assert not names(tmp_path)


@pytest.mark.usefixtures("impatient")
def test_saving_beside_a_held_lock_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FileCache(tmp_path, ".x")
    put(files, 1, 10)
    held = hold(tmp_path / ".lock")
    files.save(digest(2), b"x")
    os.close(held)
    (message,) = caplog.messages
    assert f"{digest(2)}.x could not be kept: '{tmp_path}/.lock' is locked by process {os.getpid()}" in message


@pytest.mark.usefixtures("impatient")
def test_a_process_that_cannot_be_alone_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FileCache(tmp_path, ".x")
    with files.alone() as is_alone:
        assert is_alone
        with FileCache(tmp_path, ".x").alone() as other_is_alone:
            assert not other_is_alone
    with files.alone() as is_alone:
        assert is_alone
    assert [f"{tmp_path}: nothing more is kept: " in message for message in caplog.messages] == [True]


def test_files_in_the_users_cache_are_private_to_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARQUETRY_CACHE_DIR", str(tmp_path / "cache" / "mine"))
    before = os.umask(0)
    try:
        files = FileCache(cache_root() / "kinds", ".x")
        put(files, 1, 10)
        with files.alone():
            os.close(open_lock(str(cache_root() / "kinds"), file_cache.CLAIMS))
        put(FileCache(tmp_path / "shared", ".x", mode=0o666), 1, 10)
    finally:
        os.umask(before)
    modes = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    own = {"": 0o700, "/.lock": 0o600, "/.alone": 0o600, "/.claims": 0o600, f"/{digest(1)}.x": 0o600}
    shared = {"": 0o777, "/.lock": 0o666, f"/{digest(1)}.x": 0o666}
    assert modes == {
        "cache": 0o700,
        "cache/mine": 0o700,
        **{f"cache/mine/kinds{name}": mode for name, mode in own.items()},
        **{f"shared{name}": mode for name, mode in shared.items()},
    }


def test_read_access_to_a_directory_does_not_suffice_for_its_lock(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch(0o644)  # by an earlier version
    put(FileCache(tmp_path, ".x", mode=0o666), 1, 10)
    assert (tmp_path / ".lock").stat().st_mode & 0o777 == 0o600


def test_a_pipe_in_place_of_a_kept_file_is_damaged(tmp_path: Path) -> None:
    files = FileCache(tmp_path, ".x")
    os.mkfifo(files.path(digest(1)))
    assert files.load(digest(1), bytes) is None
