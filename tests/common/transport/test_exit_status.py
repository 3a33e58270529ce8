"""The exit status of a process in words, and causes reported by the system."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from parquetry.common.base.platform import processes
from parquetry.common.transport import children
from parquetry.common.transport.children import how_it_ended


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit status 0"),
        (137, "exit status 137"),
        (-signal.SIGSEGV, "killed by SIGSEGV"),
        (-99, "killed by signal 99"),
    ],
)
def test_a_status_is_reported_in_words(code: int | None, words: str) -> None:
    assert how_it_ended(code) == words


def test_what_the_control_group_counts_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = tmp_path / "memory.events"
    monkeypatch.setattr(processes, "_own_group", lambda: str(tmp_path / "missing"))
    monkeypatch.setattr(processes, "_EVENTS", (str(tmp_path / "other"), str(events)))
    (tmp_path / "other").write_text("under_oom 0\n")  # older kernels do not count them
    monkeypatch.setattr(children, "_KILLED_BEFORE", 2)
    events.write_text("low 0\nhigh 4\nmax 9\noom 3\noom_kill 2\n")
    assert how_it_ended(-signal.SIGKILL) == "killed by SIGKILL"
    events.write_text("low 0\nhigh 4\nmax 9\noom 3\noom_kill 5\n")
    assert how_it_ended(-signal.SIGKILL).startswith(
        "killed by SIGKILL (out of memory: the kernel killed 3 processes since "
    )
    events.write_text("what no kernel writes")
    assert how_it_ended(-signal.SIGKILL) == "killed by SIGKILL"


@pytest.mark.parametrize(("free", "named"), [(100, True), (90_000, False)])
def test_shared_memory_that_is_full_is_named(free: int, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free, f_frsize=4096, f_blocks=100_000))
    assert ("/dev/shm is full" in how_it_ended(-signal.SIGBUS)) == named
