"""Children that end while nobody waits for them."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from typing import Any

import psutil
import pytest
from processes import PATIENCE_S

from parquetry.common.transport.children import start_child

pytestmark = pytest.mark.versions


def test_a_child_that_nobody_waits_for_leaves_no_zombie() -> None:
    process, thread = start_child([sys.executable, "-c", "raise SystemExit(3)"])
    thread.join(PATIENCE_S)
    assert not psutil.pid_exists(process.pid)
    assert process.wait() == 3


def test_a_socket_stays_open_until_the_process_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    begins, interrupted = threading.Event(), threading.Event()
    found: list[int] = []

    def slow(command: list[str], **options: Any) -> Any:
        begins.set()
        assert interrupted.wait(PATIENCE_S)
        found.append(theirs.fileno())
        raise OSError("no process is needed here")

    def interrupt(_: Future[Any]) -> None:
        assert begins.wait(PATIENCE_S)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", slow)
    monkeypatch.setattr(Future, "result", interrupt)
    with pytest.raises(KeyboardInterrupt):
        start_child([sys.executable, "-c", "pass"], hands_over=theirs)
    interrupted.set()
    ours.settimeout(PATIENCE_S)
    with ours:
        assert ours.recv(4) == b""  # the thread has closed the other end
    assert found[0] >= 0
