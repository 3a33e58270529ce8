"""Locks that are waited for with patience."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parquetry.common.base.process.locks import holder_of, locked_within

pytestmark = pytest.mark.versions


def test_a_lock_that_becomes_free_is_taken() -> None:
    waits: list[float] = []

    def attempt() -> None:
        if len(waits) < 3:
            raise BlockingIOError

    assert locked_within(attempt, 60, sleep=waits.append)
    assert waits == [0.001, 0.002, 0.004]


def test_other_errors_reach_the_caller() -> None:
    def attempt() -> None:
        raise PermissionError("no locks here")

    with pytest.raises(PermissionError, match="no locks here"):
        locked_within(attempt, 60)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/locks")
def test_the_holder_is_named(tmp_path: Path) -> None:
    code = "import fcntl, sys; fcntl.flock(file := open(sys.argv[1], 'w'), fcntl.LOCK_EX); print(); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        descriptor = os.open(tmp_path / "lock", os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert holder_of(descriptor) == f"process {holder.pid}"
        holder.communicate()
    assert holder_of(descriptor) == "another process"
    os.close(descriptor)
