"""`memory_file` makes memory that other processes can map, also where the system has no memfd."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable

import pytest

from parquetry.common.base.platform import memory_file as module
from parquetry.common.base.platform.memory_file import has_memfd, memory_file


@pytest.fixture(params=[True, False], ids=["memfd", "without memfd"])
def memfd(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(module, "has_memfd", lambda: request.param)
    return bool(request.param)


@pytest.mark.usefixtures("memfd")
def test_it_has_its_size_and_its_name_in_proc_alone() -> None:
    descriptor = memory_file("test", 5000)
    try:
        assert os.fstat(descriptor).st_size == 5000
        assert not os.get_inheritable(descriptor)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        assert "parquetry-test" in path
        assert path.endswith(" (deleted)")
        with mmap.mmap(descriptor, 5000) as memory:
            assert memory[:] == bytes(5000)
            memory[4999] = 1
        assert os.pread(descriptor, 1, 4999) == b"\1"
    finally:
        os.close(descriptor)


def test_a_lack_of_room_is_an_error_and_leaves_no_descriptor_open(memfd: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, *_: int) -> None:
        closed.append(descriptor)
        raise OSError(errno.ENOSPC, "No space left on device")

    closed: list[int] = []
    monkeypatch.setattr(os, "ftruncate" if memfd else "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        memory_file("test", 5000)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(closed[0])


@pytest.mark.parametrize(("error", "has"), [(errno.ENOSYS, False), (errno.EPERM, False), (errno.EMFILE, True)])
def test_the_call_is_tried_and_not_only_looked_for(error: int, has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", _failing(error))
    look = has_memfd.__wrapped__  # nothing is remembered
    assert look() is has
    monkeypatch.delattr(os, "memfd_create")
    assert not look()


def _failing(error: int) -> Callable[..., int]:
    def refuse(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    return refuse
